"""What the completer asks of the tables of runs: which runs are due, and which are over.

`due_at` only says when to look. A look compares the record, and moves `due_at` or removes the run.
Every write repeats the `due_at` that was read. So of two completers that look at once one gets the run,
and a run that was started again meanwhile is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..._core.durable import run_lifecycle
from ..._core.durable.run_requests import Due, DueRun, FindDue, TidyRuns
from ..._values.keys import Key
from ..._values.records import Row
from ...errors import StoreError
from ...stores._base import Program
from .commands import Change, Query
from .step_rows import ID_BYTES

if TYPE_CHECKING:
    from .programs import SqlPrograms

__all__ = ["RunUpkeep"]


class RunUpkeep:
    """A base class of `RunPrograms`."""

    _records: SqlPrograms
    runs: str
    steps: str

    def _prepare_upkeep(self) -> None:
        mark = self._records.mark
        self._walk = mark(
            f"SELECT whole_id, due_at FROM {self.runs} WHERE due_at <= ? AND id > ? ORDER BY id LIMIT ?"
        )
        self._read_due = mark(f"SELECT whole_id, due_at FROM {self.runs} WHERE id = ?")
        self._look_later = mark(f"UPDATE {self.runs} SET due_at = ? WHERE id = ? AND due_at = ?")
        self._remove_run = mark(f"DELETE FROM {self.runs} WHERE id = ? AND due_at = ?")
        self._remove_steps = mark(f"DELETE FROM {self.steps} WHERE id = ?")

    def find_due(self, ask: FindDue) -> Program[Due]:
        now = yield from self._records.clock()
        names: tuple[Any, ...] = tuple(name.encode() for name in ask.functions or ())
        which = ""
        if ask.functions is not None:
            among = f"function_name IN ({', '.join('?' * len(names))}) OR " if names else ""
            which, names = f" AND ({among}due_at <= ?)", (*names, now - ask.overdue)
        rows = yield Query(
            self._records.mark(
                f"SELECT whole_id, due_at, completes, function_name, arguments FROM {self.runs}"
                f" WHERE due_at <= ?{which} ORDER BY due_at LIMIT ?"
            ),
            (now, *names, ask.limit),
        )
        found = yield from self._rows_of([bytes(row[0]) for row in rows])
        later: dict[bytes, tuple[int, int]] = {}
        over: dict[bytes, int] = {}
        due: list[tuple[bytes, DueRun]] = []
        for whole, due_at, completes, function, arguments in rows:
            id_ = bytes(whole)[:ID_BYTES]
            row = found.get(id_)
            at = _next_look(row, now)
            if at == run_lifecycle.DROP:
                over[id_] = due_at
            elif at != run_lifecycle.DUE:
                later[id_] = due_at, at
            else:
                later[id_] = (
                    due_at,
                    now + (ask.pause if completes else run_lifecycle.CLOSED_PAUSE),
                )
                if completes:
                    assert isinstance(row, Row)
                    key = Key(row.value, row.scope, absolute=True)
                    asked = bytes(function).decode(), bytes(arguments), row.fingerprint
                    due.append((id_, DueRun(key, *asked, now - row.lease_until)))
        taken = yield from self._put_off(later)
        yield from self._remove(over)
        return Due([run for id_, run in due if id_ in taken], len(rows) >= ask.limit)

    def tidy_runs(self, ask: TidyRuns) -> Program[tuple[int, bytes]]:
        now = yield from self._records.clock()
        if ask.only:
            rows = yield Query(self._read_due, (ask.only[:ID_BYTES],))
        else:
            rows = yield Query(self._walk, (now, ask.after[:ID_BYTES], ask.limit))
        found = yield from self._rows_of([bytes(row[0]) for row in rows])
        later: dict[bytes, tuple[int, int]] = {}
        over: dict[bytes, int] = {}
        for whole, due_at in rows:
            id_ = bytes(whole)[:ID_BYTES]
            at = _next_look(found.get(id_), now)
            if at == run_lifecycle.DROP:
                over[id_] = due_at
            elif at != run_lifecycle.DUE:
                later[id_] = due_at, at
            elif ask.only:
                later[id_] = due_at, now
        yield from self._put_off(later)
        removed = yield from self._remove(over)
        is_last = bool(ask.only) or len(rows) < ask.limit
        return removed, b"" if is_last else bytes(rows[-1][0])

    def _rows_of(self, ids: Sequence[bytes]) -> Program[dict[bytes, Row | StoreError]]:
        """The records of these runs, by the first bytes of their ids."""
        if not ids:
            return {}
        if self._records.moves is not None:
            yield from self._fetch(ids)
        rows = yield from self._records.load_all(ids)
        return {id_[:ID_BYTES]: row for id_, row in rows.items()}

    # -- what an engine may replace ---------------------------------------------------------------

    def _fetch(self, ids: Sequence[bytes]) -> Program[None]:
        """Move these records out of the wide table, where the look would not find them."""
        yield from self._records.moves.fetch(ids)

    def _put_off(self, later: dict[bytes, tuple[int, int]]) -> Program[set[bytes]]:
        """Look again later: by id, the `due_at` that was read and the next. Returns what was changed."""
        changed: set[bytes] = set()
        for id_, (due_at, next_) in later.items():
            if (yield Change(self._look_later, (next_, id_, due_at))):
                changed.add(id_)
        return changed

    def _remove(self, over: dict[bytes, int]) -> Program[int]:
        """Remove runs and their steps together. Returns how many."""
        removed = 0
        for id_, due_at in over.items():
            if (yield Change(self._remove_run, (id_, due_at))):  # else it was started again
                yield Change(self._remove_steps, (id_,))
                removed += 1
        return removed


def _next_look(row: Row | StoreError | None, now: int) -> int:
    """As `run_lifecycle.next_look`. A damaged record waits for an operator, like a parked one."""
    if isinstance(row, StoreError):
        return now + run_lifecycle.CLOSED_PAUSE
    return run_lifecycle.next_look(row, now)
