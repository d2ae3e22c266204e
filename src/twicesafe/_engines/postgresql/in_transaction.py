"""Transaction mode on PostgreSQL: one statement to enter, one to leave, in the caller's transaction.

A unique violation would abort the caller's transaction, so the insert does nothing on a conflict. It
waits for a transaction that inserted the same key, up to a lock time-out that is set for this
statement only. The record is completed only in the transaction that entered it, which is recognised
by its number (`txid_current`).

A record may be swept between two of our statements. That is safe: every insert does nothing on a
conflict. The floor needs no lock at any isolation level, because a sweep deletes nothing before every
open snapshot sees the higher floor (`SweepAndSearch.sweep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..._core import inbox_requests as inbox
from ..._core.inbox_requests import DeferredWrite, Enter, Entered, Leave
from ..._core.protocol import Claimed, Verdict
from ...errors import StillInProgressError, StoreUnavailableError
from ...stores._base import Program
from ..sql.commands import CAUSES, Query, explained, row_from
from ..sql.in_transaction import InTransaction, look
from .programs import PostgresPrograms
from .statements import COUNTED

__all__ = ["PostgresInTransaction"]

_ENTER: Final = (
    ("id", "{id}"), ("owner", "bytea"), ("retention", "bigint"), ("max_attempts", "integer"),
    ("fingerprint", "bytea"), ("scope", "bytea"), ("value", "bytea"), ("done", "boolean"),
)  # fmt: skip
_RACES: Final = 5

_EXPIRED: Final = "r.expires_at BETWEEN 1 AND a.now"

_TAKEABLE: Final = f"""(
                {{r}}.expires_at BETWEEN 1 AND a.now
                OR ({{r}}.lease_until <= a.now AND {COUNTED} < a.max_attempts
                    AND ({{r}}.state = 3 OR ({{r}}.state = 0 AND NOT {{r}}.hold))
                    AND ({{r}}.fingerprint = a.fingerprint) IS NOT FALSE))"""

_SEEN: Final = (
    "state", "fence", "attempt", "owner", "lease_until", "changed_at", "expires_at", "hold",
    "cause", "fingerprint", "result",
)  # fmt: skip


_LOCK_TIMEOUT: Final = """lock_wait AS MATERIALIZED (
            SELECT current_setting('lock_timeout') AS before,
                set_config('lock_timeout', ?::text, true) AS during)"""
"""For this statement only: the previous value is restored at its end."""


class PostgresInTransaction(InTransaction):
    """The programs for the caller's transaction."""

    programs: PostgresPrograms

    def __init__(self, programs: PostgresPrograms, now: str) -> None:
        self.programs, self._now = programs, now
        kept = self._kept = programs.kept
        current = getattr(programs, "current", "")  # only tables that keep generations have one
        self._column, self._current = ("generation, ", f"{current}, ") if current else ("", "")
        self._move = f"generation = {current}, " if current else ""
        # A record that is swept after our snapshot may have a fence above the floor that we see; and
        # the index of one generation does not contain the keys of the others.
        self._unless_seen = f"WHERE NOT EXISTS (SELECT FROM {programs.records} r WHERE r.id = a.id)"
        mark = programs.mark
        self._enter_one, self._enter_many = mark(self._one()), mark(self._many())
        self._lock_timeout = mark("SELECT set_config('lock_timeout', ?::text, true)")
        done = {
            "state": "1",
            "result": "?::bytea",
            "lease_until": "0",
            "changed_at": now,
            "expires_at": f"{now} + ?::bigint",
        }
        self._leave = mark(f"""
        UPDATE {programs.records} r SET {self._move}{kept.changes(done)}
        WHERE id = {programs.id_place()} AND owner = ?::bytea AND fence = ?::bigint AND state = 0
            AND txid_current_if_assigned() = ?::bigint
        RETURNING 1""")

    def enter(self, asks: Sequence[Enter], wait: float) -> Program[list[Entered]]:
        if len(asks) == 1:
            return [(yield from self._enter_alone(asks[0], wait))]
        lock_wait = _lock_wait(wait)
        yield from self.fetch(asks)
        answers: dict[bytes, Entered] = {}
        left = sorted(asks, key=lambda ask: ask.id)  # sorted, so that two batches never deadlock
        for _ in range(_RACES):
            columns = zip(*(self._values_of(ask) for ask in left), strict=True)
            rows = yield Query(self._enter_many, (*(list(column) for column in columns), lock_wait))
            again: list[Enter] = []
            by_id = {row[0]: row for row in rows}
            for ask in left:
                stored = self.programs.stored(ask.id)
                _, now, mark, fresh, fence, attempt, cause, *seen, _ = by_id[stored]
                answer = _answer(ask, now, fresh, seen)
                if fence is not None:
                    answer = Claimed(Verdict.WON, fence, attempt, CAUSES[cause])
                if answer is None:
                    again.append(ask)  # another transaction was faster: its row can be read now
                else:
                    answers[ask.id] = Entered(answer, mark)
            left = again
            if not left:
                return [answers[ask.id] for ask in asks]
        raise _lost_every_race(left[0])

    def enter_one(self, ask: Enter) -> Program[Entered]:
        return self._enter_alone(ask, ask.wait)

    def _enter_alone(self, ask: Enter, wait: float) -> Program[Entered]:
        lock_wait = _lock_wait(wait)
        if self.programs.moves:
            yield from self.fetch((ask,))
        for _ in range(_RACES):
            values = self._values_of(ask)
            rows = yield Query(self._enter_one, (lock_wait, *values, values[0]))
            now, mark, fresh, *seen, before = rows[0]
            answer = _answer(ask, now, fresh, seen)
            if answer is None and seen[0] is not None:
                # It may be taken over: decide under its lock.
                yield Query(self._lock_timeout, (lock_wait,))
                answer = yield from self._take(ask)
                yield Query(self._lock_timeout, (before,))
            if answer is not None:
                return Entered(answer, mark)
        raise _lost_every_race(ask)

    def _take(self, ask: Enter) -> Program[Claimed | None]:
        """Decide under the lock of the row; None: a sweep has deleted it, so insert after all."""
        row, now = yield from self.programs.load(ask.id, self.programs.lock)
        if row is None:
            return None
        answer, after = inbox.decide(row, ask, now, 0)
        if after is not None:
            yield from self.programs.save(after)
        return answer

    def write_deferred(self, ask: DeferredWrite) -> Program[None]:
        programs = self.programs
        if programs.moves:
            yield from programs.moves.fetch((ask.claim.id,))
        for _ in range(_RACES):
            row, now = yield from programs.load(ask.claim.id, programs.lock)
            after = inbox.apply_deferred(row, ask, now, 0)
            if after is None:
                return
            if row is not None:
                yield from programs.save(after)
                return
            if (yield from programs.insert(after)):
                return
        raise StoreUnavailableError(
            "other workers changed this record at every attempt to update it; try again"
        )

    def leave(self, ask: Leave) -> Program[bool]:
        end = ask.ask
        id_ = self.programs.identity(end.id)
        values = (end.result, end.retention, id_, end.owner, end.fence, ask.mark)
        return bool((yield Query(self._leave, values)))

    def _values_of(self, ask: Enter) -> tuple[Any, ...]:
        key = ask.key
        id_, owner = self.programs.identity(key.id), b"" if ask.done else ask.owner
        return (
            *(id_, owner, ask.retention, ask.max_attempts, ask.fingerprint),
            *(msgspec.json.encode(key.scope) if key.scope else b"", key.value.encode(), ask.done),
        )

    def _one(self) -> str:
        """Insert, or return the record. If it waited for a row, it does not see that row."""
        p, now = self.programs, self._now
        values = ", ".join(f"?::{kind} AS {name}" for name, kind in self._asked)
        seen = ", ".join(map(self._kept.seen, _SEEN))
        return f"""
        WITH {_LOCK_TIMEOUT}
        , fresh AS (
            {self._insert()}
            FROM (SELECT {values}, {now} AS now) a, {p.meta} m, lock_wait
            {self._unless_seen}
            ON CONFLICT DO NOTHING RETURNING fence)
        SELECT {now}, txid_current(), f.fence, {seen},
            (SELECT set_config('lock_timeout', before, true) FROM lock_wait)
        FROM (SELECT max(fence) AS fence FROM fresh) f
        LEFT JOIN {p.records} r ON f.fence IS NULL AND r.id = {p.id_place()}"""

    @property
    def _asked(self) -> list[tuple[str, str]]:
        """The columns of a request, with their types."""
        return [(name, kind.format(id=self._kept.id_type)) for name, kind in _ENTER]

    def _insert(self) -> str:
        values = {
            "id": "a.id",
            "owner": "a.owner",
            "fingerprint": "a.fingerprint",
            "scope": "a.scope",
            "value": "a.value",
            "fence": "m.floor + 1",
            "attempt": "1",
            "state": "a.done::integer",
            "cause": "0",
            "changed_at": "a.now",
            "hold": "true",
            "error": "''",
            "lease_until": "CASE WHEN a.done THEN 0 ELSE a.now END",
            "expires_at": "CASE WHEN a.done THEN a.now + a.retention ELSE 0 END",
        }
        kept = ", ".join(self._kept.kept(name, value) for name, value in values.items())
        return f"""
            INSERT INTO {self.programs.records} ({self._column}{", ".join(values)}, created_at)
            SELECT {self._current}{kept}, {self._kept.new_created_at("a.now")}"""

    def _many(self) -> str:
        """The same for many; it also takes over records that may be taken over."""
        p = self.programs
        names = ", ".join(name for name, _ in _ENTER)
        arrays = ", ".join(f"?::{kind}[]" for _, kind in self._asked)
        read = self._kept.read
        columns = ", ".join(f"{self._kept.seen(name)} AS {name}" for name in (*_SEEN, "created_at"))
        taken = {
            "state": "a.done::integer",
            "fence": "r.fence + 1",
            "owner": "a.owner",
            "hold": "true",
            "awaited": "false",
            "lease_until": "CASE WHEN a.done THEN 0 ELSE a.now END",
            "expires_at": "CASE WHEN a.done THEN a.now + a.retention ELSE 0 END",
            "changed_at": "a.now",
            "result": "NULL",
            "scope": "a.scope",
            "value": "a.value",
            "attempt": f"CASE WHEN {_EXPIRED} THEN 1 ELSE {COUNTED.format(r='r')} + 1 END",
            "created_at": f"CASE WHEN {_EXPIRED} THEN a.now ELSE {read('created_at', 'r.')} END",
            "error": f"CASE WHEN {_EXPIRED} THEN '' ELSE r.error END",
            "fingerprint": f"CASE WHEN {_EXPIRED} THEN a.fingerprint"
            " ELSE coalesce(a.fingerprint, r.fingerprint) END",
            "cause": f"CASE WHEN r.state = 3 THEN r.cause WHEN {_EXPIRED} THEN 3 ELSE 2 END",
        }
        return f"""
        WITH a AS MATERIALIZED (
            SELECT {names}, {self._now} AS now FROM unnest({arrays}) AS u({names}))
        , {_LOCK_TIMEOUT}
        , seen AS MATERIALIZED (
            SELECT a.id AS ask, {columns} FROM a JOIN {p.records} r ON r.id = a.id)
        , fresh AS (
            {self._insert()}
            FROM a, {p.meta} m, lock_wait
            WHERE NOT EXISTS (SELECT FROM seen WHERE seen.ask = a.id)
            ON CONFLICT DO NOTHING RETURNING id, fence)
        , taken AS (
            UPDATE {p.records} r SET {self._move}{self._kept.changes(taken)}
            FROM a JOIN seen s ON s.ask = a.id, lock_wait
            WHERE r.id = a.id AND {_TAKEABLE.format(r="s")} AND {_TAKEABLE.format(r="r")}
            RETURNING r.id, r.fence, r.attempt, r.cause)
        SELECT {self._kept.id_bytes("a.id")}, a.now, txid_current(), fresh.fence, taken.fence,
            taken.attempt, {read("cause", "taken.")},
            {", ".join(f"seen.{name}" for name in _SEEN)},
            (SELECT set_config('lock_timeout', before, true) FROM lock_wait,
                (SELECT count(*) FROM fresh) f, (SELECT count(*) FROM taken) t)
        FROM a LEFT JOIN fresh ON fresh.id = a.id LEFT JOIN taken ON taken.id = a.id
        LEFT JOIN seen ON seen.ask = a.id"""


def _answer(ask: Enter, now: int, fresh: int | None, seen: Sequence[Any]) -> Claimed | None:
    """The verdict from a returned row; None: there was none, or it may be taken over."""
    if fresh is not None:
        return Claimed(Verdict.WON, fresh, 1)
    state, fence, attempt, owner, lease, changed, expires, hold, cause, print_, result = seen
    if state is None:
        return None
    known = (state, fence, attempt, owner, lease, 0, changed, expires, hold, cause, print_)
    return look(explained(row_from((ask.id, "", "", *known, result, ""))), ask, now)


def _lock_wait(seconds: float) -> str:
    """0 would mean: wait for ever. PostgreSQL takes a signed integer of 32 bits, 24 days."""
    return f"{min(max(1, round(seconds * 1000)), 2**31 - 1)}ms"


def _lost_every_race(ask: Enter) -> StillInProgressError:
    return StillInProgressError(
        "other transactions changed this key at every attempt; roll back, and let the message be "
        "delivered again",
        key=ask.key,
        retry_after=0.5,
    )
