"""The async PostgreSQL stores: psycopg 3 or asyncpg, with the same programs.

Each event loop has four connections: for claims, for ends, for claims of keys that an open
transaction holds, and for everything else. Calls that arrive while a connection is busy share its
next statement (`AsyncBatcher`). If a call is cancelled or fails, its connection is dropped; a retry
on a new one gets the same answer, by the owner token. A cancelled call waits until its statement
has ended in the server. So what is sent next (`Abandon`, on the connection of the claims) cannot
overtake it.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ..._core.outbox_requests import OutboxRequest, Reply
from ..._core.protocol import Request
from ..._values.drivers import require
from ...errors import SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._base import AsyncStore, Capabilities, Finding, Program
from ...stores._batching import AsyncBatcher, PerLoop, uncancellable
from ...stores._outbox_port import AsyncOutboxPort
from ..sql.commands import Change, Query, dollars
from ..sql.migrations import check, migrate
from .connections import AsyncConnection, AsyncpgConnection, PsycopgConnection
from .generations import layout
from .listener import REST
from .outbox_programs import PostgresOutbox, bell_of
from .programs import PostgresPrograms
from .settings import Settings, explain, percents, pooler_met
from .statements import CHANNEL, NOW
from .store import (
    BATCH,
    CAPABILITIES,
    POLL,
    PostgresStore,
    findings,
    settings_program,
)

__all__ = ["AsyncPostgresStore", "AsyncpgStore"]

T = TypeVar("T")

SETTLING = 1.0
"""Seconds that a cancelled call gives its statement to end in the server."""


class _AsyncStoreBase(AsyncStore):
    """What both drivers share: connections per event loop, and the programs."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def __init__(self, settings: Settings, now: str = NOW) -> None:
        self.settings = settings
        self.url = settings.url
        self._now = now
        self._schema, self.programs = layout(
            settings.table, settings.schema, settings.generations, self.mark, now
        )
        self._outbox = PostgresOutbox(
            settings.table, settings.schema, self.mark, now, settings.migrate
        )
        self._tap: Callable[[str, Any], None] | None = None
        self._checked = False
        self._prepares = False
        self._beside: PostgresStore | None = None
        self._lanes = PerLoop(lambda: _LoopConnections(self))

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(Settings.of(url))

    def blocking_store(self) -> PostgresStore:
        if self._beside is None:
            self._beside = PostgresStore(self.settings, self._now)
        return self._beside

    async def ready(self) -> None:
        await self._lanes.here().connect()

    @property
    def outbox(self) -> _AsyncOutboxPort:
        return _AsyncOutboxPort(self._outbox, self._lanes)

    async def perform(self, request: Request) -> Any:
        return await self._lanes.here().perform(request)

    def submit(self, request: Request) -> Awaitable[Any]:
        return self._lanes.here().submit(request)

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return await self._lanes.here().perform_many(requests)

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await self._lanes.here().watch(id, seconds)

    async def migrate(self) -> list[str]:
        lane = self._lanes.here().other
        return await lane.run(migrate(self._schema, PostgresPrograms.begin))

    async def doctor(self) -> list[Finding]:
        lanes = self._lanes.here()
        found = findings(await lanes.run_other(settings_program()), self._schema.newest)
        return found + await lanes.run_other(self.programs.upkeep())

    async def close(self) -> None:
        lanes = self._lanes.forget()
        if lanes is not None:
            await lanes.close()
        if self._beside is not None:
            self._beside.close()
            self._beside = None

    async def prepare(self, connection: AsyncConnection) -> None:
        """Check that no pooler is in between and, once per store, that the schema is there."""
        settings = self.settings
        direct = await connection.drive(
            self.programs.greet(connection.pid, settings.prepare, self.url)
        )
        if settings.prepare and not direct:
            if not settings.prepare_given:
                raise pooler_met(self.url)
            await self._try_prepared(connection)
        if self._checked:
            return
        if self.settings.migrate:
            await connection.drive(migrate(self._schema, PostgresPrograms.begin))
        check(self._schema, await connection.drive(self._schema.version()), self.url)
        self._checked = True

    async def _try_prepared(self, connection: AsyncConnection) -> None:
        """As `PostgresStore._try_prepared`."""
        if self._prepares:
            return
        other = self.new_connection()
        await other.open()
        try:
            await connection.drive(self.programs.clock())
            await other.drive(_begun())
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


def _begun() -> Program[None]:
    yield Change(PostgresPrograms.begin)
    yield Query("SELECT 1")


class _Connection:
    """One connection, one program at a time; opened on first use, dropped after any error."""

    def __init__(self, store: _AsyncStoreBase) -> None:
        self._store = store
        self._connection: AsyncConnection | None = None
        self._lock = asyncio.Lock()

    async def run(self, program: Program[T]) -> T:
        try:
            return await self._run(program)
        except SchemaVersionError:
            if self._store._checked:  # the tables were there; have they got generations since?
                await self._run(self._store._schema.version())
            raise

    async def _run(self, program: Program[T]) -> T:
        patience = self._store.settings.timeout
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        if self._lock.locked():
            try:
                await asyncio.wait_for(self._lock.acquire(), patience)
            except TimeoutError as error:
                raise self._late() from error
        else:
            await self._lock.acquire()
        try:
            if self._connection is None:
                async with asyncio.timeout_at(until):
                    self._connection = await self._opened()
            # Not asyncio.timeout: a cancelled driver first tries to reach the server, which hangs.
            alarm = loop.call_at(until, self._connection.cut)
            try:
                return await self._connection.drive(program)
            finally:
                alarm.cancel()
        except asyncio.CancelledError:
            await self._settled()
            raise
        except BaseException as error:
            self.drop()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error  # the driver replaced it by this error
            if isinstance(error, TimeoutError) or loop.time() >= until:
                raise self._late() from error
            raise
        finally:
            self._lock.release()

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(self._store.settings.timeout), self._lock:
                if self._connection is None:
                    self._connection = await self._opened()
        except TimeoutError as error:
            raise self._late() from error

    def _late(self) -> StoreUnavailableError:
        store = self._store
        return StoreUnavailableError(
            f"{store.url} did not answer within {store.settings.timeout:g} s"
        )

    async def _settled(self) -> None:
        """Wait until the running statement has ended in the server; then drop the connection."""
        if self._connection is not None:
            try:
                async with asyncio.timeout(SETTLING):
                    await self._connection.execute(Query("SELECT 1"))
            except Exception:
                return
            finally:
                self.drop()

    async def _opened(self) -> AsyncConnection:
        connection = self._store.new_connection()
        try:
            await connection.open()
        except TimeoutError:
            raise
        except Exception as error:
            raise explain(error, self._store.url) from error
        try:
            await self._store.prepare(connection)
        except BaseException:
            connection.drop()
            raise
        return connection

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()


class _AsyncOutboxPort(AsyncOutboxPort):
    """The outbox on the running loop's connection for other work."""

    def __init__(self, programs: PostgresOutbox, lanes: PerLoop[_LoopConnections]) -> None:
        self.programs = programs
        self._lanes = lanes

    @property
    def dialect(self) -> str:
        return self.programs.dialect

    def in_transaction(self, style: str) -> PostgresOutbox:
        return self.programs.speaking(style)

    async def perform(self, request: OutboxRequest[Reply]) -> Reply:
        return await self._lanes.here().run_other(self.programs.perform(request))

    async def listen(self, owner: bytes, seconds: float) -> None:
        programs = self.programs
        await self._lanes.here().wait(bell_of(owner), seconds, lambda: programs.awaits(owner))


class _LoopConnections:
    """The connections of one event loop."""

    def __init__(self, store: _AsyncStoreBase) -> None:
        self._store = store
        self._claims, self._ends, self.other = (
            _Connection(store),
            _Connection(store),
            _Connection(store),
        )
        self._held = _Connection(store)
        """For claims of keys that an open transaction holds: no other call waits behind them."""
        claims = self._join(self._claims)
        self._joined = {
            "claim": claims,
            "abandon": claims,
            "complete": self._join(self._ends),
            "fail": self._join(self._ends),
        }
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._ear: asyncio.Task[None] | None = None
        self._hearing = asyncio.Event()

    def _join(self, lane: _Connection) -> AsyncBatcher:
        programs = self._store.programs
        return AsyncBatcher(
            lambda request: lane.run(programs.perform(request)),
            lambda requests: lane.run(programs.perform_all(requests)),
            BATCH,
        )

    async def connect(self) -> None:
        for lane in (self._claims, self._ends):
            await lane.connect()

    def perform(self, request: Request) -> Coroutine[Any, Any, Any]:
        store = self._store
        if self._is_held(request):
            return self._held.run(store.programs.perform(request))
        joined = self._joined.get(request.op)
        if joined is not None:
            return joined.perform(request)
        return self.run_other(store.programs.perform(request))

    def submit(self, request: Request) -> Awaitable[Any]:
        joined = None if self._is_held(request) else self._joined.get(request.op)
        return uncancellable(self.perform(request)) if joined is None else joined.submit(request)

    def _is_held(self, request: Any) -> bool:
        held = self._store.programs.held
        return bool(held) and request.op in ("claim", "abandon") and request.id in held

    def run_other(self, program: Program[T]) -> Coroutine[Any, Any, T]:
        return self.other.run(program)

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            lane = self._claims if part[0].op in ("claim", "abandon") else self._ends
            try:
                answers += await lane.run(self._store.programs.perform_all(part))
            except StoreError as error:
                answers += [error.again() for _ in part]
        return answers

    # -- wake-ups -----------------------------------------------------------------------------

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await self.wait(id, seconds, lambda: self._store.programs.awaits(id))

    async def wait(self, id: bytes, seconds: float, awaits: Callable[[], Program[bool]]) -> None:  # noqa: A002
        """As `PostgresStore._wait`."""
        if not self._store.settings.wake:
            await asyncio.sleep(min(seconds, POLL))
            return
        bell, name = asyncio.Event(), id.hex()
        self._bells.setdefault(name, set()).add(bell)
        try:
            async with asyncio.timeout(seconds):
                if self._ear is None or self._ear.done():
                    self._hearing.clear()
                    self._ear = asyncio.create_task(self._listen())
                await self._hearing.wait()
                # Marked after we listen and before we wait: an end in between is not missed.
                if await self.run_other(awaits()):
                    await bell.wait()
        except TimeoutError:
            return
        finally:
            bells = self._bells[name]
            bells.discard(bell)
            if not bells:
                del self._bells[name]

    async def _listen(self) -> None:
        connection = self._store.new_connection()
        try:
            await connection.open()
            await connection.execute(Change(f"LISTEN {CHANNEL}"))
            self._hearing.set()
            await connection.listen(self._ring)
        except Exception:
            await asyncio.sleep(REST)  # the next waiter starts it again
        finally:
            self._hearing.set()
            connection.drop()
            for name in self._bells:
                self._ring(name)

    def _ring(self, name: str) -> None:
        for bell in self._bells.get(name, ()):
            bell.set()

    async def close(self) -> None:
        if self._ear is not None:
            self._ear.cancel()
            await asyncio.wait({self._ear})
        for lane in (self._claims, self._ends, self.other, self._held):
            lane.drop()


# --- psycopg 3 -------------------------------------------------------------------------------


class AsyncPostgresStore(_AsyncStoreBase):
    """``postgresql://``"""

    @classmethod
    def open(cls, url: str) -> Self:
        require("psycopg")
        return super().open(url)

    def mark(self, sql: str) -> str:
        return percents(sql)

    def new_connection(self) -> AsyncConnection:
        return PsycopgConnection(self)


class AsyncpgStore(_AsyncStoreBase):
    """``postgresql+asyncpg://``; the lease keeper, a thread of its own, uses psycopg."""

    @classmethod
    def open(cls, url: str) -> Self:
        require("asyncpg", "psycopg")
        return super().open(url)

    def mark(self, sql: str) -> str:
        return dollars(sql)

    def new_connection(self) -> AsyncConnection:
        return AsyncpgConnection(self)
