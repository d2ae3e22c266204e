"""The relay: publishes the messages of an outbox, at least once, in order per key.

    relay = OutboxRelay.open("postgresql://…/shop", "nats://localhost")   # or a function, a publisher
    relay.start()                        # a thread of this process; or `twicesafe relay --to …`
    relay.close()                        # finishes running publishes, closes what it opened

Any number of relays may run at once. They divide the lanes among themselves by fenced leases. When
a relay dies, the others take over its lanes within the lease time plus one second.
`AsyncOutboxRelay` is the async version of `OutboxRelay`. Decisions are made in `_core.outbox.relay_lease`
and `_core.outbox.relay_publish`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, Unpack

from .. import events
from .._core.outbox.requests import Prepare
from .._values.cipher import Cipher
from .._values.closed import closed
from .._values.policy import Backoff
from .._values.settings import Duration, seconds
from ..stores._base import AsyncStore, Store
from ..stores._urls import check_store, open_async_store, open_store
from ._relay_base import (
    BACKOFF,
    AnyPublisher,
    RelayBase,
    RelaySettings,
    expect_url,
    hangs,
    publisher_from,
    runtime,
    tell_end,
)

if TYPE_CHECKING:
    import asyncio

    from .._runtime.relay_runner import AsyncRelayRunner, RelayRunner

__all__ = ["AsyncOutboxRelay", "OutboxRelay"]


class OutboxRelay(RelayBase):
    """The blocking relay: in its own thread (`start`), or in the caller's (`run`)."""

    def __init__(
        self,
        store: Store,
        publisher: AnyPublisher,
        *,
        lease: Duration = 10,
        batch: int = 500,
        concurrency: int | None = None,
        max_attempts: int = 10,
        backoff: Backoff = BACKOFF,
        publish_timeout: Duration = 300,
        observers: Sequence[events.Observer] = (),
        encryption: Cipher | None = None,
    ) -> None:
        check_store(self, store)
        calls = (concurrency, max_attempts, backoff, publish_timeout)
        super().__init__(publisher, lease, batch, *calls, observers, encryption)
        self._owned = False
        self.store = store
        self._port = self.store.outbox
        from .._runtime.adapting import for_threads

        self._adapted = for_threads(self.publisher, "publish")
        self._runner: RelayRunner | None = None
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    @classmethod
    def open(cls, url: str, publisher: AnyPublisher, **settings: Unpack[RelaySettings]) -> Self:
        """Open a relay for the outbox in the database at this URL. `close` also closes that store.

        ``publisher``: the URL of a broker or a webhook, a publisher, or a function of one message.
        """
        made = publisher_from(publisher)  # first: a missing driver is reported without a store
        store = open_store(expect_url(url, "OutboxRelay"))
        try:
            relay = cls(store, made, **settings)
        except BaseException:
            store.close()
            raise
        relay._owned = True
        return relay

    def start(self) -> Self:
        """Publish in a background thread until `stop`."""
        runner = self._prepared()
        self._failed = None

        def work() -> None:
            try:
                runner.run()
            except BaseException as error:  # raised by `stop`
                self._failed = error
                tell_end(error)

        self._thread = threading.Thread(target=work, name="twicesafe-relay", daemon=True)
        self._thread.start()
        return self

    def run(self) -> None:
        """Publish in this thread until another thread calls `stop`."""
        runner = self._prepared()
        try:
            runner.run()
        finally:
            self._runner = None

    def drain(self) -> int:
        """Publish pending messages in this thread, then return how many were published.

        Skips lanes that back off or are parked, and lanes that other relays hold. If the broker or
        the store does not answer, or a message's stream or queue does not exist, it finishes
        running publishes and raises that error.
        """
        before = self.published
        runner = self._prepared(until_empty=True)
        try:
            runner.run()
        finally:
            self._runner = None
        return self._drained(before)

    def stop(self, grace: Duration = 30) -> None:
        """Finish running publishes and release the leases. Raises `TimeoutError` if the publisher hangs."""
        runner, thread = self._runner, self._thread
        if runner is not None:
            runner.stop()
        if thread is not None and thread is not threading.current_thread():
            limit = seconds(grace, "grace")
            thread.join(limit)
            if thread.is_alive():
                raise hangs(limit)
            self._runner = self._thread = None
            if self._failed is not None:
                raise self._failed

    @property
    def running(self) -> bool:
        """True while its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Stop, close the publisher, and close the store if the relay opened it."""
        self.stop()
        gone = closed(self.store, "relay")
        store, self.store, self._port = self.store, gone, gone
        try:
            if not self._is_parents():
                self._adapted.close()
        finally:
            if self._owned:
                store.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepared(self, until_empty: bool = False) -> RelayRunner:
        self._begins()
        port = self._port
        if self._state is None or self._state.outage is not None:  # a table may be missing
            port.perform(Prepare())
        state = self._new_state(self.store.capabilities.wake, until_empty)
        self._runner = runtime().RelayRunner(state, self._adapted, port.perform, port.listen)
        return self._runner


class AsyncOutboxRelay(RelayBase):
    """Async version of `OutboxRelay`: a task on the running event loop."""

    def __init__(
        self,
        store: AsyncStore,
        publisher: AnyPublisher,
        *,
        lease: Duration = 10,
        batch: int = 500,
        concurrency: int | None = None,
        max_attempts: int = 10,
        backoff: Backoff = BACKOFF,
        publish_timeout: Duration = 300,
        observers: Sequence[events.Observer] = (),
        encryption: Cipher | None = None,
    ) -> None:
        check_store(self, store)
        calls = (concurrency, max_attempts, backoff, publish_timeout)
        super().__init__(publisher, lease, batch, *calls, observers, encryption)
        self._owned = False
        self.store = store
        self._port = self.store.outbox
        from .._runtime.adapting import for_event_loop

        self._adapted = for_event_loop(self.publisher, "publish")
        self._runner: AsyncRelayRunner | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def open(cls, url: str, publisher: AnyPublisher, **settings: Unpack[RelaySettings]) -> Self:
        """Open a relay for the outbox in the database at this URL. `close` also closes that store.

        ``publisher``: the URL of a broker or a webhook, a publisher, or a function of one message.
        """
        made = publisher_from(publisher)
        relay = cls(open_async_store(expect_url(url, "AsyncOutboxRelay")), made, **settings)
        relay._owned = True
        return relay

    async def start(self) -> Self:
        """Publish in a task on this loop until `stop`."""
        import asyncio

        runner = await self._prepared()
        self._task = asyncio.create_task(runner.run(), name="twicesafe-relay")
        self._task.add_done_callback(_tell_end)
        return self

    async def run(self) -> None:
        """Publish in this task until another task calls `stop`."""
        runner = await self._prepared()
        try:
            await runner.run()
        finally:
            self._runner = None

    async def drain(self) -> int:
        """Publish pending messages, then return how many were published.

        Skips lanes that back off or are parked, and lanes that other relays hold. If the broker or
        the store does not answer, or a message's stream or queue does not exist, it finishes
        running publishes and raises that error.
        """
        before = self.published
        runner = await self._prepared(until_empty=True)
        try:
            await runner.run()
        finally:
            self._runner = None
        return self._drained(before)

    async def stop(self, grace: Duration = 30) -> None:
        """Finish running publishes and release the leases. Raises `TimeoutError` if the publisher hangs."""
        import asyncio

        runner, task = self._runner, self._task
        if runner is not None:
            runner.stop()
        if task is not None and task is not asyncio.current_task():
            limit = seconds(grace, "grace")
            _, running = await asyncio.wait({task}, timeout=limit)
            if running:
                raise hangs(limit)
            self._runner = self._task = None
            await task  # raises what it failed with

    @property
    def running(self) -> bool:
        """True while its task runs."""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Stop, close the publisher, and close the store if the relay opened it."""
        await self.stop()
        gone = closed(self.store, "relay")
        store, self.store, self._port = self.store, gone, gone
        try:
            if not self._is_parents():
                await self._adapted.close()
        finally:
            if self._owned:
                await store.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepared(self, until_empty: bool = False) -> AsyncRelayRunner:
        from .._runtime.event_loop import running_loop

        running_loop()
        self._begins()
        port = self._port
        if self._state is None or self._state.outage is not None:  # a table may be missing
            await port.perform(Prepare())
        state = self._new_state(self.store.capabilities.wake, until_empty)
        self._runner = runtime().AsyncRelayRunner(state, self._adapted, port.perform, port.listen)
        return self._runner


def _tell_end(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        tell_end(error)
