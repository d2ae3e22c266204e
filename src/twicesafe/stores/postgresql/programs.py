"""The programs of PostgreSQL: one statement per phase, for one request or for many.

What a claim's statement returns of a present record, `lifecycle.look` answers from. Every write
repeats its condition on the row it locks, so READ COMMITTED is enough; a lost race finds nothing
and asks again. What is rare (hold, park, operators) is decided under a row lock by the programs
that all SQL stores share. The statements themselves are in `statements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from ...core import lifecycle
from ...core.protocol import (
    Ack,
    Browse,
    Claim,
    Claimed,
    Complete,
    Fail,
    Page,
    Renew,
    Request,
    Sweep,
    Verdict,
)
from ...errors import ConfigurationError, StoreError, StoreUnavailableError
from ...records import Row, SweepReport
from ..base import Program
from ..migrating import Schema
from ..programs import READING, SqlPrograms
from ..sql import (
    CAUSES,
    Change,
    Query,
    atomically,
    number_of,
    present_from,
    row_from,
    scope_prefix,
    scope_text,
)
from .statements import CHANNEL, NOW, PLANNING, Statements

__all__ = ["AGAIN", "CHANNEL", "GENERATIONS", "NOW", "PostgresPrograms", "PostgresSchema"]

GENERATIONS: Final = 1000
"""Schema numbers from here on are of tables that keep generations."""

_RACES: Final = 5
"""How often a lost race is run again before it is decided under a lock."""


class PostgresSchema(Schema):
    def __init__(self, table: str, schema: str, mark: Callable[[str], str]) -> None:
        super().__init__("postgresql", f"{schema}.{table}" if schema else table)
        self._schema, self._mark = schema, mark

    def exists(self) -> Program[bool]:
        # Not to_regclass: inside a transaction it may remember that the table was not there.
        query = self._mark(
            "SELECT count(*) FROM pg_catalog.pg_tables WHERE tablename = ?::text"
            " AND schemaname = coalesce(nullif(?::text, ''), current_schema())"
        )
        bare = self.table.rpartition(".")[2]
        return bool((yield Query(query, (f"{bare}_meta", self._schema)))[0][0])

    def script(self) -> str:
        place = f"CREATE SCHEMA IF NOT EXISTS {self._schema};\n" if self._schema else ""
        return place + super().script()

    def version(self) -> Program[int]:
        found = yield from super().version()
        if found >= GENERATIONS:
            raise ConfigurationError(
                f"the tables {self.table}_… keep generations: say ?generations=… as the others do"
            )
        return found

    def step(self) -> Program[str | None]:
        # Whoever else migrates now waits here until we are done; then nothing is left to do.
        yield Query("SELECT pg_advisory_xact_lock(hashtext('twicesafe migration'))")
        if self._schema:
            yield Change(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        return (yield from super().step())


class PostgresPrograms(SqlPrograms):
    begin: ClassVar[str] = "BEGIN"

    def __init__(self, table: str, mark: Callable[[str], str], now: str = NOW) -> None:
        self._mark = mark
        self._now = now
        super().__init__(table)
        self._statements = self.statements()
        self._await = mark(f"UPDATE {self.records} SET awaited = true WHERE id = ? AND state = 0")
        self._tell = mark(f"SELECT pg_notify('{CHANNEL}', encode(?::bytea, 'hex'))")

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

    def is_direct(self, pid: int) -> Program[bool]:
        """Does the server that answers have the pid that the connection was told?

        A pooler makes one up. Its clients share sessions, so a prepared name of ours may be
        another client's statement: better known before than found out. Only a session of our own
        is told how to plan.
        """
        told = f"pg_backend_pid() = {pid:d}"
        rows = yield Query(f"SELECT {told}, CASE WHEN {told} THEN {PLANNING} END")
        return rows[0][0]  # type: ignore[no-any-return]

    # -- requests -----------------------------------------------------------------------------

    def perform(self, request: Request) -> Program[Any]:
        """One request alone: most are answered by their statement at once."""
        shortcut = getattr(self, f"_{request.op}_all", None)
        answer = AGAIN if shortcut is None else (yield from shortcut([request]))[0]
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
        shortcut = getattr(self, f"_{op}_all", None)
        found: list[Any] = [None] * len(asks)
        if shortcut is not None:
            try:
                found = yield from shortcut(asks)
            except StoreUnavailableError:
                raise
            except StoreError as error:
                if len(asks) == 1:
                    return [error]
                parts: list[Any] = []
                for ask in asks:
                    parts += yield from self._group(op, [ask])
                return parts
        for index, ask in enumerate(asks):
            if found[index] is None:
                found[index] = yield from self._alone(ask)
        return found

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
        answer = yield from atomically(self.decide(ask), self.begin)
        if answer is Ack.OK and ask.op in ("release", "resolve", "forget", "abandon"):
            yield Query(self._tell, (ask.id,))
        return answer

    def decide(self, ask: Any) -> Program[Any]:
        """A missing row cannot be locked: the claim's own statement inserts it, or lost a race.

        That one statement also reads the floor. Between two, another claim could live its whole
        life, be swept, and its fence be given out again.
        """
        if type(ask) is not Claim:
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
        return bool((yield Change(self._await, (id,))))

    # -- one statement per kind ---------------------------------------------------------------

    def _claim_all(self, asks: list[Claim]) -> Program[list[Any]]:
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

    # -- upkeep: by place, because nothing that changes is indexed ----------------------------

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One bite in the order of the heap. Rows that somebody works on are skipped."""
        rows = yield Query(
            self.mark(f"""
            WITH bite AS MATERIALIZED (
                SELECT ctid AS place, expires_at FROM {self.records} WHERE ctid > ?::text::tid LIMIT ?),
            due AS MATERIALIZED (
                SELECT r.ctid AS place, r.id, r.fence FROM {self.records} r
                WHERE r.ctid = ANY (ARRAY(
                        SELECT place FROM bite WHERE expires_at BETWEEN 1 AND {self._now}))
                    AND r.expires_at BETWEEN 1 AND {self._now} LIMIT ? FOR UPDATE SKIP LOCKED),
            raised AS (
                UPDATE {self.meta} SET floor = (SELECT max(fence) FROM due)
                WHERE floor < (SELECT max(fence) FROM due)),
            trail AS (DELETE FROM {self.audit} WHERE id IN (SELECT id FROM due)),
            gone AS (
                DELETE FROM {self.records} WHERE ctid = ANY (ARRAY(SELECT place FROM due))
                RETURNING 1)
            SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM bite),
                (SELECT max(place)::text FROM bite)"""),
            (start := ask.after or "(0,0)", ask.limit, ask.most),
        )
        removed, examined, last = rows[0]
        after = last if examined == ask.limit else ""
        if removed == ask.most:  # there may be more among those that were looked at
            after = start
        return SweepReport(removed=removed, examined=examined, more=bool(after)), after

    def browse(self, ask: Browse) -> Program[Page]:
        now = yield from self.clock()
        where: list[str] = ["NOT expires_at BETWEEN 1 AND ?"]
        args: list[Any] = [now]
        if ask.after:
            made, _, last = ask.after.partition(":")
            where.append("(created_at, id) < (?, ?)")
            args += [int(made), bytes.fromhex(last)]
        if ask.state is not None:
            where.append("state = ?")
            args.append(number_of(ask.state))
        if ask.scope:
            prefix = scope_prefix(ask.scope).encode()
            where.append("substr(scope, 1, ?::integer) = ?")
            args += [len(prefix), prefix]
        rows = yield Query(
            self.mark(
                f"{self._select} WHERE {' AND '.join(where)}"
                " ORDER BY created_at DESC, id DESC LIMIT ?"
            ),
            (*args, ask.limit + 1),
        )
        found = [self.row(row) for row in rows[: ask.limit]]
        more = len(rows) > ask.limit
        return Page(found, f"{found[-1].created_at}:{found[-1].id.hex()}" if more else "")


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


def _answered(ask: Claim, row: Any) -> Any:
    try:
        return _answer(ask, row)
    except StoreError as error:  # a damaged row: an error of its own, not of its neighbours
        return error.about(ask.key)


def _answer(ask: Claim, row: Any) -> Any:
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
