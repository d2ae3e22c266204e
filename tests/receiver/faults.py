"""Stores that fail on demand: before the request is done, or after it (the reply is lost).

    store.before = lambda request: …     raise here: the request never reached the store
    store.after  = lambda request: …     raise here: it was done, but the answer was lost

Every request is kept in `log`, so that a test can count round trips.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from twicesafe.errors import StoreUnavailableError
from twicesafe.stores._base import AsyncStore, Store


class _Log:
    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.url = "faulty:" + inner.url
        self.capabilities = inner.capabilities
        self.log: list[Any] = []
        self.round_trips = 0
        self.before: Callable[[Any], Any] = _nothing
        self.after: Callable[[Any], Any] = _nothing

    def ops(self) -> list[str]:
        return [request.op for request in self.log]


class FaultyStore(_Log, Store):
    @classmethod
    def open(cls, url: str) -> Any:
        raise NotImplementedError

    def perform(self, request: Any) -> Any:
        self.round_trips += 1
        self.log.append(request)
        self.before(request)
        answer = self.inner.perform(request)
        self.after(request)
        return answer

    def perform_many(self, requests: Sequence[Any]) -> list[Any]:
        self.round_trips += 1
        self.log.extend(requests)
        try:
            for request in requests:
                self.before(request)
            answers: list[Any] = self.inner.perform_many(requests)
            for request in requests:
                self.after(request)
        except StoreUnavailableError as error:
            return [error.again() for _ in requests]
        return answers

    def close(self) -> None:
        self.inner.close()


class AsyncFaultyStore(_Log, AsyncStore):
    """Here `before` and `after` may also be coroutines. It always suspends, as a network does."""

    @classmethod
    def open(cls, url: str) -> Any:
        raise NotImplementedError

    async def perform(self, request: Any) -> Any:
        self.round_trips += 1
        self.log.append(request)
        await asyncio.sleep(0)
        await _done(self.before(request))
        answer = await self.inner.perform(request)
        await _done(self.after(request))
        return answer

    async def perform_many(self, requests: Sequence[Any]) -> list[Any]:
        self.round_trips += 1
        self.log.extend(requests)
        await asyncio.sleep(0)
        try:
            for request in requests:
                await _done(self.before(request))
            answers: list[Any] = await self.inner.perform_many(requests)
            for request in requests:
                await _done(self.after(request))
        except StoreUnavailableError as error:
            return [error.again() for _ in requests]
        return answers

    def blocking_store(self) -> Store:
        blocking = FaultyStore(self.inner.blocking_store())
        blocking.log = self.log
        blocking.before = lambda request: self.before(request)  # noqa: PLW0108 - it may change
        return blocking

    async def close(self) -> None:
        await self.inner.close()


class Outage:
    """Fails the chosen operations: a number of times, or until it is over."""

    def __init__(self, *ops: str, times: int | None = None) -> None:
        self.ops, self.left = ops, times

    def __call__(self, request: Any) -> None:
        if request.op in self.ops and self.left != 0:
            if self.left is not None:
                self.left -= 1
            raise StoreUnavailableError("the wire was cut") from ConnectionError("cut")

    def over(self) -> None:
        self.left = 0


def _nothing(request: Any) -> None: ...


async def _done(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
