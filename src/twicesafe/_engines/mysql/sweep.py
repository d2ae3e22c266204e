"""Sweeping on MariaDB and MySQL: first the floor, then what lies under it.

Fences never restart (P3), although READ COMMITTED lets a claim and a sweep pass each other. The
floor is read under a shared lock that is held to the end of the claim, and a sweep has raised and
committed it before it deletes anything. So a claim that read the old floor is over before the first
record goes, and has met that record; any other claim reads the new floor. A sweep does not queue for
the floor, for every later claim would queue behind it: while somebody reads it, what lies above stays.

A claim of lease mode reads the floor for a moment; an inbox for as long as its transaction is open, and
such transactions may overlap without end. So there are many floors, and any one of them is as good as
another: lease mode reads the first, a transaction the one whose second it is. Each of those is left
alone for a minute after its second, and can be raised then. A record goes when the *lowest* floor is
at or above its fence.
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
"""Rows of the table ``…_meta``: 1 is for lease mode, these are for transactions."""

GATE: Final = f"({_FIRST:d} + UNIX_TIMESTAMP() MOD {_GATES:d})"
"""The floor of this second."""


def make_gates(meta: str, may_write: bool) -> Program[bool]:
    """The floors for transactions, where they are missing; are they there?

    They are rows, no change of the schema: older versions read the first floor, and need no other.
    """
    if (yield Query(f"SELECT COUNT(*) FROM {meta}"))[0][0] > _GATES:
        return True
    if not may_write:
        return False

    def make() -> Program[None]:
        # Not raised while we copy it: a sweep that does not know the new ones yet comes after us.
        rows = yield Query(f"SELECT `schema`, floor FROM {meta} WHERE one = 1 LOCK IN SHARE MODE")
        schema, floor = rows[0]
        rows_ = ", ".join(f"({_FIRST + gate:d}, {schema:d}, {floor:d})" for gate in range(_GATES))
        yield Change(f"INSERT IGNORE INTO {meta} (one, `schema`, floor) VALUES {rows_}")

    yield from atomically(make(), "START TRANSACTION")
    return True


_TRIES: Final = 5
_PAUSE: Final = 0.02
"""So often, and so many seconds apart, a bite looks whether nobody reads a floor."""


class Sweeper:
    def __init__(self, programs: MysqlPrograms) -> None:
        self._records, self._audit, self._meta = programs.records, programs.audit, programs.meta
        self._now, self._begin = programs.now, programs.begin

    def bite(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One bite in the order of arrival; the floor is not locked while records are removed."""
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
            # From here on no claim knows a lower floor.
            still = f"expires_at BETWEEN 1 AND {rows[0][3]:d} AND fence <= {floor:d}"
            removed = yield from atomically(self._remove([n for n, _ in due], still), self._begin)
        return SweepReport(removed=removed, examined=len(rows), more=bool(after)), after

    def _raise(self, to: int) -> Program[int]:
        """Raise the floors that nobody reads; the lowest of all, as it is now."""
        lowest = yield from self._lowest()
        for turn in range(_TRIES):
            if lowest >= to:
                break
            if turn:
                yield Query(f"SELECT SLEEP({_PAUSE})")
            yield from atomically(self._raise_unread(to), self._begin)
            # Asked for again, not worked out: others raise them too, or have just made new ones.
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
        """What was claimed since we looked stays; what a session works on is not waited for.

        Rows are reached by their numbers alone, and what belongs to them by those of the rows that
        we have locked: a scan would wait at the rows that were stepped over.
        """
        rows = yield Query(
            f"SELECT r.n, r.id FROM {numbered(self._records, 'r', 'n', numbers)}"
            f" WHERE {still} FOR UPDATE SKIP LOCKED"
        )
        if not rows:
            return 0
        places = ", ".join(["%s"] * len(rows))
        noted = yield Query(
            f"SELECT n FROM {self._audit} WHERE id IN ({places})", tuple(id_ for _, id_ in rows)
        )
        if noted:
            yield self._delete(self._audit, noted)
        return (yield self._delete(self._records, rows))  # type: ignore[no-any-return]

    def _delete(self, table: str, rows: Iterable[tuple[int, Any]]) -> Change:
        return Change(f"DELETE o FROM {numbered(table, 'o', 'n', (row[0] for row in rows))}")
