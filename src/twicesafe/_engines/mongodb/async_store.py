"""The async MongoDB store: one AsyncMongoClient per event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ..._core.driving import drive_async
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import AsyncStore, Capabilities, Finding, Program, Progress
from ...stores._batching import PerLoop
from ..versioned.lease_watch import GivenClock, LeaseWatch, ServiceClock
from .client import Places, check_options, connected, is_cursor, places_of, refused
from .collection import ask_time, examine, is_replicated, migrate
from .documents import DriverCall
from .programs import MongodbPrograms
from .settings import Settings
from .store import CAPABILITIES, UNTRIED, MongodbStore, result_of

__all__ = ["AsyncMongodbStore"]

T = TypeVar("T")


class AsyncMongodbStore(AsyncStore):
    """The async store, for event loops."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    untried: ClassVar[Mapping[str, str]] = UNTRIED

    def __init__(self, settings: Settings, clock: ServiceClock | GivenClock | None = None) -> None:
        self.settings = settings
        self.url = settings.url
        self.leases = LeaseWatch(clock or ServiceClock(), settings.skew)
        self.programs = MongodbPrograms(self.leases)
        self._loops = PerLoop(lambda: LoopClient(self))
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every call."""
        self._blocking: MongodbStore | None = None
        self._is_checked = False
        check_options(settings)

    @classmethod
    def open(cls, url: str) -> Self:
        require("pymongo", extra="mongodb")
        return cls(Settings.of(url))

    def blocking_store(self) -> MongodbStore:
        if self._blocking is None:
            self._blocking = MongodbStore(self.settings, leases=self.leases)
        return self._blocking

    async def ready(self) -> None:
        """Connects, and checks the collection once."""
        client = self._loops.here()
        await client.connected()
        if not self._is_checked:
            async with client.checking:
                if self.settings.migrate and not self._is_checked:
                    await client.run(migrate(self.settings))
                self._is_checked = True

    async def perform(self, request: Request) -> Any:
        if not self._is_checked:
            await self.ready()
        return await self._loops.here().run(self.programs.perform(request))

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        if not self._is_checked:
            await self.ready()
        return await self._loops.here().run(self.programs.perform_many(requests))

    async def doctor(self) -> list[Finding]:
        return await self._loops.here().run(examine(self.settings))

    async def migrate(self, tell: Progress = None) -> list[str]:
        return await self._loops.here().run(migrate(self.settings))

    async def close(self) -> None:
        client = self._loops.forget()
        if client is not None:
            await client.close()
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            await asyncio.to_thread(blocking.close)


class LoopClient:
    """The client of one event loop, and how it runs programs."""

    def __init__(self, store: AsyncMongodbStore) -> None:
        self._store = store
        self.checking = asyncio.Lock()
        self._connecting = asyncio.Lock()
        self._places: Places | None = None

    async def run(self, program: Program[T]) -> T:
        return await drive_async(program, self._execute)

    async def _execute(self, call: DriverCall) -> Any:
        places, tap = self._places or await self.connected(), self._store._tap
        if tap is not None:
            tap("before", call)
        reply = await self._send(places, call)
        if tap is not None:
            tap("after", call)
        return reply

    async def _send(self, places: Places, call: DriverCall) -> Any:
        try:
            reply = places.begin(call)
            if inspect.isawaitable(reply):
                reply = await reply
            return await reply.to_list() if is_cursor(call) else result_of(reply, call)
        except Exception as error:
            return refused(error, call, self._store.settings)

    async def connected(self) -> Places:
        from pymongo import AsyncMongoClient

        async with self._connecting:
            if self._places is None:
                client: Any = connected(AsyncMongoClient, self._store.settings)
                try:
                    self._places = await self._greeted(client)
                except BaseException:
                    await client.close()
                    raise
            return self._places

    async def _greeted(self, client: Any) -> Places:
        settings, clock = self._store.settings, self._store.leases.clock
        first = places_of(client, settings, replicated=False)
        hello = await drive_async(ask_time(clock), lambda call: self._send(first, call))
        return places_of(client, settings, is_replicated(hello))

    async def close(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            await places.client.close()
