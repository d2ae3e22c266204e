"""The outbox of SQLite: its one writer at a time is gate enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from ...stores._base import Program
from ..sql.commands import Change
from ..sql.migrations import Schema
from ..sql.outbox_programs import WRITTEN, Added, OutboxPrograms, inlined, marked, values_of

__all__ = ["SqliteOutbox"]

TOGETHER: Final = 50
"""Rows in one statement: older versions of SQLite take no more than 999 values."""


class SqliteOutbox(OutboxPrograms):
    dialect: ClassVar[str] = "sqlite"
    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    share: ClassVar[str] = ""  # whoever has begun to write is alone
    lock: ClassVar[str] = ""
    skip: ClassVar[str] = ""

    def __init__(
        self, schema: Schema, now: Callable[[], int], migrates: bool = True, style: str = "?"
    ) -> None:
        super().__init__(schema, lambda sql: sql.replace("?", style), migrates)
        self._now = now

    def speaking(self, style: str) -> SqliteOutbox:
        return SqliteOutbox(self.schema, self._now, self.migrates, style)

    def now(self) -> str:
        return f"{self._now():d}"

    def among(self, column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return inlined(column, numbers)

    def not_among(self, column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        return marked(column, lanes)

    def upsert(self, table: str, columns: str, values: str, overwritten: Sequence[str]) -> str:
        changes = ", ".join(f"{name} = excluded.{name}" for name in overwritten)
        first = columns.partition(",")[0]
        return (
            f"INSERT INTO {table} ({columns}) VALUES ({values})"
            f" ON CONFLICT ({first}) DO UPDATE SET {changes}"
        )

    def add(self, added: Sequence[Added], created_at: int) -> Program[None]:
        for start in range(0, len(added), TOGETHER):
            part = added[start : start + TOGETHER]
            row = f"({created_at:d}{', ?' * 8})"
            yield Change(
                self.mark(
                    f"INSERT INTO {self.t} (created_at, {WRITTEN}) VALUES {', '.join([row] * len(part))}"
                ),
                tuple(value for one in part for value in values_of(one)),
            )
