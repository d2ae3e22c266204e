"""Signed keys: a receiver accepts only keys that a trusted party has signed.

    signer = KeySigner("2026-11", secret, audience="payments")
    signature = signer.sign("tx-123")                        # the header Idempotency-Key-Signature

    verifier = KeyVerifier({"2026-11": secret}, audience="payments")
    receiver = Receiver.open(url, policy=Policy(signatures=verifier))
    receiver.process(SignedKey("tx-123", signature), charge, order)

A signature is text, detached from the key:

    1.<algorithm>.<id of the signing key>.<end of validity, Unix seconds>.<signature, Base64url>

It covers the version, the algorithm, the id, the end, the audience and the key, each with its
length. The audience is not sent: a receiver knows its own. Each key of a verifier has one
algorithm, so a signature cannot choose another.

    hs3        HMAC-SHA3-256 with a shared secret of 32 bytes or more (default)
    mldsa44    ML-DSA-44 (FIPS 204), a public-key signature that is built to resist quantum computers
    mldsa65    ML-DSA-65

The check happens before a claim and needs no store. ML-DSA needs the extra ``encryption``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, Self, TypeAlias

from ._values.drivers import driver
from ._values.key_source import KeySource
from ._values.settings import Duration, expect, seconds
from ._values.signed_key import SIGNATURE_HEADER, SignatureCheck, SignedKey
from .errors import ConfigurationError, UntrustedKeyError, UsageError

__all__ = ["SIGNATURE_HEADER", "KeySigner", "KeyVerifier", "SignatureCheck", "SignedKey"]

HMAC_SHA3: Final = "hs3"
ML_DSA: Final = {"MLDSA44": "mldsa44", "MLDSA65": "mldsa65"}
"""Class names of `cryptography`, without Private or Public."""

_VERSION: Final = "1"
_DOMAIN: Final = b"twicesafe.signed-key.1\0"
_LEAST_SECRET: Final = 32
_LONGEST: Final = 8192
"""Longest accepted signature, in characters; one of ML-DSA-65 has 4,412 and its head."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
_END: Final = re.compile(r"[1-9][0-9]{0,11}", re.ASCII)

SecretOrKey: TypeAlias = Any
"""The bytes of a shared secret, or an ML-DSA key of `cryptography`."""


class KeySigner:
    """Signs keys for one audience. ``key``: a shared secret, or an ML-DSA private key of `cryptography`."""

    def __init__(
        self,
        id: str,  # noqa: A002
        key: SecretOrKey,
        *,
        audience: str,
        lifetime: Duration = 86400,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._id, self._audience = _checked_id(id), _checked_audience(audience)
        self._algorithm = _algorithm(id, key, "Private")
        self._key = key
        self._lifetime = seconds(lifetime, "lifetime")
        expect(self._lifetime > 0, "lifetime", lifetime, "use more than 0 seconds")
        self._clock = clock

    def sign(self, key: str) -> str:
        """The signature of this key. Choose a ``lifetime`` longer than the time in which you may retry."""
        end = str(int(self._clock() + self._lifetime) + 1)
        covered = _covered(self._algorithm, self._id, end, self._audience, key)
        made = (
            hmac.digest(self._key, covered, "sha3_256")
            if self._algorithm == HMAC_SHA3
            else self._key.sign(covered)
        )
        text = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
        return f"{_VERSION}.{self._algorithm}.{self._id}.{end}.{text}"

    def signed(self, key: str) -> SignedKey:
        """The key with its signature, for `process` and the others."""
        return SignedKey(key, self.sign(key))

    def __repr__(self) -> str:
        return f"<KeySigner {self._id} {self._algorithm}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a KeySigner cannot be pickled, because the pickle would contain its key: make one in each process"
        )


class KeyVerifier:
    """Accepts keys that one of these parties signed for this audience, until the signature expires.

    ``keys``: by the id of the signing key, a shared secret or an ML-DSA public key of
    `cryptography`. Several are valid at once, so signers can change their keys one by one.
    ``leeway``: tolerated difference of clocks.
    """

    def __init__(
        self,
        keys: Mapping[str, SecretOrKey],
        *,
        audience: str,
        leeway: Duration = 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        expect(keys, "keys", "{}", "give at least one key")
        self._keys = {
            _checked_id(id_): (_algorithm(id_, key, "Public"), key) for id_, key in keys.items()
        }
        self._audience = _checked_audience(audience)
        self._leeway = seconds(leeway, "leeway")
        expect(self._leeway >= 0, "leeway", leeway, "use 0 or more seconds")
        self._clock = clock

    @classmethod
    def load(cls, source: str) -> Self:
        """Load a verifier from a file (``file:/path?audience=payments``) or a variable (``env:NAME?audience=…``).

        Its text has one ``id:algorithm:key`` per line (or separated by commas), the key in Base64:
        the secret of ``hs3``, or the raw public key of ``mldsa44`` and ``mldsa65``. ``&leeway=30``
        is `leeway`. It is read once.
        """
        found = KeySource.of(source, ("audience", "leeway"), "signatures")
        expect("audience" in found.options, "signatures", found.place, "add ?audience=… to it")
        keys = {
            id_: _loaded(number, id_, key, found.place)
            for number, id_, key in found.entries("the signing keys")
        }
        audience, leeway = found.options["audience"], found.options.get("leeway", "30")
        return cls(keys, audience=audience, leeway=leeway)

    def verify(self, key: str, signature: str) -> None:
        """Raise `UntrustedKeyError` unless a trusted party signed this key. Needs no store."""
        parts = signature.split(".") if len(signature) <= _LONGEST else []
        if len(parts) != 5 or parts[0] != _VERSION or _END.fullmatch(parts[3]) is None:
            raise _untrusted("its signature is malformed, or has an unknown version")
        _, algorithm, id_, end, text = parts
        known = self._keys.get(id_)
        if known is None:
            raise _untrusted("it was signed with a key that is not trusted, or no longer trusted")
        if algorithm != known[0]:
            raise _untrusted("its signature does not use the algorithm of its signing key")
        if self._clock() > int(end) + self._leeway:
            raise _untrusted("its signature has expired; the sender must sign again")
        covered = _covered(algorithm, id_, end, self._audience, key)
        if not _holds(algorithm, known[1], covered, text):
            raise _untrusted(
                "its signature does not match: another key, another audience, or a forgery"
            )

    def __repr__(self) -> str:
        known = ", ".join(f"{id_} {algorithm}" for id_, (algorithm, _) in self._keys.items())
        return f"<KeyVerifier {known}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a KeyVerifier cannot be pickled, because the pickle would contain its keys: make one in each process"
        )


def _loaded(number: int, id_: str, text: str, place: str) -> SecretOrKey:
    """A key as text. An error never shows it."""
    algorithm, _, written = text.partition(":")
    wrong = ConfigurationError(
        f"entry {number} of the signing keys in {place} must be id:hs3:…, id:mldsa44:… or id:mldsa65:…, with the "
        "secret or the public key in Base64"
    )
    try:
        key = base64.b64decode(written, validate=True)
    except binascii.Error:
        raise wrong from None
    if algorithm == HMAC_SHA3:
        return key
    name = next((name for name, known in ML_DSA.items() if known == algorithm), None)
    if name is None:
        raise wrong
    with driver("cryptography"):
        from cryptography.hazmat.primitives.asymmetric import mldsa
    try:
        return getattr(mldsa, f"{name}PublicKey").from_public_bytes(key)
    except ValueError:
        raise wrong from None


def _covered(algorithm: str, id_: str, end: str, audience: str, key: str) -> bytes:
    """What is signed: every part with its length, so that none can run into the next."""
    framed = [_DOMAIN]
    for part in (algorithm, id_, end, audience, key):
        data = part.encode("utf-8", "surrogatepass")
        framed += len(data).to_bytes(4, "big"), data
    return b"".join(framed)


def _holds(algorithm: str, key: Any, covered: bytes, text: str) -> bool:
    try:
        given = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return False
    if base64.urlsafe_b64encode(given).rstrip(b"=").decode() != text:
        return False  # one signature, one text
    if algorithm == HMAC_SHA3:
        return hmac.compare_digest(hmac.digest(key, covered, "sha3_256"), given)
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(given, covered)
    except InvalidSignature:
        return False
    return True


def _algorithm(id_: str, key: object, half: str) -> str:
    """The algorithm of a key, by its type: a signature cannot choose it."""
    if isinstance(key, bytes):
        if len(key) < _LEAST_SECRET:
            raise ConfigurationError(
                f"the signing secret {id_!r} must have {_LEAST_SECRET} random bytes or more: "
                "secrets.token_bytes(32)"
            )
        return HMAC_SHA3
    with driver("cryptography"):
        from cryptography.hazmat.primitives.asymmetric import mldsa
    for name, algorithm in ML_DSA.items():
        if isinstance(key, getattr(mldsa, f"{name}{half}Key")):
            return algorithm
    raise ConfigurationError(
        f"the signing key {id_!r} must be bytes (HMAC-SHA3-256), or an MLDSA44{half}Key or "
        f"MLDSA65{half}Key of cryptography, not {type(key).__name__}"
    )


def _checked_id(id_: object) -> str:
    fine = isinstance(id_, str) and _ID.fullmatch(id_) is not None
    expect(fine, "key id", id_ if isinstance(id_, str) else "…", "use 1 to 32 of A-Z a-z 0-9 _ -")
    return str(id_)


def _checked_audience(audience: object) -> str:
    fine = isinstance(audience, str) and 1 <= len(audience) <= 255
    expect(fine, "audience", audience, "use 1 to 255 characters: the service that the keys are for")
    return str(audience)


def _untrusted(why: str) -> UntrustedKeyError:
    return UntrustedKeyError(f"the key is not trusted: {why}; nothing was run")
