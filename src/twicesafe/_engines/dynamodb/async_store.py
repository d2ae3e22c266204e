"""The async DynamoDB store: one client of aiobotocore per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import Capabilities
from ..versioned.stores import AsyncVersionedStore, EnginePrograms, LoopClient, VersionedStore
from .client import arguments, config, place, received, refused, settings_refused, with_models
from .items import BotoCall
from .settings import Settings
from .store import CAPABILITIES, ENGINE, UNTRIED, DynamodbStore
from .table import TablePause

__all__ = ["AsyncDynamodbStore"]


class DynamodbLoopClient(LoopClient):
    """The clients of aiobotocore of one event loop."""

    def __init__(self, store: AsyncVersionedStore) -> None:
        super().__init__(store)
        self._clients: dict[bool, Any] = {}

    def _execute(self, command: Any) -> Any:
        if isinstance(command, BotoCall):
            return self._call(command)
        if isinstance(command, TablePause):
            return asyncio.sleep(command.seconds)
        return self._all(command)

    async def _all(self, calls: list[BotoCall]) -> list[Any]:
        return await asyncio.gather(*(self._call(call) for call in calls))

    async def _call(self, call: BotoCall) -> Any:
        client = self._clients.get(call.once) or await self.connected(call.once)
        settings, clock, tap = self.store.settings, self.store.leases.clock, self.store._tap
        if tap is not None:
            tap("before", call)
        sent = clock.steady()
        try:
            reply = await getattr(client, call.operation)(**arguments(settings, call))
        except Exception as error:
            reply = refused(error, settings, clock, sent)
        else:
            reply = received(reply, settings, clock, sent)
        if tap is not None:
            tap("after", call)
        return reply

    async def connected(self, once: bool = False) -> Any:
        async with self._connecting:
            if once not in self._clients:
                self._clients[once] = await self._connect(once)
            return self._clients[once]

    async def _connect(self, once: bool) -> Any:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
        from botocore.exceptions import BotoCoreError

        settings = self.store.settings
        try:
            session = with_models(get_session())
            chosen = AioConfig(**config(settings, once, session.user_agent()))
            made = session.create_client("dynamodb", **place(settings), config=chosen)
            return await made.__aenter__()
        except (BotoCoreError, ValueError) as error:
            raise settings_refused(error, settings) from error

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()


class AsyncDynamodbStore(AsyncVersionedStore):
    """The async store, for event loops."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    untried: ClassVar[Mapping[str, str]] = UNTRIED
    engine: ClassVar[EnginePrograms] = ENGINE
    blocking: ClassVar[type[VersionedStore]] = DynamodbStore
    client: ClassVar[Any] = DynamodbLoopClient

    @classmethod
    def open(cls, url: str) -> Self:
        require("boto3", "aiobotocore.session", extra="dynamodb")
        return cls(Settings.of(url))

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return await asyncio.gather(*(self._attempt(request) for request in requests))

    async def _attempt(self, request: Request) -> Any:
        try:
            return await self.perform(request)
        except Exception as error:
            return error
