"""Signatures of keys: both kinds of algorithm, and every way to present a key that was not signed for us."""

from __future__ import annotations

import base64
import hmac
import pickle
import secrets
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import mldsa

from twicesafe import ConfigurationError, Key, UsageError
from twicesafe.errors import UntrustedKeyError
from twicesafe.signing import KeySigner, KeyVerifier, SignedKey

SECRET = secrets.token_bytes(32)
PRIVATE = {
    "hs3": SECRET,
    "mldsa44": mldsa.MLDSA44PrivateKey.generate(),
    "mldsa65": mldsa.MLDSA65PrivateKey.generate(),
}
PUBLIC: dict[str, Any] = {
    name: key if isinstance(key, bytes) else key.public_key() for name, key in PRIVATE.items()
}
SIZES = {"hs3": 32, "mldsa44": 2420, "mldsa65": 3309}
each = pytest.mark.parametrize("algorithm", list(PRIVATE))


class Pair:
    def __init__(self, algorithm: str) -> None:
        self.now = 1_800_000_000.0
        self.signer = self.signer_of(algorithm)
        self.verifier = self.verifier_of(algorithm)

    def signer_of(self, algorithm: str, **settings: Any) -> KeySigner:
        given = {"audience": "payments", "lifetime": 60, **settings}
        return KeySigner("shop-1", PRIVATE[algorithm], clock=lambda: self.now, **given)

    def verifier_of(self, algorithm: str, **settings: Any) -> KeyVerifier:
        given = {"audience": "payments", "leeway": 5, **settings}
        return KeyVerifier({"shop-1": PUBLIC[algorithm]}, clock=lambda: self.now, **given)

    def refuses(self, key: str, signature: str, why: str) -> None:
        with pytest.raises(UntrustedKeyError, match=why):
            self.verifier.verify(key, signature)


@each
@pytest.mark.parametrize("key", ["tx-123", "", "a.b", "ü", "x" * 255, "\udc80"], ids=range(6))
def test_a_signed_key_is_accepted(algorithm: str, key: str):
    pair = Pair(algorithm)
    signature = pair.signer.sign(key)
    pair.verifier.verify(key, signature)
    text = signature.rpartition(".")[2]
    assert len(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))) == SIZES[algorithm]
    assert signature.startswith(f"1.{algorithm}.shop-1.1800000061.")


def test_the_hmac_form_can_be_made_without_us():
    parts = (b"hs3", b"shop-1", b"1800000061", b"payments", b"tx-123")
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    made = hmac.new(SECRET, b"twicesafe.signed-key.1\0" + framed, "sha3_256").digest()
    text = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
    assert Pair("hs3").signer.sign("tx-123") == f"1.hs3.shop-1.1800000061.{text}"


@each
@pytest.mark.attack("D3")
def test_another_key_is_refused(algorithm: str):
    pair = Pair(algorithm)
    for key in ("tx-124", "tx-12", "tx-1234", "TX-123", ""):
        pair.refuses(key, pair.signer.sign("tx-123"), "does not match")


@each
@pytest.mark.attack("D3")
def test_a_signature_for_another_audience_is_refused(algorithm: str):
    pair = Pair(algorithm)
    elsewhere = pair.signer_of(algorithm, audience="refunds").sign("tx-123")
    pair.refuses("tx-123", elsewhere, "another audience")


@pytest.mark.attack("D3")
def test_audience_and_key_cannot_run_together():
    pair = Pair("hs3")
    pair.refuses("nt-1", pair.signer_of("hs3", audience="paymentsnt").sign("-1"), "does not match")


@each
@pytest.mark.attack("D3")
def test_an_expired_signature_is_refused(algorithm: str):
    pair = Pair(algorithm)
    signature = pair.signer.sign("tx-123")
    pair.now += 66
    pair.verifier.verify("tx-123", signature)
    pair.now += 1
    pair.refuses("tx-123", signature, "expired")
    later = signature.replace("1800000061", "1900000000")
    pair.refuses("tx-123", later, "does not match")


@each
@pytest.mark.attack("D3")
def test_a_signature_by_another_key_is_refused(algorithm: str):
    pair = Pair(algorithm)
    other: Any = secrets.token_bytes(32)
    if algorithm != "hs3":
        other = getattr(mldsa, f"MLDSA{algorithm[-2:]}PrivateKey").generate()
    forged = KeySigner("shop-1", other, audience="payments", clock=lambda: pair.now).sign("tx-123")
    pair.refuses("tx-123", forged, "does not match")
    stranger = KeySigner("shop-2", other, audience="payments", clock=lambda: pair.now)
    pair.refuses("tx-123", stranger.sign("tx-123"), "not trusted")


@pytest.mark.attack("D3")
def test_a_public_key_is_no_shared_secret():
    """The classic downgrade: sign by HMAC with the bytes of the public key, which everyone knows."""
    pair = Pair("mldsa44")
    known = PUBLIC["mldsa44"].public_bytes_raw()
    forged = KeySigner("shop-1", known, audience="payments", clock=lambda: pair.now).sign("tx-123")
    pair.refuses("tx-123", forged, "does not use the algorithm")
    pair.refuses("tx-123", forged.replace(".hs3.", ".mldsa44."), "does not match")


@each
@pytest.mark.attack("D3")
def test_no_other_algorithm_can_be_named(algorithm: str):
    pair = Pair(algorithm)
    signature = pair.signer.sign("tx-123")
    for name in ("none", "", "hs2", "HS3", *(other for other in PRIVATE if other != algorithm)):
        pair.refuses(
            "tx-123", signature.replace(f".{algorithm}.", f".{name}."), "does not use the algorithm"
        )


@each
@pytest.mark.attack("D3", "D24")
def test_truncated_and_changed_signatures_are_refused(algorithm: str):
    pair = Pair(algorithm)
    signature = pair.signer.sign("tx-123")
    head = len(signature) - len(signature.rpartition(".")[2])
    cuts = {*range(head + 1), head + 1, len(signature) - 2, len(signature) - 1}
    for forged in (
        *(signature[:end] for end in sorted(cuts)),
        signature + "A", signature + "=", signature + ".", "0" + signature, " " + signature,
        signature[:-1] + ("A" if signature[-1] != "A" else "B"),
        signature[:head] + "!" + signature[head + 1 :],
        signature[:head] + "é" + signature[head + 1 :],
        "2" + signature[1:], "....", "1.hs3.shop-1.-1.x", "1.hs3.shop-1.99999999999999.x", "\0", "1" * 10_000,
    ):  # fmt: skip
        with pytest.raises(UntrustedKeyError):
            pair.verifier.verify("tx-123", forged)


@pytest.mark.attack("D24")
def test_a_signature_has_one_text():
    """The unused bits of the last character must be zero: no second text for the same signature."""
    pair = Pair("hs3")
    signature = pair.signer.sign("tx-123")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(signature[-1])
    pair.refuses("tx-123", signature[:-1] + alphabet[last ^ 1], "does not match")


def test_signers_change_their_keys_one_by_one():
    now, old, new = 1_800_000_000.0, secrets.token_bytes(32), PRIVATE["mldsa44"]
    signers = [
        KeySigner(id_, key, audience="payments", clock=lambda: now)
        for id_, key in (("old", old), ("new", new))
    ]
    both = KeyVerifier(
        {"new": new.public_key(), "old": old}, audience="payments", clock=lambda: now
    )
    for signer in signers:
        both.verify("tx-1", signer.sign("tx-1"))
    alone = KeyVerifier({"new": new.public_key()}, audience="payments", clock=lambda: now)
    with pytest.raises(UntrustedKeyError, match=r"no longer trusted"):
        alone.verify("tx-1", signers[0].sign("tx-1"))


@pytest.mark.attack("D17", "D20")
def test_secrets_are_shown_nowhere():
    pair = Pair("hs3")
    assert repr(pair.signer) == "<KeySigner shop-1 hs3>"
    assert repr(pair.verifier) == "<KeyVerifier shop-1 hs3>"
    signed = pair.signer.signed("canary-key")
    assert "canary" not in repr(signed)
    for secret in (pair.signer, pair.verifier):
        with pytest.raises(UsageError, match="in each process"):
            pickle.dumps(secret)
    again = pickle.loads(pickle.dumps(signed))
    assert (again, again.signature) == ("canary-key", signed.signature)


def test_a_signed_key_is_the_same_key():
    assert Key(SignedKey("tx-1", "s")) == Key("tx-1")
    assert type(Key(SignedKey("tx-1", "s")).value) is str


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: KeySigner("a", b"short", audience="x"),
        lambda: KeySigner("a", "text" * 10, audience="x"),
        lambda: KeySigner("a", PUBLIC["mldsa44"], audience="x"),
        lambda: KeySigner("a", mldsa.MLDSA87PrivateKey.generate(), audience="x"),
        lambda: KeyVerifier({"a": PRIVATE["mldsa44"]}, audience="x"),
        lambda: KeyVerifier({}, audience="x"),
        lambda: KeyVerifier({"a.b": SECRET}, audience="x"),
        lambda: KeyVerifier({"a": SECRET}, audience=""),
        lambda: KeyVerifier({"a": SECRET}, audience="x", leeway=-1),
        lambda: KeySigner("a", SECRET, audience="x", lifetime=0),
    ],
)
def test_wrong_settings_are_refused(wrong: Any):
    with pytest.raises(ConfigurationError) as caught:
        wrong()
    assert SECRET.hex() not in str(caught.value)
