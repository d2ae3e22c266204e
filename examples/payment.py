"""One payment, delivered three times: the handler runs once, and the repeats get its answer."""

from twicesafe import Receiver

charged: list[int] = []


def charge(order: dict) -> dict:
    charged.append(order["cents"])  # the effect that must not happen twice
    return {"receipt": f"R-{len(charged)}", "cents": order["cents"]}


with Receiver.open("sqlite:///payments.db") as receiver:
    order = {"cents": 1250, "customer": "c-7"}
    for delivery in (1, 2, 3):
        outcome = receiver.process("tx-123", charge, order)
        how = "replayed" if outcome.replayed else "ran"
        print(f"delivery {delivery}: {how:8} → {outcome.value}")

print(f"charged {len(charged)} time(s)")
assert charged == [1250]
