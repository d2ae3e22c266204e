"""Programs that all SQL stores share: load, decide by the lifecycle table, save.

An engine adds its clock and, for speed, single statements for the common cases (`shortcut`). All
rare cases and the requests of operators are written once, here. Statements use ``?`` for values; an
engine's `mark` replaces it by its own placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar

from ..._core import lifecycle
from ..._core.durable.run_requests import RUN_OPS
from ..._core.protocol import (
    Ack,
    Adopt,
    Claimed,
    ClaimRequest,
    Discard,
    Forget,
    History,
    RaiseFences,
    Read,
    Release,
    Request,
    Resolve,
    Survey,
    Sweep,
    Verdict,
)
from ..._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ...errors import StoreError
from ...stores._base import Finding, Program
from .commands import (
    COLUMNS,
    STATES,
    Change,
    Query,
    atomically,
    number_of,
    owner_bytes,
    row_from,
    scope_text,
    state_of,
    upsert,
    with_whole_id,
)
from .layouts import NARROW, Layout
from .migrations import Schema
from .run_programs import RunPrograms
from .searching import LOOKED_UP, SqlSearch

__all__ = ["ACTS", "NOTHING_SWEPT", "READING", "SqlPrograms", "held_by_a_transaction"]

READING = frozenset({"read", "history", "survey", "browse", "count", "audit_log"})
"""Requests that write nothing."""

ACTS = frozenset({"release", "resolve", "forget", "discard", "restart"})
"""Requests of an operator. Each one is written to the audit trail, so it is never retried automatically.
If an open transaction locks the record, the operator gets `Ack.LOCKED`."""

COPYING = frozenset({"adopt", "raise_fences"})
"""Requests that put copies of another store's records here."""

RETRY_WHEN_LOCKED = 500
"""Milliseconds after which to claim again a key that an open transaction locks."""

NOTHING_SWEPT = SweepReport(removed=0, examined=0, more=False)
"""While records are moved, none is removed: numbers and fences are only safe above all that exist."""


def held_by_a_transaction() -> Claimed:
    """The answer to a claim whose record an open transaction locks, most likely an inbox's."""
    return Claimed(Verdict.BUSY, wait=RETRY_WHEN_LOCKED, locked=True)


class SqlPrograms(SqlSearch):
    """The programs of one store; an engine subclasses it."""

    begin: ClassVar[str] = "BEGIN"
    lock: ClassVar[str] = " FOR UPDATE"
    """Appended to a load whose row will be written back."""
    columns: str = COLUMNS
    holder: ClassVar[str] = ""
    """The table of records is ``<table>_<holder>``; empty: the layout says which."""
    size: str = ""
    """The query for the bytes that the records take; empty: this engine cannot say."""

    migrates: bool = True
    """Missing tables of durable runs are created when they are first needed."""

    lock_to_move: ClassVar[str] = ""
    """Appended where the next records to move are chosen."""

    layout: Layout
    moves: Any
    """In the moving layout: `fetch` the records of a request, and `step` through the rest."""
    everything: str
    """All records: the table, or both tables while records are moved."""
    identity: Callable[[bytes], Any]
    """The part of a key's id that is stored, in the type in which it is bound."""
    records: str

    def __init__(self, table: str, layout: Layout = NARROW) -> None:
        self.table, self.layout = table, layout
        self.stored = itemgetter(slice(layout.width))
        self.identity = self.stored
        self.records = f"{table}_{self.holder or layout.holder}"
        self.meta, self.audit = f"{table}_meta", f"{table}_audit"
        self.moves = self.moving() if layout.origin else None
        self.everything = self.moves.everything if self.moves else self.records
        mark, id_ = self.mark, self.id_place()
        self._select = f"SELECT {self.columns} FROM {self.records}"
        self._load = mark(f"{self._select} WHERE id = {id_}")
        self._save = mark(
            f"UPDATE {self.records} SET state=?, fence=?, attempt=?, owner=?, lease_until=?,"
            " created_at=?, changed_at=?, expires_at=?, hold=?, cause=?, scope=?, value=?,"
            f" error=?, fingerprint=?, result=? WHERE id={id_}"
        )
        self._insert = mark(
            f"INSERT INTO {self.records} (state, fence, attempt, owner, lease_until, created_at,"
            " changed_at, expires_at, hold, cause, scope, value, error, fingerprint, result, id)"
            f" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {id_})"
        )
        self._insert_copy = self._insert
        """An engine may make `_insert` take the next fence; a copy keeps its own."""
        self._write_audit = mark(
            f"INSERT INTO {self.audit} (id, at, action, done_by, why, state_before)"
            " VALUES (?, ?, ?, ?, ?, ?)"
        )

    @cached_property
    def runs(self) -> RunPrograms:
        """Durable runs, in tables beside these records."""
        return RunPrograms(self, self.runs_schema())

    # -- what an engine defines -------------------------------------------------------------------

    def mark(self, sql: str) -> str:
        """`sql` with this engine's placeholders."""
        return sql

    def runs_schema(self) -> Schema:
        """The schema of the tables of durable runs."""
        raise NotImplementedError

    upsert = staticmethod(upsert)

    def moving(self) -> Any:
        """How this engine moves records out of the wide table."""
        raise NotImplementedError

    def id_place(self) -> str:
        """The placeholder of an id of the table of records."""
        return "?"

    def row(self, columns: Any, id: bytes = b"") -> Row:  # noqa: A002
        """A `Row` from this engine's `columns`. `id`: the key that was asked for, if one was."""
        return with_whole_id(row_from(columns), id)

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
        rows = yield Query(self._load + lock, (self.identity(id),))
        now = yield from self.clock()
        return (self.row(rows[0], id) if rows else None), now

    def load_all(self, ids: Sequence[bytes]) -> Program[dict[bytes, Row | StoreError]]:
        """The rows of these keys that exist, by their stored ids, or why one cannot be read."""
        found: dict[bytes, Row | StoreError] = {}
        for start in range(0, len(ids), LOOKED_UP):
            sql, values = self.among(ids[start : start + LOOKED_UP])
            for columns in (yield Query(self.mark(f"{self._select} WHERE {sql}"), values)):
                try:
                    found[bytes(columns[0])] = self.row(columns)
                except StoreError as error:
                    found[bytes(columns[0])] = error
        return found

    def among(self, ids: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        """The condition that a record is one of these keys."""
        places = ", ".join([self.id_place()] * len(ids))
        return f"id IN ({places})", tuple(map(self.identity, ids))

    def read(self, ask: Read) -> Program[Row | None]:
        row, now = yield from self.load(ask.id)
        return None if row is None or lifecycle.is_expired(row, now) else row

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        rows = yield Query(
            self.mark(
                f"SELECT at, action, done_by, why, state_before FROM {self.audit} WHERE id = ?"
                " ORDER BY n"
            ),
            (self.stored(ask.id),),
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
                " sum(CASE WHEN expires_at BETWEEN 1 AND ? THEN 1 ELSE 0 END), min(changed_at),"
                " min(CASE WHEN expires_at BETWEEN 1 AND ? THEN expires_at END)"
                f" FROM {self.everything} GROUP BY state"
            ),
            (now, now, now),
        )
        size = (yield Query(self.size)) if self.size else ()
        due = [row[5] for row in rows if row[5] is not None]
        known = [row for row in rows if row[0] in range(len(STATES))]
        running = [row for row in known if STATES[row[0]] is State.IN_PROGRESS]
        return Stats(
            by_state={STATES[row[0]]: int(row[1]) for row in known},
            unreadable=sum(int(row[1]) for row in rows) - sum(int(row[1]) for row in known),
            stuck=sum(int(row[2]) for row in running),
            expired=sum(int(row[3]) for row in rows),
            oldest_in_progress=moment(running[0][4]) if running else None,
            oldest_expired=moment(min(due)) if due else None,
            size=int(size[0][0]) if size and size[0][0] is not None else None,
        )

    # -- writing ------------------------------------------------------------------------------

    def decide(self, ask: Any) -> Program[Any]:
        """Load, decide by the lifecycle table, save. Needs a transaction around it."""
        if ask.op in RUN_OPS:
            return (yield from self.runs.perform(ask))
        if ask.op in COPYING:
            return (yield from getattr(self, ask.op)(ask))
        return (yield from self.decide_record(ask))

    def decide_record(self, ask: Any) -> Program[Any]:
        id_ = ask.key.id if type(ask) is ClaimRequest else ask.id
        row, now = yield from self.load(id_, self.lock_for(ask))
        if type(ask) is ClaimRequest:
            floor = 0 if row is not None else (yield from self.floor())
            answer, after = lifecycle.claim(row, ask, now, floor)
        else:
            answer, after = getattr(lifecycle, ask.op)(row, ask, now)
        if after is not None:
            if after is not row:
                yield from self.save(after, new=row is None)
            if isinstance(ask, (Release, Resolve, Forget, Discard)):
                assert row is not None
                yield from self.write_trail(ask, row, now)
        return answer

    def adopt(self, ask: Adopt) -> Program[Ack]:
        """The copy of another store's record. A claim may insert the same key at the same time."""
        while True:
            row, now = yield from self.load(ask.id, self.lock_for(ask))
            answer, after = lifecycle.adopt(row, ask, now)
            if after is None:
                return answer
            if row is not None:
                yield from self.save(after)
                return answer
            if (yield from self.insert_copy(after)):
                return answer

    def insert_copy(self, row: Row) -> Program[bool]:
        """Insert it with the fence that it has; False: there is a record by now."""
        yield from self.save(row, new=True)
        return True

    def raise_fences(self, ask: RaiseFences) -> Program[Ack]:
        yield Change(f"UPDATE {self.meta} SET floor = {ask.above:d} WHERE floor < {ask.above:d}")
        return Ack.OK

    def write_trail(self, ask: Any, row: Row, now: int) -> Program[None]:
        """What an operator did to this record."""
        by, why = self.bind(ask.by), self.bind(ask.why)
        entry = (self.stored(ask.id), now, ask.op, by, why, number_of(row.state))
        yield Change(self._write_audit, entry)

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
            owner_bytes(row),
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
            self.identity(row.id),
        )

    # -- upkeep -------------------------------------------------------------------------------

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One step, in the order of insertion: this needs no index that every claim would pay for."""
        if self.moves:
            return NOTHING_SWEPT, ""
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
