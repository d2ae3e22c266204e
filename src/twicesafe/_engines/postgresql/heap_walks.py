"""Sweep and browse: the programs that walk over the whole table of a PostgreSQL store.

No column that changes is indexed, because every claim would pay for the index. A sweep therefore goes
through the heap by `ctid`, and a page of `browse` sorts by the time of creation.
"""

from __future__ import annotations

from typing import Any, Final

from ..._core.protocol import Browse, Page, Sweep
from ..._values.records import SweepReport
from ...stores._base import Program
from ..sql.commands import Change, Query, number_of, scope_prefix
from ..sql.programs import SqlPrograms

__all__ = ["HeapWalks"]

_TURNS: Final = 6
_PAUSE: Final = 0.02
"""How often, and after how many seconds, one step checks whether all snapshots see the new floor."""

_END: Final = "(4294967294,65535)"
"""The last possible `ctid` of a table."""


class HeapWalks(SqlPrograms):
    """The base class of `PostgresPrograms`."""

    _now: str
    """The server's clock, as SQL."""
    _sweep: str
    """`_sweep_statement` with the driver's placeholders."""

    def _sweep_statement(self) -> str:
        now = self._now
        return f"""
            WITH part AS MATERIALIZED (
                SELECT ctid AS place, fence, expires_at BETWEEN 1 AND {now} AS over
                FROM {self.records} WHERE ctid > ?::text::tid AND ctid <= ?::text::tid LIMIT ?),
            m AS MATERIALIZED (
                SELECT floor, age(xmin) < 0 OR NOT EXISTS (
                    SELECT FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL
                        AND a.pid <> pg_backend_pid() AND a.usesysid IS NOT NULL
                        AND a.datname = current_database()
                        AND age(a.backend_xmin) >= age({self.meta}.xmin)) AS seen
                FROM {self.meta}),
            due AS MATERIALIZED (
                SELECT r.ctid AS place, r.id FROM {self.records} r
                WHERE r.ctid = ANY (ARRAY(
                        SELECT place FROM part, m WHERE over AND m.seen AND fence <= m.floor))
                    AND r.expires_at BETWEEN 1 AND {now} AND r.fence <= (SELECT floor FROM m)
                LIMIT ? FOR UPDATE SKIP LOCKED),
            trail AS (DELETE FROM {self.audit} WHERE id IN (SELECT id FROM due)),
            gone AS (
                DELETE FROM {self.records} WHERE ctid = ANY (ARRAY(SELECT place FROM due))
                RETURNING 1)
            SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM part),
                (SELECT max(place)::text FROM part),
                (SELECT max(fence) FROM part, m WHERE over AND NOT (m.seen AND fence <= m.floor)),
                (SELECT seen FROM m)"""

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One step, in the order of the heap. Rows that another transaction has locked are skipped.

        A claim reads the floor and inserts in one statement, but its server process may pause in
        between, while other workers claim the key, complete it and have it swept. So a record is
        deleted only when *every* running statement sees a floor at or above its fence (P3): raise the
        floor, wait until no older snapshot is left (as CREATE INDEX CONCURRENTLY does), then delete
        the records under it. A floor that some snapshot does not see yet is not raised again: with
        transactions that overlap without end, no floor would ever be seen by all.
        """
        start, end, left = ask.after or "(0,0)", _END, ask.most
        removed, examined, after = 0, 0, ""
        for turn in range(_TURNS):
            if turn > 1:
                yield Query(f"SELECT pg_sleep({_PAUSE})")
            gone, looked, last, above, is_seen = (
                yield Query(self._sweep, (start, end, ask.limit, left))
            )[0]
            removed, left = removed + gone, left - gone
            if not turn:
                examined, end = looked, last or start
                after = last if looked == ask.limit else ""
            if left <= 0:
                after = start  # there may be more among the rows of this step
                break
            if above is None:
                break
            if is_seen:
                yield Change(f"UPDATE {self.meta} SET floor = {above:d} WHERE floor < {above:d}")
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
