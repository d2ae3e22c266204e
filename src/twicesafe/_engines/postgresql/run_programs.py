"""Durable runs on PostgreSQL: a start or a step is one statement, a look at many runs is three.

What their statements cannot decide (a step that is there already, a run whose attempts are used up) is
decided under a row lock, by the programs that all SQL stores share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..._core.durable import run_lifecycle
from ..._core.durable.run_requests import StartRun, Submit
from ..._core.lifecycle import is_expired
from ..._core.protocol import Claimed, Verdict
from ..._values.records import Cause
from ...errors import StoreUnavailableError
from ...stores._base import Program
from ..sql.commands import Change, Query
from ..sql.migrations import Schema
from ..sql.run_programs import RunPrograms
from ..sql.step_rows import ID_BYTES
from .request_kinds import run_values
from .run_statements import RunStatements
from .schema import PostgresSchema

if TYPE_CHECKING:
    from .programs import PostgresPrograms

__all__ = ["PostgresRunSchema", "PostgresRuns"]

_RACES = 5


class PostgresRunSchema(PostgresSchema):
    def __init__(self, table: str, mark: Callable[[str], str]) -> None:
        schema, _, bare = table.rpartition(".")
        super().__init__(bare, schema, mark)
        Schema.__init__(self, "postgresql_runs", f"{table}_runs")


class PostgresRuns(RunPrograms):
    _records: PostgresPrograms

    def __init__(self, records: PostgresPrograms, schema: Schema) -> None:
        super().__init__(records, schema)
        mark = records.mark
        self.statements = RunStatements(records.statements, self.runs, self.steps, mark)
        # A row that another transaction has locked is skipped: it is being started, or looked at.
        self._put_off_all = mark(f"""
            UPDATE {self.runs} r SET due_at = f.next
            FROM (SELECT t.ctid AS place, n.next
                FROM unnest(?::bytea[], ?::bigint[], ?::bigint[]) AS n(id, due_at, next)
                JOIN {self.runs} t ON t.id = n.id AND t.due_at = n.due_at
                FOR UPDATE OF t SKIP LOCKED) f
            WHERE r.ctid = f.place RETURNING r.id""")
        self._remove_all = mark(f"""
            WITH past AS MATERIALIZED (
                SELECT t.ctid AS place FROM unnest(?::bytea[], ?::bigint[]) AS n(id, due_at)
                JOIN {self.runs} t ON t.id = n.id AND t.due_at = n.due_at
                FOR UPDATE OF t SKIP LOCKED),
            gone AS (
                DELETE FROM {self.runs} WHERE ctid = ANY (ARRAY(SELECT place FROM past))
                RETURNING id),
            rest AS (DELETE FROM {self.steps} WHERE id = ANY (ARRAY(SELECT id FROM gone)))
            SELECT count(*) FROM gone""")

    # -- claims -------------------------------------------------------------------------------

    def with_steps(self, ask: StartRun, answer: Claimed) -> Program[Claimed | None]:
        """The answer to a start that is won, with its steps; None: some must be dropped or adopted."""
        steps = yield from self._steps_of(ask.key.id)
        is_first = answer.attempt == 1 and answer.cause in (None, Cause.RETENTION_EXPIRED)
        if any(not s.fence or (is_first and s.fence < answer.fence) for s in steps):
            return None
        answer.steps = steps
        return answer

    def submit_run(self, ask: Submit) -> Program[Claimed]:
        """Decide under a lock. A missing record cannot be locked: the single statement inserts it."""
        records, id_ = self._records, ask.key.id
        for _ in range(_RACES):
            row, now = yield from records.load(id_, records.lock)
            if row is not None and not is_expired(row, now):
                return run_lifecycle.submit(row, ask, now)[0]
            rows = yield Query(self.statements.submit_run[0], run_values(ask, records.identity))
            _, at, won, _, fence, *_ = rows[0]
            if won:
                yield Change(self._drop_stale, (id_[:ID_BYTES], fence, at))
                return Claimed(Verdict.WON, fence)
        raise StoreUnavailableError(
            "other workers changed this record at every attempt to submit it; try again"
        )

    # -- the completer ------------------------------------------------------------------------

    def _fetch(self, ids: Sequence[bytes]) -> Program[None]:
        yield from self._records.moves.fetch_soon(ids)

    def _put_off(self, later: dict[bytes, tuple[int, int]]) -> Program[set[bytes]]:
        if not later:
            return set()
        seen, next_ = zip(*later.values(), strict=True)
        rows = yield Query(self._put_off_all, (list(later), list(seen), list(next_)))
        return {bytes(id_) for (id_,) in rows}

    def _remove(self, over: dict[bytes, int]) -> Program[int]:
        if not over:
            return 0
        rows = yield Query(self._remove_all, (list(over), list(over.values())))
        return rows[0][0]  # type: ignore[no-any-return]
