"""Mutants of durable functions: what the store keeps of a run, what steps do, how a run is undone."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from twicesafe._core.durable import (
    compensation,
    run_lifecycle,
    step_records,
    steps,
)
from twicesafe._core.durable import (
    run as durable_run,
)
from twicesafe._core.durable.run_requests import FOREVER, FailRun
from twicesafe._core.durable.run_state import FAILURE, RunState
from twicesafe._core.lifecycle import is_expired
from twicesafe._core.protocol import Ack
from twicesafe._values.records import State
from twicesafe._values.steps import StepState
from twicesafe.stores._memory_runs import MemoryRuns

from .registry import Patch, mutant

STUDY = "steps"


# --- recording ---------------------------------------------------------------------------------


@mutant("a step is recorded without a look at its worker's owner and fence", STUDY)
def step_of_a_zombie(patch: Patch) -> None:
    record_step = run_lifecycle.record_step

    def trusting(row: Any, known: Any, ask: Any, now: int) -> Any:
        if row is not None and row.state is State.IN_PROGRESS:
            ask = replace(ask, owner=row.owner, fence=row.fence)
        return record_step(row, known, ask, now)

    patch(run_lifecycle, "record_step", trusting)


@mutant("a recorded step is overwritten", STUDY)
def step_overwritten(patch: Patch) -> None:
    record_step = run_lifecycle.record_step
    patch(
        run_lifecycle,
        "record_step",
        lambda row, known, ask, now: record_step(row, None, ask, now),
    )


@mutant("a recorded step runs again on a resume", STUDY)
def recorded_step_runs(patch: Patch) -> None:
    enter = RunState.enter

    def forgetful(self: Any, name: Any, kind: str, fingerprint: bytes) -> Any:
        known = enter(self, name, kind, fingerprint)
        return None if kind == "run" and not self.undoing else known

    patch(RunState, "enter", forgetful)


@mutant("on a resume the arguments of a step are not compared", STUDY)
def arguments_not_compared(patch: Patch) -> None:
    enter = RunState.enter

    def anyhow(self: Any, name: Any, kind: str, fingerprint: bytes) -> Any:
        known = self.recorded.get(name)
        same = known is not None and known.kind == kind
        return enter(self, name, kind, known.fingerprint if same else fingerprint)

    patch(RunState, "enter", anyhow)


@mutant("a step that was not recorded is taken for recorded", STUDY)
def unanswered_record_is_taken_for_ok(patch: Patch) -> None:
    def once(state: Any, ask: Any, answer: Any = None) -> Any:
        if answer is None:
            with suppress(Exception):
                yield ask

    patch(steps, "record", once)


@mutant("steps of an earlier record of the key are adopted", STUDY)
def old_steps_adopted(patch: Patch) -> None:
    patch(run_lifecycle, "stale_steps", lambda row, found: [])


@mutant("a signal that came before its run is dropped with the old steps", STUDY)
def early_signal_dropped(patch: Patch) -> None:
    patch(
        run_lifecycle,
        "stale_steps",
        lambda row, found: (
            [step for step in found if step.fence < row.fence]
            if row.created_at == row.changed_at
            else []
        ),
    )


@mutant("a restart keeps the recorded steps", STUDY)
def restart_keeps_steps(patch: Patch) -> None:
    patch(MemoryRuns, "restart", lambda self, ask: self._operate(ask))


@mutant("an interrupted step runs again under hold", STUDY)
def held_step_runs(patch: Patch) -> None:
    def none(state: Any, call: Any) -> Any:
        return None
        yield

    patch(steps, "_probed", none)


@mutant("a step whose worker died after the last attempt's effect is left as it is", STUDY)
def in_flight_step_left(patch: Patch) -> None:
    """Also one whose probe gave no answer."""
    patch(RunState, "doubt", lambda self, call, why: None)


@mutant("a step starts after its function has ended", STUDY)
def late_branches_start(patch: Patch) -> None:
    check_open = RunState.check_open

    def anyhow(self: Any) -> None:
        ended, self.ended = self.ended, False
        try:
            check_open(self)
        finally:
            self.ended = ended

    patch(RunState, "check_open", anyhow)


# --- suspending, signals -----------------------------------------------------------------------


@mutant("a suspension counts as an attempt", STUDY)
def suspension_counts(patch: Patch) -> None:
    suspend = run_lifecycle.suspend

    def counted(row: Any, ask: Any, signalled: bool, now: int) -> Any:
        ack, after = suspend(row, ask, signalled, now)
        return ack, None if after is None else replace(after, attempt=row.attempt)

    patch(run_lifecycle, "suspend", counted)


@mutant("a run is suspended by a worker that has lost it", STUDY, first=8_000)
def zombie_suspends(patch: Patch) -> None:
    suspend = run_lifecycle.suspend

    def trusting(row: Any, ask: Any, signalled: bool, now: int) -> Any:
        if row is not None:
            ask = replace(ask, owner=row.owner, fence=row.fence)
        return suspend(row, ask, signalled, now)

    patch(run_lifecycle, "suspend", trusting)


@mutant("a signal that came before the suspension is slept through", STUDY)
def suspends_over_a_signal(patch: Patch) -> None:
    suspend = run_lifecycle.suspend
    patch(
        run_lifecycle,
        "suspend",
        lambda row, ask, signalled, now: suspend(row, ask, False, now),
    )


@mutant("a signal does not wake the run that waits for it", STUDY)
def signal_does_not_wake(patch: Patch) -> None:
    signal = run_lifecycle.signal

    def quiet(*args: Any) -> Any:
        kept, step, _ = signal(*args)
        return kept, step, None

    patch(run_lifecycle, "signal", quiet)


@mutant("a signal wakes the record, but the completer does not look earlier", STUDY)
def due_index_not_moved(patch: Patch) -> None:
    signal = MemoryRuns.signal

    def unmoved(self: Any, ask: Any) -> Any:
        before = self._runs[ask.id].due_at if ask.id in self._runs else None
        kept = signal(self, ask)
        if before is not None:
            self._runs[ask.id].due_at = before
        return kept

    patch(MemoryRuns, "signal", unmoved)


@mutant("a second signal replaces the first", STUDY)
def second_signal_wins(patch: Patch) -> None:
    signal = run_lifecycle.signal

    def latest(row: Any, known: Any, ask: Any, now: int) -> Any:
        had = known is not None and known.kind == "wait" and known.state is StepState.DONE
        return signal(row, None if had else known, ask, now)

    patch(run_lifecycle, "signal", latest)


@mutant("a signal for the next run is refused because of the one of the last run", STUDY)
def old_signal_refuses_the_new(patch: Patch) -> None:
    signal = run_lifecycle.signal

    def wary(row: Any, known: Any, ask: Any, now: int) -> Any:
        over = row is None or is_expired(row, now)
        if over and known is not None and known.fence and known.state is StepState.DONE:
            return False, None, None
        return signal(row, known, ask, now)

    patch(run_lifecycle, "signal", wary)


@mutant("the time-out of a wait replaces its signal", STUDY)
def time_out_replaces_signal(patch: Patch) -> None:
    record_step = run_lifecycle.record_step

    def late(row: Any, known: Any, ask: Any, now: int) -> Any:
        times_out = ask.kind == "wait" and ask.state is StepState.DONE
        return record_step(row, None if times_out else known, ask, now)

    patch(run_lifecycle, "record_step", late)


@mutant("a sleep is over when its run is resumed for another reason", STUDY)
def sleep_ends_early(patch: Patch) -> None:
    enter = RunState.enter

    def short(self: Any, name: Any, kind: str, fingerprint: bytes) -> Any:
        known = enter(self, name, kind, fingerprint)
        if known is None or kind != "sleep":
            return known
        return replace(known, due_at=known.due_at // 2)

    patch(RunState, "enter", short)


@mutant("a branch that waits does not wait for a step that is being recorded", STUDY)
def leaves_while_others_record(patch: Patch) -> None:
    patch(RunState, "has_branches", property(lambda self: False))


# --- the completer, sweeps ---------------------------------------------------------------------


@mutant("the completer is given runs that a worker holds", STUDY)
def due_while_in_progress(patch: Patch) -> None:
    next_look = run_lifecycle.next_look

    def at_once(row: Any, now: int) -> int:
        if row is not None and row.state is State.IN_PROGRESS:
            return run_lifecycle.DUE
        return next_look(row, now)

    patch(run_lifecycle, "next_look", at_once)


@mutant("tidying drops runs that rest after a failure", STUDY)
def tidy_drops_live_runs(patch: Patch) -> None:
    next_look = run_lifecycle.next_look

    def eager(row: Any, now: int) -> int:
        if row is not None and row.state is State.RELEASED:
            return run_lifecycle.DROP
        return next_look(row, now)

    patch(run_lifecycle, "next_look", eager)


@mutant("tidying drops signals that wait for the next run", STUDY)
def tidy_drops_signals(patch: Patch) -> None:
    signal = MemoryRuns.signal

    def unkept(self: Any, ask: Any) -> Any:
        before = self._runs[ask.id].due_at if ask.id in self._runs else None
        kept = signal(self, ask)
        step = self._steps[ask.id].get(ask.name)
        if before is not None and step is not None and step.fence == 0:
            self._runs[ask.id].due_at = before
        return kept

    patch(MemoryRuns, "signal", unkept)


@mutant("a released run that waited for a signal is not looked at before it is due", STUDY)
def release_is_not_seen(patch: Patch) -> None:
    tidy_runs = MemoryRuns.tidy_runs
    patch(
        MemoryRuns,
        "tidy_runs",
        lambda self, ask: (0, b"") if ask.only else tidy_runs(self, ask),
    )


@mutant("a failed run is kept like a finished record, and swept", STUDY)
def failed_run_is_swept(patch: Patch) -> None:
    failing = durable_run.RunCall.failing
    patch(
        durable_run.RunCall,
        "failing",
        lambda self, ask: replace(failing(self, ask), retention=ask.retention),
    )


# --- compensation ------------------------------------------------------------------------------


@mutant("undos run in the order of their steps", STUDY)
def undo_forward(patch: Patch) -> None:
    undo_all = compensation.undo_all

    def forward(call: Any, state: Any, reply: Any) -> Any:
        last = max((undo.position for undo in state.undos.values()), default=0)
        for undo in state.undos.values():
            undo.position = last - undo.position
        return undo_all(call, state, reply)

    patch(durable_run, "undo_all", forward)


@mutant("undoing does not wait for steps that still run", STUDY)
def undo_beside_a_step(patch: Patch) -> None:
    def at_once(state: Any) -> Any:
        return
        yield

    patch(durable_run, "_until_quiet", at_once)
    patch(durable_run, "_only_the_next_knows", lambda state, reply: False)


@mutant(
    "a run that seems lost is undone, although unknown steps may be recorded", STUDY, first=9_500
)
def undo_without_knowing(patch: Patch) -> None:
    patch(durable_run, "_only_the_next_knows", lambda state, reply: False)


@mutant("undoing starts before the failure is recorded", STUDY)
def failure_not_recorded(patch: Patch) -> None:
    record = step_records.record

    def unless_failure(state: Any, ask: Any) -> Any:
        if ask.name != FAILURE:
            yield from record(state, ask)

    patch(compensation, "record", unless_failure)


@mutant("an undo is not recorded", STUDY)
def undo_not_recorded(patch: Patch) -> None:
    record = step_records.record

    def only_failure(state: Any, ask: Any) -> Any:
        if ask.name == FAILURE:
            yield from record(state, ask)

    patch(compensation, "record", only_failure)


@mutant("a recorded undo runs again after a crash", STUDY)
def undo_runs_again(patch: Patch) -> None:
    undo_all = compensation.undo_all

    def forgetful(call: Any, state: Any, reply: Any) -> Any:
        for name in [name for name in state.recorded if name.startswith("undo:")]:
            del state.recorded[name]
        return undo_all(call, state, reply)

    patch(durable_run, "undo_all", forgetful)


@mutant("the next worker goes forward although the failure is recorded", STUDY)
def failure_is_forgotten(patch: Patch) -> None:
    start = RunState.__init__

    def hopeful(self: Any, *args: Any) -> None:
        start(self, *args)
        self.undoing = False
        self.recorded.pop(FAILURE, None)

    patch(RunState, "__init__", hopeful)


@mutant("places of steps start anew in every attempt", STUDY)
def positions_restart(patch: Patch) -> None:
    start = RunState.__init__

    def anew(self: Any, *args: Any) -> None:
        start(self, *args)
        self.next_position = itertools.count(1).__next__

    patch(RunState, "__init__", anew)


@mutant("a run whose attempts are used up parks without being undone", STUDY)
def parks_without_undoing(patch: Patch) -> None:
    judge_claim = run_lifecycle.judge_claim
    patch(
        run_lifecycle,
        "judge_claim",
        lambda row, ask, answer, found, now: judge_claim(row, ask, answer, (), now),
    )


@mutant("an interrupted undo is recorded as done", STUDY)
def failed_undo_counts(patch: Patch) -> None:
    undo = compensation._undo

    def easy(call: Any, state: Any, one: Any) -> Any:
        trouble = yield from undo(call, state, one)
        return None if isinstance(trouble, Exception) else trouble

    patch(compensation, "_undo", easy)


# --- cancelled and aborted ---------------------------------------------------------------------


@mutant("a run with something to undo parks because its last attempt was cancelled", STUDY)
def cancelled_run_parks(patch: Patch) -> None:
    failing = durable_run.RunCall.failing

    def strict(self: Any, ask: Any) -> Any:
        return replace(failing(self, ask), max_attempts=ask.max_attempts)

    patch(durable_run.RunCall, "failing", strict)


@mutant("a run whose undo was cancelled parks", STUDY)
def cancelled_undo_parks(patch: Patch) -> None:
    patch(compensation, "WITHOUT_LIMIT", 0)


@mutant("a cancelled undo is taken for done", STUDY)
def cancelled_undo_counts(patch: Patch) -> None:
    undo = compensation._undo

    def easy(call: Any, state: Any, one: Any) -> Any:
        trouble = yield from undo(call, state, one)
        return trouble if isinstance(trouble, Exception) else None

    patch(compensation, "_undo", easy)


@mutant("a cancelled step is tried again at once", STUDY)
def cancelled_step_retried(patch: Patch) -> None:
    may_retry = steps._may_retry
    patch(
        steps,
        "_may_retry",
        lambda error: isinstance(error, asyncio.CancelledError) or may_retry(error),
    )


@mutant("other branches start steps after an abort", STUDY)
def abort_ignored(patch: Patch) -> None:
    check_open = RunState.check_open

    def open_(self: Any) -> None:
        aborted, self.aborted = self.aborted, None
        try:
            check_open(self)
        finally:
            self.aborted = aborted

    patch(RunState, "check_open", open_)


@mutant("the answer of a compensated run is given before it is recorded", STUDY)
def compensated_too_early(patch: Patch) -> None:
    remember = compensation._remember

    def early(call: Any, state: Any, reason: str, cause: Any) -> Any:
        flow = remember(call, state, reason, cause)
        next(flow)
        try:
            flow.send(Ack.OK)
        except StopIteration as end:
            claim = state.claim
            yield FailRun(claim.key.id, claim.owner, claim.fence, 0, 99, FOREVER, "")
            return end.value

    patch(compensation, "_remember", early)
