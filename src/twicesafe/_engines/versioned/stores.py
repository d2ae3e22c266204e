"""The parts of `Store` and `AsyncStore` that all engines with versions share.

An engine adds how it connects, how a call is sent, and how a batch is made of calls.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

from ..._core.driving import drive, drive_async
from ..._core.protocol import Request
from ..._forking import RenewedLock, in_child
from ...stores._base import AsyncStore, Finding, Program, Progress, Store
from ...stores._batching import PerLoop
from .deciding import VersionedPrograms
from .lease_watch import GivenClock, LeaseWatch, ServiceClock

__all__ = ["AsyncVersionedStore", "EnginePrograms", "LoopClient", "VersionedStore"]

T = TypeVar("T")
Tap = Callable[[str, Any], None]


class EnginePrograms(NamedTuple):
    """The programs of an engine. The last three are given its settings."""

    requests: Callable[[LeaseWatch], VersionedPrograms]
    prepare: Callable[[Any], Program[list[str]]]
    """What opening a store checks, and creates if it may."""
    migrate: Callable[[Any], Program[list[str]]]
    examine: Callable[[Any], Program[list[Finding]]]


class VersionedStore(Store):
    """The blocking store, for threads."""

    engine: ClassVar[EnginePrograms]

    def __init__(
        self,
        settings: Any,
        clock: ServiceClock | GivenClock | None = None,
        leases: LeaseWatch | None = None,
    ) -> None:
        """``leases``: those of an async store, which has been prepared already."""
        self.settings = settings
        self.url = settings.url
        self.leases = leases or LeaseWatch(clock or ServiceClock(), settings.skew)
        self.programs: Any = self.engine.requests(self.leases)
        self._lock = RenewedLock()
        self._tap: Tap | None = None
        """Tests only: called before and after every call."""
        self._forget_connections()
        in_child(self._forget_connections)
        if leases is None:
            self._prepare()

    def _prepare(self) -> None:
        try:
            self._connect()
            self.migrated = drive(self.engine.prepare(self.settings), self._execute)
        except BaseException:
            self.close()
            raise

    def perform(self, request: Request) -> Any:
        return drive(self.programs.perform(request), self._execute)

    def doctor(self) -> list[Finding]:
        return drive(self.engine.examine(self.settings), self._execute)

    def migrate(self, tell: Progress = None) -> list[str]:
        return drive(self.engine.migrate(self.settings), self._execute)

    @abstractmethod
    def _connect(self) -> Any:
        """The client; created if there is none."""

    @abstractmethod
    def _execute(self, command: Any) -> Any:
        """Do what a program yields."""

    @abstractmethod
    def _forget_connections(self) -> None:
        """Begin without any. After a fork: sockets and threads are the parent's."""


class AsyncVersionedStore(AsyncStore):
    """The async store, for event loops."""

    engine: ClassVar[EnginePrograms]
    blocking: ClassVar[type[VersionedStore]]
    client: ClassVar[Callable[[Any], LoopClient]]

    def __init__(self, settings: Any, clock: ServiceClock | GivenClock | None = None) -> None:
        self.settings = settings
        self.url = settings.url
        self.leases = LeaseWatch(clock or ServiceClock(), settings.skew)
        self.programs: Any = self.engine.requests(self.leases)
        self._loops = PerLoop(lambda: type(self).client(self))
        self._tap: Tap | None = None
        """Tests only: called before and after every call."""
        self._blocking: VersionedStore | None = None
        self._opening = RenewedLock()
        self._is_prepared = False

    def blocking_store(self) -> VersionedStore:
        with self._opening.now:
            if self._blocking is None:
                self._blocking = self.blocking(self.settings, leases=self.leases)
            return self._blocking

    async def ready(self) -> None:
        """Connects, and prepares once: also because that reads the time of the service."""
        client = self._loops.here()
        await client.connected()
        if not self._is_prepared:
            async with client.preparing:
                if not self._is_prepared:
                    await client.run(self.engine.prepare(self.settings))
                    self._is_prepared = True

    async def perform(self, request: Request) -> Any:
        if not self._is_prepared:
            await self.ready()
        return await self._loops.here().run(self.programs.perform(request))

    async def doctor(self) -> list[Finding]:
        return await self._loops.here().run(self.engine.examine(self.settings))

    async def migrate(self, tell: Progress = None) -> list[str]:
        return await self._loops.here().run(self.engine.migrate(self.settings))

    async def close(self) -> None:
        client = self._loops.forget()
        if client is not None:
            await client.close()
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            await asyncio.to_thread(blocking.close)


class LoopClient(ABC):
    """The connections of one event loop, and how they run programs."""

    def __init__(self, store: AsyncVersionedStore) -> None:
        self.store = store
        self.preparing = asyncio.Lock()
        self._connecting = asyncio.Lock()

    async def run(self, program: Program[T]) -> T:
        return await drive_async(program, self._execute)

    @abstractmethod
    async def connected(self) -> Any:
        """The client; created if there is none."""

    @abstractmethod
    def _execute(self, command: Any) -> Any:
        """Do what a program yields: the reply, or a coroutine to await."""

    @abstractmethod
    async def close(self) -> None: ...
