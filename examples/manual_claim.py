"""A manual claim, for work that does not fit into one function."""

from twicesafe import Receiver

steps: list[str] = []


def deliver(receiver: Receiver, key: str) -> str:
    with receiver.claim(key) as claim:
        if claim.is_new:
            steps.append("reserve")
            steps.append("charge")
            claim.complete(f"{key} is paid")
        print(f"is_new={claim.is_new!s:5} attempt={claim.attempt} result={claim.result!r}")
        return claim.result


with Receiver.open("memory://") as receiver:
    deliver(receiver, "order-7")
    deliver(receiver, "order-7")

    # Leaving without `complete` gives the claim back: the next delivery does the work.
    with receiver.claim("order-8") as claim:
        print(f"order-8: is_new={claim.is_new}, but we have no time now")
    print("order-8 is", receiver.record("order-8").state)
    deliver(receiver, "order-8")

assert steps == ["reserve", "charge"] * 2
