"""Programs that all SQL stores share: load, decide by the lifecycle table, save.

An engine adds its clock and, for speed, single statements for the common cases (`shortcut`). All
rare cases and the requests of operators are written once, here. Statements use ``?`` for values; an
engine's `mark` replaces it by its own placeholder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..._core import lifecycle
from ..._core.protocol import (
    Browse,
    ClaimRequest,
    Forget,
    History,
    Page,
    Read,
    Release,
    Request,
    Resolve,
    Survey,
    Sweep,
)
from ..._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ...stores._base import Finding, Program
from .commands import (
    COLUMNS,
    Change,
    Query,
    atomically,
    number_of,
    row_from,
    scope_prefix,
    scope_text,
    state_of,
)

__all__ = ["ACTS", "READING", "SqlPrograms"]

READING = frozenset({"read", "history", "survey", "browse"})
"""Requests that write nothing."""

ACTS = frozenset({"release", "resolve", "forget"})
"""Requests of an operator. Each one is written to the audit trail, so it is never retried automatically.
If an open transaction locks the record, the operator gets `Ack.LOCKED`."""


class SqlPrograms:
    """The programs of one store; an engine subclasses it."""

    begin: ClassVar[str] = "BEGIN"
    lock: ClassVar[str] = " FOR UPDATE"
    """Appended to a load whose row will be written back."""
    columns: str = COLUMNS
    holder: ClassVar[str] = "records"
    """The table of records is called ``<table>_<holder>``."""

    def __init__(self, table: str) -> None:
        self.records = f"{table}_{self.holder}"
        self.meta, self.audit = f"{table}_meta", f"{table}_audit"
        mark = self.mark
        self._select = f"SELECT {self.columns} FROM {self.records}"
        self._load = mark(f"{self._select} WHERE id = ?")
        self._save = mark(
            f"UPDATE {self.records} SET state=?, fence=?, attempt=?, owner=?, lease_until=?,"
            " created_at=?, changed_at=?, expires_at=?, hold=?, cause=?, scope=?, value=?,"
            " error=?, fingerprint=?, result=? WHERE id=?"
        )
        self._insert = mark(
            f"INSERT INTO {self.records} (state, fence, attempt, owner, lease_until, created_at,"
            " changed_at, expires_at, hold, cause, scope, value, error, fingerprint, result, id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        self._write_audit = mark(
            f"INSERT INTO {self.audit} (id, at, action, done_by, why, state_before)"
            " VALUES (?, ?, ?, ?, ?, ?)"
        )

    # -- what an engine defines -------------------------------------------------------------------

    def mark(self, sql: str) -> str:
        """`sql` with this engine's placeholders."""
        return sql

    def row(self, columns: Any) -> Row:
        """A `Row` from this engine's `columns`."""
        return row_from(columns)

    def bind(self, text: str) -> Any:
        """Text from users and senders, in the type in which this engine stores it unchanged."""
        return text

    def text(self, kept: Any) -> str:
        """The inverse of `bind`."""
        return kept  # type: ignore[no-any-return]

    def clock(self) -> Program[int]:
        """The store's time in milliseconds."""
        raise NotImplementedError

    def shortcut(self, ask: Request) -> Program[Any]:
        """Do the common case in one atomic statement; None: it is another case."""
        yield from ()
        return None

    def upkeep(self) -> Program[list[Finding]]:
        """What `doctor` finds in the tables; the store itself checks the server."""
        yield from ()
        return []

    # -- reading ------------------------------------------------------------------------------

    def load(self, id: bytes, lock: str = "") -> Program[tuple[Row | None, int]]:  # noqa: A002
        """The row, if there is one, and the store's time when it was read."""
        rows = yield Query(self._load + lock, (id,))
        now = yield from self.clock()
        return (self.row(rows[0]) if rows else None), now

    def read(self, ask: Read) -> Program[Row | None]:
        row, now = yield from self.load(ask.id)
        return None if row is None or lifecycle.is_expired(row, now) else row

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        rows = yield Query(
            self.mark(
                f"SELECT at, action, done_by, why, state_before FROM {self.audit} WHERE id = ?"
                " ORDER BY n"
            ),
            (ask.id,),
        )
        return [
            AuditEntry(
                id=ask.id,
                at=moment(at),
                action=action,
                by=self.text(by),
                why=self.text(why),
                state_before=state_of(before),
            )
            for at, action, by, why, before in rows
        ]

    def survey(self, ask: Survey) -> Program[Stats]:
        now = yield from self.clock()
        rows = yield Query(
            self.mark(
                "SELECT state, count(*), sum(CASE WHEN lease_until <= ? THEN 1 ELSE 0 END),"
                " sum(CASE WHEN expires_at BETWEEN 1 AND ? THEN 1 ELSE 0 END), min(changed_at)"
                f" FROM {self.records} GROUP BY state"
            ),
            (now, now),
        )
        running = [row for row in rows if state_of(row[0]) is State.IN_PROGRESS]
        return Stats(
            by_state={state_of(row[0]): int(row[1]) for row in rows},
            stuck=sum(int(row[2]) for row in running),
            expired=sum(int(row[3]) for row in rows),
            oldest_in_progress=moment(running[0][4]) if running else None,
        )

    def browse(self, ask: Browse) -> Program[Page]:
        now = yield from self.clock()
        where, args = ["NOT (expires_at BETWEEN 1 AND ?)"], [now]
        if ask.after:
            where.append("n < ?")
            args.append(int(ask.after))
        if ask.state is not None:
            where.append("state = ?")
            args.append(number_of(ask.state))
        if ask.scope:
            prefix = scope_prefix(ask.scope)
            where.append("substr(scope, 1, ?) = ?")
            args += [len(prefix), prefix]  # type: ignore[list-item]
        rows = yield Query(
            self.mark(
                f"SELECT {self.columns}, n FROM {self.records} WHERE {' AND '.join(where)}"
                " ORDER BY n DESC LIMIT ?"
            ),
            (*args, ask.limit + 1),
        )
        shown = rows[: ask.limit]
        after = str(shown[-1][-1]) if len(rows) > ask.limit else ""
        return Page([self.row(row[:-1]) for row in shown], after)

    # -- writing ------------------------------------------------------------------------------

    def decide(self, ask: Any) -> Program[Any]:
        """Load, decide by the lifecycle table, save. Needs a transaction around it."""
        id_ = ask.key.id if type(ask) is ClaimRequest else ask.id
        row, now = yield from self.load(id_, self.lock_for(ask))
        if type(ask) is ClaimRequest:
            floor = 0 if row is not None else (yield from self.floor())
            answer, after = lifecycle.claim(row, ask, now, floor)
        else:
            answer, after = getattr(lifecycle, ask.op)(row, ask, now)
        if after is not None:
            yield from self.save(after, new=row is None)
            if isinstance(ask, (Release, Resolve, Forget)):
                assert row is not None
                entry = (
                    id_,
                    now,
                    ask.op,
                    self.bind(ask.by),
                    self.bind(ask.why),
                    number_of(row.state),
                )
                yield Change(self._write_audit, entry)
        return answer

    def lock_for(self, ask: Any) -> str:
        """How the row is locked for this request."""
        return self.lock

    def floor(self) -> Program[int]:
        """Fences up to this one were used by records that are deleted (P3)."""
        return (yield Query(f"SELECT floor FROM {self.meta}"))[0][0]  # type: ignore[no-any-return]

    def save(self, row: Row, new: bool = False) -> Program[None]:
        yield Change(self._insert if new else self._save, self.values(row))

    def values(self, row: Row) -> tuple[Any, ...]:
        """In the order of `_save` and `_insert`."""
        return (
            number_of(row.state),
            row.fence,
            row.attempt,
            row.owner,
            row.lease_until,
            row.created_at,
            row.changed_at,
            row.expires_at,
            row.hold,
            number_of(row.cause),
            self.bind(scope_text(row.scope)),
            self.bind(row.value),
            self.bind(row.error),
            row.fingerprint,
            row.result,
            row.id,
        )

    def together(self, asks: Sequence[Request]) -> Program[list[Any]]:
        """Many requests, for one transaction; each sees what those before it wrote."""
        answers: list[Any] = []
        for ask in asks:
            answer = yield from self.shortcut(ask)
            answers.append((yield from self.decide(ask)) if answer is None else answer)
        return answers

    # -- upkeep -------------------------------------------------------------------------------

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One step, in the order of insertion: this needs no index that every claim would pay for."""
        now = yield from self.clock()
        rows = yield Query(
            self.mark(f"SELECT n, expires_at FROM {self.records} WHERE n > ? ORDER BY n LIMIT ?"),
            (int(ask.after or 0), ask.limit),
        )
        due = [n for n, expires_at in rows if 0 < expires_at <= now]
        after = str(rows[-1][0]) if len(rows) == ask.limit else ""
        if len(due) > ask.most:
            del due[ask.most :]
            after = str(due[-1])
        removed = 0
        if due:
            removed = yield from atomically(self.remove(due, now), self.begin)
        return SweepReport(removed=removed, examined=len(rows), more=bool(after)), after

    def remove(self, numbers: list[int], now: int) -> Program[int]:
        """Delete those that are still expired: one may have been claimed since we looked."""
        still = f"n IN ({','.join(map(str, numbers))}) AND expires_at BETWEEN 1 AND {now:d}"
        highest = yield Query(f"SELECT max(fence) FROM {self.records} WHERE {still}")
        if highest[0][0] is None:
            return 0
        yield Change(
            f"UPDATE {self.meta} SET floor = {highest[0][0]:d} WHERE floor < {highest[0][0]:d}"
        )
        yield Change(
            f"DELETE FROM {self.audit} WHERE id IN (SELECT id FROM {self.records} WHERE {still})"
        )
        return (yield Change(f"DELETE FROM {self.records} WHERE {still}"))  # type: ignore[no-any-return]
