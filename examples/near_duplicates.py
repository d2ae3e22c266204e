"""Two keys, one wish: an agent asks again in other words, and the user is asked. Nothing is refused."""

from twicesafe import Receiver
from twicesafe.similar import NearDuplicate, NearDuplicates


def ask(pair: NearDuplicate) -> None:
    print(f"  {pair.key.short} is like {pair.earlier.short} ({pair.score:.2f}): both on purpose?")


near = NearDuplicates(window="10m", ask_user=ask)
receiver = Receiver.open("memory://")


@receiver.idempotent(key="call_id")
@near.watch(request=lambda call_id, text: text)
def instruct(call_id: str, text: str) -> str:
    print("runs:", text)
    return "done"


instruct("call-1", "Pay €1,250.00 to Acme for invoice INV-77, due 30 November 2026.")
instruct("call-1", "Pay €1,250.00 to Acme for invoice INV-77, due 30 November 2026.")  # a replay
instruct("call-2", "Please pay Acme 1250 EUR for invoice INV-77, due 2026-11-30.")
instruct("call-3", "Pay €1,250.00 to Acme for invoice INV-78, due 30 November 2026.")
instruct("call-4", "Do not pay €1,250.00 to Acme for invoice INV-77, due 30 November 2026.")
