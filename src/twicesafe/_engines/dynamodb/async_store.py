"""The async DynamoDB store: one client of aiobotocore per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ..._core.driving import drive_async
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import AsyncStore, Capabilities, Finding, Program, Progress
from ...stores._batching import PerLoop
from ..versioned.lease_watch import GivenClock, LeaseWatch, ServiceClock
from .client import arguments, config, place, received, refused, settings_refused, with_models
from .items import BotoCall
from .programs import DynamodbPrograms
from .settings import Settings
from .store import CAPABILITIES, UNTRIED, DynamodbStore
from .table import TablePause, examine, migrate, prepare

__all__ = ["AsyncDynamodbStore"]

T = TypeVar("T")


class AsyncDynamodbStore(AsyncStore):
    """The async store, for event loops."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    untried: ClassVar[Mapping[str, str]] = UNTRIED

    def __init__(self, settings: Settings, clock: ServiceClock | GivenClock | None = None) -> None:
        self.settings = settings
        self.url = settings.url
        self.leases = LeaseWatch(clock or ServiceClock(), settings.skew)
        self.programs = DynamodbPrograms(self.leases)
        self._loops = PerLoop(lambda: LoopClient(self))
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every call."""
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
    """The clients of one event loop, and how they run programs."""

    def __init__(self, store: AsyncDynamodbStore) -> None:
        self._store = store
        self.checking = asyncio.Lock()
        self._connecting = asyncio.Lock()
        self._clients: dict[bool, Any] = {}

    async def run(self, program: Program[T]) -> T:
        return await drive_async(program, self._execute)

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
        settings, clock, tap = self._store.settings, self._store.leases.clock, self._store._tap
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

        settings = self._store.settings
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
