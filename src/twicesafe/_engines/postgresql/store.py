"""The blocking PostgreSQL store: psycopg 3 and a pool of connections.

Every wait is bounded: for a connection, for the pool, and for an answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from ..._core.driving import drive
from ..._core.protocol import Request
from ..._values.drivers import require
from ...errors import SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._base import Capabilities, Finding, Program, Progress, Store
from ..sql.commands import Query, atomically, dollars
from ..sql.connection_pool import Pool
from ..sql.in_transaction import InTransaction
from ..sql.layouts import MOVING, NARROW, WIDE
from ..sql.migrations import LAYOUT_CHANGES, migrate_records
from .doctor import findings, settings_program
from .generations import programs_of, schema_of
from .moving import PostgresMoves
from .outbox_programs import PostgresOutbox, PostgresOutboxPort
from .programs import PostgresPrograms
from .request_programs import READS
from .session import set_up_session
from .settings import NOT_FREE, Settings, code_of, explain, percents, pooler_met
from .statement_runner import StatementRunner
from .statements import NOW
from .wakeups import Listener

if TYPE_CHECKING:
    import psycopg

__all__ = ["CAPABILITIES", "PostgresStore"]

T = TypeVar("T")

CAPABILITIES = Capabilities(transactions=True, wake=True, outbox=True, steps=True, copies=True)

BATCH = 1000
"""The most requests in one statement."""

MIGRATION_TIMEOUT = 60.0
"""Seconds for which a migration tries to lock a table that transactions use."""

UNMARKED = str
"""Leaves every placeholder as ``?``. `StatementRunner` numbers them, once for each text."""

POLL = 0.05
"""Seconds between two polls of a waiter, where wake-ups are off."""


class PostgresStore(Store):
    """The blocking store, for threads."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    dialect = "postgresql"

    def __init__(self, settings: Settings, now: str = NOW) -> None:
        self.settings = settings
        self._now = now
        self.url = settings.url
        self._schema = schema_of(settings, UNMARKED)
        self.programs = programs_of(settings, WIDE, UNMARKED, now)
        outbox = PostgresOutbox(settings.table, settings.schema, UNMARKED, now, settings.migrate)
        self._outbox = PostgresOutboxPort(outbox, self._run, self._repeat, self._wait)
        self._kind = connection_class(settings)
        self._pool: Pool[Any] = Pool(self._connect, settings.pool, settings.timeout)
        self._listener = Listener(self._connect_listener)
        self._prepares = False
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every statement."""
        try:
            if settings.migrate:
                self.migrated = self._run(self._schema.prepare(PostgresPrograms.begin))
            self.refresh()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, url: str) -> Self:
        require("psycopg")
        return cls(Settings.of(url))

    @classmethod
    def script(cls, url: str) -> str:
        settings = Settings.of(url)
        runs = programs_of(settings, NARROW, UNMARKED).runs_schema()
        return f"{schema_of(settings, UNMARKED).script()}\n{runs.script()}"

    @classmethod
    def outbox_script(cls, url: str) -> str:
        settings = Settings.of(url)
        return PostgresOutbox(settings.table, settings.schema, UNMARKED).schema.script()

    @property
    def outbox(self) -> PostgresOutboxPort:
        return self._outbox

    def perform(self, request: Request) -> Any:
        try:
            if request.op in READS:
                return self._repeat(lambda: self.programs.perform(request))
            return self._run(self.programs.perform(request))
        except SchemaVersionError:
            return self._follow_migration(lambda: self.programs.perform(request))

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            try:
                answers += self._perform_part(part)
            except StoreError as error:
                answers += [error.again() for _ in part]
        return answers

    def _perform_part(self, part: Sequence[Request]) -> list[Any]:
        try:
            return self._run(self.programs.perform_all(part))
        except SchemaVersionError:
            return self._follow_migration(lambda: self.programs.perform_all(part))

    def in_transaction(self, style: str = "%s") -> InTransaction:
        from .in_transaction import PostgresInTransaction

        mark = dollars if style == "$1" else percents
        programs = programs_of(self.settings, self.programs.layout, mark, self._now)
        return PostgresInTransaction(programs, self._now)

    def own_transaction(self, program: Callable[[], Program[T]]) -> T:
        return self._run(atomically(program(), PostgresPrograms.begin))

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        self._wait(id[:16], seconds, lambda: self.programs.awaits(id))

    def _wait(self, id: bytes, seconds: float, awaits: Callable[[], Program[bool]]) -> None:  # noqa: A002
        """Wait until this id is announced. `awaits` requests that; it returns False if it is too late."""
        if not self.settings.wake:
            time.sleep(min(seconds, POLL))
            return
        if self._listener.pid != os.getpid():  # forked: the listening thread is in the parent only
            self._listener = Listener(self._connect_listener)
        with self._listener.listening(id) as wakeup:
            # Mark the row after we listen and before we wait, so that no end is missed.
            if self._run(awaits()):
                wakeup.wait(seconds)

    def migrate(self, tell: Progress = None) -> list[str]:
        begin = PostgresPrograms.begin
        done = self._run(self._schema.prepare(begin))
        if not self.settings.generations:
            done += migrate_records(self._schema, self._moves, self._run_when_free, begin, tell)
        self.refresh()
        return done + self._run(self.programs.runs.migrated())

    def _moves(self) -> PostgresMoves:
        return programs_of(self.settings, MOVING, UNMARKED, self._now).moves  # type: ignore[no-any-return]

    def refresh(self) -> None:
        """Use the layout that the records have now."""
        layout = self._run(self._schema.layout(self.url))
        if layout.version > self.programs.layout.version:
            programs = programs_of(self.settings, layout, UNMARKED, self._now)
            if layout.version > self.programs.layout.version:  # another thread may have read more
                self.programs = programs

    def _follow_migration(self, program: Callable[[], Program[T]]) -> T:
        """Run a program that did not find its table, in the layout that the records have now."""
        for _ in range(LAYOUT_CHANGES):
            self.refresh()
            with suppress(SchemaVersionError):
                return self._run(program())
        return self._run(program())

    def doctor(self) -> list[Finding]:
        found = findings(self._repeat(settings_program), self._run(self._schema.version()))
        return found + self._run(self.programs.upkeep())

    def close(self) -> None:
        if self._listener.pid == os.getpid():
            self._listener.close()
        self._pool.close()

    # -- running programs ---------------------------------------------------------------------

    def _run_when_free(self, program: Callable[[], Program[T]]) -> T:
        """Run this again while a table that it locks is in use. Claims wait behind it only shortly."""
        until = time.monotonic() + MIGRATION_TIMEOUT
        while True:
            try:
                return self._run(program())
            except StoreUnavailableError as error:
                if code_of(error) != NOT_FREE or time.monotonic() > until:
                    raise
            time.sleep(POLL)

    def _run(self, program: Program[T]) -> T:
        try:
            with self._pool.connection() as connection:
                perform = connection.perform if self._tap is None else self._tapped(connection)
                return drive(program, perform)
        except SchemaVersionError:
            with self._pool.connection() as connection:  # raises if the tables now keep generations
                drive(self._schema.version(), connection.perform)
            raise

    def _repeat(self, program: Callable[[], Program[T]]) -> T:
        """Run a program that may run twice. It does if its connection was lost while it was idle."""
        soon = time.monotonic() + self.settings.timeout / 2
        try:
            return self._run(program())
        except StoreUnavailableError:
            if time.monotonic() > soon:
                raise
        return self._run(program())

    def _tapped(self, connection: Any) -> Callable[[Any], Any]:
        tap = self._tap
        assert tap is not None

        def perform(command: Any) -> Any:
            tap("before", command)
            reply = connection.perform(command)
            tap("after", command)
            return reply

        return perform

    def _connect(self) -> Any:
        settings = self.settings
        connection = self._connected(self._kind)
        try:
            pid = connection.info.backend_pid
            setup = set_up_session(self.programs, pid, settings.prepare, self.url)
            is_direct = drive(setup, connection.perform)
            if settings.prepare and not is_direct:
                if not settings.prepare_given:
                    raise pooler_met(self.url)
                self._try_prepared(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _try_prepared(self, connection: Any) -> None:
        """Raise if our prepared statements are lost while another client works. Tried once per store.

        A pooler by transaction gives that client the session that we have just used, and us another.
        """
        if self._prepares:
            return
        with self._connected(self._kind) as other:
            drive(self.programs.clock(), connection.perform)
            theirs = atomically(self._meanwhile(connection), PostgresPrograms.begin)
            drive(theirs, other.perform)
        self._prepares = True

    def _meanwhile(self, connection: Any) -> Program[None]:
        yield Query("SELECT 1")
        drive(self.programs.clock(), connection.perform)

    def _connect_listener(self) -> psycopg.Connection[Any]:
        import psycopg

        return self._connected(psycopg.Connection)  # type: ignore[no-any-return]

    def _connected(self, kind: Any) -> Any:
        import psycopg

        try:
            return kind.connect(
                self.settings.dsn,
                autocommit=True,
                prepare_threshold=None,  # `StatementRunner` prepares
                **connection_options(self.settings.timeout),
            )
        except psycopg.Error as error:
            raise explain(error, self.url) from error


def connection_class(settings: Settings) -> Any:
    """A class of connections that perform the commands of programs, each within the time-out."""
    import psycopg

    class StoreConnection(psycopg.Connection[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._run = StatementRunner(self, settings.prepare, settings.timeout).run

        def perform(self, command: Any) -> Any:
            try:
                return self.wait(self._run(command))
            except psycopg.Error as error:
                raise explain(error, settings.url) from error

    return StoreConnection


def connection_options(timeout: float) -> dict[str, Any]:
    """Detect a dead server within the time-out, refuse a replica, and read any text of a message."""
    return {
        "client_encoding": "utf8",  # a role, a database or PGCLIENTENCODING may set another
        "connect_timeout": max(2, round(timeout)),
        "tcp_user_timeout": round(timeout * 1000),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        "target_session_attrs": "read-write",
    }
