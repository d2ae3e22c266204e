"""Durable runs in memory: the reference for the other stores. It applies `_core.durable.run_lifecycle`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from .._core.durable import run_lifecycle
from .._core.durable.run_requests import (
    Due,
    DueRun,
    FailRun,
    FindDue,
    LoadRun,
    RecordStep,
    Restart,
    RewriteRun,
    Run,
    Signal,
    StartRun,
    Submit,
    Suspend,
    TidyRuns,
)
from .._core.protocol import Ack, Claimed, ClaimRequest, Verdict
from .._values.keys import Key
from .._values.records import Row, State
from .._values.steps import Step, StepState

__all__ = ["MemoryRuns"]


class _Kept(msgspec.Struct):
    function: str
    arguments: bytes
    completes: bool
    due_at: int


def _is_asked(kept: _Kept, ask: FindDue) -> bool:
    return ask.functions is None or kept.function in ask.functions


class MemoryRuns:
    """The requests of durable runs; part of `MemoryStore`, which holds the lock."""

    _rows: dict[bytes, Row]
    _floor: int
    _now: Callable[[], int]
    claim: Callable[[ClaimRequest], Claimed]
    _decide: Callable[[Any], Ack]
    _operate: Callable[[Any], Ack]
    _keep_trail: Callable[[Any, int, State], None]

    def __init__(self) -> None:
        self._runs: dict[bytes, _Kept] = {}
        self._steps: dict[bytes, dict[str, Step]] = {}

    def start_run(self, ask: StartRun) -> Claimed:
        answer = self.claim(run_lifecycle.claim_of(ask))
        if answer.verdict is not Verdict.WON:
            return answer
        id_, now = ask.key.id, self._now()
        row, steps = self._rows[id_], self._steps.setdefault(id_, {})
        for stale in run_lifecycle.stale_steps(row, steps.values()):
            del steps[stale.name]
        parked = run_lifecycle.judge_claim(row, ask, answer, steps.values(), now)
        if parked is not None:
            self._rows[id_] = parked
            return Claimed(Verdict.PARKED, closes=True)
        for step in steps.values():
            run_lifecycle.adopt_signal(step, row)
        self._keep(ask, row.lease_until)
        answer.steps, answer.now = [replace(step) for step in steps.values()], now
        return answer

    def submit_run(self, ask: Submit) -> Claimed:
        id_, now = ask.key.id, self._now()
        answer, row = run_lifecycle.submit(self._rows.get(id_), ask, now, self._floor)
        if row is not None:
            steps = self._steps.get(id_, {})
            for stale in run_lifecycle.stale_steps(row, list(steps.values())):
                del steps[stale.name]
            self._rows[id_] = row
            self._keep(ask, now)
        return answer

    def _keep(self, ask: StartRun, due_at: int) -> None:
        self._runs[ask.key.id] = _Kept(ask.function, ask.arguments, ask.completes, due_at)

    def record_step(self, ask: RecordStep) -> Ack:
        steps = self._steps.setdefault(ask.id, {})
        ack, step = run_lifecycle.record_step(
            self._rows.get(ask.id), steps.get(ask.name), ask, self._now()
        )
        if step is not None:
            steps[ask.name] = step
        return ack

    def suspend(self, ask: Suspend) -> Ack:
        steps = self._steps.get(ask.id, {})
        waited = (steps.get(name) for name in ask.waits)
        signalled = any(step and step.state is StepState.DONE for step in waited)
        ack, row = run_lifecycle.suspend(self._rows.get(ask.id), ask, signalled, self._now())
        if row is not None:
            self._rows[row.id] = row
            self._look_at(row.id, row.lease_until)
        return ack

    def fail_run(self, ask: FailRun) -> Ack:
        ack = self._decide(ask)
        if ack is Ack.OK:
            self._look_at(ask.id, self._rows[ask.id].lease_until)
        return ack

    def restart(self, ask: Restart) -> Ack:
        ack = self._operate(ask)
        if ack is Ack.OK:
            self._steps.pop(ask.id, None)
            self._look_at(ask.id, self._now())
        return ack

    def _look_at(self, id_: bytes, due_at: int) -> None:
        if id_ in self._runs:
            self._runs[id_].due_at = due_at

    def signal(self, ask: Signal) -> bool:
        steps = self._steps.setdefault(ask.id, {})
        now = self._now()
        before = self._rows.get(ask.id)
        kept, step, row = run_lifecycle.signal(before, steps.get(ask.name), ask, now)
        if step is not None:
            steps[ask.name] = step
            if ask.by and before is not None:
                self._keep_trail(ask, now, before.state)
            kept_run = self._runs.setdefault(ask.id, _Kept("", b"", False, 0))
            if step.fence == 0:  # there is no run yet: it waits for it
                kept_run.due_at = max(kept_run.due_at, now + ask.retention)
        if row is not None:
            self._rows[ask.id] = row
            self._look_at(ask.id, now)
        return kept

    def load_run(self, ask: LoadRun) -> Run | None:
        kept = self._runs.get(ask.id)
        if kept is None:
            return None
        steps = [replace(step) for step in self._steps.get(ask.id, {}).values()]
        return Run(kept.function, kept.arguments, steps)

    def rewrite_run(self, ask: RewriteRun) -> Ack:
        kept, step = self._runs.get(ask.id), self._steps.get(ask.id, {}).get(ask.step)
        if ask.step:
            known = None if step is None else step.result
        else:
            known = None if kept is None else kept.arguments
        ack, write = run_lifecycle.rewrite_run(self._rows.get(ask.id), known, ask)
        if write and ask.step:
            assert step is not None
            step.result = ask.after
        elif write:
            assert kept is not None
            kept.arguments = ask.after
        return ack

    def find_due(self, ask: FindDue) -> Due:
        now = self._now()
        seen = sorted(
            (kept.due_at, id_)
            for id_, kept in self._runs.items()
            if kept.due_at <= (now if _is_asked(kept, ask) else now - ask.overdue)
        )
        due: list[DueRun] = []
        for _, id_ in seen[: ask.limit]:
            if self._look(id_, now) != run_lifecycle.DUE:
                continue
            row, kept = self._rows[id_], self._runs[id_]
            kept.due_at = now + (ask.pause if kept.completes else run_lifecycle.CLOSED_PAUSE)
            if kept.completes:
                key = Key(row.value, row.scope, absolute=True)
                overdue = now - row.lease_until
                due.append(DueRun(key, kept.function, kept.arguments, row.fingerprint, overdue))
        return Due(due, len(seen) >= ask.limit)

    def tidy_runs(self, ask: TidyRuns) -> tuple[int, bytes]:
        now = self._now()
        if ask.only:
            gone = ask.only in self._runs and self._look(ask.only, now)
            if gone == run_lifecycle.DUE:
                self._runs[ask.only].due_at = now
            return int(gone == run_lifecycle.DROP), b""
        ids = sorted(
            id_ for id_, kept in self._runs.items() if kept.due_at <= now and id_ > ask.after
        )
        part = ids[: ask.limit]
        removed = sum(self._look(id_, now) == run_lifecycle.DROP for id_ in part)
        return removed, part[-1] if len(part) < len(ids) else b""

    def _look(self, id_: bytes, now: int) -> int:
        at = run_lifecycle.next_look(self._rows.get(id_), now)
        if at == run_lifecycle.DROP:
            del self._runs[id_]
            self._steps.pop(id_, None)
        elif at != run_lifecycle.DUE:
            self._runs[id_].due_at = at
        return at
