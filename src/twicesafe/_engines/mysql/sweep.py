"""The sweep of MariaDB and MySQL: raise the floor first, then delete the records under it.

Fences never restart (P3), although at READ COMMITTED a claim and a sweep may overlap. A claim reads the
floor under a shared lock and holds it to its end. A sweep raises the floor and commits before it
deletes anything. So a claim that read the old floor has ended before the first record is deleted, and
has seen that record. Any other claim reads the new floor. A sweep does not wait for the floor, because
all later claims would wait behind it. While the floor is locked, the records above it stay.

A claim of lease mode locks the floor for a moment, but an inbox locks it until its transaction ends,
and such transactions may overlap without end. So there are many floors (gates), all equivalent. Lease
mode reads the first. A transaction reads the one of the current second; that one is not read again for
a minute, and can be raised then. A record is deleted when the *lowest* floor is at or above its fence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ..._core.protocol import Sweep
from ..._values.records import SweepReport
from ...stores._base import Program
from ..sql.commands import Change, Query, atomically
from .row_lookup import numbered

if TYPE_CHECKING:
    from .programs import MysqlPrograms

__all__ = ["GATE", "Sweeper", "make_gates"]

_FIRST, _GATES = 2, 64
"""Rows of the table ``…_meta``: row 1 is for lease mode, these are for transactions."""

GATE: Final = f"({_FIRST:d} + UNIX_TIMESTAMP() MOD {_GATES:d})"
"""The floor of this second."""


def make_gates(meta: str, may_write: bool) -> Program[bool]:
    """Create the floors for transactions if they are missing. False: we lack the permission.

    They are rows, not a change of the schema: older versions read the first floor only.
    """
    if (yield Query(f"SELECT COUNT(*) FROM {meta}"))[0][0] > _GATES:
        return True
    if not may_write:
        return False

    def make() -> Program[None]:
        # Locked while we copy it, so that a sweep that does not know the new rows comes after us.
        rows = yield Query(f"SELECT `schema`, floor FROM {meta} WHERE one = 1 LOCK IN SHARE MODE")
        schema, floor = rows[0]
        values = ", ".join(f"({_FIRST + gate:d}, {schema:d}, {floor:d})" for gate in range(_GATES))
        yield Change(f"INSERT IGNORE INTO {meta} (one, `schema`, floor) VALUES {values}")

    yield from atomically(make(), "START TRANSACTION")
    return True


_TRIES: Final = 5
_PAUSE: Final = 0.02
"""How often, and after how many seconds, one step tries to raise floors that were locked."""


class Sweeper:
    """The sweep of one store."""

    def __init__(self, programs: MysqlPrograms) -> None:
        self._records, self._audit, self._meta = programs.records, programs.audit, programs.meta
        self._now, self._begin = programs.now, programs.begin

    def step(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One step, in the order of insertion. No floor is locked while records are deleted."""
        rows = yield Query(
            f"SELECT n, fence, expires_at, {self._now} FROM {self._records} WHERE n > %s"
            " ORDER BY n LIMIT %s",
            (int(ask.after or 0), ask.limit),
        )
        due = [(n, fence) for n, fence, expires_at, now in rows if 0 < expires_at <= now]
        after = str(rows[-1][0]) if len(rows) == ask.limit else ""
        if len(due) > ask.most:
            del due[ask.most :]
            after = str(due[-1][0])
        removed = 0
        if due:
            floor = yield from self._raise(max(fence for _, fence in due))
            # From here on no claim reads a lower floor.
            still = f"expires_at BETWEEN 1 AND {rows[0][3]:d} AND fence <= {floor:d}"
            removed = yield from atomically(self._remove([n for n, _ in due], still), self._begin)
        return SweepReport(removed=removed, examined=len(rows), more=bool(after)), after

    def _raise(self, to: int) -> Program[int]:
        """Raise the floors that are not locked; returns the lowest of all floors."""
        lowest = yield from self._lowest()
        for turn in range(_TRIES):
            if lowest >= to:
                break
            if turn:
                yield Query(f"SELECT SLEEP({_PAUSE})")
            yield from atomically(self._raise_unread(to), self._begin)
            # Read again: other processes raise floors too, or have just created new ones.
            lowest = yield from self._lowest()
        return lowest

    def _lowest(self) -> Program[int]:
        return (yield Query(f"SELECT MIN(floor) FROM {self._meta}"))[0][0]  # type: ignore[no-any-return]

    def _raise_unread(self, to: int) -> Program[None]:
        free = yield Query(
            f"SELECT one FROM {self._meta} WHERE floor < {to:d} FOR UPDATE SKIP LOCKED"
        )
        if free:
            rows = numbered(self._meta, "m", "one", (one for (one,) in free))
            yield Change(f"UPDATE {rows} SET m.floor = {to:d}")

    def _remove(self, numbers: list[int], still: str) -> Program[int]:
        """Delete those that are still expired. Rows that another session locks are skipped.

        Rows are found by their numbers, and audit entries by the ids of the rows that we locked: a scan
        would wait for the rows that were skipped.
        """
        rows = yield Query(
            f"SELECT r.n, r.id FROM {numbered(self._records, 'r', 'n', numbers)}"
            f" WHERE {still} FOR UPDATE SKIP LOCKED"
        )
        if not rows:
            return 0
        places = ", ".join(["%s"] * len(rows))
        entries = yield Query(
            f"SELECT n FROM {self._audit} WHERE id IN ({places})", tuple(id_ for _, id_ in rows)
        )
        if entries:
            yield self._delete(self._audit, entries)
        return (yield self._delete(self._records, rows))  # type: ignore[no-any-return]

    def _delete(self, table: str, rows: Iterable[tuple[int, Any]]) -> Change:
        return Change(f"DELETE o FROM {numbered(table, 'o', 'n', (row[0] for row in rows))}")
