"""A shop whose effects are counted, for durable functions in both modes.

Tests are written once, with plain functions: `Shop.durable` makes the function async for an
`AsyncReceiver`, and runs it to its end.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from twicesafe import AsyncReceiver, Backoff, Policy, Receiver
from twicesafe.testing import Place, StoreUnderTest

__all__ = ["POLICY", "Boom", "Shop"]

POLICY = Policy(wait=1, backoff=Backoff(first=0.001, most=0.001))


class Boom(Exception):  # noqa: N818
    pass


class Clock:
    """The clock of a store, which a test sets."""

    def __init__(self, kind: StoreUnderTest, place: Place) -> None:
        self._kind, self._place = kind, place

    def __call__(self) -> int:
        return self._place.clock()

    def advance(self, ms: int) -> None:
        self._kind.advance(self._place, ms)

    def set_back(self, ms: int) -> None:
        self._place.clock._now -= ms
        self._kind.advance(self._place, 0)  # so that a server knows too


class Shop:
    """A receiver on a store with a clock that can be set, and counted effects."""

    def __init__(self, mode: str, kind: StoreUnderTest, place: Place) -> None:
        self._kind, self._place = kind, place
        self.clock = Clock(kind, place)
        self.mode = mode
        self.runner = asyncio.Runner()
        self.receiver: Any
        if mode == "blocking":
            self.store: Any = kind.open_store(place)
            self.receiver = Receiver(self.store, policy=POLICY)
        else:
            awaited = kind.open_async_store(place)
            self.receiver = AsyncReceiver(awaited, policy=POLICY)
            self.store = awaited.blocking_store()
        self.done: Counter[str] = Counter()
        self.order: list[str] = []
        self.failing: dict[str, int] = {}
        """How often each effect fails before it succeeds."""

    def effect(self, name: str, value: Any = None) -> Any:
        """A function of a step: counts, fails if it should, and returns its value."""

        def act(*args: Any) -> Any:
            self.done[name] += 1
            self.order.append(name)
            if self.failing.get(name, 0) > 0:
                self.failing[name] -= 1
                raise Boom(name)
            return value

        async def act_async(*args: Any) -> Any:
            return act(*args)

        return act if self.mode == "blocking" else act_async

    def durable(self, body: Callable[..., Any], **settings: Any) -> Any:
        """`body` is a generator: it yields what it calls on its steps, and receives the answers."""
        settings.setdefault("key", "order")
        settings.setdefault("scope", ("shop",))
        if self.mode == "blocking":

            def run(steps: Any, order: Any) -> Any:
                return _drive(body(steps, order))

        else:

            async def run(steps: Any, order: Any) -> Any:  # type: ignore[misc]
                return await _drive_async(body(steps, order))

        return self.receiver.durable(**settings)(run)

    def run(self, call: Any) -> Any:
        return self.runner.run(call) if inspect.iscoroutine(call) else call

    def close(self) -> None:
        self.run(self.receiver.close())
        self.runner.close()
        self._kind.tidy(self._place)


def _drive(script: Any) -> Any:
    reply = None
    try:
        while True:
            reply = script.send(reply)
    except StopIteration as end:
        return end.value


async def _drive_async(script: Any) -> Any:
    reply = None
    try:
        while True:
            command = script.send(reply)
            try:
                reply = await command
            except BaseException as error:
                command = script.throw(error)
                reply = await command
    except StopIteration as end:
        return end.value
