"""The relay: takes messages from an outbox to where they should go, at least once, in order per key.

    relay = OutboxRelay("postgresql://…/shop", "nats://localhost")    # or a function, or a publisher
    relay.start()                        # a thread of this process; or `twicesafe relay --to …`
    relay.stop()                         # ends what is under way first

Any number of relays may run at once: they divide the lanes among themselves by fenced leases, and go
on with a dead one's share within a lease and a second. `OutboxRelay` and `AsyncOutboxRelay` are
twins; what they do is decided in `_core.relay_lease` and `_core.relay_publish`.
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
from .._values.policy import Backoff, Duration, seconds
from ..errors import ConfigurationError, UnsupportedByStoreError, UsageError
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
    """What both twins keep: the publisher, the settings, and one desk per run."""

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
            raise ConfigurationError(f"lease={lease!r} makes no sense: use at least 0.3 seconds")
        for name, number in (
            ("batch", batch),
            ("max_attempts", max_attempts),
            ("concurrency", self.publisher.concurrency if concurrency is None else concurrency),
        ):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigurationError(f"{name}={number!r} makes no sense: use 1 or more")
        self._batch, self._max_attempts, self._backoff = batch, max_attempts, backoff
        self._concurrency = concurrency or self.publisher.concurrency
        self._notify = events.notifier(observers)
        self._before = 0
        self._desk: RelayState | None = None

    @property
    def published(self) -> int:
        """Messages that this relay published and settled so far."""
        return self._before + (0 if self._desk is None else self._desk.published)

    def _drained(self, before: int) -> int:
        """How many went since; or why it ended with more to go."""
        if self._desk is not None:
            trouble = self._desk.outage or self._desk.not_now
            if trouble is not None:
                raise trouble
        return self.published - before

    def _new_desk(self, wake: bool, until_empty: bool) -> RelayState:
        self._before, self._desk = self.published, None
        self._desk = desk = RelayState(
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
        desk.until_empty = until_empty
        return desk


class OutboxRelay(_Relay):
    """The blocking twin: a thread of its own, or the one that calls `run`."""

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
        _need_outbox(self.store)
        self._taker = _bridge().blocking(self.publisher)
        self._carriage: RelayRunner | None = None
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def start(self) -> Self:
        """Relay in a thread of this process until `stop`."""
        carriage = self._prepared()
        self._failed = None

        def work() -> None:
            try:
                carriage.run()
            except BaseException as error:  # told by `stop`
                self._failed = error

        self._thread = threading.Thread(target=work, name="twicesafe-relay", daemon=True)
        self._thread.start()
        return self

    def run(self) -> None:
        """Relay in this thread until another one calls `stop`."""
        carriage = self._prepared()
        try:
            carriage.run()
        finally:
            self._carriage = None

    def drain(self) -> int:
        """Publish in this thread what may go now; how many messages that were.

        Lanes that rest or are parked, and what other relays have in hand, are left. If the broker or
        the store does not answer, it ends what is under way and raises what was said; the same if
        messages could not go for want of their stream or queue.
        """
        before = self.published
        carriage = self._prepared(until_empty=True)
        try:
            carriage.run()
        finally:
            self._carriage = None
        return self._drained(before)

    def stop(self, grace: Duration = 30) -> None:
        """End what is under way, give the leases back. `TimeoutError`: the publisher hangs."""
        carriage, thread = self._carriage, self._thread
        if carriage is not None:
            carriage.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds(grace, "grace"))
            if thread.is_alive():
                raise TimeoutError(f"the publisher did not come back within {grace} s")
            self._carriage = self._thread = None
            if self._failed is not None:
                raise self._failed

    @property
    def running(self) -> bool:
        """Is its thread at work?"""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Stop it; close the publisher, and the store if it was opened here."""
        self.stop()
        self._taker.close()
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepared(self, until_empty: bool = False) -> RelayRunner:
        if self._carriage is not None:
            raise UsageError("this relay is running already")
        self.store.perform(Prepare())  # type: ignore[arg-type]
        desk = self._new_desk(self.store.capabilities.wake, until_empty)
        store = self.store
        self._carriage = _bridge().RelayRunner(desk, self._taker, store.perform, store.watch)
        return self._carriage


class AsyncOutboxRelay(_Relay):
    """The awaited twin: a task of the running loop."""

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
        _need_outbox(self.store)
        self._taker = _bridge().awaited(self.publisher)
        self._carriage: AsyncRelayRunner | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Relay in a task of this loop until `stop`."""
        import asyncio

        carriage = await self._prepared()
        self._task = asyncio.create_task(carriage.run(), name="twicesafe-relay")
        return self

    async def run(self) -> None:
        """Relay in this task until another one calls `stop`."""
        carriage = await self._prepared()
        try:
            await carriage.run()
        finally:
            self._carriage = None

    async def drain(self) -> int:
        """Publish what may go now; how many messages that were.

        Lanes that rest or are parked, and what other relays have in hand, are left. If the broker or
        the store does not answer, it ends what is under way and raises what was said; the same if
        messages could not go for want of their stream or queue.
        """
        before = self.published
        carriage = await self._prepared(until_empty=True)
        try:
            await carriage.run()
        finally:
            self._carriage = None
        return self._drained(before)

    async def stop(self, grace: Duration = 30) -> None:
        """End what is under way, give the leases back. `TimeoutError`: the publisher hangs."""
        import asyncio

        carriage, task = self._carriage, self._task
        if carriage is not None:
            carriage.stop()
        if task is not None and task is not asyncio.current_task():
            async with asyncio.timeout(seconds(grace, "grace")):
                await asyncio.shield(task)
            self._carriage = self._task = None

    @property
    def running(self) -> bool:
        """Is its task at work?"""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Stop it; close the publisher, and the store if it was opened here."""
        await self.stop()
        await self._taker.close()
        if self._owned:
            await self.store.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepared(self, until_empty: bool = False) -> AsyncRelayRunner:
        if self._carriage is not None:
            raise UsageError("this relay is running already")
        await self.store.perform(Prepare())  # type: ignore[arg-type]
        desk = self._new_desk(self.store.capabilities.wake, until_empty)
        store = self.store
        self._carriage = _bridge().AsyncRelayRunner(desk, self._taker, store.perform, store.watch)
        return self._carriage


def _need_outbox(store: Store | AsyncStore) -> None:
    if not store.capabilities.outbox:
        raise UnsupportedByStoreError(
            f"{store.url} cannot keep an outbox, which lives in the database of your data: use "
            "sqlite:///…, postgresql://… or mysql://…"
        )


def _bridge() -> Any:
    """The runtime, loaded when a relay is made: `import twicesafe` does not pay for it."""
    from .._runtime import relay_runner as relaying

    return relaying
