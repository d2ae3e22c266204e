"""The async PostgreSQL stores: psycopg 3 or asyncpg, with the same programs.

Each event loop has its own four connections (`LoopConnections`), each with one program at a time. One
is for claims, one for ends (complete, fail), one for claims of keys that an open transaction locks, and
one for all other work. Calls that arrive while a connection is busy share its next statement
(`AsyncBatcher`). They are opened on first use; the first one also checks the schema.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Final, Self, TypeVar

from ..._core.outbox.requests import OutboxRequest, Reply, Unpark
from ..._core.protocol import Request
from ..._forking import RenewedLock
from ..._values.drivers import require
from ...errors import StoreError, StoreUnavailableError
from ...stores._base import AsyncStore, Capabilities, Finding, Program, Progress
from ...stores._batching import AsyncBatcher, PerLoop, uncancellable
from ...stores._outbox_port import AsyncOutboxPort
from ..sql.commands import Change, Query, dollars
from ..sql.layouts import WIDE
from .connections import AsyncConnection, AsyncpgConnection, PsycopgConnection, SerialConnection
from .doctor import findings, settings_program
from .generations import programs_of, schema_of
from .outbox_programs import PostgresOutbox, wakeup_id
from .programs import PostgresPrograms
from .request_programs import READS
from .session import set_up_session
from .settings import Settings, checked, pooler_met
from .statements import NOW
from .store import BATCH, CAPABILITIES, POLL, UNMARKED, PostgresStore
from .wakeups import AsyncListener

__all__ = ["AsyncPostgresStore", "AsyncpgStore"]

T = TypeVar("T")

CLAIMS: Final = frozenset({"claim", "start_run", "submit_run", "abandon"})

PERFORM: Final = attrgetter("programs.perform")
"""Of a store. Looked up at each run, because a migration replaces the programs of the store."""
PERFORM_ALL: Final = attrgetter("programs.perform_all")
AWAITS: Final = attrgetter("programs.awaits")


class LoopConnections:
    """The connections of one event loop, and the batchers in front of two of them."""

    def __init__(self, store: AsyncStoreBase) -> None:
        self._store = store
        self._claims = SerialConnection(store)
        self._ends = SerialConnection(store, spare=self._claims)
        """Work that is done must be recorded, also on a server that has no connection left."""
        self.other = SerialConnection(store)
        self._locked = SerialConnection(store)
        """For claims of keys that an open transaction locks: no other call waits behind them."""
        claims, ends = self._batcher(self._claims), self._batcher(self._ends)
        self.batchers = {
            "claim": claims,
            "start_run": claims,
            "submit_run": claims,
            "abandon": claims,
            "complete": ends,
            "fail": ends,
            "record_step": ends,
        }
        """By kind of request. Requests of all other kinds run alone."""
        self._listener = AsyncListener(store.new_connection)

    def _batcher(self, connection: SerialConnection) -> AsyncBatcher:
        return AsyncBatcher(
            partial(connection.run, PERFORM), partial(connection.run, PERFORM_ALL), BATCH
        )

    async def connect(self) -> None:
        await self._claims.connect()
        with contextlib.suppress(StoreUnavailableError):  # then it shares the other one
            await self._ends.connect()

    def perform_alone(self, request: Request) -> Coroutine[Any, Any, Any]:
        if request.op in READS:
            return self.repeat(PERFORM, request)
        connection = self._locked if request.op in CLAIMS else self.other
        return connection.run(PERFORM, request)

    async def repeat(
        self, chosen: Callable[[AsyncStoreBase], Callable[..., Program[T]]], *words: Any
    ) -> T:
        """The async version of `PostgresStore._repeat`."""
        clock = asyncio.get_running_loop().time
        soon = clock() + self._store.settings.timeout / 2
        try:
            return await self.other.run(chosen, *words)
        except StoreUnavailableError:
            if clock() > soon:
                raise
        return await self.other.run(chosen, *words)

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            connection = self._claims if part[0].op in CLAIMS else self._ends
            try:
                answers += await connection.run(PERFORM_ALL, part)
            except StoreError as error:
                answers += [error.again() for _ in part]
        return answers

    # -- wake-ups -----------------------------------------------------------------------------

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await self.wait(id[:16], seconds, AWAITS, id)

    async def wait(
        self,
        id: bytes,  # noqa: A002
        seconds: float,
        awaits: Callable[[Any], Callable[[bytes], Program[bool]]],
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
        self._opening = RenewedLock()
        self._loops = PerLoop(lambda: LoopConnections(self))

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(Settings.of(url))

    def blocking_store(self) -> PostgresStore:
        with self._opening.now:
            if self._blocking is None:
                self._blocking = PostgresStore(self.settings, self._now)
            return self._blocking

    async def ready(self) -> None:
        await self._loops.here().connect()

    @property
    def outbox(self) -> _AsyncOutboxPort:
        return _AsyncOutboxPort(self._outbox, self._loops)

    async def perform(self, request: Request) -> Any:
        here = self._loops.here()
        batcher = here.batchers.get(request.op)
        if batcher is None or (self.programs.locked and self._is_locked(request)):
            return await here.perform_alone(request)
        return await batcher.perform(request)

    def submit(self, request: Request) -> Awaitable[Any]:
        here = self._loops.here()
        batcher = here.batchers.get(request.op)
        if batcher is None or (self.programs.locked and self._is_locked(request)):
            return uncancellable(here.perform_alone(request))
        return batcher.submit(request)

    def _is_locked(self, request: Any) -> bool:
        return request.op in CLAIMS and request.id in self.programs.locked

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return await self._loops.here().perform_many(requests)

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await self._loops.here().watch(id, seconds)

    async def migrate(self, tell: Progress = None) -> list[str]:
        return await asyncio.to_thread(lambda: self.blocking_store().migrate(tell))

    async def doctor(self) -> list[Finding]:
        run = self._loops.here().repeat
        settings = await run(lambda _: settings_program)
        found = findings(settings, await run(lambda store: store._schema.version))
        return found + await run(lambda store: store.programs.upkeep)

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
            await connection.drive(self._schema.prepare(PostgresPrograms.begin))
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
        here = self._loops.here()
        if type(request) is not Unpark:
            return await here.repeat(lambda _: program, request)
        await here.repeat(lambda _: self.programs.look)
        return await here.other.run(lambda _: program, request)

    async def listen(self, owner: bytes, seconds: float) -> None:
        awaits = self.programs.awaits
        await self._loops.here().wait(wakeup_id(owner), seconds, lambda _: awaits, owner)


class AsyncPostgresStore(AsyncStoreBase):
    """``postgresql://``"""

    @classmethod
    def open(cls, url: str) -> Self:
        require("psycopg")
        return cls(checked(Settings.of(url)))

    def mark(self, sql: str) -> str:
        return UNMARKED(sql)

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
