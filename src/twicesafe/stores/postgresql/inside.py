"""PostgreSQL inside the caller's transaction: one statement to enter, one to leave.

A caught unique violation would abort the caller's transaction, so the insert does nothing on a
conflict; it waits for whoever inserted the same key, up to a lock time-out that is set for this
statement alone. A transaction is told from the next one by its number: the record is only completed
where `txid_current` is what it was.

At REPEATABLE READ and above a snapshot may be older than a sweep, so the floor is read under a lock
there (P3); READ COMMITTED, whose statements see the floor and the record at once, needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...core.inbox import Enter, Entered, Leave
from ...core.protocol import Claimed, Verdict
from ...errors import StillInProgressError
from ..base import Program
from ..inside import Inside, look
from ..sql import CAUSES, Query, row_from, scope_text
from .programs import PostgresPrograms

__all__ = ["PostgresInside"]

_ENTER: Final = (
    ("id", "bytea"), ("owner", "bytea"), ("retention", "bigint"), ("max_attempts", "integer"),
    ("fingerprint", "bytea"), ("scope", "bytea"), ("value", "bytea"), ("done", "boolean"),
)  # fmt: skip
_RACES: Final = 5

_EXPIRED: Final = "r.expires_at BETWEEN 1 AND a.now"

_TAKEABLE: Final = """(
                {r}.expires_at BETWEEN 1 AND a.now
                OR ({r}.lease_until <= a.now AND {r}.attempt < a.max_attempts
                    AND ({r}.state = 3 OR ({r}.state = 0 AND NOT {r}.hold))
                    AND ({r}.fingerprint = a.fingerprint) IS NOT FALSE))"""

_SEEN: Final = (
    "state", "fence", "attempt", "owner", "lease_until", "changed_at", "expires_at", "hold",
    "cause", "fingerprint", "result",
)  # fmt: skip


class PostgresInside(Inside):
    programs: PostgresPrograms

    def __init__(self, programs: PostgresPrograms, now: str) -> None:
        self.programs, self._now = programs, now
        current = getattr(programs, "current", "")  # only tables that keep generations have one
        self._place, self._here = ("generation, ", f"{current}, ") if current else ("", "")
        self._bring = f"generation = {current}, " if current else ""
        mark, sql = programs.mark, self._enter_sql()
        self._enter = mark(self._one() + sql), mark(self._many() + sql)
        self._leave = mark(f"""
        UPDATE {programs.records} r SET {self._bring}state = 1, result = ?::bytea, lease_until = 0,
            changed_at = {now}, expires_at = {now} + ?::bigint
        WHERE id = ?::bytea AND owner = ?::bytea AND fence = ?::bigint AND state = 0
            AND txid_current_if_assigned() = ?::bigint
        RETURNING 1""")

    def enter(self, asks: Sequence[Enter], wait: float) -> Program[list[Entered]]:
        patience = f"{max(1, round(wait * 1000))}ms"
        answers: dict[bytes, Entered] = {}
        left = sorted(asks, key=lambda ask: ask.id)  # two batches never wait in a circle
        for _ in range(_RACES):
            rows = yield self._query(left, patience)
            again: list[Enter] = []
            by_id = {row[0]: row for row in rows}
            for ask in left:
                answer = _answer(ask, by_id[ask.id])
                if answer is None:
                    again.append(ask)  # somebody was faster: now there is something to see
                else:
                    answers[ask.id] = Entered(answer, by_id[ask.id][2])
            left = again
            if not left:
                return [answers[ask.id] for ask in asks]
        raise StillInProgressError(
            "others changed this key again and again while we looked; roll back, and let the "
            "message come again",
            key=left[0].key,
            retry_after=0.5,
        )

    def _query(self, asks: list[Enter], patience: str) -> Query:
        values = [
            (
                *(ask.id, b"" if ask.done else ask.owner, ask.retention, ask.max_attempts),
                *(ask.fingerprint, scope_text(ask.key.scope).encode(), ask.key.value.encode()),
                ask.done,
            )
            for ask in asks
        ]
        if len(values) == 1:
            return Query(self._enter[0], (*values[0], patience))
        columns = tuple(list(column) for column in zip(*values, strict=True))
        return Query(self._enter[1], (*columns, patience))

    def leave(self, ask: Leave) -> Program[bool]:
        end = ask.ask
        values = (end.result, end.retention, end.id, end.owner, end.fence, ask.mark)
        return bool((yield Query(self._leave, values)))

    def _one(self) -> str:
        asks = ", ".join(f"?::{kind} AS {name}" for name, kind in _ENTER)
        return f"WITH a AS MATERIALIZED (SELECT {asks}, {self._now} AS now)"

    def _many(self) -> str:
        names = ", ".join(name for name, _ in _ENTER)
        arrays = ", ".join(f"?::{kind}[]" for _, kind in _ENTER)
        asks = f"SELECT {names}, {self._now} AS now FROM unnest({arrays}) AS u({names})"
        return f"WITH a AS MATERIALIZED ({asks})"

    def _enter_sql(self) -> str:
        p = self.programs
        return f"""
        , patience AS MATERIALIZED (
            SELECT current_setting('lock_timeout') AS before,
                set_config('lock_timeout', ?::text, true) AS during)
        , gate AS MATERIALIZED (
            SELECT floor FROM {p.meta}
            WHERE current_setting('transaction_isolation') <> 'read committed' FOR SHARE)
        , seen AS MATERIALIZED (SELECT a.id AS ask, r.* FROM a JOIN {p.records} r ON r.id = a.id)
        , fresh AS (
            INSERT INTO {p.records} ({self._place}id, owner, fingerprint, scope, value, fence, attempt, state, cause,
                created_at, changed_at, hold, error, lease_until, expires_at)
            SELECT {self._here}a.id, a.owner, a.fingerprint, a.scope, a.value, m.floor + 1, 1,
                a.done::integer, 0, a.now, a.now, true, '',
                CASE WHEN a.done THEN 0 ELSE a.now END,
                CASE WHEN a.done THEN a.now + a.retention ELSE 0 END
            FROM a, {p.meta} m, patience, (SELECT count(*) FROM gate) g
            WHERE NOT EXISTS (SELECT FROM seen WHERE seen.ask = a.id)
            ON CONFLICT DO NOTHING RETURNING id, fence)
        , taken AS (
            UPDATE {p.records} r SET {self._bring}
                state = a.done::integer, fence = r.fence + 1, owner = a.owner, hold = true, awaited = false,
                lease_until = CASE WHEN a.done THEN 0 ELSE a.now END,
                expires_at = CASE WHEN a.done THEN a.now + a.retention ELSE 0 END,
                changed_at = a.now, result = NULL, scope = a.scope, value = a.value,
                attempt = CASE WHEN {_EXPIRED} THEN 1 ELSE r.attempt + 1 END,
                created_at = CASE WHEN {_EXPIRED} THEN a.now ELSE r.created_at END,
                error = CASE WHEN {_EXPIRED} THEN '' ELSE r.error END,
                fingerprint = CASE WHEN {_EXPIRED} THEN a.fingerprint
                    ELSE coalesce(a.fingerprint, r.fingerprint) END,
                cause = CASE WHEN r.state = 3 THEN r.cause WHEN {_EXPIRED} THEN 3 ELSE 2 END
            FROM a JOIN seen s ON s.ask = a.id, patience
            WHERE r.id = a.id AND {_TAKEABLE.format(r="s")} AND {_TAKEABLE.format(r="r")}
            RETURNING r.id, r.fence, r.attempt, r.cause)
        SELECT a.id, a.now, txid_current(), fresh.fence, taken.fence, taken.attempt, taken.cause,
            {", ".join(f"seen.{name}" for name in _SEEN)},
            (SELECT set_config('lock_timeout', before, true) FROM patience,
                (SELECT count(*) FROM fresh) f, (SELECT count(*) FROM taken) t)
        FROM a LEFT JOIN fresh ON fresh.id = a.id LEFT JOIN taken ON taken.id = a.id
        LEFT JOIN seen ON seen.ask = a.id"""


def _answer(ask: Enter, row: Any) -> Claimed | None:
    """The verdict from what the statement returned; None: ask again."""
    _, now, _, fresh, fence, attempt, cause, state, *present, _ = row
    if fresh is not None:
        return Claimed(Verdict.WON, fresh, 1)
    if fence is not None:
        return Claimed(Verdict.WON, fence, attempt, CAUSES[cause])
    if state is None:
        return None
    old_fence, old_attempt, owner, lease, changed, expires, hold, why, print_, result = present
    known = (state, old_fence, old_attempt, owner, lease, 0, changed, expires, hold, why, print_)
    return look(row_from((ask.id, "", "", *known, result, "")), ask, now)
