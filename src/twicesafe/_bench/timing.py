"""Runs callers, as threads or tasks, for a given time and measures each call.

Round trips are counted in a separate short pass, because counting makes the store slower.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Clock", "MeasuredTimes", "counting", "with_tasks", "with_threads"]


@dataclass
class MeasuredTimes:
    """Measured times: of each call, and of the whole run, in seconds."""

    calls: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def at(self, share: float) -> float:
        """The time that this share of the calls did not exceed."""
        ordered = sorted(self.calls)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Clock:
    """How long callers run; `stop` ends all of them early."""

    def __init__(self, seconds: float) -> None:
        self._until = time.perf_counter() + seconds
        self._stopped = False

    def runs(self) -> bool:
        return not self._stopped and time.perf_counter() < self._until

    def stop(self) -> None:
        self._stopped = True


def with_threads(callers: int, seconds: float, work: Callable[[int, int], Any]) -> MeasuredTimes:
    """Each thread repeats `work(caller, turn)` until the time is over, at least once."""
    clock, gate = Clock(seconds), threading.Barrier(callers)

    def call_on(caller: int) -> list[float]:
        gate.wait()
        mine: list[float] = []
        while not mine or clock.runs():
            began = time.perf_counter()
            work(caller, len(mine))
            mine.append(time.perf_counter() - began)
        return mine

    if callers == 1:
        began = time.perf_counter()
        return MeasuredTimes(call_on(0), time.perf_counter() - began)
    with ThreadPoolExecutor(callers) as pool:
        began = time.perf_counter()
        try:
            jobs = [pool.submit(call_on, caller) for caller in range(callers)]
            calls = [each for job in jobs for each in job.result()]
        finally:  # after an interrupt or a failure, the other threads stop too
            clock.stop()
            gate.abort()
    return MeasuredTimes(calls, time.perf_counter() - began)


async def with_tasks(
    callers: int, seconds: float, work: Callable[[int, int], Awaitable[Any]]
) -> MeasuredTimes:
    clock = Clock(seconds)

    async def call_on(caller: int) -> list[float]:
        mine: list[float] = []
        while not mine or clock.runs():
            began = time.perf_counter()
            await work(caller, len(mine))
            mine.append(time.perf_counter() - began)
        return mine

    began = time.perf_counter()
    if callers == 1:
        return MeasuredTimes(await call_on(0), time.perf_counter() - began)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call_on(caller)) for caller in range(callers)]
    return MeasuredTimes([e for task in tasks for e in task.result()], time.perf_counter() - began)


@contextmanager
def counting(store: Any) -> Iterator[list[int] | None]:
    """Counts the commands sent to the store, in a list of one number; None: not supported."""
    if not hasattr(store, "_tap"):
        yield None
        return
    sent, lock = [0], threading.Lock()

    def count(when: str, _: Any) -> None:
        if when == "before":
            with lock:
                sent[0] += 1

    store._tap = count
    try:
        yield sent
    finally:
        store._tap = None
