"""A receiver that accepts only keys which were signed for it: by a shared secret, and by ML-DSA."""

import secrets

from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey

from twicesafe import Policy, Receiver
from twicesafe.errors import UntrustedKeyError
from twicesafe.signing import KeySigner, KeyVerifier, SignedKey

secret, private = secrets.token_bytes(32), MLDSA44PrivateKey.generate()
shop = KeySigner("shop-1", secret, audience="payments")
partner = KeySigner("partner-1", private, audience="payments")
elsewhere = KeySigner("shop-1", secret, audience="refunds")

verifier = KeyVerifier({"shop-1": secret, "partner-1": private.public_key()}, audience="payments")
with Receiver.open("sqlite:///payments.db", policy=Policy(signatures=verifier)) as receiver:
    print("shop:", receiver.process(shop.signed("tx-1"), lambda: "paid").value)
    print("partner:", receiver.process(partner.signed("tx-2"), lambda: "paid").value)
    print("again:", receiver.process(shop.signed("tx-1"), lambda: "paid twice?").value)

    attacks = {
        "no signature": "tx-3",
        "signature of another key": SignedKey("tx-3", shop.sign("tx-1")),
        "signed for another service": elsewhere.signed("tx-3"),
        "truncated": SignedKey("tx-3", partner.sign("tx-3")[:-8]),
    }
    for name, key in attacks.items():
        try:
            receiver.process(key, lambda: "stolen")
        except UntrustedKeyError as error:
            print(f"{name}: {error}")
