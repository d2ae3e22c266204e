"""The async DynamoDB store: one client of aiobotocore per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

from ..._core.driving import drive_async
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import AsyncStore, Capabilities, Finding, Program, Progress
from ...stores._batching import PerLoop
from .client import arguments, config, place, received, refused, settings_refused, with_models
from .items import Call
from .lease_watch import GivenClock, LeaseWatch, ServiceClock
from .programs import DynamodbPrograms
from .settings import Settings
from .store import CAPABILITIES, DynamodbStore
from .table import Pause, examine, migrate, prepare

__all__ = ["AsyncDynamodbStore"]

T = TypeVar("T")


class AsyncDynamodbStore(AsyncStore):
    """The async store, for event loops."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def __init__(self, settings: Settings, clock: ServiceClock | GivenClock | None = None) -> None:
        self.settings = settings
        self.url = settings.url
        self.leases = LeaseWatch(clock or ServiceClock(), settings.skew)
        self.programs = DynamodbPrograms(self.leases)
        self._loops = PerLoop(lambda: LoopClient(settings, self.leases.clock))
        self._blocking: DynamodbStore | None = None
        self._is_checked = False

    @classmethod
    def open(cls, url: str) -> Self:
        require("boto3", "aiobotocore.session", extra="dynamodb")
        return cls(Settings.of(url))

    def blocking_store(self) -> DynamodbStore:
        if self._blocking is None:
            self._blocking = DynamodbStore(self.settings, leases=self.leases)
        return self._blocking

    async def ready(self) -> None:
        """Connects, and checks the table once: also because that reads the time of the service."""
        client = self._loops.here()
        if not self._is_checked:
            async with client.checking:
                if not self._is_checked:
                    await client.run(prepare(self.settings))
                    self._is_checked = True
        await client.connected()

    async def perform(self, request: Request) -> Any:
        if not self._is_checked:
            await self.ready()
        return await self._loops.here().run(self.programs.perform(request))

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return await asyncio.gather(*(self._attempt(request) for request in requests))

    async def _attempt(self, request: Request) -> Any:
        try:
            return await self.perform(request)
        except Exception as error:
            return error

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

    def __init__(self, settings: Settings, clock: ServiceClock | GivenClock) -> None:
        self._settings = settings
        self._clock = clock
        self.checking = asyncio.Lock()
        self._connecting = asyncio.Lock()
        self._client: Any = None

    async def run(self, program: Program[T]) -> T:
        return await drive_async(program, self._execute)

    def _execute(self, command: Any) -> Any:
        if isinstance(command, Call):
            return self._call(command)
        if isinstance(command, Pause):
            return asyncio.sleep(command.seconds)
        return self._all(command)

    async def _all(self, calls: list[Call]) -> list[Any]:
        return await asyncio.gather(*(self._call(call) for call in calls))

    async def _call(self, call: Call) -> Any:
        client, clock = self._client or await self.connected(), self._clock
        sent = clock.steady()
        try:
            reply = await getattr(client, call.operation)(**arguments(self._settings, call))
        except Exception as error:
            return refused(error, self._settings, clock, sent)
        return received(reply, clock, sent)

    async def connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Any:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
        from botocore.exceptions import BotoCoreError

        try:
            return await (
                with_models(get_session())
                .create_client(
                    "dynamodb", **place(self._settings), config=AioConfig(**config(self._settings))
                )
                .__aenter__()
            )
        except (BotoCoreError, ValueError) as error:
            raise settings_refused(error, self._settings) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
