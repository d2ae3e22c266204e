"""The outbox programs of SQLite. It has one writer at a time, so lanes need no gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from ..._core.outbox.requests import Added, OutboxRequest, Reply
from ..._values.clocks import wall_clock
from ...stores._base import Program
from ..sql.commands import Change
from ..sql.migrations import Schema
from ..sql.outbox_dialect import WRITTEN, all_values_of, inlined, lanes_inlined
from ..sql.outbox_programs import OutboxPrograms, RunProgram, SqlOutboxPort
from .programs import CALLERS, SqliteSchema

__all__ = ["CLOCK", "SqliteOutbox", "SqliteOutboxPort"]

CLOCK: Final = "twicesafe_now"
"""SQLite has no clock. On each connection of the store, this function returns the time of the store's clock."""

ROWS: Final = 50
"""In one INSERT: older versions of SQLite allow at most 999 values in a statement."""


class SqliteOutbox(OutboxPrograms):
    dialect: ClassVar[str] = "sqlite"
    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    share: ClassVar[str] = ""  # there is one writer
    lock: ClassVar[str] = ""
    skip: ClassVar[str] = ""

    def __init__(
        self, schema: Schema, migrates: bool = True, style: str = "?", now: str = f"{CLOCK}()"
    ) -> None:
        super().__init__(schema, str if style == "?" else _marker(style), now, migrates)

    def with_placeholders(self, style: str) -> SqliteOutbox:
        callers = SqliteSchema("sqlite_outbox", f"{CALLERS}.{self.t}")
        return SqliteOutbox(callers, self.migrates, style, self.now)

    def among(self, column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return inlined(column, numbers)

    def not_among(self, column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        return lanes_inlined(column, lanes)

    def add(self, added: Sequence[Added]) -> Program[None]:
        created_at = wall_clock()  # SQLite has no clock
        for start in range(0, len(added), ROWS):
            part = added[start : start + ROWS]
            row = f"({created_at:d}{', ?' * 8})"
            yield Change(
                self.mark(
                    f"INSERT INTO {self.t} (created_at, {WRITTEN}) VALUES {', '.join([row] * len(part))}"
                ),
                all_values_of(part),
            )


class SqliteOutboxPort(SqlOutboxPort):
    """Runs reads and writes like the store's own."""

    def __init__(self, programs: SqliteOutbox, read: RunProgram, write: RunProgram) -> None:
        super().__init__(programs)
        self._read, self._write = read, write

    def perform(self, request: OutboxRequest[Reply]) -> Reply:
        program: Program[Reply] = getattr(self.programs, request.op)(request)
        return self._read(program) if request.reads else self._write(program)


def _marker(style: str) -> Callable[[str], str]:
    return lambda sql: sql.replace("?", style)
