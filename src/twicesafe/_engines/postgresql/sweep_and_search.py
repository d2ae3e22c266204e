"""Requests about many records: sweep and browse. Both read the whole table. (`sql.searching` has the
others.) No column that changes is indexed, because every claim would pay for the index. So a sweep
reads the heap in the order of `ctid`, and a page of `browse` sorts by the time of creation.
"""

from __future__ import annotations

from typing import Any, Final

from ..._core.protocol import Sweep
from ..._values.records import SweepReport
from ...stores._base import Program
from ..sql.commands import Change, Query
from ..sql.programs import NOTHING_SWEPT, SqlPrograms
from .columns import Columns

__all__ = ["SweepAndSearch"]

_TURNS: Final = 6
_PAUSE: Final = 0.02
"""How often, and after how many seconds, one step checks whether all snapshots see the new floor."""

_END: Final = "(4294967294,65535)"
"""The last possible `ctid` of a table."""


class SweepAndSearch(SqlPrograms):
    """The base class of `PostgresPrograms`."""

    _now: str
    """The server's clock, as SQL."""
    _sweep: str
    """`_sweep_statement` with the driver's placeholders."""
    kept: Columns

    def _sweep_statement(self) -> str:
        now = "(SELECT now FROM clock)"  # read once, not for every row
        return f"""
            WITH clock AS MATERIALIZED (
                SELECT {self._now} AS now, set_config('synchronous_commit', 'off', true)),
            part AS MATERIALIZED (
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
                SELECT r.ctid AS place, {self.kept.id_bytes("r.id")} AS id FROM {self.records} r
                WHERE r.ctid = ANY (ARRAY(
                        SELECT place FROM part, m WHERE over AND m.seen AND fence <= m.floor))
                    AND r.expires_at BETWEEN 1 AND {now} AND r.fence <= (SELECT floor FROM m)
                LIMIT ? FOR UPDATE SKIP LOCKED),
            trail AS (
                DELETE FROM {self.audit}
                WHERE EXISTS (SELECT FROM {self.audit}) AND id = ANY (ARRAY(SELECT id FROM due))),
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

        The commit does not wait for the disk. After a crash of the server some records may be back, and a
        later sweep removes them. None comes back under a newer claim: the log keeps the order of commits,
        and the commit of a claim waits for all of the log before it.
        """
        if self.moves:
            return NOTHING_SWEPT, ""
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

    # -- searching: see SqlSearch -----------------------------------------------------------------

    place = ""

    def newest_first(self) -> str:
        return f"{self.column('created_at')} DESC, {self.column('id')} DESC"

    def column(self, name: str) -> str:
        return self.kept.read(name)

    def past(self, after: str) -> tuple[str, tuple[Any, ...]]:
        made, _, last = after.partition(":")
        place = f"({self.column('created_at')}, {self.column('id')})"
        return f"{place} < (?, ?)", (int(made), bytes.fromhex(last))

    def cursor(self, columns: Any) -> str:
        return f"{columns[8]}:{bytes(columns[0]).hex()}"  # when it was created
