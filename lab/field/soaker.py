"""A worker that does a bit of everything for a while and watches its own size. Run as a script.

soaker.py URL SECONDS SEED    → {"samples": [[rss, fds, threads], …], "runs": …, "told": …}
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from twicesafe import (
    AsyncReceiver,
    Backoff,
    Policy,
    Receiver,
    StoreUnavailableError,
    TwicesafeError,
)

POLICY = Policy(
    lease=20, wait=5, backoff=Backoff(first=0), retention=60, remember=(ZeroDivisionError,)
)


class Soak:
    def __init__(self, url: str, seconds: float, seed: int) -> None:
        self.url, self.until, self.seed = url, time.monotonic() + seconds, seed
        self.samples: list[list[int]] = []
        self.counts: Counter[str] = Counter()
        self.doubled: list[str] = []

    def handle(self, name: str) -> str:
        kind = name[0]
        if kind == "f":
            raise ValueError(name)
        if kind == "r":
            raise ZeroDivisionError(name)
        self.counts["runs"] += 1
        return name * (50 if kind == "b" else 1)

    def name(self, rng: random.Random) -> str:
        """Mostly new keys, some of them again."""
        self.counts["deliveries"] += 1
        return f"{rng.choice('oooobfr')}-{rng.randrange(self.counts['deliveries'])}"

    def note(self, error: Exception) -> None:
        known = (TwicesafeError, ValueError, ZeroDivisionError)
        self.counts[type(error).__name__ if isinstance(error, known) else f"! {error!r}"] += 1

    def threads(self, receiver: Receiver, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        while time.monotonic() < self.until:
            try:
                if rng.random() < 0.05:
                    names = [self.name(rng) for _ in range(5)]
                    receiver.process_many(names, self.handle, key=str)
                else:
                    name = self.name(rng)
                    receiver.process(name, self.handle, name)
            except Exception as error:
                self.note(error)

    async def tasks(self, receiver: AsyncReceiver, number: int) -> None:
        rng = random.Random(f"{self.seed}/task/{number}")

        async def handle(name: str) -> str:
            await asyncio.sleep(0)
            return self.handle(name)

        while time.monotonic() < self.until:
            name = self.name(rng)
            work = asyncio.ensure_future(receiver.process(name, handle, name))
            try:
                if rng.random() < 0.05:
                    await asyncio.wait({work}, timeout=rng.random() * 0.01)
                    work.cancel()
                await work
            except asyncio.CancelledError:
                self.counts["cancelled"] += 1
            except Exception as error:
                self.note(error)

    async def loop(self) -> None:
        async with AsyncReceiver.open(self.url, policy=POLICY) as receiver:
            await asyncio.gather(*(self.tasks(receiver, number) for number in range(4)))

    def opened(self) -> Receiver:
        """A cut may meet the greeting as well."""
        while True:
            with contextlib.suppress(StoreUnavailableError):
                return Receiver.open(self.url, policy=POLICY)

    def watch(self) -> None:
        while time.monotonic() < self.until:
            self.samples.append(sample())
            time.sleep(0.25)

    def run(self) -> dict[str, Any]:
        before = sample()
        with self.opened() as receiver:
            threads = [threading.Thread(target=self.threads, args=(receiver, n)) for n in range(4)]
            threads += [threading.Thread(target=lambda: asyncio.run(self.loop()))]
            threads += [threading.Thread(target=self.watch)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with contextlib.suppress(StoreUnavailableError):
                receiver.sweep()
        return {
            "samples": self.samples,
            "before": before,
            "after": settled(before),
            "counts": dict(self.counts),
        }


def settled(before: list[int]) -> list[int]:
    """What is left behind, a moment after the end: a thread that was asked to end may still be ending."""
    until = time.monotonic() + 5
    while True:
        gc.collect()
        after = sample()
        left = any(now > then for now, then in zip(after[1:], before[1:], strict=True))
        if not left or time.monotonic() > until:
            return after
        time.sleep(0.05)


def sample() -> list[int]:
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return [rss, len(os.listdir("/proc/self/fd")), threading.active_count()]


if __name__ == "__main__":
    url, seconds, seed = sys.argv[1:]
    # Everything is loaded once before anything is counted.
    Soak(url, 1.0, -1).run()
    print("begun", flush=True)
    print(json.dumps(Soak(url, float(seconds), int(seed)).run()))
