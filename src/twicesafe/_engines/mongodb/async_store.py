"""The async MongoDB store: one AsyncMongoClient per event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from ..._core.driving import drive_async
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import Capabilities
from ..versioned.stores import AsyncVersionedStore, EnginePrograms, LoopClient, VersionedStore
from .client import Places, checked, connected, is_cursor, places_of, refused
from .collection import ask_time, is_replicated
from .documents import DriverCall
from .settings import Settings
from .store import CAPABILITIES, ENGINE, UNTRIED, MongodbStore, result_of

__all__ = ["AsyncMongodbStore"]


class MongodbLoopClient(LoopClient):
    """The AsyncMongoClient of one event loop."""

    _places: Places | None = None

    async def _execute(self, call: DriverCall) -> Any:
        places, tap = self._places or await self.connected(), self.store._tap
        if tap is not None:
            tap("before", call)
        reply = await self._send(places, call)
        if tap is not None:
            tap("after", call)
        return reply

    async def _send(self, places: Places, call: DriverCall) -> Any:
        try:
            reply = places.begin(call)
            if call.operation != "find":  # which is a cursor at once
                reply = await reply
            return await reply.to_list() if is_cursor(call) else result_of(reply, call)
        except Exception as error:
            return refused(error, call, self.store.settings)

    async def connected(self) -> Places:
        from pymongo import AsyncMongoClient

        settings = self.store.settings
        async with self._connecting:
            if self._places is None:
                client: Any = connected(AsyncMongoClient, settings, retries=True)
                try:
                    replicated = await self._is_replicated(client)
                except BaseException:
                    await client.close()
                    raise
                if not replicated:
                    await client.close()
                    client = connected(AsyncMongoClient, settings, retries=False)
                self._places = places_of(client, settings, replicated)
            return self._places

    async def _is_replicated(self, client: Any) -> bool:
        """As the blocking store does."""
        settings, clock = self.store.settings, self.store.leases.clock
        first = places_of(client, settings, replicated=False)
        return is_replicated(
            await drive_async(ask_time(clock), lambda call: self._send(first, call))
        )

    async def close(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            await places.client.close()


class AsyncMongodbStore(AsyncVersionedStore):
    """The async store, for event loops."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    untried: ClassVar[Mapping[str, str]] = UNTRIED
    engine: ClassVar[EnginePrograms] = ENGINE
    blocking: ClassVar[type[VersionedStore]] = MongodbStore
    client: ClassVar[Any] = MongodbLoopClient

    @classmethod
    def open(cls, url: str) -> Self:
        require("pymongo", extra="mongodb")
        return cls(checked(Settings.of(url)))

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        if not self._is_prepared:
            await self.ready()
        return await self._loops.here().run(self.programs.perform_many(requests))
