"""The async PostgreSQL stores: psycopg 3 or asyncpg, with the same programs.

Each event loop has four connections of its own (`LoopConnections`), each with one program at a time. One
is for claims, one for ends (complete, fail), one for claims of keys that an open transaction locks, and
one for all other work. Calls that arrive while a connection is busy share its next statement
(`AsyncBatcher`). They are opened on first use; the first one also checks the schema.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Self, TypeVar

from ..._core.outbox.requests import OutboxRequest, Reply
from ..._core.protocol import Request
from ..._values.drivers import require
from ...errors import StoreError
from ...stores._base import AsyncStore, Capabilities, Finding, Program, Progress
from ...stores._batching import AsyncBatcher, PerLoop, uncancellable
from ...stores._outbox_port import AsyncOutboxPort
from ..sql.commands import Change, Query, dollars
from ..sql.layouts import WIDE
from ..sql.migrations import prepare
from .connections import AsyncConnection, AsyncpgConnection, PsycopgConnection, SerialConnection
from .doctor import findings, settings_program
from .generations import programs_of, schema_of
from .outbox_programs import PostgresOutbox, wakeup_id
from .programs import PostgresPrograms
from .session import set_up_session
from .settings import Settings, percents, pooler_met
from .statements import NOW
from .store import BATCH, CAPABILITIES, POLL, PostgresStore
from .wakeups import AsyncListener

__all__ = ["AsyncPostgresStore", "AsyncpgStore"]

T = TypeVar("T")

CLAIMS: Final = frozenset({"claim", "start_run", "submit_run", "abandon"})


class LoopConnections:
    """The connections of one event loop, and which request goes to which."""

    def __init__(self, store: AsyncStoreBase) -> None:
        self._store = store
        self._claims = SerialConnection(store)
        self._ends = SerialConnection(store)
        self.other = SerialConnection(store)
        self._locked = SerialConnection(store)
        """For claims of keys that an open transaction locks: no other call waits behind them."""
        claims, ends = self._batcher(self._claims), self._batcher(self._ends)
        self._batchers = {
            "claim": claims,
            "start_run": claims,
            "submit_run": claims,
            "abandon": claims,
            "complete": ends,
            "fail": ends,
            "record_step": ends,
        }
        self._listener = AsyncListener(store.new_connection)

    def _batcher(self, connection: SerialConnection) -> AsyncBatcher:
        return AsyncBatcher(
            partial(connection.run, self._performed),
            partial(connection.run, self._all_performed),
            BATCH,
        )

    def _performed(self, request: Request) -> Program[Any]:
        """With the store's current programs, which change when the store is migrated."""
        return self._store.programs.perform(request)

    def _all_performed(self, requests: Sequence[Request]) -> Program[list[Any]]:
        return self._store.programs.perform_all(requests)

    async def connect(self) -> None:
        for connection in (self._claims, self._ends):
            await connection.connect()

    def perform(self, request: Request) -> Coroutine[Any, Any, Any]:
        store = self._store
        if store.programs.locked and self._is_locked(request):
            return self._locked.run(self._performed, request)
        batcher = self._batchers.get(request.op)
        if batcher is not None:
            return batcher.perform(request)
        return self.other.run(self._performed, request)

    def submit(self, request: Request) -> Awaitable[Any]:
        batcher = self._batchers.get(request.op)
        if batcher is None or (self._store.programs.locked and self._is_locked(request)):
            return uncancellable(self.perform(request))
        return batcher.submit(request)

    def _is_locked(self, request: Any) -> bool:
        return request.op in CLAIMS and request.id in self._store.programs.locked

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            connection = self._claims if part[0].op in CLAIMS else self._ends
            try:
                answers += await connection.run(self._all_performed, part)
            except StoreError as error:
                answers += [error.again() for _ in part]
        return answers

    def _awaited(self, id_: bytes) -> Program[bool]:
        return self._store.programs.awaits(id_)

    # -- wake-ups -----------------------------------------------------------------------------

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await self.wait(id[:16], seconds, self._awaited, id)

    async def wait(
        self,
        id: bytes,  # noqa: A002
        seconds: float,
        awaits: Callable[[bytes], Program[bool]],
        whom: bytes,
    ) -> None:
        """The async version of `PostgresStore._wait`."""
        if not self._store.settings.wake:
            await asyncio.sleep(min(seconds, POLL))
            return
        try:
            async with asyncio.timeout(seconds), self._listener.listening(id) as wakeup:
                # Mark the row after we listen and before we wait, so that no end is missed.
                if await self.other.run(awaits, whom):
                    await wakeup.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        await self._listener.close()
        for connection in (self._claims, self._ends, self.other, self._locked):
            connection.drop()


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
        program: Callable[[Any], Program[Reply]] = getattr(self.programs, request.op)
        return await self._loops.here().other.run(program, request)

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
