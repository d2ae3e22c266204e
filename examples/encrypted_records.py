"""Results that cannot be read in the store, and a change of the key while the service runs."""

import os
from pathlib import Path

from twicesafe import CorruptRecordError, Policy, Receiver
from twicesafe.encryption import KeyRing

STORE = "sqlite:///cards.db"


def tokenise() -> dict[str, str]:
    return {"card": "4111 1111 1111 1111", "token": "tok_77"}


def readable() -> bool:
    return any(b"4111" in path.read_bytes() for path in Path().glob("cards.db*"))


october, november = os.urandom(32), os.urandom(32)
with Receiver.open(STORE, policy=Policy(encryption=KeyRing({"2026-10": october}))) as receiver:
    receiver.process("tx-1", tokenise)
    print("replayed:", receiver.process("tx-1", tokenise).value["token"])
    print("card number in the files of the store:", readable())

    # The new key encrypts, the old one is still readable; then every answer is rewritten.
    both = KeyRing({"2026-11": november, "2026-10": october})
    rotated = receiver.options(policy=Policy(encryption=both))
    print("re-encrypted:", rotated.reencrypt().rewritten)

    # From now on the old key is not needed any more; and without a key there is no answer, and no second run.
    now = receiver.options(policy=Policy(encryption=KeyRing({"2026-11": november})))
    print("with the new key alone:", now.process("tx-1", tokenise).value["token"])
    try:
        receiver.options(policy=Policy()).process("tx-1", tokenise)
    except CorruptRecordError as error:
        print("without a key ring:", error)
