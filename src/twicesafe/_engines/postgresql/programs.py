"""The programs of PostgreSQL: one statement per phase, for one request or for many.

What a claim's statement returns of a present record, `lifecycle.look` answers from. Every write
repeats its condition on the row it locks, so READ COMMITTED is enough; a lost race finds nothing
and asks again. What is rare (hold, park, operators) is decided under a row lock by the programs
that all SQL stores share. The statements themselves are in `statements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

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
from ..._values.records import Row
from ...errors import StoreError, StoreUnavailableError
from ...stores._base import Program
from ..sql.commands import (
    CAUSES,
    Change,
    Query,
    atomically,
    number_of,
    present_from,
    row_from,
    scope_text,
)
from ..sql.programs import ACTS, READING
from .heap_walks import HeapWalks
from .settings import NOT_FREE, code_of
from .statements import CHANNEL, NOW, PATIENCE, Statements

__all__ = ["AGAIN", "PostgresPrograms"]

_RACES: Final = 5
"""How often a lost race is run again before it is decided under a lock."""

_HELD: Final = 1024
"""Keys of which we remember that an open transaction holds them."""

_COME_BACK: Final = 500
"""Milliseconds after which to ask again for a key that an open transaction holds."""


class PostgresPrograms(HeapWalks):
    begin: ClassVar[str] = "BEGIN"

    def __init__(self, table: str, mark: Callable[[str], str], now: str = NOW) -> None:
        self._mark = mark
        self._now = now
        super().__init__(table)
        self._statements = self.statements()
        # The floor is read by the statement that writes: see `sweep`.
        self._insert = self._insert.replace(
            "VALUES (?, ?,".replace("?", mark("?")),
            f"VALUES (?, greatest(?, (SELECT floor + 1 FROM {self.meta})),".replace("?", mark("?")),
        )
        self.held: dict[bytes, None] = {}
        """Keys that an open transaction was found to hold: nobody else should wait behind them."""
        self._await = mark(f"UPDATE {self.records} SET awaited = true WHERE id = ? AND state = 0")
        self._tell = mark(f"SELECT pg_notify('{CHANNEL}', encode(?::bytea, 'hex'))")
        self._sweep = mark(self._sweep_statement())

    def statements(self) -> Statements:
        return Statements(self.records, self.meta, self._mark, self._now)

    def mark(self, sql: str) -> str:
        return self._mark(sql)

    # -- rows: key text is bytes here -----------------------------------------------------------

    def row(self, columns: Any) -> Row:
        row = row_from(columns)
        row.value, row.error = columns[2].decode(), columns[15].decode()
        return row

    def bind(self, text: str) -> bytes:
        return text.encode()

    def text(self, kept: Any) -> str:
        return kept.decode()  # type: ignore[no-any-return]

    def clock(self) -> Program[int]:
        return (yield Query(f"SELECT {self._now}"))[0][0]  # type: ignore[no-any-return]

    # -- requests -----------------------------------------------------------------------------

    def perform(self, request: Request) -> Program[Any]:
        """One request alone: most are answered by their statement at once."""
        answer: Any = AGAIN
        if hasattr(self, f"_{request.op}_all"):
            (answer,) = yield from self._tried(request.op, [request])
        if answer is AGAIN:
            answer = (yield from self.perform_all([request]))[0]
        elif answer is None:
            answer = yield from self._alone(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def perform_all(self, requests: Sequence[Any]) -> Program[list[Any]]:
        """Many requests: one statement per kind, then one by one what is left."""
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
        """Requests of one kind on different keys. One that is refused does not sink the others."""
        if op in READING or op == "sweep":
            answers: list[Any] = []
            for ask in asks:
                answers += [(yield from self._alone(ask))]
            return answers
        found: list[Any] = [None] * len(asks)
        if hasattr(self, f"_{op}_all"):
            held = [ask for ask in asks if ask.id in self.held]
            if held and len(asks) > 1:  # they would sink the others again
                return (yield from self._one_by_one(op, asks, held))
            try:
                found = yield from self._tried(op, asks)
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

    def _one_by_one(self, op: str, asks: list[Any], apart: list[Any]) -> Program[list[Any]]:
        """Those `apart` each by itself, the others together; the answers in the order of `asks`."""
        alone = {id(ask) for ask in apart}
        others = [ask for ask in asks if id(ask) not in alone]
        answers: dict[int, Any] = {}
        for group in (*([others] if others else []), *([ask] for ask in apart)):
            found = yield from self._group(op, group)
            answers.update((id(ask), each) for ask, each in zip(group, found, strict=True))
        return [answers[id(ask)] for ask in asks]

    def _tried(self, op: str, asks: list[Any]) -> Program[list[Any]]:
        """The statement of this kind. One ask whose row is held is answered, or gets its error."""
        try:
            found: list[Any] = yield from getattr(self, f"_{op}_all")(asks)
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE or len(asks) > 1:
                raise
            return [(yield from self._not_free(asks[0], error))]
        if self.held:
            for ask in asks:
                self.held.pop(ask.id, None)
        return found

    def _not_free(self, ask: Any, error: StoreUnavailableError) -> Program[Any]:
        """Another transaction holds the row: a claim is told that the key is being worked on, and so
        is an operator. What an owner writes is asked again by its caller.

        If it is the table that is locked (a change of the schema, VACUUM FULL), nothing is known of
        the key: that is an outage.
        """
        self.held[ask.id] = None
        if len(self.held) > _HELD:
            self.held.pop(next(iter(self.held)), None)
        claims = type(ask) is ClaimRequest
        if (claims or ask.op in ACTS) and (yield from self._table_is_free()):
            return Claimed(Verdict.BUSY, wait=_COME_BACK, locked=True) if claims else Ack.LOCKED
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
            if ask.op in READING or ask.op == "sweep":
                return (yield from getattr(self, ask.op)(ask))
            return (yield from self._decide_alone(ask))
        except StoreUnavailableError:
            raise
        except StoreError as error:
            return error

    def _decide_alone(self, ask: Any) -> Program[Any]:
        try:
            answer = yield from atomically(self._patiently(ask), self.begin)
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE:
                raise
            return (yield from self._not_free(ask, error))
        if answer is Ack.OK and ask.op in ("release", "resolve", "forget", "abandon"):
            yield Query(self._tell, (ask.id,))
        return answer

    def _patiently(self, ask: Any) -> Program[Any]:
        yield Change(f"SET LOCAL lock_timeout = {PATIENCE[type(ask) is ClaimRequest]:d}")
        return (yield from self.decide(ask))

    def decide(self, ask: Any) -> Program[Any]:
        """A missing row cannot be locked: the claim's own statement inserts it, or lost a race.

        That one statement also reads the floor. Between two, another claim could live its whole
        life, be swept, and its fence be given out again.
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
            (found,) = yield from PostgresPrograms._claim_all(self, [ask])
            if found is not AGAIN and found is not None:
                return found
        raise StoreUnavailableError("this record comes and goes faster than it can be claimed")

    def awaits(self, id: bytes) -> Program[bool]:  # noqa: A002
        """Mark the row, so that its end is announced. False: it is not in progress any more."""
        try:
            return bool((yield Change(self._await, (id,))))
        except StoreUnavailableError as error:
            if code_of(error) != NOT_FREE:
                raise
            return False  # ask again: the claim says what holds it

    def insert(self, row: Row) -> Program[bool]:
        """A new record, with a fence above the floor; False: another transaction was faster."""
        return bool((yield Change(f"{self._insert} ON CONFLICT DO NOTHING", self.values(row))))

    # -- one statement per kind ---------------------------------------------------------------

    def _claim_all(self, asks: list[ClaimRequest]) -> Program[list[Any]]:
        rows = yield self._query(
            self._statements.claim,
            [
                (
                    ask.key.id,
                    ask.owner,
                    ask.lease,
                    ask.max_attempts,
                    ask.hold,
                    ask.fingerprint,
                    scope_text(ask.key.scope).encode(),
                    ask.key.value.encode(),
                )
                for ask in asks
            ],
        )
        if len(asks) == 1:
            return [_answered(asks[0], rows[0])]
        by_id = {row[0]: row for row in rows}
        return [_answered(ask, by_id[ask.key.id]) for ask in asks]

    def _complete_all(self, asks: list[Complete]) -> Program[list[Any]]:
        values = [
            (a.id, a.owner, a.fence, a.retention, a.result, number_of(a.state), a.error.encode())
            for a in asks
        ]
        return (yield from self._acks(self._statements.complete, values))

    def _fail_all(self, asks: list[Fail]) -> Program[list[Any]]:
        values = [
            (a.id, a.owner, a.fence, a.delay, a.max_attempts, a.retention, a.error.encode(), a.hold)
            for a in asks
        ]
        return (yield from self._acks(self._statements.fail, values))

    def _renew_all(self, asks: list[Renew]) -> Program[list[Any]]:
        values = [(a.id, a.owner, a.fence, a.lease) for a in asks]
        return (yield from self._acks(self._statements.renew, values))

    def _acks(self, sql: tuple[str, str], values: list[tuple[Any, ...]]) -> Program[list[Any]]:
        rows = yield self._query(sql, values)
        done = {row[0] for row in rows}
        return [Ack.OK if value[0] in done else None for value in values]

    def _query(self, sql: tuple[str, str], values: list[tuple[Any, ...]]) -> Query:
        if len(values) == 1:
            return Query(sql[0], values[0])
        # In the order of identities, so that two batches never wait for each other in a circle.
        values = sorted(values, key=lambda value: value[0])
        return Query(sql[1], tuple(list(column) for column in zip(*values, strict=True)))


AGAIN: Final = object()
"""Not decided: the race was lost, ask again."""


def _one_of_each_key(
    requests: Sequence[Any], left: list[int]
) -> tuple[dict[str, list[int]], list[int]]:
    """One statement may see a key once: by kind, the first request of each; and the others."""
    turn: dict[str, list[int]] = {}
    waiting: list[int] = []
    seen: set[bytes] = set()
    for index in left:
        ask = requests[index]
        key = getattr(ask, "id", None)
        if key is not None and key in seen:
            waiting.append(index)
            continue
        if key is not None:
            seen.add(key)
        turn.setdefault(ask.op, []).append(index)
    return turn, waiting


def _answered(ask: ClaimRequest, row: Any) -> Any:
    try:
        return _answer(ask, row)
    except StoreError as error:  # a damaged row: an error of its own, not of its neighbours
        return error.about(ask.key)


def _answer(ask: ClaimRequest, row: Any) -> Any:
    """The verdict from what the claim statement returned; None: it must be decided under a lock."""
    _, now, won, state, fence, attempt, cause, owner, lease, changed, expires, hold, *rest = row
    if won:
        return Claimed(Verdict.WON, fence, attempt, CAUSES[cause])
    if state is None:
        return AGAIN  # another one inserted it after we looked
    if 0 < expires <= now:
        return AGAIN  # somebody else took it in the same moment
    known = (state, fence, attempt, owner, lease, changed, expires, hold, cause, *rest)
    return lifecycle.look(present_from(ask.key.id, known), ask, now)
