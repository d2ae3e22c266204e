"""SQLite inside the caller's transaction.

Whoever writes is alone, so an insert decides. What tells that the handler ended the transaction is
a savepoint of ours: it goes with the transaction, and a new one does not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..._core.inbox_flow import Enter, Entered, Leave
from ..._core.protocol import Verdict
from ...errors import AtomicityBrokenError
from ...stores._base import Program
from ..sql.commands import Change, Query, scope_text
from ..sql.in_transaction import InTransaction, new, savepoint
from .programs import APART, SqlitePrograms

__all__ = ["SqliteInTransaction"]


class SqliteInTransaction(InTransaction):
    programs: SqlitePrograms

    def __init__(self, table: str, now: Callable[[], int], style: str) -> None:
        programs = self.programs = SqlitePrograms(table, now, style)
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
        """`wait` is the connection's own here: its busy time-out."""
        entered: list[Entered] = []
        for ask in asks:
            one = yield from self.enter_one(ask)
            entered.append(one)
        return entered

    def enter_one(self, ask: Enter) -> Program[Entered]:
        now, key = self.programs.now(), ask.key
        lease, expires = (0, now + ask.retention) if ask.done else (now, 0)
        owner = b"" if ask.done else ask.owner
        values = (key.id, int(ask.done), owner, lease, now, now, expires)
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
        if end.result is not None and len(end.result) > APART:
            return (yield from self._complete(ask))
        values = (1, end.result, now, now + end.retention, end.id, end.owner, end.fence)
        return bool((yield Change(self._leave, values)))
