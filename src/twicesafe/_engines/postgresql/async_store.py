"""The async PostgreSQL stores: psycopg 3 or asyncpg, with the same programs.

Each event loop has its own connections (`loop_connections`), opened on first use. The first one also
checks the schema.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ..._core.outbox.requests import OutboxRequest, Reply
from ..._core.protocol import Request
from ..._values.drivers import require
from ...stores._base import AsyncStore, Capabilities, Finding, Program, Progress
from ...stores._batching import PerLoop
from ...stores._outbox_port import AsyncOutboxPort
from ..sql.commands import Change, Query, dollars
from ..sql.layouts import WIDE
from ..sql.migrations import prepare
from .connections import AsyncConnection, AsyncpgConnection, PsycopgConnection
from .doctor import findings, settings_program
from .generations import programs_of, schema_of
from .loop_connections import LoopConnections
from .outbox_programs import PostgresOutbox, wakeup_id
from .programs import PostgresPrograms
from .session import set_up_session
from .settings import Settings, percents, pooler_met
from .statements import NOW
from .store import (
    CAPABILITIES,
    PostgresStore,
)

__all__ = ["AsyncPostgresStore", "AsyncpgStore"]

T = TypeVar("T")


class AsyncStoreBase(AsyncStore):
    """What both drivers share: connections per event loop, and the programs."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def __init__(self, settings: Settings, now: str = NOW) -> None:
        self.settings = settings
        self.url = settings.url
        self._now = now
        self._schema = schema_of(settings, self.mark)
        self.programs = programs_of(settings, WIDE, self.mark, now)
        self._outbox = PostgresOutbox(
            settings.table, settings.schema, self.mark, now, settings.migrate
        )
        self._tap: Callable[[str, Any], None] | None = None
        self._checked = False
        self._prepares = False
        self._blocking: PostgresStore | None = None
        self._loops = PerLoop(lambda: LoopConnections(self))

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(Settings.of(url))

    def blocking_store(self) -> PostgresStore:
        if self._blocking is None:
            self._blocking = PostgresStore(self.settings, self._now)
        return self._blocking

    async def ready(self) -> None:
        await self._loops.here().connect()

    @property
    def outbox(self) -> _AsyncOutboxPort:
        return _AsyncOutboxPort(self._outbox, self._loops)

    async def perform(self, request: Request) -> Any:
        return await self._loops.here().perform(request)

    def submit(self, request: Request) -> Awaitable[Any]:
        return self._loops.here().submit(request)

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return await self._loops.here().perform_many(requests)

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await self._loops.here().watch(id, seconds)

    async def migrate(self, tell: Progress = None) -> list[str]:
        return await asyncio.to_thread(lambda: self.blocking_store().migrate(tell))

    async def doctor(self) -> list[Finding]:
        run = self._loops.here().other.run
        found = findings(await run(settings_program), await run(self._schema.version))
        return found + await run(self.programs.upkeep)

    async def close(self) -> None:
        connections = self._loops.forget()
        if connections is not None:
            await connections.close()
        if self._blocking is not None:
            self._blocking.close()
            self._blocking = None

    async def prepare(self, connection: AsyncConnection) -> None:
        """Set up a new connection: refuse a pooler and, once per store, check the schema."""
        settings = self.settings
        is_direct = await connection.drive(
            set_up_session(self.programs, connection.pid, settings.prepare, self.url)
        )
        if settings.prepare and not is_direct:
            if not settings.prepare_given:
                raise pooler_met(self.url)
            await self._try_prepared(connection)
        if self._checked:
            return
        if self.settings.migrate:
            await connection.drive(prepare(self._schema, PostgresPrograms.begin))
        await self.refit(connection)
        self._checked = True

    async def refit(self, connection: AsyncConnection) -> None:
        """Use the layout that the records have now."""
        layout = await connection.drive(self._schema.layout(self.url))
        if layout.version > self.programs.layout.version:
            self.programs = programs_of(self.settings, layout, self.mark, self._now)

    async def _try_prepared(self, connection: AsyncConnection) -> None:
        """The async version of `PostgresStore._try_prepared`."""
        if self._prepares:
            return
        other = self.new_connection()
        await other.open()
        try:
            await connection.drive(self.programs.clock())
            await other.drive(_begin())
            await connection.drive(self.programs.clock())
        finally:
            other.drop()
        self._prepares = True

    @abc.abstractmethod
    def mark(self, sql: str) -> str:
        """`sql` with this driver's placeholders."""

    @abc.abstractmethod
    def new_connection(self) -> AsyncConnection:
        """A connection that is not opened yet."""


def _begin() -> Program[None]:
    yield Change(PostgresPrograms.begin)
    yield Query("SELECT 1")


class _AsyncOutboxPort(AsyncOutboxPort):
    """The outbox on the running loop's connection for other work."""

    def __init__(self, programs: PostgresOutbox, loops: PerLoop[LoopConnections]) -> None:
        self.programs = programs
        self._loops = loops

    @property
    def dialect(self) -> str:
        return self.programs.dialect

    def in_transaction(self, style: str) -> PostgresOutbox:
        return self.programs.with_placeholders(style)

    async def perform(self, request: OutboxRequest[Reply]) -> Reply:
        return await self._loops.here().other.run(self.programs.perform, request)

    async def listen(self, owner: bytes, seconds: float) -> None:
        await self._loops.here().wait(wakeup_id(owner), seconds, self.programs.awaits, owner)


class AsyncPostgresStore(AsyncStoreBase):
    """``postgresql://``"""

    @classmethod
    def open(cls, url: str) -> Self:
        require("psycopg")
        return super().open(url)

    def mark(self, sql: str) -> str:
        return percents(sql)

    def new_connection(self) -> AsyncConnection:
        return PsycopgConnection(self)


class AsyncpgStore(AsyncStoreBase):
    """``postgresql+asyncpg://``. The lease keeper, which is a thread, uses psycopg."""

    @classmethod
    def open(cls, url: str) -> Self:
        require("asyncpg", "psycopg")
        return super().open(url)

    def mark(self, sql: str) -> str:
        return dollars(sql)

    def new_connection(self) -> AsyncConnection:
        return AsyncpgConnection(self)
