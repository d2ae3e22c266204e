"""The programs of PostgreSQL: one statement per phase, for one request or for many.

A claim reads before it writes, so a duplicate writes nothing (no WAL, no row lock). The statement
inserts a new record, takes over one that may be taken, or returns the present one, which
`lifecycle.look` then answers from. Every write repeats its condition on the row it locks, so READ
COMMITTED is enough; a lost race finds nothing and asks again. What is rare (hold, park, operators)
is decided under a row lock by the programs that all SQL stores share.

The batch form is the primary one: the same statement gets its asks from one row of values or
from `unnest`.
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
    row_from,
    scope_prefix,
    scope_text,
)

__all__ = ["AGAIN", "CHANNEL", "GENERATIONS", "NOW", "PostgresPrograms", "PostgresSchema"]

CHANNEL: Final = "twicesafe"
"""NOTIFY goes here, with the hex of the key's identity."""

NOW: Final = "(date_part('epoch', clock_timestamp()) * 1000)::bigint"
"""Milliseconds of the server's clock; `now()` would stand still inside a transaction."""

GENERATIONS: Final = 1000
"""Schema numbers from here on are of tables that keep generations."""

_RACES: Final = 5
"""How often a lost race is run again before it is decided under a lock."""

_TAKEABLE: Final = """(
    {r}.expires_at BETWEEN 1 AND a.now
    OR ({r}.lease_until <= a.now AND {r}.attempt < a.max_attempts
        AND ({r}.state = 3 OR ({r}.state = 0 AND NOT {r}.hold))
        AND ({r}.fingerprint = a.fingerprint) IS NOT FALSE
        AND {r}.owner <> a.owner))"""

_EXPIRED: Final = "r.expires_at BETWEEN 1 AND a.now"

_ANSWER: Final = (
    "state, fence, attempt, owner, lease_until, changed_at, expires_at, hold, cause, fingerprint,"
    " result"
)

# One ask is a row of values, many are columns of arrays: (name, type) in the order of the args.
_CLAIM: Final = (
    ("id", "bytea"), ("owner", "bytea"), ("lease", "bigint"), ("max_attempts", "integer"),
    ("hold", "boolean"), ("fingerprint", "bytea"), ("scope", "bytea"), ("value", "bytea"),
)  # fmt: skip
_COMPLETE: Final = (
    ("id", "bytea"), ("owner", "bytea"), ("fence", "bigint"), ("retention", "bigint"),
    ("result", "bytea"), ("state", "smallint"), ("error", "bytea"),
)  # fmt: skip
_FAIL: Final = (
    ("id", "bytea"), ("owner", "bytea"), ("fence", "bigint"), ("delay", "bigint"),
    ("max_attempts", "integer"), ("retention", "bigint"), ("error", "bytea"), ("hold", "boolean"),
)  # fmt: skip
_RENEW: Final = (("id", "bytea"), ("owner", "bytea"), ("fence", "bigint"), ("lease", "bigint"))


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
    place: str = ""
    """Column of the part of the table that a row is in; only `generations` has parts."""
    here: str = ""
    """The part that is written to now, as SQL; every write brings its row there."""

    def __init__(self, table: str, mark: Callable[[str], str], now: str = NOW) -> None:
        self._mark = mark
        self._now = now
        super().__init__(table)
        self._claim = self._sources(_CLAIM, self._claim_sql())
        self._complete = self._sources(_COMPLETE, self._complete_sql())
        self._fail = self._sources(_FAIL, self._fail_sql())
        self._renew = self._sources(_RENEW, self._renew_sql())
        self._await = mark(
            f"UPDATE {self.records} SET {self._bring}awaited = true WHERE id = ? AND state = 0"
        )
        self._tell = mark(f"SELECT pg_notify('{CHANNEL}', encode(?::bytea, 'hex'))")

    def mark(self, sql: str) -> str:
        return self._mark(sql)

    @property
    def _bring(self) -> str:
        return f"{self.place.rstrip(', ')} = {self.here}" if self.place else ""

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
        another client's statement: better known before than found out.
        """
        return (yield Query("SELECT pg_backend_pid()"))[0][0] == pid  # type: ignore[no-any-return]

    # -- requests -----------------------------------------------------------------------------

    def perform(self, request: Request) -> Program[Any]:
        """One request alone."""
        answer = (yield from self.perform_all([request]))[0]
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
        """A missing row cannot be locked, so two new claims may meet: the insert decides."""
        if type(ask) is Claim:
            for _ in range(_RACES):
                row, now = yield from self.load(ask.key.id, self.lock)
                floor = 0 if row is not None else (yield from self.floor())
                answer, after = lifecycle.claim(row, ask, now, floor)
                if after is None:
                    return answer
                if row is not None:
                    yield from self.save(after)
                    return answer
                if (yield Change(self._insert + " ON CONFLICT DO NOTHING", self.values(after))):
                    return answer
        return (yield from super().decide(ask))

    def awaits(self, id: bytes) -> Program[bool]:  # noqa: A002
        """Mark the row, so that its end is announced. False: it is not in progress any more."""
        return bool((yield Change(self._await, (id,))))

    # -- one statement per kind ---------------------------------------------------------------

    def _claim_all(self, asks: list[Claim]) -> Program[list[Any]]:
        rows = yield self._query(
            self._claim,
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
        by_id = {row[0]: row for row in rows}
        return [_answered(ask, by_id[ask.key.id]) for ask in asks]

    def _complete_all(self, asks: list[Complete]) -> Program[list[Any]]:
        values = [
            (a.id, a.owner, a.fence, a.retention, a.result, number_of(a.state), a.error.encode())
            for a in asks
        ]
        return (yield from self._acks(self._complete, values))

    def _fail_all(self, asks: list[Fail]) -> Program[list[Any]]:
        values = [
            (a.id, a.owner, a.fence, a.delay, a.max_attempts, a.retention, a.error.encode(), a.hold)
            for a in asks
        ]
        return (yield from self._acks(self._fail, values))

    def _renew_all(self, asks: list[Renew]) -> Program[list[Any]]:
        return (
            yield from self._acks(self._renew, [(a.id, a.owner, a.fence, a.lease) for a in asks])
        )

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

    def _sources(self, columns: Sequence[tuple[str, str]], sql: str) -> tuple[str, str]:
        """The statement with one ask, and with many."""
        names = ", ".join(name for name, _ in columns)
        one = ", ".join(f"?::{kind} AS {name}" for name, kind in columns)
        many = ", ".join(f"?::{kind}[]" for _, kind in columns)
        asks = (
            f"SELECT {one}, {self._now} AS now",
            f"SELECT {names}, {self._now} AS now FROM unnest({many}) AS u({names})",
        )
        single, batch = (self.mark(f"WITH a AS MATERIALIZED ({source}) {sql}") for source in asks)
        return single, batch

    def _claim_sql(self) -> str:
        records, meta = self.records, self.meta
        return f"""
        , seen AS MATERIALIZED (SELECT a.id AS ask, r.* FROM a JOIN {records} r ON r.id = a.id)
        , fresh AS (
            INSERT INTO {records} ({self.place}id, owner, lease_until, hold, fingerprint, scope, value, fence,
                created_at, changed_at, expires_at, attempt, state, cause, error)
            SELECT {self.here}a.id, a.owner, a.now + a.lease, a.hold, a.fingerprint, a.scope, a.value,
                m.floor + 1, a.now, a.now, 0, 1, 0, 0, ''
            FROM a, {meta} m WHERE NOT EXISTS (SELECT FROM seen WHERE seen.ask = a.id)
            ON CONFLICT DO NOTHING RETURNING id, fence)
        , taken AS (
            UPDATE {records} r SET {self._bring}
                state = 0, fence = r.fence + 1, owner = a.owner, lease_until = a.now + a.lease,
                hold = a.hold, awaited = false, expires_at = 0, changed_at = a.now, result = NULL,
                attempt = CASE WHEN {_EXPIRED} THEN 1 ELSE r.attempt + 1 END,
                created_at = CASE WHEN {_EXPIRED} THEN a.now ELSE r.created_at END,
                error = CASE WHEN {_EXPIRED} THEN '' ELSE r.error END,
                scope = a.scope, value = a.value,
                fingerprint = CASE WHEN {_EXPIRED} THEN a.fingerprint
                    ELSE coalesce(a.fingerprint, r.fingerprint) END,
                cause = CASE WHEN r.state = 3 THEN r.cause WHEN {_EXPIRED} THEN 3 ELSE 2 END
            FROM a JOIN seen s ON s.ask = a.id
            WHERE r.id = a.id AND {_TAKEABLE.format(r="s")} AND {_TAKEABLE.format(r="r")}
            RETURNING r.id, r.fence, r.attempt, r.cause)
        SELECT a.id, a.now, fresh.fence, taken.fence, taken.attempt, taken.cause,
            {", ".join(f"seen.{name.strip()}" for name in _ANSWER.split(","))}
        FROM a LEFT JOIN fresh ON fresh.id = a.id LEFT JOIN taken ON taken.id = a.id
        LEFT JOIN seen ON seen.ask = a.id"""

    def _complete_sql(self) -> str:
        return f"""
        , done AS (
            UPDATE {self.records} r SET {self._bring}state = a.state, result = a.result, error = a.error,
                lease_until = 0, changed_at = a.now, expires_at = a.now + a.retention
            FROM a WHERE r.id = a.id AND r.owner = a.owner AND r.fence = a.fence
                AND r.state IN (0, 4, 5)
            RETURNING r.id, r.awaited)
        {_ANNOUNCE}"""

    def _fail_sql(self) -> str:
        released = "NOT a.hold AND r.attempt < a.max_attempts"
        return f"""
        , done AS (
            UPDATE {self.records} r SET {self._bring}error = a.error, changed_at = a.now,
                state = CASE WHEN a.hold THEN 4 WHEN {released} THEN 3 ELSE 5 END,
                cause = CASE WHEN {released} THEN 1 ELSE r.cause END,
                lease_until = CASE WHEN {released} THEN a.now + a.delay ELSE 0 END,
                expires_at = CASE WHEN {released} THEN a.now + a.retention ELSE 0 END
            FROM a WHERE r.id = a.id AND r.owner = a.owner AND r.fence = a.fence AND r.state = 0
            RETURNING r.id, r.awaited)
        {_ANNOUNCE}"""

    def _renew_sql(self) -> str:
        return f"""
        UPDATE {self.records} r
        SET {self._bring}lease_until = greatest(r.lease_until, a.now + a.lease)
        FROM a WHERE r.id = a.id AND r.owner = a.owner AND r.fence = a.fence AND r.state = 0
        RETURNING r.id"""

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
                    AND r.expires_at BETWEEN 1 AND {self._now} FOR UPDATE SKIP LOCKED),
            raised AS (
                UPDATE {self.meta} SET floor = (SELECT max(fence) FROM due)
                WHERE floor < (SELECT max(fence) FROM due)),
            trail AS (DELETE FROM {self.audit} WHERE id IN (SELECT id FROM due)),
            gone AS (
                DELETE FROM {self.records} WHERE ctid = ANY (ARRAY(SELECT place FROM due))
                RETURNING 1)
            SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM bite),
                (SELECT max(place)::text FROM bite)"""),
            (ask.after or "(0,0)", ask.limit),
        )
        removed, examined, last = rows[0]
        after = last if examined == ask.limit else ""
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
            where.append("substr(scope, 1, ?) = ?")
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
_ANNOUNCE: Final = f"""
        SELECT id, CASE WHEN awaited THEN pg_notify('{CHANNEL}', encode(id, 'hex'))::text END
        FROM done"""


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
    _, now, fresh, fence, attempt, cause, state, *present = row
    if fresh is not None:
        return Claimed(Verdict.WON, fresh, 1)
    if fence is not None:
        return Claimed(Verdict.WON, fence, attempt, CAUSES[cause])
    if state is None:
        return AGAIN  # another one inserted it after we looked
    old_fence, old_attempt, owner, lease, changed, expires, hold, why, print_, result = present
    known = (state, old_fence, old_attempt, owner, lease, 0, changed, expires, hold, why, print_)
    seen = row_from((ask.key.id, "", "", *known, result, ""))
    if lifecycle.is_expired(seen, now):
        return AGAIN  # somebody else took it in the same moment
    return lifecycle.look(seen, ask, now)
