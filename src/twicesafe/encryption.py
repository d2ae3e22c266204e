"""Encryption at rest of results, remembered failures, responses and outbox bodies.

    ring = KeyRing.load("file:/run/secrets/twicesafe-keys")      # or "env:NAME", or from_callable (KMS)
    receiver = Receiver.open(url, policy=Policy(encryption=ring))
    outbox = Outbox.open(url, encryption=ring)                   # and the relay: OutboxRelay.open(…, encryption=ring)

A ring has one or more keys of 32 bytes, each with an id. The first one encrypts, all of them decrypt.

    0xC1 "ts" 1 | length of the key id | key id | salt (16) | nonce (12) | AES-256-GCM ciphertext and tag

Each process derives its own data keys from the ring's key (HKDF-Expand with HMAC-SHA-256, by a
random salt) and takes a new one after 2**20 payloads. So the random nonces of a data key stay far
below their limit (2**32), and a ring's key has no such limit. The head, the salt and the context
are associated data. A payload that was changed, truncated, or copied to another record, state or
message does not decrypt. Then the caller gets an error, and the handler does not run.

A `KeyRing` needs the extra ``encryption``. `HiddenKeys`, which hide the text of keys and scopes, do not.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NoReturn, Self

from ._values.cipher import MARK, Cipher, is_encrypted
from ._values.drivers import driver
from ._values.hidden_keys import HiddenKeys
from ._values.key_source import KeySource
from ._values.settings import expect
from .errors import ConfigurationError, CorruptRecordError, ResultUnavailableError, UsageError

__all__ = ["Cipher", "HiddenKeys", "KeyRing"]

_KEY_BYTES: Final = 32
_SALT: Final = 16
_NONCE: Final = 12
_TAG: Final = 16
_FRONT: Final = len(MARK) + 1 + _SALT
"""Bytes in front of the nonce, without those of the key id."""
_INFO: Final = b"twicesafe.data-key.1\0"
_PER_DATA_KEY: Final = 1 << 20
"""Payloads that one data key encrypts, about: threads may count at the same time."""
_KNOWN_DATA_KEYS: Final = 1024
"""Data keys that are remembered for decryption."""
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,32}", re.ASCII)


class KeyRing:
    """Encryption keys by id. The first key encrypts, all of them decrypt. Thread-safe.

    ``plaintext="read"``: also accept records that were written before encryption was turned on. Use
    it only until they have expired or are re-encrypted: it lets anyone who can write to the store
    plant an answer.
    """

    __slots__ = (
        "_aead",
        "_data_keys",
        "_head",
        "_invalid",
        "_keys",
        "_left",
        "_reads_plaintext",
        "_sealing",
        "ids",
    )

    def __init__(
        self, keys: Mapping[str, bytes], *, plaintext: Literal["refuse", "read"] = "refuse"
    ) -> None:
        # The value is not shown: it may be a key.
        remedy = "use a dictionary of ids and keys, or KeyRing.load(…)"
        expect(isinstance(keys, Mapping), "keys", type(keys).__qualname__, remedy)
        with driver("cryptography"):
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        self._aead: Any = AESGCM
        self._invalid: type[Exception] = InvalidTag
        self._keys = {_checked_id(id_): _checked_key(id_, key) for id_, key in keys.items()}
        expect(self._keys, "keys", "{}", "give the ring at least one key")
        if len(set(self._keys.values())) < len(self._keys):
            raise ConfigurationError("two ids of the key ring have the same key: make a new one")
        known = plaintext in ("refuse", "read")
        expect(known, "plaintext", plaintext, "use refuse or read")
        self._reads_plaintext = plaintext == "read"
        self.ids: tuple[str, ...] = tuple(self._keys)
        """The ids, the one that encrypts first."""
        first = self.ids[0]
        self._head = MARK + bytes((len(first),)) + first.encode()
        self._data_keys: dict[bytes, Any] = {}
        self._left = 0
        self._sealing: tuple[bytes, Any] = b"", None
        """What `encrypt` writes in front, and its data key."""

    # -- where keys come from -----------------------------------------------------------------

    @classmethod
    def load(cls, source: str) -> Self:
        """Load the ring from a variable (``env:NAME``) or a file (``file:/path``). It is read once.

        Its text has one ``id:key`` per line (or separated by commas), the key in Base64; the first one
        encrypts. ``file:/path?plaintext=read`` is `plaintext`.
        """
        found = KeySource.of(source, ("plaintext",), "encryption")
        plaintext: Any = found.options.get("plaintext", "refuse")
        return cls(_parsed(found), plaintext=plaintext)

    @classmethod
    def from_callable(
        cls,
        load: Callable[[str], bytes],
        ids: Iterable[str],
        *,
        plaintext: Literal["refuse", "read"] = "refuse",
    ) -> Self:
        """Get the keys from a key service: ``load(id)`` is called now, once for each id, and never later."""
        return cls({id_: load(id_) for id_ in ids}, plaintext=plaintext)

    @staticmethod
    def new_key(id: str) -> str:  # noqa: A002
        """Make a random key, as a line for `load`. Keep it secret."""
        return f"{_checked_id(id)}:{base64.b64encode(os.urandom(_KEY_BYTES)).decode()}"

    # -- what it does -------------------------------------------------------------------------

    def encrypt(self, payload: bytes, context: bytes) -> bytes:
        """The payload under the first key, bound to its context."""
        if self._left <= 0:
            front = self._head + os.urandom(_SALT)
            self._sealing = front, self._derived(self.ids[0], front)
            self._left = _PER_DATA_KEY
        self._left -= 1
        front, data_key = self._sealing
        nonce = os.urandom(_NONCE)
        return front + nonce + data_key.encrypt(nonce, payload, front + context)  # type: ignore[no-any-return]

    def decrypt(self, payload: bytes, context: bytes) -> bytes:
        """The payload, if it was encrypted by a key of this ring for this context."""
        end = _FRONT + payload[4] if len(payload) > 4 else 0
        front = payload[:end]
        data_key = self._data_keys.get(front) or self._data_key_of(payload, front)
        if data_key is None:
            return payload
        nonce_end = end + _NONCE
        try:
            return data_key.decrypt(payload[end:nonce_end], payload[nonce_end:], front + context)  # type: ignore[no-any-return]
        except (self._invalid, ValueError) as error:
            raise _not_what_was_written() from error

    def _data_key_of(self, payload: bytes, front: bytes) -> Any:
        """The data key of a payload that begins with this, from now on remembered; None: it is plaintext."""
        if not is_encrypted(payload):
            if self._reads_plaintext:
                return None
            raise CorruptRecordError(
                "the stored payload is not encrypted, and this key ring requires it: it was written before "
                "encryption was turned on (then use plaintext='read' for a while), or planted; nothing runs"
            )
        id_ = front[len(MARK) + 1 : -_SALT].decode("ascii", "replace")
        if _ID.fullmatch(id_) is None or len(payload) < len(front) + _NONCE + _TAG:
            raise _not_what_was_written()
        if id_ not in self._keys:
            raise ResultUnavailableError(
                f"the stored payload is encrypted with the key {id_!r}, which is not in the key ring "
                f"({', '.join(self.ids)}); the work is not run again; add that key to the ring"
            )
        if len(self._data_keys) >= _KNOWN_DATA_KEYS:
            self._data_keys.clear()
        derived = self._data_keys[front] = self._derived(id_, front)
        return derived

    def reencrypt(self, payload: bytes, context: bytes) -> bytes | None:
        """The payload under the first key; None if it already is."""
        if payload.startswith(self._head):
            return None
        return self.encrypt(self.decrypt(payload, context), context)

    def _derived(self, id_: str, front: bytes) -> Any:
        """The data key of this key and salt: HKDF-Expand (RFC 5869) to one block. The ring's keys are random,
        so there is nothing to extract."""
        key, salt = self._keys[id_], front[-_SALT:]
        return self._aead(hmac.digest(key, _INFO + salt + b"\x01", "sha256"))

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(self.ids)}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a KeyRing cannot be pickled, because the pickle would contain its keys: load it in each process"
        )


def _not_what_was_written() -> CorruptRecordError:
    return CorruptRecordError(
        "the stored payload does not decrypt: it was changed, truncated, copied from another record, "
        "or its key id names another key in this ring than the one that encrypted it; nothing runs"
    )


def _checked_id(id_: object) -> str:
    fine = isinstance(id_, str) and _ID.fullmatch(id_) is not None
    expect(fine, "key id", id_ if isinstance(id_, str) else "…", "use 1 to 32 of A-Z a-z 0-9 . _ -")
    return str(id_)


def _checked_key(id_: str, key: object) -> bytes:
    if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
        raise ConfigurationError(
            f"the encryption key {id_!r} must be {_KEY_BYTES} random bytes: make one with KeyRing.new_key(…)"
        )
    return key


def _parsed(source: KeySource) -> dict[str, bytes]:
    """The keys of this source. An error never shows them."""
    keys: dict[str, bytes] = {}
    for number, id_, key in source.entries("the key ring"):
        if _ID.fullmatch(id_) is None:
            raise ConfigurationError(
                f"entry {number} of the key ring in {source.place} must be id:key, with a unique id"
            )
        try:
            keys[id_] = _checked_key(id_, base64.b64decode(key, validate=True))
        except binascii.Error:
            raise ConfigurationError(
                f"the key {id_!r} of the key ring in {source.place} is not Base64"
            ) from None
    return keys
