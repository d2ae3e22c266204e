"""The relay: publishes the messages of an outbox, at least once, in order per key.

    relay = OutboxRelay("postgresql://…/shop", "nats://localhost")    # or a function, a publisher
    relay.start()                        # a thread of this process; or `twicesafe relay --to …`
    relay.stop()                         # finishes running publishes first

Any number of relays may run at once. They divide the lanes among themselves by fenced leases. When
a relay dies, the others take over its lanes within the lease time plus one second.
`AsyncOutboxRelay` is the async version of `OutboxRelay`. Decisions are made in `_core.relay_lease`
and `_core.relay_publish`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from .. import events
from .._core.outbox_requests import Message, Prepare
from .._core.publisher import Publisher
from .._core.relay_lease import RelayState
from .._values.clocks import since_boot
from .._values.closed import closed
from .._values.policy import Backoff
from .._values.settings import Duration, seconds
from ..errors import ConfigurationError, UsageError
from ..stores._base import AsyncStore, Store
from ..stores._urls import open_async_store, open_store
from .publishers._function import publisher_of
from .publishers._urls import open_publisher

if TYPE_CHECKING:
    import asyncio

    from .._runtime.relay_runner import AsyncRelayRunner, RelayRunner

__all__ = ["AsyncOutboxRelay", "OutboxRelay"]

BACKOFF = Backoff(first=0.5, factor=2, most=60)


class _Relay:
    """What both relays share: the publisher, the settings, and one `RelayState` per run."""

    def __init__(
        self,
        publisher: Any,
        lease: Duration,
        batch: int,
        concurrency: int | None,
        max_attempts: int,
        backoff: Backoff,
        observers: Sequence[events.Observer],
    ) -> None:
        self.publisher: Publisher = (
            open_publisher(publisher) if isinstance(publisher, str) else publisher_of(publisher)
        )
        self._lease = seconds(lease, "lease")
        if self._lease < 0.3:
            raise ConfigurationError(f"lease={lease!r} is not valid: use at least 0.3 seconds")
        for name, number in (
            ("batch", batch),
            ("max_attempts", max_attempts),
            ("concurrency", self.publisher.concurrency if concurrency is None else concurrency),
        ):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigurationError(f"{name}={number!r} is not valid: use 1 or more")
        self._batch, self._max_attempts, self._backoff = batch, max_attempts, backoff
        self._concurrency = concurrency or self.publisher.concurrency
        self._notify = events.notifier(observers)
        self._before = 0
        self._state: RelayState | None = None

    @property
    def published(self) -> int:
        """The number of messages that this relay has published and removed so far."""
        return self._before + (0 if self._state is None else self._state.published)

    def _drained(self, before: int) -> int:
        """The number published since `before`; raises if messages are left because of an outage."""
        if self._state is not None:
            trouble = self._state.outage or self._state.not_now
            if trouble is not None:
                raise trouble
        return self.published - before

    def _new_state(self, wake: bool, until_empty: bool) -> RelayState:
        self._before, self._state = self.published, None
        self._state = state = RelayState(
            lease=self._lease,
            batch=self._batch,
            group=self.publisher.batch,
            concurrency=self._concurrency,
            max_attempts=self._max_attempts,
            backoff=self._backoff,
            wake=wake,
            clock=since_boot,
            notify=self._notify,
            checks=callable(getattr(self.publisher, "check", None)),
        )
        state.until_empty = until_empty
        return state


class OutboxRelay(_Relay):
    """The blocking relay: in a thread of its own (`start`), or in the caller's (`run`)."""

    def __init__(
        self,
        store: Store | str,
        publisher: Publisher | Callable[[Message], object] | str,
        *,
        lease: Duration = 10,
        batch: int = 500,
        concurrency: int | None = None,
        max_attempts: int = 10,
        backoff: Backoff = BACKOFF,
        observers: Sequence[events.Observer] = (),
    ) -> None:
        super().__init__(publisher, lease, batch, concurrency, max_attempts, backoff, observers)
        self._owned = isinstance(store, str)
        self.store: Store = open_store(store) if isinstance(store, str) else store
        self._port = self.store.outbox
        self._adapted = _runtime().for_threads(self.publisher)
        self._runner: RelayRunner | None = None
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def start(self) -> Self:
        """Publish in a background thread until `stop`."""
        runner = self._prepared()
        self._failed = None

        def work() -> None:
            try:
                runner.run()
            except BaseException as error:  # raised by `stop`
                self._failed = error

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
        """Finish running publishes and release the leases. `TimeoutError`: the publisher hangs."""
        runner, thread = self._runner, self._thread
        if runner is not None:
            runner.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds(grace, "grace"))
            if thread.is_alive():
                raise TimeoutError(f"the publisher did not return within grace={grace} s")
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
        store, self.store = self.store, closed(self.store, "relay")
        self._adapted.close()
        if self._owned:
            store.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepared(self, until_empty: bool = False) -> RelayRunner:
        if self._runner is not None:
            raise UsageError("this relay is already running")
        port = self._port
        port.perform(Prepare())
        state = self._new_state(self.store.capabilities.wake, until_empty)
        self._runner = _runtime().RelayRunner(state, self._adapted, port.perform, port.listen)
        return self._runner


class AsyncOutboxRelay(_Relay):
    """Async version of `OutboxRelay`: a task on the running event loop."""

    def __init__(
        self,
        store: AsyncStore | str,
        publisher: Publisher | Callable[[Message], object] | str,
        *,
        lease: Duration = 10,
        batch: int = 500,
        concurrency: int | None = None,
        max_attempts: int = 10,
        backoff: Backoff = BACKOFF,
        observers: Sequence[events.Observer] = (),
    ) -> None:
        super().__init__(publisher, lease, batch, concurrency, max_attempts, backoff, observers)
        self._owned = isinstance(store, str)
        self.store: AsyncStore = open_async_store(store) if isinstance(store, str) else store
        self._port = self.store.outbox
        self._adapted = _runtime().for_event_loop(self.publisher)
        self._runner: AsyncRelayRunner | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Publish in a task on this loop until `stop`."""
        import asyncio

        runner = await self._prepared()
        self._task = asyncio.create_task(runner.run(), name="twicesafe-relay")
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
        """Finish running publishes and release the leases. `TimeoutError`: the publisher hangs."""
        import asyncio

        runner, task = self._runner, self._task
        if runner is not None:
            runner.stop()
        if task is not None and task is not asyncio.current_task():
            async with asyncio.timeout(seconds(grace, "grace")):
                await asyncio.shield(task)
            self._runner = self._task = None

    @property
    def running(self) -> bool:
        """True while its task runs."""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Stop, close the publisher, and close the store if the relay opened it."""
        await self.stop()
        store, self.store = self.store, closed(self.store, "relay")
        await self._adapted.close()
        if self._owned:
            await store.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepared(self, until_empty: bool = False) -> AsyncRelayRunner:
        if self._runner is not None:
            raise UsageError("this relay is already running")
        port = self._port
        await port.perform(Prepare())
        state = self._new_state(self.store.capabilities.wake, until_empty)
        self._runner = _runtime().AsyncRelayRunner(state, self._adapted, port.perform, port.listen)
        return self._runner


def _runtime() -> Any:
    """Imported when a relay is made, so that `import twicesafe` stays quick."""
    from .._runtime import relay_runner

    return relay_runner
