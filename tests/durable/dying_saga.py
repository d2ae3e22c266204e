"""A saga in its own process that is killed at a given moment: ``python dying_saga.py URL LOG MOMENT``

There is a moment before and after every effect, every undo and every recorded step.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from twicesafe import Backoff, Policy, Receiver, Steps

POLICY = Policy(
    lease=0.3,
    wait=30,
    max_attempts=2,
    backoff=Backoff(first=0.001, most=0.001),
    remember=(ValueError,),
)


def main(url: str, log: str, dies_at: int) -> None:
    path, moments = Path(log), iter(range(1, 1000))

    def moment() -> None:
        if next(moments) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def told(name: str) -> str:
        moment()
        with path.open("a") as file:
            file.write(name + "\n")
        moment()
        return name

    def undo(name: str) -> None:
        told(f"undo:{name}")

    with Receiver.open(url, policy=POLICY) as receiver:
        perform = receiver.store.perform

        def watched(request: Any) -> Any:
            answer = perform(request)
            if request.op == "record_step":
                moment()
            return answer

        receiver.store.perform = watched  # type: ignore[method-assign]

        @receiver.durable(key="order", scope=("saga",))
        def saga(steps: Steps, order: str) -> None:
            for name in "abc":
                steps.run(name, told, name, undo=undo)
            raise ValueError("no")

        saga("order-1")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
