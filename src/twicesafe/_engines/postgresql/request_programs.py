"""How requests are performed: one statement per kind, for one request or for many.

Every write repeats its condition on the row that it locks, so READ COMMITTED is enough. A lost race writes
nothing, and the request is tried again. Rare cases (hold, park, operators) are decided under a row
lock by the programs that all SQL stores share. A row that another transaction locks is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from ..._core import lifecycle
from ..._core.durable.run_requests import RUN_OPS, WITHOUT_RUNS
from ..._core.protocol import Ack, Claimed, ClaimRequest, Request, Verdict
from ...errors import SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._base import Program
from ..sql.commands import Change, Query, atomically
from ..sql.programs import ACTS, READING, held_by_a_transaction
from ..sql.step_rows import ID_BYTES
from .request_kinds import AGAIN, KINDS, RequestKind, answered, claim_values, query
from .run_programs import PostgresRuns
from .settings import NOT_FREE, code_of
from .statements import LOCK_TIMEOUT, Statements
from .sweep_and_search import SweepAndSearch

if TYPE_CHECKING:
    from .programs import PostgresPrograms

__all__ = ["READS", "RequestPrograms"]

_RACES: Final = 5
"""How often a lost race is repeated before the request is decided under a lock."""

READS: Final = READING | {"load_run"}
"""Requests that may run again after a lost connection: they change nothing."""

UNLOCKED: Final = frozenset({"sweep", "find_due", "tidy_runs", "load_run"})
"""Requests whose statements are each atomic: they need no transaction around them."""

ANNOUNCED: Final = frozenset(
    {"release", "resolve", "forget", "abandon", "suspend", "fail_run", "restart"}
)
"""Requests decided under a lock whose end a waiter may wait for."""

_LOCKED: Final = 1024
"""How many keys we remember as locked by an open transaction."""


class RequestPrograms(SweepAndSearch):
    """Performs the requests of `PostgresPrograms`, which names the table and its statements."""

    moved: ClassVar[str] = "-"
    """The SQLSTATE of a statement that waited for a row which moved meanwhile; here none does."""

    identity: Callable[[bytes], Any]
    locked: dict[bytes, None]
    """Keys that an open transaction locks. No other request may wait behind them."""
    statements: Statements
    _announce: str

    @cached_property
    def runs(self) -> PostgresRuns:
        return PostgresRuns(cast("PostgresPrograms", self), self.runs_schema())

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
        kind = KINDS.get(op)
        answer = AGAIN
        if kind is not None:
            first_try = kind.first_try
            sql = kind.statement(self)[0] if first_try is None else first_try(self)
            try:
                rows = yield Query(sql, kind.values(ask, self.identity))
            except StoreUnavailableError as error:
                (answer,) = yield from self._refused(kind, [ask], error)
            else:
                if self.locked:
                    self.locked.pop(ask.id, None)
                answer = kind.answer(ask, rows[0] if rows else None)
                if answer is None and first_try is not None:
                    answer = AGAIN  # it takes the whole statement
                elif op == "start_run":
                    answer = yield from self._with_steps(ask, answer)
        if answer is AGAIN:
            answer = (yield from self._perform_all([request]))[0]
        elif answer is None:
            answer = yield from self._alone(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

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
        if op in KINDS:
            locked = [ask for ask in asks if ask.id in self.locked]
            if locked and len(asks) > 1:  # they would fail the whole statement again
                return (yield from self._one_by_one(op, asks, locked))
            try:
                found = yield from self._run_statement(op, asks)
            except StoreUnavailableError as error:
                if code_of(error) != NOT_FREE:
                    raise
                return (yield from self._one_by_one(op, asks, asks))
            except SchemaVersionError:
                raise  # about the table, not about a request: the store follows a migration
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
        kind = KINDS[op]
        try:
            rows = yield query(
                kind.statement(self), [kind.values(ask, self.identity) for ask in asks]
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
        self, kind: RequestKind, asks: list[Any], error: StoreUnavailableError
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
                return held_by_a_transaction()
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
        except (StoreUnavailableError, SchemaVersionError):
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
        yield Change(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT[isinstance(ask, ClaimRequest)]:d}")
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
            rows = yield Query(self.statements.claim[0], claim_values(ask, self.identity))
            found = answered(ask, rows[0])
            if found is not AGAIN and found is not None:
                return found
        raise StoreUnavailableError(
            "other workers changed this record at every attempt to claim it; try again"
        )


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
