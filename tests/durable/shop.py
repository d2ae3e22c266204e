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
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing import FakeClock

__all__ = ["POLICY", "Boom", "Shop"]

POLICY = Policy(wait=1, backoff=Backoff(first=0.001, most=0.001))


class Boom(Exception):  # noqa: N818
    pass


class Shop:
    """A receiver on a memory store with a clock that can be set, and counted effects."""

    def __init__(self, mode: str) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock)
        self.mode = mode
        self.runner = asyncio.Runner()
        self.receiver: Any = (
            Receiver(self.store, policy=POLICY)
            if mode == "blocking"
            else AsyncReceiver(AsyncMemoryStore(self.store), policy=POLICY)
        )
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
        self.runner.close()


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
