"""``python -m benchmarks.alternating``: what encryption costs a call on Valkey, on a machine that others use, too.

Laps of some milliseconds, as in `measure`, are disturbed too often there. Here calls with and without a key ring take
turns, one by one, and each is timed. A tenth of them is quicker than the 10th percentile: those were not
disturbed, and their ratio is the same in every run. The median is printed beside it.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import ours
from .case import FLOOR
from .drivers import DRIVERS, Driver
from .encrypting import called
from .workload import Contestant, Keys

CALLS = 5000
WARM_UP = 200


def main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else CALLS
    print("| case | undisturbed, µs | ratio | median, µs | ratio |\n|---|---|---|---|---|")
    for driver in DRIVERS:
        if driver.engine == "valkey":
            for what in ("first", "duplicate"):
                plain, encrypted = asyncio.run(_times(driver, what == "first", calls))
                print(row(f"{driver.mode}, {what}", plain, encrypted), flush=True)


def row(name: str, plain: list[float], encrypted: list[float]) -> str:
    cells = []
    for at in (0, 4):  # of nine deciles: the first, and the median
        one, other = (statistics.quantiles(times, n=10)[at] * 1e6 for times in (plain, encrypted))
        cells.append(f"{one:.1f} → {other:.1f} | {other / one:.3f}×")
    return f"| {name} | {' | '.join(cells)} |"


async def _times(driver: Driver, fresh: bool, calls: int) -> tuple[list[float], list[float]]:
    """Seconds of each call, without and with a ring. The order within a pair changes."""
    with tempfile.TemporaryDirectory() as folder:
        both = [
            called(driver, name, encrypted, Path(folder))
            for name, encrypted in ((FLOOR, False), (ours.NAME, True))
        ]
        keys = [Keys(fresh=fresh, settled=1) for _ in both]
        times: list[list[float]] = [[], []]
        gc.disable()
        try:
            for turn in range(WARM_UP + calls):
                for at in (0, 1) if turn % 2 else (1, 0):
                    (key,) = keys[at].take(1)
                    times[at].append(await _time(both[at], key))
        finally:
            gc.enable()
            for contestant in both:
                await _closed(contestant)
    return times[0][WARM_UP:], times[1][WARM_UP:]


async def _time(contestant: Contestant, key: str) -> float:
    call: Any = contestant.call
    began = time.perf_counter()
    made = call(key)
    if asyncio.iscoroutine(made):
        await made
    return time.perf_counter() - began


async def _closed(contestant: Contestant) -> None:
    closing: Any = contestant.close
    with suppress(AttributeError):
        made = closing()
        if asyncio.iscoroutine(made):
            await made


if __name__ == "__main__":
    main()
