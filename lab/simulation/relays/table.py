"""The store: the shipped programs of the SQLite outbox, on a database in memory.

One database serves all schedules of a process, and is emptied before each. The store's time goes on
inside a statement, as PostgreSQL's clock does: a statement that reads it for each row sees several times.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from twicesafe._core.driving import drive
from twicesafe._core.outbox.requests import Added, OutboxRequest, Prepare, Reply
from twicesafe._engines.sql.commands import Query
from twicesafe._engines.sql.migrations import first_steps
from twicesafe._engines.sql.outbox_dialect import COLUMNS, inlined, values_of
from twicesafe._engines.sqlite.outbox_programs import SqliteOutbox
from twicesafe._engines.sqlite.programs import SqliteSchema
from twicesafe.stores._base import Program

__all__ = ["Table"]


MOVES = 40
"""Milliseconds from one reading of the clock to the next one in the same statement."""

_inlined = functools.lru_cache(10_000)(inlined)


class _Outbox(SqliteOutbox):
    part = 3  # so that lanes come back in parts, as large ones do

    def among(self, column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return _inlined(column, tuple(numbers))  # a relay asks for the same slots again and again


class _Engine:
    def __init__(self) -> None:
        self.now: Callable[[], int] = int
        self.connection = sqlite3.connect(
            ":memory:", isolation_level=None, cached_statements=1_000, check_same_thread=False
        )
        self._readings = 0
        self.connection.create_function("lab_now", 0, self._moving_time)
        self.outbox = _Outbox(SqliteSchema("sqlite_outbox", "lab_outbox"), now="lab_now()")
        for statement in first_steps(
            "sqlite", "lab", 3
        ):  # the audit of operators is beside the records
            self.connection.execute(statement)
        self.perform(Prepare())

    def _moving_time(self) -> int:
        self._readings += 1
        return self.now() + MOVES * (self._readings - 1)

    def perform(self, request: OutboxRequest[Reply]) -> Reply:
        program: Program[Reply] = getattr(self.outbox, request.op)(request)
        return drive(program, self.execute)

    def execute(self, command: Any) -> Any:
        self._readings = 0
        cursor = self.connection.execute(command.sql, command.args)
        return cursor.fetchall() if type(command) is Query else cursor.rowcount

    def empty(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        t = self.outbox.t
        for table in (t, f"{t}_relays", f"{t}_troubles", f"{t}_parked", self.outbox.audit):
            self.connection.execute(f"DELETE FROM {table}")
        self.connection.execute(f"UPDATE {t}_slots SET owner = x'', fence = 0, lease_until = 0")


_engine = functools.cache(_Engine)


class Table:
    def __init__(self, now: Callable[[], int]) -> None:
        engine = _engine()
        engine.now = now
        engine.empty()
        self._now = now
        self._query = engine.connection.execute
        self._t = t = engine.outbox.t
        self.perform = engine.perform
        self._insert = f"INSERT INTO {t} ({COLUMNS}) VALUES (?{', ?' * 9})"
        self._ready = (
            f"SELECT EXISTS (SELECT 1 FROM {t} o LEFT JOIN {t}_troubles t ON t.lane = o.lane"
            f" WHERE slot IN (SELECT slot FROM {t}_slots WHERE owner = ?)"
            f" AND {engine.outbox.may_go()})"
        )

    def commit(self, n: int, added: Added) -> list[bytes]:
        """A transaction that added this ends. Answer: the relays that sleep."""
        self._query(self._insert, (n, self._now(), *values_of(added)))
        sleepers = f"SELECT owner FROM {self._t}_relays WHERE asleep ORDER BY owner"
        return [owner for (owner,) in self._query(sleepers)]

    def sleep(self, owner: bytes) -> bool:
        """As PostgreSQL's `awaits`: from now on this relay is woken. False: something is there."""
        self._query(f"UPDATE {self._t}_relays SET asleep = TRUE WHERE owner = ?", (owner,))
        return not self._query(self._ready, (owner,)).fetchone()[0]

    # -- what the monitor looks at --------------------------------------------------------------

    def trouble(self, lane: bytes) -> tuple[int, int, bool] | None:
        """(n, attempts, parked)"""
        asked = f"SELECT n, attempts, parked FROM {self._t}_troubles WHERE lane = ?"
        found = self._query(asked, (lane,)).fetchone()
        return found and (found[0], found[1], bool(found[2]))

    def waiting(self) -> set[int]:
        """The numbers of all rows, but not of those that were skipped."""
        both = (
            f"SELECT n FROM {self._t} UNION ALL SELECT n FROM {self._t}_parked WHERE skipped_at = 0"
        )
        return {n for (n,) in self._query(both)}
