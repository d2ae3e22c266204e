"""A decorated function: callers call it like any function, and repeats get the first value."""

from dataclasses import dataclass
from decimal import Decimal

from twicesafe import FingerprintMismatchError, Receiver

receiver = Receiver.open("memory://")


@dataclass(frozen=True)
class Receipt:
    number: int
    total: Decimal


issued: list[Receipt] = []


@receiver.idempotent(key="order_id", fingerprint=True)
def invoice(order_id: str, total: Decimal) -> Receipt:
    """Writes one invoice."""
    receipt = Receipt(len(issued) + 1, total)
    issued.append(receipt)
    return receipt


first = invoice("o-1", Decimal("12.50"))
again = invoice("o-1", total=Decimal("12.50"))
print("first call:", first)
print("repeat:    ", again, "| equal:", first == again, "| issued:", len(issued))
assert first == again
assert issued == [first]

# The same key with another amount is another request. It is refused, not answered.
try:
    invoice("o-1", Decimal("99.00"))
    raise SystemExit("it must be refused")
except FingerprintMismatchError as error:
    print("other total:", error, "| fields:", error.fields)

receiver.close()
