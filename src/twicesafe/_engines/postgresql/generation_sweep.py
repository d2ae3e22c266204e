"""The sweep of a store with generations: open the next one, empty the old ones, drop them.

    turn    open the next generation when the current one is old enough
    look    go through a closed one page by page, and move the records that are still needed forward
    drop    it, when the look has reached its end

Nothing is written to a closed generation, so a record that is expired stays expired. No page is
read twice, and the exclusive lock is held for the DROP only. Lock time-outs are short, because claims
wait behind us. A step that gets no lock is left to the next sweep.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from ..._core.protocol import Sweep
from ..._values.records import SweepReport
from ...errors import StoreUnavailableError
from ...stores._base import Finding, Program
from ..sql.commands import Change, Query, atomically
from .programs import PostgresPrograms
from .settings import NOT_FREE, code_of

__all__ = ["MOVED", "GenerationSweep"]

T = TypeVar("T")

LOCK_TIMEOUT: Final = 50
"""Milliseconds to wait for a lock; claims queue up behind us."""

PAGES: Final = 2048
"""Pages (16 MB) that one transaction, and one step of a sweep, goes through."""

SAMPLE: Final = 128
"""Pages read to estimate whether a look is worth its cost."""

FEW, SHARE = 1000, 0.05
"""If no more records than this, or this share, are still needed, they are moved forward."""

LATE: Final = 2
"""Periods after which a generation should have been followed by the next one."""

MOVED: Final = "40001"
"""SQLSTATE: another transaction moved the row to the current generation while we waited for it."""

_STORAGE: Final = (
    "fillfactor = 96, autovacuum_vacuum_scale_factor = 0.05,"
    " autovacuum_vacuum_insert_scale_factor = 0.1"
)


class ClosedGeneration(NamedTuple):
    """A generation that is no longer written to, and how much of it was examined."""

    generation: int
    due_at: int
    file: int | None
    """Its file when the look began: if the table was rewritten since, the look starts again."""
    pages: int
    records: int
    """Expired records in these pages."""
    fence: int


class GenerationSweep(PostgresPrograms):
    """The sweep of generations, as a base class of `GenerationPrograms`."""

    current: str
    period: int
    """Milliseconds that a generation is current."""
    table: str

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One step: move at most `limit` records forward, go through some pages, drop what is empty."""
        removed = examined = 0
        more = False
        yield from self._when_free(self.turn())
        budget = PAGES
        rows = yield Query(
            "SELECT generation, due_at, file, pages, records, fence"
            f" FROM {self.table}_closed WHERE due_at <= {self._now} ORDER BY generation"
        )
        for closed in (ClosedGeneration(*row) for row in rows):
            if budget <= 0:
                more = True
                break
            which = closed.generation
            if not closed.pages and not (
                yield from self._when_free(self._is_worth_a_look(which), which)
            ):
                continue
            while True:
                found = yield from self._when_free(self._look(which, ask.limit), which)
                if found is None:
                    break  # another node does it, or a record in it is locked
                seen, pages, ended = found
                examined += seen
                budget -= max(1, pages)
                if ended:
                    removed += yield from self._drop(which)
                    break
                if budget <= 0:
                    more = True
                    break
        return SweepReport(removed=removed, examined=examined, more=more), "more" if more else ""

    def _when_free(self, program: Program[T], closed: int | None = None) -> Program[T | None]:
        """Run this in a transaction, by one node at a time; None: not now, or `closed` was dropped."""
        try:
            return (yield from atomically(self._one_node_at_a_time(program, closed), self.begin))
        except StoreUnavailableError as error:
            if code_of(error) not in (NOT_FREE, MOVED):
                raise
            return None

    def _one_node_at_a_time(self, program: Program[T], closed: int | None) -> Program[T | None]:
        yield Change(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT}")
        lock = f"hashtext('twicesafe generations {self.table}')"
        mine = (yield Query(f"SELECT pg_try_advisory_xact_lock({lock})"))[0][0]
        if mine and closed is not None:
            mine = yield Query(f"SELECT FROM {self.table}_closed WHERE generation = {closed:d}")
        if not mine:
            program.close()
            return None
        return (yield from program)

    def upkeep(self) -> Program[list[Finding]]:
        """Warn if no sweep opens new generations: then nothing is ever dropped.

        The age of the first generation is that of some record in it: no turn recorded its start.
        """
        opened, now, first, closed = (
            yield Query(
                f"SELECT opened_at, {self._now}, (SELECT {self.kept.read('created_at')} FROM {self.records} LIMIT 1),"
                f" (SELECT count(*) FROM {self.table}_closed) FROM {self.meta}"
            )
        )[0]
        age = now - (opened or first or now)
        late = age > LATE * self.period
        what = f"the current generation is {age / self.period:.1f} periods old, {closed} wait to be dropped"
        remedy = (
            "run a sweep: receiver.maintain(), or `twicesafe sweep --every`; if one runs, look for a "
            "transaction that has been open for a long time (pg_stat_activity)"
        )
        return [Finding("warn", what, remedy) if late else Finding("ok", what)]

    # -- turn ---------------------------------------------------------------------------------

    def turn(self) -> Program[bool]:
        """Open the next generation if it is time. The lock is the gate (rule 2)."""
        old, opened, now = (
            yield Query(f"SELECT generation, opened_at, {self._now} FROM {self.meta}")
        )[0]
        if 0 <= now - opened < self.period:
            return False
        new = self._part(old + 1)
        yield Change(
            f"CREATE TABLE {new} (LIKE {self.records} INCLUDING DEFAULTS) WITH ({_STORAGE})"
        )
        yield Change(f"ALTER TABLE {self.records} ATTACH PARTITION {new} FOR VALUES IN ({old + 1})")
        yield Change(f"INSERT INTO {self.table}_closed (generation) VALUES ({old})")
        yield Change(f"LOCK TABLE ONLY {self.records} IN EXCLUSIVE MODE")
        yield Change(f"UPDATE {self.meta} SET generation = {old + 1}, opened_at = {now:d}")
        return True

    def _part(self, generation: int) -> str:
        return f"{self.table}_g{generation:d}"

    # -- look ---------------------------------------------------------------------------------

    def _is_worth_a_look(self, generation: int) -> Program[bool]:
        """Estimate from a sample whether few enough records must be kept. If not, set the time of the next sample."""
        part = self._part(generation)
        pages, now = (yield Query(f"SELECT {_pages(part)}, {self._now}"))[0]
        share = min(100.0, 100.0 * SAMPLE / max(1, pages))
        total, needed, over_at = (
            yield Query(
                f"""SELECT count(*), count(*) FILTER (WHERE {_needed(now)}),
                percentile_disc({1 - SHARE}) WITHIN GROUP (ORDER BY nullif(expires_at, 0))
                FROM {part} TABLESAMPLE SYSTEM ({share:.6f})"""
            )
        )[0]
        if needed * 100 / share <= max(FEW, SHARE * total * 100 / share):
            return True
        # Records that never expire may be the reason, so the next sample is at most a period away.
        soon, late = now + self.period // 20, now + self.period
        due = min(late, max(soon, late if over_at is None else over_at))
        yield Change(
            f"UPDATE {self.table}_closed SET due_at = {due:d} WHERE generation = {generation:d}"
        )
        return False

    def _look(self, generation: int, limit: int) -> Program[tuple[int, int, bool] | None]:
        """Go through the next pages; returns records and pages seen, and whether that was all."""
        part = self._part(generation)
        first, same, last, now = (
            yield Query(
                f"""SELECT c.pages, c.file IS NOT DISTINCT FROM pg_relation_filenode('{part}'),
                {_pages(part)}, {self._now}
                FROM {self.table}_closed c WHERE generation = {generation:d}"""
            )
        )[0]
        if not same:
            first = 0
            yield Change(
                f"""UPDATE {self.table}_closed SET file = pg_relation_filenode('{part}'),
                pages = 0, records = 0, fence = 0 WHERE generation = {generation:d}"""
            )
        until = min(last, first + PAGES)
        where = f"ctid >= '({first:d},0)' AND ctid < '({until:d},0)'"
        total, needed, fence = (
            yield Query(
                f"""SELECT count(*), count(*) FILTER (WHERE {_needed(now)}),
                coalesce(max(fence), 0) FROM {part} WHERE {where}"""
            )
        )[0]
        moved = 0
        if needed:
            moved = yield Change(
                f"""WITH n AS MATERIALIZED (
                    SELECT id FROM {part} WHERE {where} AND {_needed(now)}
                    LIMIT {limit:d} FOR UPDATE SKIP LOCKED)
                UPDATE {self.records} r SET generation = {self.current}
                FROM n WHERE r.id = n.id AND r.generation = {generation:d}"""
            )
        if moved < needed:
            # The limit is reached: continue. Otherwise one of them is locked: not now.
            return (moved, 1, False) if moved == limit else None
        yield Change(
            f"""UPDATE {self.table}_closed SET pages = {until:d},
            records = records + {total - needed:d}, fence = greatest(fence, {fence:d})
            WHERE generation = {generation:d}"""
        )
        return total, until - first, until == last

    # -- drop ---------------------------------------------------------------------------------

    def _drop(self, generation: int) -> Program[int]:
        """Drop it; returns how many records were in it, or 0 if it could not be locked now."""
        trail = yield from self._when_free(self._find_audit_entries(generation), generation)
        if trail is None:
            return 0
        gone = yield from self._when_free(self._drop_locked(generation, trail), generation)
        return gone or 0

    def _find_audit_entries(self, generation: int) -> Program[list[int] | None]:
        """The audit entries of its records. Found first, because claims wait during the drop."""
        part = self._part(generation)
        busy = yield Query(
            f"""SELECT count(*) FROM pg_locks WHERE relation = '{part}'::regclass
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND mode = 'ShareUpdateExclusiveLock'"""
        )
        if busy[0][0]:
            return None  # it is being vacuumed: if we waited for that, claims would wait too
        rows = yield Query(
            f"SELECT n FROM {self.audit} t"
            f" WHERE EXISTS (SELECT FROM {part} r WHERE {self.kept.id_bytes('r.id')} = t.id)"
        )
        return [row[0] for row in rows]

    def _drop_locked(self, generation: int, trail: list[int]) -> Program[int | None]:
        part = self._part(generation)
        yield Change(f"LOCK TABLE ONLY {self.records} IN ACCESS EXCLUSIVE MODE")
        yield Change(f"LOCK TABLE {part} IN ACCESS EXCLUSIVE MODE")
        rows = yield Query(
            f"""DELETE FROM {self.table}_closed WHERE generation = {generation:d}
            AND pages >= {_pages(part)} AND file = pg_relation_filenode('{part}')
            RETURNING records, fence"""
        )
        if not rows:
            return None  # the table was rewritten: the look starts again
        records, fence = rows[0]
        yield Change(f"UPDATE {self.meta} SET floor = {fence:d} WHERE floor < {fence:d}")
        if trail:
            yield Change(
                self.mark(
                    f"DELETE FROM {self.audit} t WHERE n = ANY (?::bigint[])"
                    f" AND EXISTS (SELECT FROM {part} r WHERE {self.kept.id_bytes('r.id')} = t.id)"
                ),
                (trail,),
            )
        yield Change(f"DROP TABLE {part}")
        return records  # type: ignore[no-any-return]


def _needed(now: int) -> str:
    return f"NOT coalesce(expires_at, 0) BETWEEN 1 AND {now:d}"


def _pages(part: str) -> str:
    return f"pg_relation_size('{part}') / current_setting('block_size')::bigint"
