"""Durable runs in SQL: two tables beside the records, and programs that all engines share.

    <table>_runs         one row per run: what the completer needs, and when to look at the run again
    <table>_runs_steps   one row per step

Every program needs a transaction around it. It loads the record under a lock, decides by
`_core.durable.run_lifecycle`, and saves. The one request that a run sends for every step is also a single
statement: `RunPrograms.fenced_insert`. The tables are created when a process first needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.durable import run_lifecycle
from ..._core.durable.run_requests import (
    WITHOUT_RUNS,
    FailRun,
    LoadRun,
    RecordStep,
    Restart,
    RewriteRun,
    Run,
    Signal,
    StartRun,
    Submit,
    Suspend,
)
from ..._core.lifecycle import is_expired
from ..._core.protocol import Ack, Claimed, ClaimRequest, Verdict
from ..._values.records import Row
from ..._values.steps import Step, StepState
from ...stores._base import Program
from .commands import Change, Query
from .migrations import Schema, check
from .run_upkeep import RunUpkeep
from .step_rows import ID_BYTES, STEP_COLUMNS, step_from, step_values

if TYPE_CHECKING:
    from .programs import SqlPrograms

__all__ = ["RunPrograms"]


class RunPrograms(RunUpkeep):
    """The requests of durable runs, on the records of these programs."""

    def __init__(self, records: SqlPrograms, schema: Schema) -> None:
        self._records, self._schema = records, schema
        self.is_ready = False
        self.runs = schema.table
        self.steps = f"{self.runs}_steps"
        mark = records.mark
        all_columns = ", ".join(STEP_COLUMNS)
        places = ", ".join("?" * len(STEP_COLUMNS))
        self._save_step = mark(
            records.upsert(self.steps, all_columns, places, "id, name", STEP_COLUMNS[2:])
        )
        steps = f"SELECT {', '.join(STEP_COLUMNS[1:])} FROM {self.steps} WHERE id = ?"
        self._read_steps, self._read_step = mark(steps), mark(f"{steps} AND name = ?")
        columns = ("whole_id", "due_at", "completes", "function_name", "arguments")
        names, values = ", ".join(("id", *columns)), "?, ?, ?, ?, ?, ?"
        self._save_run = mark(records.upsert(self.runs, names, values, "id", columns))
        self._expect_run = mark(records.upsert(self.runs, names, values, "id", ("due_at",)))
        self._read_run = mark(f"SELECT function_name, arguments FROM {self.runs} WHERE id = ?")
        self._set_due = mark(f"UPDATE {self.runs} SET due_at = ? WHERE id = ?")
        self._drop_stale = mark(
            f"DELETE FROM {self.steps} WHERE id = ? AND fence > 0 AND fence < ? AND created_at < ?"
        )
        self._rewrite_step = mark(f"UPDATE {self.steps} SET result = ? WHERE id = ? AND name = ?")
        self._rewrite_arguments = mark(f"UPDATE {self.runs} SET arguments = ? WHERE id = ?")
        self._adopt = mark(
            f"UPDATE {self.steps} SET fence = ?, created_at ="
            " CASE WHEN created_at < ? THEN ? ELSE created_at END WHERE id = ? AND fence = 0"
        )
        self._prepare_upkeep()

    def prepared(self, op: str) -> Program[bool]:
        """Create the tables, if this process has not seen them yet. Not inside a transaction.

        False: they are missing, and this request does not need them (`WITHOUT_RUNS`).
        """
        if self.is_ready:
            return True
        version = yield from self._schema.version()
        if version == 0 and op in WITHOUT_RUNS:
            return False
        if version < self._schema.newest and self._records.migrates:
            yield from self.migrated()
            version = yield from self._schema.version()
        check(self._schema, version, f"the tables of durable runs {self.runs}")
        self.is_ready = True
        return True

    def migrated(self) -> Program[list[str]]:
        return (yield from self._schema.migrate(self._records.begin))

    def perform(self, ask: Any) -> Program[Any]:
        """One request. Needs a transaction around it."""
        return getattr(self, ask.op)(ask)  # type: ignore[no-any-return]

    # -- claims -------------------------------------------------------------------------------

    def start_run(self, ask: StartRun) -> Program[Claimed]:
        answer = yield from self._claimed(run_lifecycle.claim_of(ask))
        if answer.verdict is not Verdict.WON:
            return answer  # type: ignore[no-any-return]
        return (yield from self._started(ask, answer))

    def _started(self, ask: StartRun, answer: Claimed) -> Program[Claimed]:
        """After the claim, which locks the record: what an earlier owner recorded is here or nowhere."""
        records, id_ = self._records, ask.key.id
        steps = yield from self._steps_of(id_)
        if steps or answer.attempt > ask.max_attempts:
            row, now = yield from records.load(id_)
            assert row is not None
            steps = yield from self._adopted(row, steps)
            parked = run_lifecycle.judge_claim(row, ask, answer, steps, now)
            if parked is not None:
                yield from records.save(parked)
                return Claimed(Verdict.PARKED, closes=True)
        else:
            now = yield from records.clock()
        yield from self._keep(ask, now + ask.lease)
        answer.steps, answer.now = steps, now
        return answer

    def _claimed(self, ask: ClaimRequest) -> Program[Any]:
        """The answer to the plain claim of a run; if it is won, its record is locked."""
        answer = yield from self._records.shortcut(ask)
        return (yield from self._records.decide_record(ask)) if answer is None else answer

    def _adopted(self, row: Row, steps: list[Step]) -> Program[list[Step]]:
        """Without the steps of an older record, and with the signals that came before the run."""
        stale = {step.name for step in run_lifecycle.stale_steps(row, steps)}
        id_ = row.id[:ID_BYTES]
        if stale:
            yield Change(self._drop_stale, (id_, row.fence, row.created_at))
        if any(step.fence == 0 for step in steps):
            yield Change(self._adopt, (row.fence, row.created_at, row.created_at, id_))
        return [step for step in steps if step.name not in stale]

    def submit_run(self, ask: Submit) -> Program[Claimed]:
        records, id_ = self._records, ask.key.id
        row, now = yield from records.load(id_, records.lock)
        floor = 0 if row is not None else (yield from records.floor())
        answer, after = run_lifecycle.submit(row, ask, now, floor)
        if after is not None:
            yield from records.save(after, new=row is None)
            yield from self._adopted(after, (yield from self._steps_of(id_)))
            yield from self._keep(ask, now)
        return answer

    def _keep(self, ask: StartRun, due_at: int) -> Program[int]:
        function = ask.function.encode()
        whole = ask.key.id
        values = whole[:ID_BYTES], whole, due_at, int(ask.completes), function, ask.arguments
        return (yield Change(self._save_run, values))  # type: ignore[no-any-return]

    # -- steps --------------------------------------------------------------------------------

    def fenced_insert(self, now: str, due: str, lock: str) -> str:
        """Record a step in one statement, if its worker owns the run and the step is new.

        `lock` keeps another worker from claiming the run until the step is committed, so that the next
        owner finds it. Bound: `step_values` without times, then the record's id, owner and fence.
        """
        records = self._records
        places = ["?"] * len(STEP_COLUMNS)
        places[8:11] = now, now, due
        return (
            f"INSERT INTO {self.steps} ({', '.join(STEP_COLUMNS)}) SELECT {', '.join(places)}"
            f" FROM {records.records} r WHERE r.id = {records.id_place()} AND r.owner = ?"
            f" AND r.fence = ? AND r.state = 0{lock}"
        )

    def record_step(self, ask: RecordStep) -> Program[Ack]:
        records = self._records
        row, now = yield from records.load(ask.id, records.lock)
        known = yield from self._step_of(ask.id, ask.name)
        ack, step = run_lifecycle.record_step(row, known, ask, now)
        if step is not None:
            yield from self._write(ask.id, step)
        return ack

    def begin_step(self, ask: RecordStep) -> Program[Ack]:
        """What `record_step` would answer now. Locks and writes nothing: a renewal need not wait."""
        row, now = yield from self._records.load(ask.id)
        known = yield from self._step_of(ask.id, ask.name)
        return run_lifecycle.record_step(row, known, ask, now)[0]

    def suspend(self, ask: Suspend) -> Program[Ack]:
        records = self._records
        row, now = yield from records.load(ask.id, records.lock)
        signalled = False
        for name in ask.waits:
            step = yield from self._step_of(ask.id, name)
            signalled = signalled or (step is not None and step.state is StepState.DONE)
        ack, after = run_lifecycle.suspend(row, ask, signalled, now)
        if after is not None:
            yield from records.save(after)
            yield Change(self._set_due, (after.lease_until, ask.id[:ID_BYTES]))
        return ack

    def fail_run(self, ask: FailRun) -> Program[Ack]:
        ack: Ack = yield from self._records.decide_record(ask)
        if ack is Ack.OK:
            row, _ = yield from self._records.load(ask.id)
            assert row is not None
            yield Change(self._set_due, (row.lease_until, ask.id[:ID_BYTES]))
        return ack

    def restart(self, ask: Restart) -> Program[Ack]:
        ack: Ack = yield from self._records.decide_record(ask)
        if ack is Ack.OK:
            id_ = ask.id[:ID_BYTES]
            yield Change(self._remove_steps, (id_,))
            now = yield from self._records.clock()
            yield Change(self._set_due, (now, id_))
        return ack

    def signal(self, ask: Signal) -> Program[bool]:
        records, id_ = self._records, ask.id[:ID_BYTES]
        row, now = yield from records.load(ask.id, records.lock)
        if row is None:
            # There is no record to lock. This locks what the start of the run will write, so the run
            # starts after this signal, or has started and is seen now.
            yield from self._expect(ask, now)
            row, now = yield from records.load(ask.id, records.lock)
            if row is not None:
                yield Change(self._set_due, (now, id_))
        elif is_expired(row, now) or not (yield Query(self._read_run, (id_,))):
            yield from self._expect(ask, now)
        known = yield from self._step_of(ask.id, ask.name)
        kept, step, woken = run_lifecycle.signal(row, known, ask, now)
        if step is not None:
            yield from self._write(ask.id, step)
            if ask.by and row is not None:
                yield from records.write_trail(ask, row, now)
        if woken is not None:
            yield from records.save(woken)
            yield Change(self._set_due, (now, id_))
        return kept

    def _expect(self, ask: Signal, now: int) -> Program[None]:
        """Keep a signal that came before its run for as long as it says. Where there are steps, there is
        a run too: `_remove` removes both."""
        values = ask.id[:ID_BYTES], ask.id, now + ask.retention, 0, b"", b""
        yield Change(self._expect_run, values)

    def load_run(self, ask: LoadRun) -> Program[Run | None]:
        rows = yield Query(self._read_run, (ask.id[:ID_BYTES],))
        if not rows:
            return None
        function, arguments = rows[0]
        steps = yield from self._steps_of(ask.id)
        return Run(bytes(function).decode(), bytes(arguments), steps)

    def rewrite_run(self, ask: RewriteRun) -> Program[Ack]:
        row, _ = yield from self._records.load(ask.id, self._records.lock)
        id_ = ask.id[:ID_BYTES]
        if ask.step:
            step = yield from self._step_of(ask.id, ask.step)
            known = None if step is None else step.result
            change = Change(self._rewrite_step, (ask.after, id_, ask.step.encode()))
        else:
            rows = yield Query(self._read_run, (id_,))
            known = bytes(rows[0][1]) if rows else None
            change = Change(self._rewrite_arguments, (ask.after, id_))
        ack, write = run_lifecycle.rewrite_run(row, known, ask)
        if write:
            yield change
        return ack

    def _steps_of(self, id_: bytes) -> Program[list[Step]]:
        rows = yield Query(self._read_steps, (id_[:ID_BYTES],))
        return [step_from(row) for row in rows]

    def _step_of(self, id_: bytes, name: str) -> Program[Step | None]:
        rows = yield Query(self._read_step, (id_[:ID_BYTES], name.encode()))
        return step_from(rows[0]) if rows else None

    def _write(self, id_: bytes, step: Step) -> Program[None]:
        times = step.created_at, step.changed_at, step.due_at
        yield Change(self._save_step, step_values(id_[:ID_BYTES], step, *times))
