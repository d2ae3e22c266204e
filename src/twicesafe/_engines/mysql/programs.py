"""The programs of MariaDB and MySQL: one statement per kind of request, for one request or for many.

A claim inserts the record or returns the existing one, in the same statement. If `lifecycle.look`
cannot answer from it (a takeover, a hold), the claim is decided under a row lock by the programs that
all SQL stores share. The requests of a batch are sorted by key, so that two batches never deadlock.

A new record's fence is one above the floor, which is read under a shared lock that is held to the end
of the claim; `sweep` explains why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import index
from typing import Any, ClassVar, Final

from ..._core import lifecycle
from ..._core.durable.run_requests import RUN_OPS, WITHOUT_RUNS
from ..._core.protocol import (
    Ack,
    Claimed,
    ClaimRequest,
    Sweep,
    Verdict,
)
from ..._values.records import Row, SweepReport
from ...errors import CorruptRecordError
from ...stores._base import Program
from ..sql.commands import (
    Change,
    Query,
    atomically,
    row_from,
    scope_text,
    with_whole_id,
)
from ..sql.layouts import NARROW, Layout
from ..sql.moving import RecordMoves
from ..sql.programs import ACTS, NOTHING_SWEPT, READING, SqlPrograms
from .one_column import RECORD, record_from, stored_id
from .owner_updates import DONE, owner_updates, owner_values, placeholders, table_of_values
from .run_programs import MysqlRuns
from .schema import BEGIN, MysqlSchema
from .sweep import Sweeper

__all__ = ["NOW", "UTC_NOW", "MysqlPrograms"]

NOW: Final = "(UNIX_TIMESTAMP(NOW(6)) * 1000 DIV 1)"
"""Milliseconds of the server's clock at the start of the statement. Sessions use UTC, so that no hour
occurs twice."""

UTC_NOW: Final = (
    "((TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    " + TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))) DIV 1000)"
)
"""The server's clock in any session. SYSDATE alone is in the session's time zone, where one hour a year
occurs twice."""

_NO_WAIT: Final = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
"""MariaDB: a claim does not wait in the server for a row that another session locks. The store decides
whether to try again, where other calls do not wait behind it."""

_KNOWN: Final = 4096
"""How many keys we remember as having a record."""

# The columns of a batch, in the order of their values.
_CLAIM: Final = ("id", "owner", "lease", "hold", "fingerprint", "scope", "val")


class MysqlPrograms(SqlPrograms):
    """The programs of one store. `returning`: the server has RETURNING (MariaDB)."""

    begin: ClassVar[str] = BEGIN

    lock_to_move: ClassVar[str] = " FOR UPDATE SKIP LOCKED"

    def __init__(
        self,
        table: str,
        returning: bool = True,
        now: str = NOW,
        gate: str = "1",
        layout: Layout = NARROW,
    ) -> None:
        """`gate`: which of the floors is read (see `sweep`)."""
        super().__init__(table, layout)
        self.size = (
            "SELECT data_length + index_length FROM information_schema.tables"
            f" WHERE table_schema = DATABASE() AND table_name = '{self.records}'"
        )
        self.returning = returning
        self.now = now
        self.gate = gate
        self._floor = 0
        """The floor as last read: without RETURNING, a claim must know its fence in advance."""
        self._known: dict[bytes, None] = {}
        self._load = self.mark(f"SELECT {self.columns}, {now} FROM {self.records} WHERE id = ?")
        self._answered = RECORD.format(now=now)
        self._look = f"SELECT {self._answered} FROM {self.records} WHERE id IN "
        self._into = (
            f"INSERT INTO {self.records} (id, owner, lease_until, hold, fingerprint, scope, value,"
            " fence, state, attempt, created_at, changed_at, expires_at, cause, error) "
        )
        # An existing record is not changed, and is locked only for the duration of the statement.
        self._or_look = f" ON DUPLICATE KEY UPDATE n = {self.records}.n"
        if returning:
            self._or_look += f" RETURNING {self._answered}"
            self._start = (
                f"{_NO_WAIT}{self._into} VALUES {self._fresh(self.next_fence)}{self._or_look}"
            )
        else:
            self._start = (
                f"{self._into} SELECT %s, %s, {now} + %s, %s, %s, %s, %s, floor + 1, {self._rest}"
                f" FROM {self.meta} WHERE one = 1 AND floor = %s LOCK IN SHARE MODE{self._or_look}"
            )
        self._updates = owner_updates(self.records, table, now)

    @property
    def _rest(self) -> str:
        return f"0, 1, {self.now}, {self.now}, 0, 0, ''"

    @property
    def next_fence(self) -> str:
        return f"(SELECT floor + 1 FROM {self.meta} WHERE one = {self.gate} LOCK IN SHARE MODE)"

    def _fresh(self, fence: str) -> str:
        return f"(%s, %s, {self.now} + %s, %s, %s, %s, %s, {fence}, {self._rest})"

    def _start_all(self, count: int) -> str:
        if self.returning:
            # VALUES, not SELECT: MariaDB locks the auto-increment counter while a SELECT runs.
            first = self._fresh(f"@twicesafe_fence := {self.next_fence}")
            others = f", {self._fresh('@twicesafe_fence')}" * (count - 1)
            return f"{_NO_WAIT}{self._into} VALUES {first}{others}{self._or_look}"
        return (
            f"{self._into} SELECT a.id, a.owner, {self.now} + a.lease, a.hold, a.fingerprint, a.scope,"
            f" a.val, floor + 1, {self._rest} FROM {self.meta} JOIN ({table_of_values(_CLAIM, count)}) AS a"
            f" WHERE one = 1 LOCK IN SHARE MODE{self._or_look}"
        )

    def mark(self, sql: str) -> str:
        return sql.replace("?", "%s")

    def runs_schema(self) -> MysqlSchema:
        return MysqlSchema("mysql_runs", f"{self.table}_runs")

    @cached_property
    def runs(self) -> MysqlRuns:
        return MysqlRuns(self, self.runs_schema())

    @staticmethod
    def upsert(table: str, columns: str, values: str, key: str, changed: Sequence[str]) -> str:
        changes = ", ".join(f"{name} = VALUES({name})" for name in changed)
        return (
            f"INSERT INTO {table} ({columns}) VALUES ({values}) ON DUPLICATE KEY UPDATE {changes}"
        )

    def moving(self) -> RecordMoves:
        return RecordMoves(self, "LEFT(id, 16)")

    def row(self, columns: Any, id: bytes = b"") -> Row:  # noqa: A002
        try:
            return with_whole_id(row_from(columns), id)
        except (IndexError, ValueError) as error:
            raise _corrupt() from error

    def equals(self, sql: str, text: str) -> tuple[str, tuple[Any, ...]]:
        """The server ignores spaces at the end of text, so the length is compared too."""
        return f"{sql} = ? AND octet_length({sql}) = {len(text.encode()):d}", (text,)

    def clock(self) -> Program[int]:
        return (yield Query(f"SELECT {self.now}"))[0][0]  # type: ignore[no-any-return]

    def load(self, id: bytes, lock: str = "") -> Program[tuple[Row | None, int]]:  # noqa: A002
        rows = yield Query(self._load + lock, (self.stored(id),))
        if rows:
            return self.row(rows[0][:-1], id), rows[0][-1]
        return None, (yield from self.clock())

    def lock_for(self, ask: Any) -> str:
        """Requests that are answered if the row is locked do not wait for it in the server."""
        no_wait = self.returning and (type(ask) is ClaimRequest or ask.op in ACTS)
        return f"{self.lock} NOWAIT" if no_wait else self.lock

    def insert_copy(self, row: Row) -> Program[bool]:
        unless = f" ON DUPLICATE KEY UPDATE n = {self.records}.n"
        return bool((yield Change(self._insert_copy + unless, self.values(row))))

    def floor(self) -> Program[int]:
        query = f"SELECT floor FROM {self.meta} WHERE one = {self.gate} LOCK IN SHARE MODE"
        return (yield Query(query))[0][0]  # type: ignore[no-any-return]

    # -- requests -----------------------------------------------------------------------------

    def perform(self, ask: Any) -> Program[Any]:
        """One request."""
        op = ask.op
        if op in RUN_OPS and not (yield from self.runs.prepared(op)):
            return WITHOUT_RUNS[op]
        if self.moves is not None and hasattr(ask, "id"):
            yield from atomically(self.moves.fetch((ask.id,)), self.begin)
        if op in READING or op == "sweep":
            return (yield from getattr(self, op)(ask))
        if op == "load_run":
            return (yield from self.runs.load_run(ask))
        answer = None
        if type(ask) is ClaimRequest:
            answer = yield from self.claim_one(ask)
        elif (op == "record_step" and (yield self.runs.lone_step(ask))) or (
            op in DONE and (yield self._updates[op].one(owner_values(ask, self.stored(ask.id))))
        ):
            return Ack.OK
        if answer is None:
            answer = yield from atomically(self.decide(ask), self.begin)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def perform_all(
        self, requests: Sequence[Any], answers: list[Any] | None = None
    ) -> Program[list[Any]]:
        """Many requests that write: one statement per kind; what is left is decided one by one.

        `answers`: the answers of an earlier run that ended early. Answered requests are committed and
        not repeated: a claim must be decided only once.
        """
        if answers is None:
            answers = [None] * len(requests)
        left = [place for place, answer in enumerate(answers) if answer is None]
        if self.moves is not None:
            ids = [requests[place].id for place in left]
            yield from atomically(self.moves.fetch(ids), self.begin)
        kinds: dict[str, list[int]] = {}
        for place in sorted(left, key=lambda i: requests[i].id):
            kinds.setdefault(requests[place].op, []).append(place)
        for op, group in kinds.items():
            asks = [requests[place] for place in group]
            if op == "claim":
                found = yield from self._claim_all(asks)
            elif op in DONE:
                found = yield from self._acks(op, asks)
            else:
                found = [None] * len(asks)
            for place, answer in zip(group, found, strict=True):
                answers[place] = answer
        for place, ask in enumerate(requests):
            if answers[place] is None:
                try:
                    answers[place] = yield from atomically(self.decide(ask), self.begin)
                except CorruptRecordError as error:
                    answers[place] = error
        return answers

    # -- claims -------------------------------------------------------------------------------

    def claim_one(self, ask: ClaimRequest, timed: bool = False) -> Program[Any]:
        """The answer; None: decide under a lock. `timed`: that to a claim that is won has the server's time."""
        if ask.id in self._known:
            # A waiter or a late duplicate: read, and do not lock the row that the owner will write.
            rows = yield Query(self._look + "(%s)", (self.stored(ask.id),))
            answer = self._answer(ask, rows[0][0], timed) if rows else None
            if answer is not None:
                return answer
        if self.returning:
            rows = yield Query(self._start, self._claim_values(ask))
        else:
            floor = self._floor
            if (yield Change(self._start, (*self._claim_values(ask), floor))):
                return Claimed(Verdict.WON, floor + 1, 1)
            rows = yield Query(
                f"SELECT {self._answered}, floor FROM {self.meta} LEFT JOIN {self.records} ON id = %s"
                " WHERE one = 1",
                (self.stored(ask.id),),
            )
            self._floor = rows[0][-1]
        return self._answer(ask, rows[0][0], timed)

    def _claim_all(self, asks: list[ClaimRequest]) -> Program[list[Any]]:
        sql = self._start_all(len(asks))
        stored = self.stored
        values = tuple(value for ask in asks for value in self._claim_values(ask))
        if self.returning:
            rows = yield Query(sql, values)
        else:
            yield Change(sql, values)
            ids = tuple(stored(ask.id) for ask in asks)
            rows = yield Query(self._look + placeholders(len(asks)), ids)
        width = self.layout.width
        by_id = {stored_id(record, width): record for (record,) in rows if record is not None}
        return [self._answer(ask, by_id.get(stored(ask.id))) for ask in asks]

    def _claim_values(self, ask: ClaimRequest) -> tuple[Any, ...]:
        """`index` refuses text: the server would take the number that it begins with."""
        key = ask.key
        return (
            *(self.stored(key.id), ask.owner, index(ask.lease), ask.hold, ask.fingerprint),
            *(scope_text(key.scope), key.value),
        )

    def _answer(self, ask: ClaimRequest, record: bytes | None, timed: bool = False) -> Any:
        """The answer to this claim from its record; None: decide under a lock.

        There may be no record yet: without RETURNING, nothing is inserted if the floor has changed.
        """
        if record is None:
            return None
        try:
            row, now = record_from(record, ask.id, self.layout.width)
        except CorruptRecordError as error:
            return error
        answer = None if lifecycle.is_expired(row, now) else lifecycle.look(row, ask, now)
        if answer is not None and answer.verdict is Verdict.WON:
            answer.now = now if timed else 0
        elif answer is not None:
            self._known[ask.id] = None
            if len(self._known) > _KNOWN:
                self._known.pop(next(iter(self._known)), None)
        return answer

    # -- what an owner writes -----------------------------------------------------------------

    def _acks(self, op: str, asks: list[Any]) -> Program[list[Any]]:
        stored = self.stored
        values = [owner_values(ask, stored(ask.id)) for ask in asks]
        changed = yield self._updates[op].many(values)
        if changed == len(asks):
            return [Ack.OK] * len(asks)
        rows = yield Query(
            f"SELECT id, owner, fence FROM {self.records} WHERE state IN {DONE[op]} AND id IN "
            + placeholders(len(asks)),
            tuple(stored(ask.id) for ask in asks),
        )
        done = set(rows)
        return [Ack.OK if (stored(ask.id), ask.owner, ask.fence) in done else None for ask in asks]

    # -- upkeep -------------------------------------------------------------------------------

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        if self.moves:
            return NOTHING_SWEPT, ""
        return (yield from Sweeper(self).step(ask))


def _corrupt() -> CorruptRecordError:
    return CorruptRecordError(
        "a stored record cannot be read; a newer version wrote it, or it is damaged; the handler does "
        "not run; look at its row in the database"
    )
