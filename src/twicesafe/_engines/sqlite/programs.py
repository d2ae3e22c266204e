"""The programs of SQLite: its statements, as data.

SQLite has no clock, so ``now`` is passed in: the time since the boot, plus an offset that all processes
share. The first process that opens the store after a boot writes the offset into the file; the others use
it. So the clock never goes back while the machine runs, even if the wall clock does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from ..._core import lifecycle
from ..._core.durable.run_requests import RecordStep
from ..._core.protocol import Ack, Claimed, ClaimRequest, Complete, Renew, Request, Verdict
from ..._values.clocks import since_boot_ms, wall_clock
from ..._values.records import Row, State
from ...errors import StoreError
from ...stores._base import Program
from ..sql.commands import (
    CAUSES,
    COLUMNS,
    PRESENT,
    STATES,
    TEXT_OR_RESULT,
    Change,
    Query,
    number_of,
    present_from,
    scope_text,
)
from ..sql.layouts import NARROW, Layout
from ..sql.migrations import RecordsSchema, Schema
from ..sql.moving import RecordMoves
from ..sql.programs import READING, SqlPrograms
from ..sql.step_rows import ID_BYTES, step_values

__all__ = [
    "CALLERS",
    "LARGE_RESULT",
    "SqlitePrograms",
    "SqliteRecordsSchema",
    "SqliteSchema",
    "agreed_offset",
    "known_offset",
]

CALLERS: Final = "main"
"""The schema of our tables on a connection of the caller's: with WAL, SQLite commits an attached file by itself."""

LARGE_RESULT: Final = 2048
"""Results above this many bytes go to their own table, so that rows stay small."""

COMPLETED: Final = number_of(State.COMPLETED)
_ANSWERS: Final = (COMPLETED, number_of(State.FAILED))
_COMPLETED, _WON, _OK = State.COMPLETED, Verdict.WON, Ack.OK

RECORDED: Final = "state, fence, attempt, cause, result, fingerprint, changed_at, expires_at"
"""The columns of a recorded answer. The driver names every column of every reply, so there are few."""

PEEKED: Final = 100
"""Keys that one statement looks up."""


class SqliteSchema(Schema):
    """Also of the outbox."""

    def exists(self) -> Program[bool]:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool((yield Query(query, (f"{self.table}_meta",))))


class SqliteRecordsSchema(SqliteSchema, RecordsSchema):
    pass


class CommonCase(NamedTuple):
    """A request that one statement can do, if nothing is in its way.

    Its bytes are bound as `bytearray`, and a flag as a number: for these types, and for text, the
    driver does not look for an adapter, which would cost more than the statement.
    """

    sql: str
    values: Callable[[Any, int], tuple[Any, ...] | None]
    """Its values, at this time of the store; None: this request needs more."""
    answer: Callable[[tuple[Any, ...]], Any]
    """The answer to these values, if the statement changed a row. Else it was not the common case."""


def _started(values: tuple[Any, ...]) -> Claimed:
    return Claimed(_WON, values[1], 1)


def _changed(_: tuple[Any, ...]) -> Ack:
    return _OK


class SqlitePrograms(SqlPrograms):
    """The common cases in one statement each; `SqlPrograms` does the rest."""

    begin = "BEGIN IMMEDIATE"
    lock = ""  # a transaction that writes is the only one
    size = "SELECT (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)"

    def __init__(
        self, table: str, now: Callable[[], int], style: str = "?", layout: Layout = NARROW
    ) -> None:
        """``style``: the placeholder of the driver that runs the statements."""
        self.now = now
        self._style = style
        self.results = f"{table}_results"
        self._known_floor = 0
        whole = _whole_result(f"{table}_{layout.holder}", self.results)
        self.columns = COLUMNS.replace("result,", f"{whole},")
        super().__init__(table, layout)
        text = TEXT_OR_RESULT.format(of="", error="error", result=whole)
        present = PRESENT.replace("result", text)
        self.look = f"SELECT {present} FROM {self.records} WHERE id = ?"
        recorded = RECORDED.replace("result", whole)
        self.look_for_answer = f"SELECT {recorded} FROM {self.records} WHERE id = ?"
        several = ", ".join("?" * PEEKED)
        self._look_at_many = f"SELECT id, {present} FROM {self.records} WHERE id IN ({several})"
        # It has no RETURNING, for which SQLite would create a table. So the fence is passed in, and
        # the statement compares what we know of the floor with what it is (P3).
        start = (
            f"INSERT INTO {self.records} (id, fence, owner, lease_until, created_at, changed_at,"
            " hold, scope, value, fingerprint, state, attempt, expires_at, cause, error)"
            f" SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), 0, 1, 0, 0, '' FROM {self.meta}"
            " WHERE floor = ? ON CONFLICT (id) DO NOTHING"
        )
        complete = (
            f"UPDATE {self.records} SET state=?, result=?, error=?, lease_until=0, changed_at=?,"
            " expires_at=? WHERE id=? AND owner=? AND fence=? AND state=0"
        )
        renew = (
            f"UPDATE {self.records} SET lease_until=max(lease_until, ?) WHERE id=? AND owner=?"
            " AND fence=? AND state=0"
        )
        self.common_cases: dict[type, CommonCase] = {
            ClaimRequest: CommonCase(start, self._start_values, _started),
            Complete: CommonCase(complete, self._complete_values, _changed),
            Renew: CommonCase(renew, self._renew_values, _changed),
            RecordStep: CommonCase(
                self.runs.fenced_insert("?", "?", "") + " ON CONFLICT (id, name) DO NOTHING",
                self._step_values,
                _changed,
            ),
        }

    def mark(self, sql: str) -> str:
        return sql.replace("?", self._style)

    def clock(self) -> Program[int]:
        yield from ()
        return self.now()

    def runs_schema(self) -> SqliteSchema:
        return SqliteSchema("sqlite_runs", f"{self.table}_runs")

    def moving(self) -> RecordMoves:
        return RecordMoves(self, "substr(id, 1, 16)", ", apart")

    def move_and_perform(self, ask: Any) -> Program[Any]:
        """A request while records are moved: first its own. Needs a transaction around it."""
        if hasattr(ask, "id"):
            yield from self.moves.fetch((ask.id,))
        if ask.op in READING or ask.op == "sweep":
            return (yield from getattr(self, ask.op)(ask))
        return (yield from self.decide(ask))

    def floor(self) -> Program[int]:
        self._known_floor = yield from super().floor()
        return self._known_floor

    def _start_values(self, ask: ClaimRequest, now: int) -> tuple[Any, ...]:
        key, print_, floor = ask.key, ask.fingerprint, self._known_floor
        return (
            bytearray(self.stored(key.id)),
            floor + 1,
            bytearray(ask.owner),
            now + ask.lease,
            now,
            now,
            1 if ask.hold else 0,
            scope_text(key.scope) if key.scope else "",
            key.value,
            0 if print_ is None else bytearray(print_),
            floor,
        )

    def _complete_values(self, ask: Complete, now: int) -> tuple[Any, ...] | None:
        result = ask.result
        if result is not None and len(result) > LARGE_RESULT:
            return None
        body = None if result is None else bytearray(result)
        state = COMPLETED if ask.state is _COMPLETED else number_of(ask.state)
        id_, owner = bytearray(self.stored(ask.id)), bytearray(ask.owner)
        return (state, body, ask.error, now, now + ask.retention, id_, owner, ask.fence)

    def _renew_values(self, ask: Renew, now: int) -> tuple[Any, ...]:
        return now + ask.lease, bytearray(self.stored(ask.id)), bytearray(ask.owner), ask.fence

    def _step_values(self, ask: RecordStep, now: int) -> tuple[Any, ...]:
        due = now + ask.delay if ask.delay else 0
        step = step_values(bytearray(ask.id[:ID_BYTES]), ask, now, now, due, bytearray)
        return *step, bytearray(self.stored(ask.id)), bytearray(ask.owner), ask.fence

    def peek(self, ask: ClaimRequest) -> Program[Claimed | None]:
        """The answer that needs no write, if there is one."""
        rows = yield Query(self.look, (self.stored(ask.key.id),))
        return self._seen(ask, rows[0]) if rows else None

    def peek_all(self, asks: Sequence[ClaimRequest]) -> Program[list[Any]]:
        """The same for many; a damaged row's error is in its place."""
        rows: dict[bytes, Any] = {}
        for start in range(0, len(asks), PEEKED):
            ids = [self.stored(ask.key.id) for ask in asks[start : start + PEEKED]]
            some = yield Query(self._look_at_many, (*ids, *[None] * (PEEKED - len(ids))))
            rows.update((row[0], row[1:]) for row in some)
        answers: list[Any] = []
        for ask in asks:
            row = rows.get(self.stored(ask.key.id))
            try:
                answers.append(None if row is None else self._seen(ask, row))
            except StoreError as error:
                answers.append(error)
        return answers

    def _seen(self, ask: ClaimRequest, columns: Any) -> Claimed | None:
        row, now = present_from(ask.key.id, columns), self.now()
        return None if lifecycle.is_expired(row, now) else lifecycle.look(row, ask, now)

    def recall(self, id_: bytes) -> Program[Claimed | None]:
        """The recorded answer, if there is one."""
        rows = yield Query(self.look_for_answer, (self.stored(id_),))
        return self.recalled(rows[0]) if rows else None

    def recalled(self, columns: Any) -> Claimed:
        """What the columns of `RECORDED` say. About a damaged record, only a claim can tell more."""
        state, fence, attempt, cause, result, print_, changed, expires = columns
        if state not in _ANSWERS or not 0 <= cause < len(CAUSES):
            return lifecycle.ASK
        return lifecycle.recorded(
            STATES[state],
            fence,
            attempt,
            CAUSES[cause],
            result,
            print_,
            changed,
            expires,
            self.now(),
        )

    def look_or_shortcut(self, ask: Request) -> Program[Any]:
        """A claim looks first, unless its caller just did, because a duplicate needs no write. All
        other requests take the shortcut."""
        if type(ask) is ClaimRequest and not ask.looked:
            seen = yield from self.peek(ask)
            if seen is not None:
                return seen
        return (yield from self.shortcut(ask))

    def shortcut(self, ask: Request) -> Program[Any]:
        common = self.common_cases.get(type(ask))
        values = None if common is None else common.values(ask, self.now())
        if common is None or values is None:
            return None
        return common.answer(values) if (yield Change(common.sql, values)) else None

    def together(self, asks: Sequence[Request]) -> Program[list[Any]]:
        """Many requests, for one transaction; each sees what those before it wrote."""
        answers: list[Any] = []
        now = self.now()
        for ask in asks:
            common = self.common_cases.get(type(ask))
            values = None if common is None else common.values(ask, now)
            if common is not None and values is not None and (yield Change(common.sql, values)):
                answers.append(common.answer(values))
            else:
                answers.append((yield from self.decide(ask)))
        return answers

    def save(self, row: Row, new: bool = False) -> Program[None]:
        is_large = row.result is not None and len(row.result) > LARGE_RESULT
        id_ = self.identity(row.id)
        yield from super().save(replace(row, result=b"") if is_large else row, new)
        this = self.mark("WHERE id = ?")
        which = f"SELECT n FROM {self.records} {this}"
        if is_large:
            yield Change(f"UPDATE {self.records} SET apart = 1 {this}", (id_,))
            keep = f"INSERT OR REPLACE INTO {self.results} VALUES (({which}), {self.mark('?')})"
            yield Change(keep, (id_, row.result))
        elif not new:
            yield Change(f"UPDATE {self.records} SET apart = 0 {this} AND apart", (id_,))
            yield Change(f"DELETE FROM {self.results} WHERE n = ({which})", (id_,))

    def remove(self, numbers: list[int], now: int) -> Program[int]:
        removed = yield from super().remove(numbers, now)
        orphans = (
            f"n IN ({','.join(map(str, numbers))}) AND n NOT IN (SELECT n FROM {self.records})"
        )
        yield Change(f"DELETE FROM {self.results} WHERE {orphans}")
        return removed


def _whole_result(records: str, results: str) -> str:
    large = f"(SELECT body FROM {results} r WHERE r.n = {records}.n)"
    return f"CASE apart WHEN 1 THEN {large} ELSE result END"


# --- the store's clock -------------------------------------------------------------------------


def known_offset(table: str, boot: str) -> Program[int | None]:
    """The offset of this boot in milliseconds; None: no process has set it yet."""
    rows = yield Query(f"SELECT boot, clock FROM {table}_meta")
    return rows[0][1] if rows[0][0] == boot else None


def agreed_offset(table: str, records: str, boot: str) -> Program[int]:
    """The offset of this boot. Sets it if there is none, never behind the newest record."""
    known = yield from known_offset(table, boot)
    if known is not None:
        return known
    latest = yield Query(f"SELECT changed_at FROM {records} ORDER BY n DESC LIMIT 1")
    newest = latest[0][0] if latest else 0
    offset = max(wall_clock(), newest) - since_boot_ms()
    yield Change(f"UPDATE {table}_meta SET boot = ?, clock = ?", (boot, offset))
    return offset
