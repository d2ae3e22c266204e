"""The programs of PostgreSQL: its table, how rows are stored in it, and the statements of that table.

`request_programs` performs the requests. The SQL is in `statements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..._values.records import Row
from ...errors import SchemaVersionError, StoreUnavailableError
from ...stores._base import Finding, Program
from ..sql.commands import (
    Change,
    Query,
    row_from,
    unreadable,
    with_whole_id,
)
from ..sql.layouts import NARROW, Layout, layout_findings
from .columns import columns_of
from .moving import PostgresMoves
from .request_kinds import narrow_id, wide_id
from .request_programs import RequestPrograms
from .run_programs import PostgresRunSchema
from .settings import NOT_FREE, code_of
from .statements import CHANNEL, NOW, Statements

__all__ = ["PostgresPrograms"]


class PostgresPrograms(RequestPrograms):
    """For one table that holds all records; `GenerationPrograms` is for partitions."""

    begin: ClassVar[str] = "BEGIN"

    def __init__(
        self,
        table: str,
        mark: Callable[[str], str],
        now: str = NOW,
        layout: Layout = NARROW,
    ) -> None:
        self._mark = mark
        self._now = now
        self.kept = columns_of(layout)
        self.columns = self.kept.all
        super().__init__(table, layout)
        self.identity = narrow_id if layout.width == 16 else wide_id
        self.size = (
            f"SELECT sum(pg_total_relation_size(c)) FROM (SELECT '{self.records}'::regclass AS c"
            f" UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = '{self.records}'::regclass) t"
        )
        self.statements = self.new_statements()
        # The statement that writes also reads the floor: see `SweepAndSearch.sweep`.
        self._insert = self._insert.replace(
            "VALUES (?, ?,".replace("?", mark("?")),
            f"VALUES (?, greatest(?, (SELECT floor + 1 FROM {self.meta})),".replace("?", mark("?")),
        )
        self.locked = {}
        which = f"id = {self.id_place()}"
        self._await = mark(f"UPDATE {self.records} SET awaited = true WHERE {which} AND state = 0")
        self._announce = mark(f"SELECT pg_notify('{CHANNEL}', encode(?::bytea, 'hex'))")
        self._sweep = mark(self._sweep_statement())

    def new_statements(self) -> Statements:
        return Statements(self.records, self.meta, self._mark, self._now, self.kept)

    def mark(self, sql: str) -> str:
        return self._mark(sql)

    def id_place(self) -> str:
        return f"?::{self.kept.id_type}"

    def upkeep(self) -> Program[list[Finding]]:
        yield from ()
        return layout_findings(self.layout)

    def runs_schema(self) -> PostgresRunSchema:
        return PostgresRunSchema(self.table, self._mark)

    def among(self, ids: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        return f"id = ANY (?::{self.kept.id_type}[])", ([self.identity(id_) for id_ in ids],)

    def moving(self) -> PostgresMoves:
        return PostgresMoves(self)

    # -- rows: texts are stored as bytes ----------------------------------------------------------

    def row(self, columns: Any, id: bytes = b"") -> Row:  # noqa: A002
        row = row_from(columns)
        try:
            row.value, row.error = columns[2].decode(), columns[15].decode()
        except UnicodeDecodeError as error:
            raise unreadable(columns[0]) from error
        return with_whole_id(row, id)

    def values(self, row: Row) -> tuple[Any, ...]:
        return self.kept.values(row, super().values(row))

    def bind(self, text: str) -> bytes:
        return text.encode()

    def text(self, kept: Any) -> str:
        return kept.decode()  # type: ignore[no-any-return]

    def clock(self) -> Program[int]:
        return (yield Query(f"SELECT {self._now}"))[0][0]  # type: ignore[no-any-return]

    def awaits(self, id: bytes) -> Program[bool]:  # noqa: A002
        """Mark the row, so that its end is announced. False: it is no longer in progress."""
        try:
            return bool((yield Change(self._await, (self.identity(id),))))
        except SchemaVersionError:
            return False  # migrated since: the next claim follows
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE:
                raise
            return False  # the next claim will answer that it is locked

    def insert_copy(self, row: Row) -> Program[bool]:
        return bool((yield Change(f"{self._insert_copy} ON CONFLICT DO NOTHING", self.values(row))))

    def insert(self, row: Row) -> Program[bool]:
        """Insert a record with a fence above the floor; False: another transaction did."""
        return bool((yield Change(f"{self._insert} ON CONFLICT DO NOTHING", self.values(row))))


# --- one statement per kind: its values, and what an answer row means ------------------------------
