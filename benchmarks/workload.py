"""The work that every contestant is given, and the ways to offer it.

A contestant is anything with a ``call(key)`` that runs the handler once for a key and answers
repeats. It is offered keys by one caller, by a crowd of threads or tasks, or as a batch; all keys
are made before the clock starts. The handler costs nothing and returns a dict of 200 bytes of
JSON, so what is measured is the receiver.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

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
    """A neighbour: if it fails in a case, that is told in its place, and the others go on."""


@dataclass(frozen=True)
class Absent:
    """A contestant that cannot do this case, and why."""

    name: str
    reason: str


_numbers = itertools.count()


def key_of(number: int) -> str:
    """All different, and in no order: senders' ids seldom arrive sorted, and an index knows."""
    return f"order-{number * 2654435761 % 2**32:08x}"


def new_keys(count: int) -> list[str]:
    """Keys that nobody had before, in any case: some contestants keep one store for all."""
    return [key_of(number) for number in itertools.islice(_numbers, count)]


class Keys:
    """Fresh keys for first deliveries; a settled set, again and again, for duplicates."""

    SETTLED = 100

    def __init__(self, *, fresh: bool, callers: int = 1) -> None:
        self.fresh = fresh
        # One for each caller at least: nobody meets a key that is still being settled.
        self.settled = [] if fresh else new_keys(max(self.SETTLED, callers))
        self._again = itertools.cycle(self.settled)

    def take(self, count: int) -> list[str]:
        return new_keys(count) if self.fresh else list(itertools.islice(self._again, count))


class Offer:
    """Offers keys to a contestant and says how many seconds passed until all were answered."""

    def __init__(
        self,
        mode: str,
        callers: int = 1,
        batch: int = 0,
        herd: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.callers, self.batch, self.herd, self._clock = callers, batch, herd, clock
        self.is_async = mode == "async"
        self._pool = ThreadPoolExecutor(callers) if callers > 1 and not self.is_async else None
        self._loop = asyncio.Runner() if self.is_async else None
        if self._pool is not None:  # all threads exist before anything is measured
            list(self._pool.map(lambda _: time.sleep(0.002), range(callers)))

    def least(self, contestant: Contestant) -> int:
        """The smallest number of keys that makes sense: a batch is for who takes batches."""
        return self.batch if contestant.many is not None else self.callers

    def seconds(self, contestant: Contestant, keys: list[str]) -> float:
        if self.herd:  # everybody asks for the same key at once
            shares = [keys[:1]] * self.callers
        else:
            shares = [keys[n :: self.callers] for n in range(self.callers)]
        work = _ask_many if contestant.many is not None else _ask
        if self._loop is not None:
            awork = _ask_many_async if contestant.many is not None else _ask_async
            return self._loop.run(self._tasks(awork, contestant, shares))
        start = self._clock()
        if self._pool is None:
            work(contestant, shares[0], self.batch)
        else:
            jobs = [self._pool.submit(work, contestant, share, self.batch) for share in shares]
            for job in jobs:
                job.result()
        return self._clock() - start

    async def _tasks(self, work: Any, contestant: Contestant, shares: list[list[str]]) -> float:
        start = self._clock()
        if self.callers == 1:
            await work(contestant, shares[0], self.batch)
        else:
            await asyncio.gather(*[work(contestant, share, self.batch) for share in shares])
        return self._clock() - start

    def alone(self, contestant: Contestant) -> None:
        """One call before all others: some open a connection for each who comes before the first."""
        (key,) = new_keys(1)
        work = contestant.call if contestant.many is None else contestant.many
        given = key if contestant.many is None else [key]
        if self._loop is not None:
            self._loop.run(_awaited(work, given))
        else:
            work(given)

    def finish(self, contestant: Contestant) -> None:
        if asyncio.iscoroutinefunction(contestant.close):
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


def _ask(contestant: Contestant, keys: list[str], batch: int) -> None:
    call = contestant.call
    for key in keys:
        call(key)


async def _ask_async(contestant: Contestant, keys: list[str], batch: int) -> None:
    call = contestant.call
    for key in keys:
        await call(key)


def _ask_many(contestant: Contestant, keys: list[str], batch: int) -> None:
    assert contestant.many is not None
    for start in range(0, len(keys), batch):
        contestant.many(keys[start : start + batch])


async def _ask_many_async(contestant: Contestant, keys: list[str], batch: int) -> None:
    assert contestant.many is not None
    for start in range(0, len(keys), batch):
        await contestant.many(keys[start : start + batch])
