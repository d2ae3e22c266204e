"""The SQL of durable runs that every run uses: start, submit and record a step, for one and for many.

A start is the claim of `statements` and the run's row in one statement. That row says whether there can
be steps: where steps are, there is a row (`sql.run_upkeep`). So a new run needs no second statement,
and a run that continues reads its steps in the next one. It must be the next. The claim may have waited for
the last step of the owner before, and a statement does not see what was committed after it began.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .statements import CLAIM, EXPIRED, ID, START, Statements

__all__ = ["STEP", "RunStatements"]

_RUN: Final = (
    *CLAIM, ("short", "bytea"), ("whole", "bytea"), ("completes", "bigint"), ("function", "bytea"),
    ("arguments", "bytea"),
)  # fmt: skip
STEP: Final = (
    ("record", ID), ("owner", "bytea"), ("fence", "bigint"), ("id", "bytea"), ("name", "bytea"),
    ("kind", "bigint"), ("state", "bigint"), ("attempt", "bigint"), ("position", "bigint"),
    ("undo", "bigint"), ("delay", "bigint"), ("fingerprint", "bytea"), ("result", "bytea"),
)  # fmt: skip

SUBMITTED: Final = {
    **START,
    "lease_until": "s.now",
    "hold": "false",
    "state": "7",
    "attempt": "0",
    "created_at": "{new}",
    "error": "''",
    "fingerprint": "s.print",
    "cause": "0",
}
"""The columns of a run that no worker has started, as `run_lifecycle.submit` sets them."""


class RunStatements:
    """The statements of one store. Each is a pair: for one request, and for many."""

    def __init__(
        self, records: Statements, runs: str, steps: str, mark: Callable[[str], str]
    ) -> None:
        self._records, self._runs, self._steps = records, runs, steps
        both = (False, True)
        self.start_run = tuple(mark(self._start(many)) for many in both)
        self.submit_run = tuple(mark(self._submit(many)) for many in both)
        self.record_step = tuple(mark(self._record(many)) for many in both)

    def _start(self, many: bool) -> str:
        return self._kept(self._records.taken(_RUN, many), "s.now + s.lease", many)

    def _submit(self, many: bool) -> str:
        return self._kept(
            self._records.taken(_RUN, many, EXPIRED, SUBMITTED), "s.now", many
        )  # fmt: skip

    def _kept(self, claimed: str, due_at: str, many: bool) -> str:
        """The answers to claims, each with whether its run's row is new."""
        columns = ("whole_id", "due_at", "completes", "function_name", "arguments")
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
        return f"""
        {claimed}
        , kept AS (
            INSERT INTO {self._runs} (id, {", ".join(columns)})
            SELECT s.short, s.whole, {due_at}, s.completes, s.function, s.arguments
            FROM s JOIN won w ON {"w.id = s.ask" if many else "true"}
            ON CONFLICT (id) DO UPDATE SET {changes}
            RETURNING id, xmax = 0 AS is_new)
        SELECT {self._records.answer}, k.is_new
        FROM s LEFT JOIN won w ON {"w.id = s.ask" if many else "true"}
            LEFT JOIN kept k ON {"k.id = s.short" if many else "true"}"""

    def _record(self, many: bool) -> str:
        """Insert a step that is new, if its worker owns the run.

        The record is locked until the step is committed, so the next owner finds the step. The steps
        of parallel branches share the lock.
        """
        return f"""
        INSERT INTO {self._steps} AS t (id, name, kind, state, fence, attempt, position, has_undo,
            created_at, changed_at, due_at, fingerprint, result)
        SELECT a.id, a.name, a.kind, a.state, a.fence, a.attempt, a.position, a.undo, a.now, a.now,
            CASE WHEN a.delay > 0 THEN a.now + a.delay ELSE 0 END, a.fingerprint, a.result
        FROM {self._records.asks(STEP, many)} a CROSS JOIN LATERAL (
            SELECT FROM {self._records.records} r WHERE r.id = a.record AND r.owner = a.owner
                AND r.fence = a.fence AND r.state = 0 FOR SHARE) mine
        ON CONFLICT (id, name) DO NOTHING RETURNING t.id, t.name"""
