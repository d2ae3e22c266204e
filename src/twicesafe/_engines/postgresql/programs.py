"""The programs of PostgreSQL: one statement per kind of request, for one request or for many.

If a claim finds a record, `lifecycle.look` answers from the columns that its statement returned. Every
write repeats its condition on the row that it locks, so READ COMMITTED is enough: a lost race writes
nothing, and the request is tried again. Rare cases (hold, park, operators) are decided under a row
lock by the programs that all SQL stores share. The SQL is in `statements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from ..._core import lifecycle
from ..._core.protocol import (
    Ack,
    Claimed,
    ClaimRequest,
    Complete,
    Fail,
    Renew,
    Request,
    Verdict,
)
from ..._core.run_requests import RUN_OPS, WITHOUT_RUNS, StartRun, Submit
from ..._values.records import Row
from ...errors import StoreError, StoreUnavailableError
from ...stores._base import Finding, Program
from ..sql.commands import (
    CAUSES,
    NUMBER_OF_STATE,
    Change,
    Query,
    atomically,
    present_from,
    row_from,
    with_whole_id,
)
from ..sql.layouts import NARROW, Layout, layout_findings
from ..sql.programs import ACTS, READING
from ..sql.step_rows import ID_BYTES
from .columns import columns_of
from .heap_walks import HeapWalks
from .moving import PostgresMoves
from .run_programs import PostgresRuns, PostgresRunSchema, run_values, step_values
from .settings import NOT_FREE, code_of
from .statements import CHANNEL, NOW, PATIENCE, Statements

__all__ = ["AGAIN", "PostgresPrograms"]

Identity: TypeAlias = Callable[[bytes], Any]

_RACES: Final = 5
"""How often a lost race is repeated before the request is decided under a lock."""

UNLOCKED: Final = frozenset({"sweep", "find_due", "tidy_runs", "load_run"})
"""Requests whose statements are each atomic: they need no transaction around them."""

ANNOUNCED: Final = frozenset(
    {"release", "resolve", "forget", "abandon", "suspend", "fail_run", "restart"}
)
"""Requests decided under a lock whose end a waiter may wait for."""

_LOCKED: Final = 1024
"""How many keys we remember as locked by an open transaction."""

_RETRY_WHEN_LOCKED: Final = 500
"""Milliseconds after which to claim again a key that an open transaction locks."""


class PostgresPrograms(HeapWalks):
    """For one table that holds all records; `GenerationPrograms` is for partitions."""

    begin: ClassVar[str] = "BEGIN"
    moved: ClassVar[str] = "-"
    """The SQLSTATE of a statement that waited for a row which moved meanwhile; here none does."""

    def __init__(
        self,
        table: str,
        mark: Callable[[str], str],
        now: str = NOW,
        layout: Layout = NARROW,
    ) -> None:
        self._mark = mark
        self._now = now
        self.kept = columns_of(layout)
        self.columns = self.kept.all
        super().__init__(table, layout)
        self.identity = self.kept.identity
        self.size = (
            f"SELECT sum(pg_total_relation_size(c)) FROM (SELECT '{self.records}'::regclass AS c"
            f" UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = '{self.records}'::regclass) t"
        )
        self._statements = self.statements()
        # The statement that writes also reads the floor: see `HeapWalks.sweep`.
        self._insert = self._insert.replace(
            "VALUES (?, ?,".replace("?", mark("?")),
            f"VALUES (?, greatest(?, (SELECT floor + 1 FROM {self.meta})),".replace("?", mark("?")),
        )
        self.locked: dict[bytes, None] = {}
        """Keys that an open transaction locks. No other request may wait behind them."""
        which = f"id = {self.id_place()}"
        self._await = mark(f"UPDATE {self.records} SET awaited = true WHERE {which} AND state = 0")
        self._announce = mark(f"SELECT pg_notify('{CHANNEL}', encode(?::bytea, 'hex'))")
        self._sweep = mark(self._sweep_statement())

    def statements(self) -> Statements:
        return Statements(self.records, self.meta, self._mark, self._now, self.kept)

    def mark(self, sql: str) -> str:
        return self._mark(sql)

    def id_place(self) -> str:
        return f"?::{self.kept.id_type}"

    def upkeep(self) -> Program[list[Finding]]:
        yield from ()
        return layout_findings(self.layout)

    def runs_schema(self) -> PostgresRunSchema:
        return PostgresRunSchema(self.table, self._mark)

    @cached_property
    def runs(self) -> PostgresRuns:
        return PostgresRuns(self, self.runs_schema())

    def among(self, ids: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        return f"id = ANY (?::{self.kept.id_type}[])", ([self.identity(id_) for id_ in ids],)

    def moving(self) -> PostgresMoves:
        return PostgresMoves(self)

    # -- rows: texts are stored as bytes ----------------------------------------------------------

    def row(self, columns: Any, id: bytes = b"") -> Row:  # noqa: A002
        row = row_from(columns)
        row.value, row.error = columns[2].decode(), columns[15].decode()
        return with_whole_id(row, id)

    def values(self, row: Row) -> tuple[Any, ...]:
        return self.kept.values(row, super().values(row))

    def bind(self, text: str) -> bytes:
        return text.encode()

    def text(self, kept: Any) -> str:
        return kept.decode()  # type: ignore[no-any-return]

    def clock(self) -> Program[int]:
        return (yield Query(f"SELECT {self._now}"))[0][0]  # type: ignore[no-any-return]

    # -- requests -----------------------------------------------------------------------------

    def perform(self, request: Request) -> Program[Any]:
        """One request. Most are answered by one statement."""
        ask: Any = request
        op = ask.op
        if op in RUN_OPS and not (yield from self.runs.prepared(op)):
            return WITHOUT_RUNS[op]
        if self.moves is not None and hasattr(ask, "id"):
            answer = yield from self._fetched(ask)
            if answer is not None:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        kind = _KINDS.get(op)
        answer = AGAIN
        if kind is not None:
            try:
                rows = yield Query(self._statement(op)[0], kind.values(ask, self.identity))
            except StoreUnavailableError as error:
                (answer,) = yield from self._refused(kind, [ask], error)
            else:
                if self.locked:
                    self.locked.pop(ask.id, None)
                answer = kind.answer(ask, rows[0] if rows else None)
                if op == "start_run":
                    answer = yield from self._with_steps(ask, answer)
        if answer is AGAIN:
            answer = (yield from self._perform_all([request]))[0]
        elif answer is None:
            answer = yield from self._alone(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _statement(self, op: str) -> tuple[str, str]:
        return getattr(self.runs.statements if op in RUN_OPS else self._statements, op)  # type: ignore[no-any-return]

    def _with_steps(self, ask: Any, answer: Any) -> Program[Any]:
        """The answer to a start, with the steps that are recorded."""
        if type(answer) is Claimed and answer.verdict is Verdict.WON and answer.steps is None:
            return (yield from self.runs.with_steps(ask, answer))
        return answer

    def perform_all(self, requests: Sequence[Any]) -> Program[list[Any]]:
        """Many requests: one statement per kind; what is left is decided one by one."""
        if any(ask.op in RUN_OPS for ask in requests):
            yield from self.runs.prepared("record_step")
        if self.moves is None:
            return (yield from self._perform_all(requests))
        answers: list[Any] = [None] * len(requests)
        try:
            ids = [ask.id for ask in requests if hasattr(ask, "id")]
            yield from self.moves.fetch_soon(ids)
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE:
                raise
            for index, ask in enumerate(requests):
                answers[index] = (yield from self._fetched(ask)) if hasattr(ask, "id") else None
        left = [index for index, answer in enumerate(answers) if answer is None]
        found = yield from self._perform_all([requests[index] for index in left])
        for index, answer in zip(left, found, strict=True):
            answers[index] = answer
        return answers

    def _fetched(self, ask: Any) -> Program[Any]:
        """Move the record of this request. None: it is done; else it is locked, and this is the answer."""
        try:
            yield from self.moves.fetch_soon((ask.id,))
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE:
                raise
            return (yield from self._answer_locked(ask, error))
        return None

    def _perform_all(self, requests: Sequence[Any]) -> Program[list[Any]]:
        answers: list[Any] = [None] * len(requests)
        left = list(range(len(requests)))
        for _ in range(_RACES):
            turn, waiting = _one_of_each_key(requests, left)
            for op, group in turn.items():
                found = yield from self._group(op, [requests[index] for index in group])
                for index, answer in zip(group, found, strict=True):
                    if answer is AGAIN:
                        waiting.append(index)
                    else:
                        answers[index] = answer
            left = sorted(waiting)
            if not left:
                return answers
        for index in left:
            answers[index] = yield from self._decide_alone(requests[index])
        return answers

    def _group(self, op: str, asks: list[Any]) -> Program[list[Any]]:
        """Requests of one kind on different keys. One that fails does not affect the others."""
        if op in READING or op in UNLOCKED:
            answers: list[Any] = []
            for ask in asks:
                answers += [(yield from self._alone(ask))]
            return answers
        found: list[Any] = [None] * len(asks)
        if op in _KINDS:
            locked = [ask for ask in asks if ask.id in self.locked]
            if locked and len(asks) > 1:  # they would fail the whole statement again
                return (yield from self._one_by_one(op, asks, locked))
            try:
                found = yield from self._run_statement(op, asks)
            except StoreUnavailableError as error:
                if code_of(error) != NOT_FREE:
                    raise
                return (yield from self._one_by_one(op, asks, asks))
            except StoreError as error:
                if len(asks) == 1:
                    return [error]
                return (yield from self._one_by_one(op, asks, asks))
        for index, ask in enumerate(asks):
            if found[index] is None:
                found[index] = yield from self._alone(ask)
        return found

    def _one_by_one(self, op: str, asks: list[Any], single: list[Any]) -> Program[list[Any]]:
        """Each of `single` alone, the others together; the answers in the order of `asks`."""
        alone = {id(ask) for ask in single}
        others = [ask for ask in asks if id(ask) not in alone]
        answers: dict[int, Any] = {}
        for group in (*([others] if others else []), *([ask] for ask in single)):
            found = yield from self._group(op, group)
            answers.update((id(ask), each) for ask, each in zip(group, found, strict=True))
        return [answers[id(ask)] for ask in asks]

    def _run_statement(self, op: str, asks: list[Any]) -> Program[list[Any]]:
        """Run the statement of this kind, for all of them together."""
        kind = _KINDS[op]
        try:
            rows = yield _query(
                self._statement(op), [kind.values(ask, self.identity) for ask in asks]
            )
        except StoreUnavailableError as error:
            return (yield from self._refused(kind, asks, error))
        if self.locked:
            self._forget_locked(asks)
        if op == "record_step":
            recorded = {(row[0], row[1]) for row in rows}
            steps = [(ask.id[:ID_BYTES], ask.name.encode()) for ask in asks]
            return [Ack.OK if step in recorded else None for step in steps]
        by_id = {row[0]: row for row in rows}
        found = [kind.answer(ask, by_id.get(self.stored(ask.id))) for ask in asks]
        if op == "start_run":
            for index, ask in enumerate(asks):
                found[index] = yield from self._with_steps(ask, found[index])
        return found

    def _refused(
        self, kind: _Kind, asks: list[Any], error: StoreUnavailableError
    ) -> Program[list[Any]]:
        """The answers after an error: a single request whose row is locked gets its own."""
        code = code_of(error)
        if code == self.moved:
            self._forget_locked(asks)
            return [kind.after_a_move for _ in asks]
        if code != NOT_FREE or len(asks) > 1:
            raise error
        return [(yield from self._answer_locked(asks[0], error))]

    def _forget_locked(self, asks: list[Any]) -> None:
        for ask in asks:
            self.locked.pop(ask.id, None)

    def _answer_locked(self, ask: Any, error: StoreUnavailableError) -> Program[Any]:
        """The answer when another transaction locks the row: the key counts as in progress.

        Claims and operators get that answer. An owner's request gets the error, and its caller
        retries. If the whole table is locked (by a migration or VACUUM FULL), nothing is known about
        the key: that is an outage.
        """
        self.locked[ask.id] = None
        if len(self.locked) > _LOCKED:
            self.locked.pop(next(iter(self.locked)), None)
        is_claim = isinstance(ask, ClaimRequest)
        if (is_claim or ask.op in ACTS) and (yield from self._table_is_free()):
            if is_claim:
                return Claimed(Verdict.BUSY, wait=_RETRY_WHEN_LOCKED, locked=True)
            return Ack.LOCKED
        return error

    def _table_is_free(self) -> Program[bool]:
        def locked() -> Program[bool]:
            yield Change(f"LOCK TABLE {self.records} IN ROW EXCLUSIVE MODE NOWAIT")
            return True

        try:
            return (yield from atomically(locked(), self.begin))
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE:
                raise
            return False

    def _alone(self, ask: Any) -> Program[Any]:
        try:
            if ask.op in READING or ask.op in UNLOCKED:
                where = self.runs if ask.op in RUN_OPS else self
                return (yield from getattr(where, ask.op)(ask))
            return (yield from self._decide_alone(ask))
        except StoreUnavailableError:
            raise
        except StoreError as error:
            return error

    def _decide_alone(self, ask: Any) -> Program[Any]:
        try:
            answer = yield from atomically(self._decide_with_timeout(ask), self.begin)
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE:
                raise
            return (yield from self._answer_locked(ask, error))
        if answer is Ack.OK and ask.op in ANNOUNCED:
            yield Query(self._announce, (self.stored(ask.id),))
        return answer

    def _decide_with_timeout(self, ask: Any) -> Program[Any]:
        yield Change(f"SET LOCAL lock_timeout = {PATIENCE[isinstance(ask, ClaimRequest)]:d}")
        return (yield from self.decide(ask))

    def decide(self, ask: Any) -> Program[Any]:
        """Decide under a row lock. A missing row cannot be locked: the claim's statement inserts it.

        That statement also reads the floor. If two statements did so, another claim could run, end and
        be swept between them, and its fence would be given out again.
        """
        if type(ask) is not ClaimRequest:
            return (yield from super().decide(ask))
        for _ in range(_RACES):
            row, now = yield from self.load(ask.key.id, self.lock)
            if row is not None:
                answer, after = lifecycle.claim(row, ask, now)
                if after is not None:
                    yield from self.save(after)
                return answer
            rows = yield Query(self._statements.claim[0], _claim_values(ask, self.identity))
            found = _answered(ask, rows[0])
            if found is not AGAIN and found is not None:
                return found
        raise StoreUnavailableError(
            "other workers changed this record at every attempt to claim it; try again"
        )

    def awaits(self, id: bytes) -> Program[bool]:  # noqa: A002
        """Mark the row, so that its end is announced. False: it is no longer in progress."""
        try:
            return bool((yield Change(self._await, (self.identity(id),))))
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE:
                raise
            return False  # the next claim will answer that it is locked

    def insert_copy(self, row: Row) -> Program[bool]:
        return bool((yield Change(f"{self._insert_copy} ON CONFLICT DO NOTHING", self.values(row))))

    def insert(self, row: Row) -> Program[bool]:
        """Insert a record with a fence above the floor; False: another transaction did."""
        return bool((yield Change(f"{self._insert} ON CONFLICT DO NOTHING", self.values(row))))


AGAIN: Final = object()
"""In place of an answer: the race was lost, so run the statement again."""


def _one_of_each_key(
    requests: Sequence[Any], left: list[int]
) -> tuple[dict[str, list[int]], list[int]]:
    """The first request of each key, by kind, and all others: one statement must not see a key twice.

    Different steps of one run may be in one statement."""
    turn: dict[str, list[int]] = {}
    waiting: list[int] = []
    seen: dict[bytes, list[str | None]] = {}
    for index in left:
        ask = requests[index]
        key = getattr(ask, "id", None)
        if key is not None:
            step = ask.name if ask.op == "record_step" else None
            before = seen.setdefault(key, [])
            waits = bool(before) and (step is None or None in before or step in before)
            before.append(step)
            if waits:
                waiting.append(index)
                continue
        turn.setdefault(ask.op, []).append(index)
    return turn, waiting


def _answered(ask: ClaimRequest, row: Any) -> Any:
    """The verdict from a row of the claim statement; None: decide under a lock."""
    _, now, won, state, fence, attempt, cause, owner, lease, changed, expires, hold, *rest = row
    if won:
        return Claimed(Verdict.WON, fence, attempt, CAUSES[cause])
    if state is None:
        return AGAIN  # another claim inserted it after we looked
    if 0 < expires <= now:
        return AGAIN  # another claim took it at the same moment
    known = (state, fence, attempt, owner, lease, changed, expires, hold, cause, *rest)
    try:
        return lifecycle.look(present_from(ask.key.id, known), ask, now)
    except StoreError as error:  # a damaged row: only its own request fails
        return error.about(ask.key)


# --- one statement per kind: its values, and what an answer row means ------------------------------


def _claim_values(ask: ClaimRequest, identity: Identity) -> tuple[Any, ...]:
    key = ask.key
    return (
        identity(key.id),
        ask.owner,
        ask.lease,
        ask.max_attempts,
        ask.hold,
        ask.fingerprint,
        msgspec.json.encode(key.scope) if key.scope else b"",
        key.value.encode(),
    )


def _complete_values(ask: Complete, identity: Identity) -> tuple[Any, ...]:
    state, error = NUMBER_OF_STATE[ask.state], ask.error.encode()
    return identity(ask.id), ask.owner, ask.fence, ask.retention, ask.result, state, error


def _fail_values(ask: Fail, identity: Identity) -> tuple[Any, ...]:
    end = ask.delay, ask.max_attempts, ask.retention, ask.error.encode(), ask.hold
    return identity(ask.id), ask.owner, ask.fence, *end


def _renew_values(ask: Renew, identity: Identity) -> tuple[Any, ...]:
    return identity(ask.id), ask.owner, ask.fence, ask.lease


def _started(ask: StartRun, row: Any) -> Any:
    """As `_answered`. A new run has no steps; those of another are read next."""
    answer = _answered(ask, row[:-1])
    if type(answer) is not Claimed or answer.verdict is not Verdict.WON:
        return answer
    if not row[2]:
        return None  # a network retry: decided under a lock, as it is rare
    answer.now, answer.steps = row[1], [] if row[-1] else None
    return answer


def _submitted(ask: Submit, row: Any) -> Any:
    """WON if the run and its row are new; None: decide under a lock."""
    return Claimed(Verdict.WON, row[4]) if row[2] and row[-1] else None


def _acknowledged(_: Any, row: Any) -> Ack | None:
    """Every row that the statement changed is returned; None: decide under a lock."""
    return None if row is None else Ack.OK


class _Kind(NamedTuple):
    values: Callable[[Any, Identity], tuple[Any, ...]]
    answer: Callable[[Any, Any], Any]
    after_a_move: Any = None
    """The answer if the row moved while the statement waited for it."""


_KINDS: Final = {
    "claim": _Kind(_claim_values, _answered, AGAIN),
    "complete": _Kind(_complete_values, _acknowledged),
    "fail": _Kind(_fail_values, _acknowledged),
    "renew": _Kind(_renew_values, _acknowledged),
    "start_run": _Kind(run_values, _started, AGAIN),
    "submit_run": _Kind(run_values, _submitted, AGAIN),
    "record_step": _Kind(step_values, _acknowledged),
}


def _query(sql: tuple[str, str], values: list[tuple[Any, ...]]) -> Query:
    if len(values) == 1:
        return Query(sql[0], values[0])
    values = sorted(values, key=itemgetter(0))  # by key, so that two batches never deadlock
    return Query(sql[1], tuple(list(column) for column in zip(*values, strict=True)))
