"""The SQLite stores: `SqliteStore` for threads, `AsyncSqliteStore` for event loops.

Here is what they open, keep in order and check. `requests` chooses how a request is performed,
`connections` runs it, and `programs` holds the statements.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from ..._values.clocks import boot_id, clock_from, wall_clock
from ...stores._base import Capabilities, Finding, Program, Progress, Store
from ...stores._threaded_store import ThreadedStore
from ...stores._urls import identifier, options_of
from ..sql.commands import Query, atomically
from ..sql.in_transaction import InTransaction
from ..sql.layouts import MOVING, Layout
from ..sql.migrations import migrate_records
from ..sql.moving import RecordMoves
from .database_file import DatabaseFile
from .doctor import findings
from .in_transaction import SqliteInTransaction
from .outbox_programs import CLOCK, SqliteOutbox, SqliteOutboxPort
from .programs import (
    CALLERS,
    SqlitePrograms,
    SqliteRecordsSchema,
    SqliteSchema,
    agreed_offset,
    known_offset,
)
from .requests import SqliteRequests
from .settings import OPTIONS, path_of

__all__ = ["AsyncSqliteStore", "SqliteStore"]

T = TypeVar("T")


class SqliteStore(SqliteRequests, Store):
    """The blocking store on one file."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        transactions=True, single_writer=True, outbox=True, steps=True, copies=True
    )
    dialect = "sqlite"
    recalls: ClassVar[bool] = True

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "full",
        timeout: float = 5.0,
        table: str = "twicesafe",
        migrate: bool = True,
        now: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(DatabaseFile(path, synchronous, timeout))
        self.path = self._file.path
        self.url = f"sqlite:///{self.path}"
        self._table = identifier(table)
        self._schema = SqliteRecordsSchema("sqlite", self._table)
        self._clock = now
        outbox = SqliteSchema("sqlite_outbox", f"{self._table}_outbox")
        self._outbox = SqliteOutboxPort(SqliteOutbox(outbox, migrate), self._read, self._write)
        if migrate:
            self.migrated = self._write(self._schema.prepare(SqlitePrograms.begin))
        self._migrates = migrate
        self.programs = self._programs(now or clock_from(0), self._present_layout())
        self._agree_on_time()

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(path_of(url), **options_of(url, OPTIONS))

    @classmethod
    def missing(cls, url: str) -> bool:
        options_of(url, OPTIONS)
        return not os.path.exists(path_of(url))

    @classmethod
    def script(cls, url: str) -> str:
        table = identifier(options_of(url, OPTIONS)["table"])
        runs = SqliteSchema("sqlite_runs", f"{table}_runs")
        return f"{SqliteRecordsSchema('sqlite', table).script()}\n{runs.script()}"

    def in_transaction(self, style: str = "?") -> InTransaction:
        now = lambda: self.programs.now()  # noqa: E731, PLW0108 - it may change
        return SqliteInTransaction(f"{CALLERS}.{self._table}", now, style, self.programs.layout)

    def own_transaction(self, program: Callable[[], Program[T]]) -> T:
        return self._write(atomically(program(), SqlitePrograms.begin))

    @classmethod
    def outbox_script(cls, url: str) -> str:
        table = identifier(options_of(url, OPTIONS)["table"])
        return SqliteSchema("sqlite_outbox", f"{table}_outbox").script()

    @property
    def outbox(self) -> SqliteOutboxPort:
        return self._outbox

    # -- the store's clock --------------------------------------------------------------------

    def _agree_on_time(self) -> None:
        """The first process that opens the store after a boot sets the offset; the others use it."""
        boot = boot_id()
        if self._clock is not None:
            return
        if not boot:
            self.programs.now = wall_clock
            return

        # Almost always the offset is there: then this only reads, and waits for no other process.
        offset = self._write(known_offset(self._table, boot))
        if offset is None:
            agreed = agreed_offset(self._table, self.programs.records, boot)
            offset = self._write(atomically(agreed, SqlitePrograms.begin))
        self.programs.now = clock_from(offset)

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        store = weakref.ref(self)  # Python's gc does not see the driver's reference to `now`

        def now() -> int:
            it = store()
            assert it is not None
            return it.programs.now()

        connection.create_function(CLOCK, 0, now)
        return connection

    # -- upkeep -------------------------------------------------------------------------------

    def migrate(self, tell: Progress = None) -> list[str]:
        begin = SqlitePrograms.begin
        done = self._write(self._schema.prepare(begin))
        done += migrate_records(
            self._schema, self._moves, lambda program: self._write(program()), begin, tell
        )
        self.refresh()
        return done + self._write(self.programs.runs.migrated())

    def _moves(self) -> RecordMoves:
        return SqlitePrograms(self._table, self.programs.now, layout=MOVING).moves  # type: ignore[no-any-return]

    def _programs(self, now: Callable[[], int], layout: Layout) -> SqlitePrograms:
        programs = SqlitePrograms(self._table, now, layout=layout)
        programs.migrates = self._migrates
        return programs

    def _present_layout(self) -> Layout:
        return self._write(self._schema.layout(str(self.path)))

    def refresh(self) -> None:
        layout, old = self._present_layout(), self.programs
        if layout.version > old.layout.version:
            self.programs = self._programs(old.now, layout)

    def doctor(self) -> list[Finding]:
        check = self._read(_pragma("quick_check"))
        return findings(self._file, check, self.programs.layout)


class AsyncSqliteStore(ThreadedStore):
    """The async version: one worker thread; requests that wait for it are written together."""

    capabilities: ClassVar[Capabilities] = SqliteStore.capabilities

    @classmethod
    def open(cls, url: str) -> Self:
        path, options = path_of(url), options_of(url, OPTIONS)
        identifier(options["table"])  # refuse a wrong name now, not on first use
        return cls(lambda: SqliteStore(path, **options), f"sqlite:///{Path(path).absolute()}")


def _pragma(name: str) -> Program[Any]:
    return (yield Query(f"PRAGMA {name}"))[0][0]
