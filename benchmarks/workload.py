"""The work that every contestant is given, and the ways to offer it.

A contestant is anything with a ``call(key)`` that runs the handler once for a key and answers
repeats. It is offered keys by one caller, by a crowd of threads or tasks, or as a batch; all keys
are made before the clock starts. The handler costs nothing and returns a dict of 200 bytes of
JSON, so what is measured is the receiver.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

RESULT: dict[str, Any] = {
    "payment": "pay_01HZX5C8Q2",
    "amount": 129_900,
    "currency": "EUR",
    "status": "captured",
    "card": {"brand": "visa", "last4": "4242", "country": "DE"},
    "fees": [25, 190],
    "note": "thank you for your order, it is shipped",
}
assert len(msgspec.json.encode(RESULT)) == 200


def handler(key: str) -> dict[str, Any]:
    return RESULT


async def async_handler(key: str) -> dict[str, Any]:
    return RESULT


def slow_handler(key: str) -> dict[str, Any]:
    time.sleep(0.2)
    return RESULT


async def slow_async_handler(key: str) -> dict[str, Any]:
    await asyncio.sleep(0.2)
    return RESULT


def nothing() -> None:
    """The close of a contestant that holds nothing open."""


@dataclass
class Contestant:
    """``call`` is a coroutine function where the case is async; ``close`` may be one."""

    name: str
    call: Callable[[str], Any] = handler
    close: Callable[[], Any] = nothing
    many: Callable[[Sequence[str]], Any] | None = None
    """Takes a batch of keys at once; then ``call`` is not used."""
    guest: bool = False
    """A neighbour: if it fails in a case, that is reported in its place, and the others go on."""


@dataclass(frozen=True)
class Absent:
    """A contestant that cannot do this case, and why."""

    name: str
    reason: str


KEYS_OF_A_PROCESS = 2**24
_numbers = itertools.count()


def number_process(number: int) -> None:
    """Gives this process its own range of keys, for stores that it shares with other processes."""
    global _numbers
    _numbers = itertools.count(number * KEYS_OF_A_PROCESS)


def key_of(number: int) -> str:
    """All different, and in no order: senders' ids seldom arrive sorted, and an index knows."""
    return f"order-{number * 2654435761 % 2**32:08x}"


def new_keys(count: int) -> list[str]:
    """Keys that no case has used before: some contestants keep one store for all cases."""
    return [key_of(number) for number in itertools.islice(_numbers, count)]


SETTLED = 100
"""Keys that duplicates are made of."""


class Keys:
    """Fresh keys for first deliveries; a settled set, again and again, for duplicates."""

    def __init__(self, *, fresh: bool, callers: int = 1, settled: int = SETTLED) -> None:
        self.fresh = fresh
        # At least one for each caller, so that no caller meets a key that is still being settled.
        self.settled = [] if fresh else new_keys(max(settled, callers))
        self._again = itertools.cycle(self.settled)

    def take(self, count: int) -> list[str]:
        return new_keys(count) if self.fresh else list(itertools.islice(self._again, count))


class Lap(NamedTuple):
    """What passed between two looks at both clocks: on the wall, and in all threads of the process."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Lap:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Lap) -> Lap:
        return Lap(self.wall - start.wall, self.processor - start.processor)

    def per(self, count: int) -> Lap:
        return Lap(self.wall / count, self.processor / count)


class Offer:
    """Offers keys to a contestant and measures the time until all are answered."""

    def __init__(self, mode: str, callers: int = 1, batch: int = 0, herd: bool = False) -> None:
        self.callers, self.batch, self.herd = callers, batch, herd
        self.is_async = mode == "async"
        self._pool = ThreadPoolExecutor(callers) if callers > 1 and not self.is_async else None
        self._loop = asyncio.Runner() if self.is_async else None
        if self._pool is not None:  # all threads exist before anything is measured
            list(self._pool.map(lambda _: time.sleep(0.002), range(callers)))

    def least(self, contestant: Contestant) -> int:
        """The smallest useful number of keys: one batch, or one key for each caller."""
        return self.batch if contestant.many is not None else self.callers

    def lap(self, contestant: Contestant, keys: list[str], times: list[float] | None = None) -> Lap:
        """``times`` collects the seconds of every call. That costs time too: use such laps for nothing else."""
        if self.herd:  # every caller asks for the same key at once
            shares = [keys[:1]] * self.callers
        else:
            shares = [keys[n :: self.callers] for n in range(self.callers)]
        if self._loop is not None:
            return self._loop.run(self._tasks(contestant, shares, times))
        work = _ask_many if contestant.many is not None else _ask
        start = Lap.now()
        if self._pool is None:
            work(contestant, shares[0], self.batch, times)
        else:
            jobs = [
                self._pool.submit(work, contestant, share, self.batch, times) for share in shares
            ]
            for job in jobs:
                job.result()
        return Lap.now().since(start)

    async def _tasks(
        self, contestant: Contestant, shares: list[list[str]], times: list[float] | None
    ) -> Lap:
        work = _ask_many_async if contestant.many is not None else _ask_async
        start = Lap.now()
        if self.callers == 1:
            await work(contestant, shares[0], self.batch, times)
        else:
            await asyncio.gather(*[work(contestant, share, self.batch, times) for share in shares])
        return Lap.now().since(start)

    def alone(self, contestant: Contestant) -> None:
        """One call before all others: some open a connection for each who comes before the first."""
        (key,) = new_keys(1)
        work: Callable[[Any], Any] = contestant.many or contestant.call
        given: Any = [key] if contestant.many is not None else key
        if self._loop is not None:
            self._loop.run(_awaited(work, given))
        else:
            work(given)

    def finish(self, contestant: Contestant) -> None:
        if inspect.iscoroutinefunction(contestant.close):
            assert self._loop is not None
            self._loop.run(contestant.close())
        else:
            contestant.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if self._loop is not None:
            self._loop.close()


async def _awaited(work: Any, given: Any) -> None:
    await work(given)


Times = list[float] | None


def _ask(contestant: Contestant, keys: list[str], batch: int, times: Times) -> None:
    call = contestant.call
    if times is None:
        for key in keys:
            call(key)
        return
    for key in keys:
        began = time.perf_counter()
        call(key)
        times.append(time.perf_counter() - began)


async def _ask_async(contestant: Contestant, keys: list[str], batch: int, times: Times) -> None:
    call = contestant.call
    if times is None:
        for key in keys:
            await call(key)
        return
    for key in keys:
        began = time.perf_counter()
        await call(key)
        times.append(time.perf_counter() - began)


def _ask_many(contestant: Contestant, keys: list[str], batch: int, times: Times) -> None:
    assert contestant.many is not None
    for start in range(0, len(keys), batch):
        contestant.many(keys[start : start + batch])


async def _ask_many_async(
    contestant: Contestant, keys: list[str], batch: int, times: Times
) -> None:
    assert contestant.many is not None
    for start in range(0, len(keys), batch):
        await contestant.many(keys[start : start + batch])
