"""Callers at work while a clock jumps: their own, when run as a script, or the server's.

python -m lab.field.clock_load URL
→ the time; works until a line comes in; → what it met, as JSON
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from twicesafe import LeaseLostError, Policy, Receiver, StillInProgressError, current_claim

__all__ = ["Work"]

CALLERS: Final = 8


class Work:
    """Callers that deliver every key three times, on handlers that take a moment."""

    def __init__(self, url: str, policy: Policy, seed: int) -> None:
        self.url, self.policy = url, policy
        self.over = threading.Event()
        self.told: dict[str, set[str]] = {}
        self.counts = {"taken over early or late": 0, "told that the claim was lost": 0}
        self._numbers = itertools.count()
        self.unexpected: list[str] = []
        self._lock = threading.Lock()
        self._seed = seed

    def handle(self, key: str) -> str:
        claim = current_claim()
        assert claim is not None
        with self._lock:
            self.counts["taken over early or late"] += claim.attempt > 1
        time.sleep(0.01 + int.from_bytes(os.urandom(1)) / 10_000)
        return f"{key}/{claim.fence}"

    def _call(self) -> None:
        # A receiver each: as one process, they would meet before they ever reached the store.
        with Receiver.open(self.url, policy=self.policy) as receiver:
            self._deliver(receiver)

    def _deliver(self, receiver: Receiver) -> None:
        while not self.over.is_set():
            key = f"clock-{self._seed}-{next(self._numbers) // 3}"  # three callers meet on each key
            try:
                value = receiver.process(key, self.handle, key).value
            except (LeaseLostError, StillInProgressError):
                with self._lock:
                    self.counts["told that the claim was lost"] += 1
                continue
            except Exception as error:
                self.unexpected.append(f"{type(error).__name__}: {error}")
                continue
            with self._lock:
                self.told.setdefault(key, set()).add(value)

    def run(self, meanwhile: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._call) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            meanwhile()
        finally:
            self.over.set()
            for thread in threads:
                thread.join(60)


def main(url: str) -> None:
    Receiver.open(url).close()  # the schema is there before many open it
    work = Work(url, Policy(lease=2, wait=10), 0)
    clocks = [time.time()]
    print(clocks[0], flush=True)

    def meanwhile() -> None:
        enough = threading.Event()

        def watch() -> None:
            while not enough.wait(0.05):
                clocks.append(time.time())

        thread = threading.Thread(target=watch)
        thread.start()
        sys.stdin.readline()
        enough.set()
        thread.join()

    work.run(meanwhile)
    found: dict[str, Any] = {
        "furthest": max(abs(each - clocks[0]) for each in clocks),
        "errors": work.unexpected[:3],
        "results": max((len(told) for told in work.told.values()), default=0),
        "keys": len(work.told),
        **work.counts,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
