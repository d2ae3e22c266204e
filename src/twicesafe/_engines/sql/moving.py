"""Moves records out of the wide table: those of a request before it is performed, the rest in batches.

Each move is one transaction, so a key is in exactly one of the two tables. Nothing adds to the wide table
(`layouts`). So a key that is not found there once will never be there, and the statements of the narrow
table are right for it. Sweeps rest meanwhile. A killed move leaves nothing behind, and the next one
continues with the records that are still in the wide table.

SQLite, MariaDB and MySQL share this; PostgreSQL moves in a single statement (`postgresql.moving`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ...stores._base import Program
from .commands import COLUMNS, Change, Query

if TYPE_CHECKING:
    from .programs import SqlPrograms

__all__ = ["RecordMoves"]

TOGETHER: Final = 100
"""Keys that one statement looks for."""


class RecordMoves:
    """The moves of one store. `first`: SQL for the first 16 bytes of `id`; `more`: further columns."""

    def __init__(self, programs: SqlPrograms, first: str, more: str = "") -> None:
        self._programs, self._first = programs, first
        self._wide = f"{programs.table}_{programs.layout.origin}"
        columns = f"n, {COLUMNS}{more}"
        narrowed = columns.replace("id,", f"{first} AS id,", 1)
        self._copy = (
            f"INSERT INTO {programs.records} ({columns}) SELECT {narrowed} FROM {self._wide}"
        )
        self.everything = (
            f"(SELECT {columns} FROM {programs.records} UNION ALL SELECT {narrowed} FROM {self._wide})"
            f" AS {programs.records}"
        )
        """All records, of both tables, under the name of the narrow one."""

    def fetch(self, ids: Sequence[bytes]) -> Program[None]:
        """Move the records of these keys, if they are in the wide table. Needs a transaction around it."""
        mark = self._programs.mark
        for start in range(0, len(ids), TOGETHER):
            some = sorted(ids[start : start + TOGETHER])
            which = f"id IN ({', '.join(['?'] * len(some))})"
            look = mark(f"SELECT n FROM {self._wide} WHERE {which}")
            if not (yield Query(look, tuple(some))):
                continue
            # Another transaction may have moved them since. Then this waits, and finds none.
            rows = yield Query(look + self._programs.lock, tuple(some))
            yield from self._move([n for (n,) in rows])

    def step(self, limit: int) -> Program[int]:
        """Move the next records; returns how many. Needs a transaction around it."""
        rows = yield Query(
            f"SELECT n FROM {self._wide} ORDER BY n LIMIT {limit:d}{self._programs.lock_to_move}"
        )
        yield from self._move([n for (n,) in rows])
        return len(rows)

    def left(self) -> Program[int]:
        return (yield Query(f"SELECT count(*) FROM {self._wide}"))[0][0]  # type: ignore[no-any-return]

    def _move(self, numbers: list[Any]) -> Program[None]:
        if not numbers:
            return
        which = f"n IN ({', '.join(map(str, numbers))})"
        yield Change(f"{self._copy} WHERE {which}")
        yield Change(
            f"UPDATE {self._programs.audit} SET id = {self._first}"
            f" WHERE id IN (SELECT id FROM {self._wide} WHERE {which})"
        )
        yield Change(f"DELETE FROM {self._wide} WHERE {which}")
