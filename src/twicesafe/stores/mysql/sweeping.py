"""Sweeping on MariaDB and MySQL: first the floor, then what lies under it.

Fences never restart (P3), although READ COMMITTED lets a claim and a sweep pass each other. The
floor is read under a shared lock that is held to the end of the claim, and a sweep has raised and
committed it before it deletes anything. So a claim that read the old floor is over before the first
record goes, and has met that record; any other claim reads the new floor. A sweep does not queue for
the floor, for every later claim would queue behind it: while somebody reads it, what lies above stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ...core.protocol import Sweep
from ...records import SweepReport
from ..base import Program
from ..sql import Change, Query, atomically

if TYPE_CHECKING:
    from .programs import MysqlPrograms

__all__ = ["Sweeper"]

_TRIES: Final = 5
_PAUSE: Final = 0.02
"""So often, and so many seconds apart, a bite looks whether nobody reads the floor. A claim reads it
for a moment, an inbox for as long as its transaction is open."""


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
            removed = yield from atomically(
                self._remove(_list(n for n, _ in due), still), self._begin
            )
        return SweepReport(removed=removed, examined=len(rows), more=bool(after)), after

    def _raise(self, to: int) -> Program[int]:
        """Raise the floor as soon as nobody reads it; what it is now."""
        floor = 0
        for turn in range(_TRIES):
            if turn:
                yield Query(f"SELECT SLEEP({_PAUSE})")
            floor = (yield Query(f"SELECT floor FROM {self._meta} WHERE one = 1"))[0][0]
            if floor >= to:
                break
            if (yield from atomically(self._raise_unread(to), self._begin)):
                return to
        return floor

    def _raise_unread(self, to: int) -> Program[bool]:
        free = yield Query(f"SELECT 1 FROM {self._meta} WHERE one = 1 FOR UPDATE SKIP LOCKED")
        if free:
            yield Change(f"UPDATE {self._meta} SET floor = {to:d} WHERE one = 1 AND floor < {to:d}")
        return bool(free)

    def _remove(self, numbers: str, still: str) -> Program[int]:
        """What was claimed since we looked stays; what somebody works on is not waited for."""
        rows = yield Query(
            f"SELECT n FROM {self._records} WHERE n IN {numbers} AND {still} FOR UPDATE SKIP LOCKED"
        )
        if not rows:
            return 0
        gone = _list(n for (n,) in rows)
        yield Change(
            f"DELETE FROM {self._audit} WHERE id IN"
            f" (SELECT id FROM {self._records} WHERE n IN {gone})"
        )
        return (yield Change(f"DELETE FROM {self._records} WHERE n IN {gone}"))  # type: ignore[no-any-return]


def _list(numbers: Iterable[int]) -> str:
    return f"({', '.join(map(str, numbers))})"
