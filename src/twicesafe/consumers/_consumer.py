"""The consumers: a source of messages, a handler, and a receiver or an inbox.

    consumer = Consumer.open("redis://127.0.0.1:6379/0?stream=orders&group=billing", receiver=receiver)
    consumer.run(handle)                       # until stop(), SIGTERM or SIGINT
    report = consumer.drain(handle, idle=1.0)  # until nothing came for a second

`AsyncConsumer` is the async version of `Consumer`, with the same names and meanings. All decisions are
made in `_core.consuming`; this module is the public interface.
"""

from __future__ import annotations

import asyncio
import inspect
import operator
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from .._core.consuming.message import Message
from .._core.consuming.source import SourceProblem
from .._core.consuming.state import Report
from .._core.driving import drive, drive_async
from .._core.handler_kind import expect_done
from .._runtime.adapting import for_event_loop, for_threads, own_process
from .._runtime.consumer_runner import AsyncConsumerRunner, ConsumerRunner
from .._runtime.event_loop import running_loop
from .._values.records import State
from .._values.settings import Duration
from ..errors import BrokerUnavailableError
from ..inbox import AsyncInbox, Inbox
from ..inbox._consumer_delivery import deliver, deliver_async, look_up, look_up_async
from ..receiver import AsyncReceiver, Receiver
from ._base import ConsumerBase, idle_seconds
from ._calls import park, park_async
from ._cancellations import contained, contained_async
from ._signals import stopping_on_signals

__all__ = ["AsyncConsumer", "Consumer"]


class Consumer(ConsumerBase[Receiver, Inbox]):
    """The blocking consumer: handlers run in a bounded pool of threads."""

    _is_async = False
    _deliver = staticmethod(deliver)
    _look_up = staticmethod(look_up)
    _park = staticmethod(park)

    def _adapt(self) -> None:
        self._adapted = for_threads(self.source, "fetch")
        self._dead = None
        if self._publisher is not None:
            self._dead = for_threads(self._publisher, "publish")
        self._dead_turn = threading.Semaphore(self._publishers_at_once)

    def run(self, handler: Callable[..., Any]) -> Report:
        """Handle messages until `stop`, SIGTERM or SIGINT. Then finish, record and acknowledge what runs.

        The same signal a second time does not wait. Only a consumer in the main thread reacts to signals.
        """
        return self._run(handler, None)

    def drain(self, handler: Callable[..., Any], idle: Duration = 1.0) -> Report:
        """Handle messages until none has come for ``idle`` seconds, then return what was done."""
        return self._run(handler, idle_seconds(idle))

    def check(self) -> list[SourceProblem]:
        """Compare the broker's settings with this consumer's; return what will go wrong, and how to fix it."""
        self._process = own_process(self._process)
        return list(self._adapted.check(self._consumer_settings()))

    def close(self) -> None:
        """Close the connections to the broker. If a run goes on, it is stopped, and closes them when it ends.

        The receiver or inbox stays open: it is yours.
        """
        if self._closes():
            self._disconnect()

    def _disconnect(self) -> None:
        self._adapted.close()
        if self._dead is not None:
            self._dead.close()
        if self._publishing is not None:
            self._claims.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, handler: Callable[..., Any], idle: float | None) -> Report:
        self._expect_ready()
        try:
            return self._run_once(handler, idle)
        finally:
            if self._is_closed:
                self._disconnect()

    def _run_once(self, handler: Callable[..., Any], idle: float | None) -> Report:
        with self._begins():
            profile = self._profile(handler)
            try:  # first: it connects, and the source learns its broker's settings
                self._warn(self.check())
            except BrokerUnavailableError as error:
                self._begins_without(error, idle)
            own = contained(handler, in_transaction=self._connect is not None)
            state = self._state(own, profile, idle)
            self._runner = runner = ConsumerRunner(
                state, self._adapted, self._claims._runtime, self._parked_lanes
            )
        self.source.listen(runner.revoke)
        try:
            with stopping_on_signals(runner.stop):
                return runner.run()
        finally:
            self.source.listen(None)

    def _dead_publication(self, message: Message, error: Exception) -> Callable[[], Any]:
        def publish() -> None:
            drive(self._park_lane(message), operator.call)
            if self._dead_letter is not None:
                expect_done(self._dead_letter(message, error), "dead_letter=")
                return
            with self._dead_turn:
                drive(self._publish_dead(message, error), operator.call)

        return contained(publish)

    def _parked_lanes(self) -> list[str]:
        receiver = self._lane_receiver
        found = receiver.records(state=State.PARKED, scope=receiver.key("-").scope)
        return [record.key.value for record in found if record.key is not None]


class AsyncConsumer(ConsumerBase[AsyncReceiver, AsyncInbox]):
    """Async version of `Consumer`: handlers run as tasks of the running event loop."""

    _is_async = True
    _deliver = staticmethod(deliver_async)
    _look_up = staticmethod(look_up_async)
    _park = staticmethod(park_async)

    def _adapt(self) -> None:
        self._adapted = for_event_loop(self.source, "fetch")
        self._dead = None
        if self._publisher is not None:
            self._dead = for_event_loop(self._publisher, "publish")

    async def run(self, handler: Callable[..., Awaitable[Any]]) -> Report:
        """Handle messages until `stop`, SIGTERM or SIGINT. Then finish, record and acknowledge what runs.

        The same signal a second time does not wait. A cancellation drops what runs, as a crash would.
        """
        return await self._run(handler, None)

    async def drain(self, handler: Callable[..., Awaitable[Any]], idle: Duration = 1.0) -> Report:
        """Handle messages until none has come for ``idle`` seconds, then return what was done."""
        return await self._run(handler, idle_seconds(idle))

    async def check(self) -> list[SourceProblem]:
        """Compare the broker's settings with this consumer's; return what will go wrong, and how to fix it."""
        self._process = own_process(self._process)
        found: Sequence[SourceProblem] = await self._adapted.check(self._consumer_settings())
        return list(found)

    async def close(self) -> None:
        """Close the connections to the broker. If a run goes on, it is stopped, and closes them when it ends.

        The receiver or inbox stays open: it is yours.
        """
        if self._closes():
            await self._disconnect()

    async def _disconnect(self) -> None:
        await self._adapted.close()
        if self._dead is not None:
            await self._dead.close()
        if self._publishing is not None:
            await self._claims.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, handler: Callable[..., Any], idle: float | None) -> Report:
        running_loop()
        self._expect_ready()
        try:
            return await self._run_once(handler, idle)
        finally:
            if self._is_closed:
                await self._disconnect()

    async def _run_once(self, handler: Callable[..., Any], idle: float | None) -> Report:
        with self._begins():
            profile = self._profile(handler)
            try:  # first: it connects, and the source learns its broker's settings
                self._warn(await self.check())
            except BrokerUnavailableError as error:
                self._begins_without(error, idle)
            state = self._state(contained_async(handler, self._has_ended), profile, idle)
            self._dead_turn = asyncio.Semaphore(self._publishers_at_once)
            self._runner = runner = AsyncConsumerRunner(
                state, self._adapted, self._claims._runtime, self._parked_lanes
            )
        self.source.listen(runner.revoke)
        try:
            with stopping_on_signals(runner.stop):
                return await runner.run()
        finally:
            self.source.listen(None)

    def _dead_publication(self, message: Message, error: Exception) -> Callable[[], Any]:
        async def publish() -> None:
            await drive_async(self._park_lane(message), _called)
            if self._dead_letter is not None:
                told = self._dead_letter(message, error)
                if inspect.isawaitable(told):
                    told = await told
                expect_done(told, "dead_letter=")
                return
            async with self._dead_turn:
                await drive_async(self._publish_dead(message, error), _called)

        return contained_async(publish, self._has_ended)

    def _has_ended(self) -> bool:
        return bool(self._runner.ended)

    async def _parked_lanes(self) -> list[str]:
        receiver = self._lane_receiver
        found = receiver.records(state=State.PARKED, scope=receiver.key("-").scope)
        return [record.key.value async for record in found if record.key is not None]


async def _called(act: Callable[[], Awaitable[Any]]) -> Any:
    return await act()
