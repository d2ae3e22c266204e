"""Transaction mode on SQLite: the record is written in the caller's transaction.

SQLite has one writer at a time, so an insert decides. Our savepoint shows whether the handler
ended the transaction: it ends with its transaction, and a new transaction does not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..._core.inbox_requests import Enter, Entered, Leave
from ..._core.protocol import Verdict
from ...errors import AtomicityBrokenError
from ...stores._base import Program
from ..sql.commands import Change, Query, scope_text
from ..sql.in_transaction import InTransaction, new, savepoint
from ..sql.layouts import Layout
from .programs import LARGE_RESULT, SqlitePrograms

__all__ = ["SqliteInTransaction"]


class SqliteInTransaction(InTransaction):
    programs: SqlitePrograms

    def __init__(self, table: str, now: Callable[[], int], style: str, layout: Layout) -> None:
        programs = self.programs = SqlitePrograms(table, now, style, layout)
        mark = programs.mark
        self._enter = mark(
            f"INSERT INTO {programs.records} (id, state, fence, attempt, owner, lease_until,"
            " created_at, changed_at, expires_at, hold, cause, scope, value, error, fingerprint)"
            f" VALUES (?, ?, (SELECT floor + 1 FROM {programs.meta}), 1, ?, ?, ?, ?, ?, 1, 0, ?, ?,"
            " '', ?) ON CONFLICT (id) DO NOTHING RETURNING fence"
        )
        self._leave = mark(
            f"UPDATE {programs.records} SET state=?, result=?, lease_until=0, changed_at=?,"
            " expires_at=? WHERE id=? AND owner=? AND fence=? AND state=0"
        )

    def enter(self, asks: Sequence[Enter], wait: float) -> Program[list[Entered]]:
        """`wait` is not used: the time-out is that of the caller's connection."""
        entered: list[Entered] = []
        for ask in asks:
            one = yield from self.enter_one(ask)
            entered.append(one)
        return entered

    def enter_one(self, ask: Enter) -> Program[Entered]:
        yield from self.fetch((ask,))
        now, key = self.programs.now(), ask.key
        lease, expires = (0, now + ask.retention) if ask.done else (now, 0)
        owner = b"" if ask.done else ask.owner
        values = (self.programs.stored(key.id), int(ask.done), owner, lease, now, now, expires)
        rows = yield Query(
            self._enter, (*values, scope_text(key.scope), key.value, ask.fingerprint)
        )
        answer = new(rows) or (yield from self._decide(ask))
        mark = None
        if answer.verdict is Verdict.WON and not ask.done:
            mark = savepoint(ask.owner)
            yield Change(f"SAVEPOINT {mark}")
        return Entered(answer, mark)

    def leave(self, ask: Leave) -> Program[bool]:
        try:
            yield Change(f"RELEASE {ask.mark}")
        except AtomicityBrokenError:
            return False
        end, now = ask.ask, self.programs.now()
        if end.result is not None and len(end.result) > LARGE_RESULT:
            return (yield from self._complete(ask))
        values = (1, end.result, now, now + end.retention)
        id_ = self.programs.stored(end.id)
        return bool((yield Change(self._leave, (*values, id_, end.owner, end.fence))))
