"""The load, blocking and async: first deliveries, duplicates, batches, and a herd on one key."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from .. import AsyncReceiver, Receiver
from .timing import MeasuredTimes, counting, with_tasks, with_threads

__all__ = ["SCENARIOS", "BenchPlan", "BenchResult", "Scenario", "run"]

SCENARIOS: Final = ("first", "duplicate", "batch", "herd")
MODES: Final = ("sync", "async")
HERD: Final = 100
SLOW: Final = 0.2
"""Run time of the handler in the herd scenario, in seconds."""
SETTLED: Final = 100
"""Completed keys that the duplicate scenario repeats; at least one per caller."""
COUNTED: Final = 0.15
"""Longest time, in seconds, of the pass that counts round trips."""

RESULT: Final = {"status": "captured", "amount": 129_900, "note": "thank you" * 16}


@dataclass(frozen=True, slots=True)
class BenchPlan:
    seconds: float = 1.0
    callers: tuple[int, ...] = (1, 50)
    batches: tuple[int, ...] = (100,)
    scenarios: tuple[str, ...] = SCENARIOS
    modes: tuple[str, ...] = MODES

    def steps(self, mode: str) -> Iterator[Scenario]:
        for name in self.scenarios:
            if name == "batch":
                yield from (Scenario(name, mode, 1, size) for size in self.batches)
            elif name == "herd":
                yield Scenario(name, mode, HERD, 0)
            else:
                yield from (Scenario(name, mode, callers, 0) for callers in self.callers)

    def all_steps(self) -> list[Scenario]:
        return [step for mode in self.modes for step in self.steps(mode)]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    mode: str
    callers: int
    batch: int

    @property
    def title(self) -> str:
        who = "thread" if self.mode == "sync" else "task"
        crowd = f"{self.callers} {who}{'s' if self.callers > 1 else ''}"
        if self.name == "batch":
            return f"batches of {self.batch:,}, {crowd}"
        if self.name == "herd":
            return f"herd: {crowd} on one key of {SLOW * 1000:.0f} ms"
        return f"{self.name}, {crowd}"


@dataclass(frozen=True, slots=True)
class BenchResult:
    scenario: Scenario
    messages: int
    seconds: float
    p50: float
    p99: float
    round_trips: float | None
    """Commands sent to the store per call (per batch, for batches); None: not counted."""

    @property
    def throughput(self) -> float:
        return self.messages / self.seconds


Watch = Callable[[Scenario, int, int], None]


def run(url: str, plan: BenchPlan, watch: Watch) -> Iterator[BenchResult]:
    """Yields each scenario's result as it ends; calls `watch` before each scenario."""
    steps = plan.all_steps()
    keys = (f"bench-{number}" for number in itertools.count())
    with Receiver.open(url) as receiver, asyncio.Runner() as loop:
        async_receiver = AsyncReceiver.open(url)
        try:
            for number, step in enumerate(steps):
                watch(step, number, len(steps))
                if step.mode == "sync":
                    seen, round_trips = _run_blocking(receiver, step, plan.seconds, keys)
                else:
                    seen, round_trips = loop.run(
                        _run_async(async_receiver, step, plan.seconds, keys)
                    )
                yield _summed_up(step, seen, round_trips)
        finally:
            loop.run(async_receiver.close())


def _summed_up(step: Scenario, seen: MeasuredTimes, round_trips: float | None) -> BenchResult:
    messages = len(seen.calls) * (step.batch or 1)
    return BenchResult(step, messages, seen.seconds, seen.at(0.50), seen.at(0.99), round_trips)


def handle(_: str) -> dict[str, Any]:
    return RESULT


async def handle_async(_: str) -> dict[str, Any]:
    return RESULT


def handle_slowly(_: str) -> dict[str, Any]:
    time.sleep(SLOW)
    return RESULT


async def handle_slowly_async(_: str) -> dict[str, Any]:
    await asyncio.sleep(SLOW)
    return RESULT


# --- the same steps, twice: with threads and with tasks -----------------------------------------


def _run_blocking(
    receiver: Receiver, step: Scenario, seconds: float, keys: Iterator[str]
) -> tuple[MeasuredTimes, float | None]:
    next_key = _locked(keys)
    if step.name == "herd":
        return _herds(receiver, step, seconds, next_key), None

    settled = _settled(step, next_key)
    for key in settled:
        receiver.process(key, handle, key)

    def work(caller: int, turn: int) -> None:
        if step.batch:
            batch = [next_key() for _ in range(step.batch)]
            receiver.process_many(batch, handle, key=_itself)
            return
        key = settled[(caller + turn) % len(settled)] if settled else next_key()
        receiver.process(key, handle, key)

    work(0, 0)  # warm up: connections open on first use
    with counting(receiver.store) as sent:
        counted = with_threads(step.callers, min(seconds, COUNTED), work)
    return with_threads(step.callers, seconds, work), _per_call(sent, counted)


def _herds(
    receiver: Receiver, step: Scenario, seconds: float, next_key: Callable[[], str]
) -> MeasuredTimes:
    whole, until = MeasuredTimes(), time.perf_counter() + seconds
    while not whole.calls or time.perf_counter() < until:
        key = next_key()
        seen = with_threads(
            step.callers, 0, lambda *_, key=key: receiver.process(key, handle_slowly, key)
        )
        whole.calls += seen.calls
        whole.seconds += seen.seconds
    return whole


async def _run_async(
    receiver: AsyncReceiver, step: Scenario, seconds: float, keys: Iterator[str]
) -> tuple[MeasuredTimes, float | None]:
    if step.name == "herd":
        return await _async_herds(receiver, step, seconds, keys), None

    settled = _settled(step, keys.__next__)
    for key in settled:
        await receiver.process(key, handle_async, key)

    async def work(caller: int, turn: int) -> None:
        if step.batch:
            batch = list(itertools.islice(keys, step.batch))
            await receiver.process_many(batch, handle_async, key=_itself)
            return
        key = settled[(caller + turn) % len(settled)] if settled else next(keys)
        await receiver.process(key, handle_async, key)

    await work(0, 0)
    store: Any = receiver.store
    if not hasattr(store, "_tap"):  # a blocking store behind one thread
        store = await asyncio.to_thread(store.blocking_store)
    with counting(store) as sent:
        counted = await with_tasks(step.callers, min(seconds, COUNTED), work)
    return await with_tasks(step.callers, seconds, work), _per_call(sent, counted)


async def _async_herds(
    receiver: AsyncReceiver, step: Scenario, seconds: float, keys: Iterator[str]
) -> MeasuredTimes:
    whole, until = MeasuredTimes(), time.perf_counter() + seconds
    while not whole.calls or time.perf_counter() < until:
        key = next(keys)
        seen = await with_tasks(
            step.callers, 0, lambda *_, key=key: receiver.process(key, handle_slowly_async, key)
        )
        whole.calls += seen.calls
        whole.seconds += seen.seconds
    return whole


def _settled(step: Scenario, next_key: Callable[[], str]) -> list[str]:
    wanted = max(SETTLED, step.callers) if step.name == "duplicate" else 0
    return [next_key() for _ in range(wanted)]


def _per_call(sent: list[int] | None, counted: MeasuredTimes) -> float | None:
    return None if sent is None else sent[0] / len(counted.calls)


def _locked(keys: Iterator[str]) -> Callable[[], str]:
    """Thread-safe keys: two threads cannot advance one generator at the same time."""
    numbers = itertools.count()
    prefix = next(keys)
    return lambda: f"{prefix}-{next(numbers)}"


def _itself(key: str) -> str:
    return key
