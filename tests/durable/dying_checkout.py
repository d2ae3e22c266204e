"""A checkout in its own process that dies at a given moment: ``python dying_checkout.py URL LOG MOMENT``

Every effect and every moment is a line in LOG. MOMENT is the number of the moment at which it dies; there
is one before and one after every effect.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from twicesafe import Backoff, Policy, Receiver, Steps

POLICY = Policy(lease=1, wait=60, max_attempts=100, backoff=Backoff(first=0.001, most=0.001))
EFFECTS = ("reserve", "charge", "ship", "mail")


def main(url: str, log: str, dies_at: int) -> str:
    path, moments = Path(log), iter(range(1000))

    def moment() -> None:
        if next(moments) == dies_at:
            os._exit(9)

    def effect(name: str) -> str:
        moment()
        with path.open("a") as file:
            file.write(name + "\n")
        moment()
        return name

    with Receiver.open(url, policy=POLICY) as receiver:

        @receiver.durable(key="order", scope=("checkout",))
        def checkout(steps: Steps, order: str) -> str:
            moment()
            token = steps.uuid()
            done = [steps.run(name, effect, name) for name in EFFECTS]
            moment()
            return f"{token} {' '.join(done)}"

        return checkout("order-1")


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
