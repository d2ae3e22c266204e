"""The monitor: what may never happen, seen from the store, after every request that reaches it.

A *generation* of a key is one record of it without a restart: its steps belong together. Fences are never
used twice, so a fence names its generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twicesafe._core.durable.compensation import EXHAUSTED
from twicesafe._core.durable.run_requests import FOREVER, Restart, StartRun
from twicesafe._core.durable.run_state import FAILURE, UNDO
from twicesafe._core.lifecycle import is_expired
from twicesafe._core.protocol import Ack, Verdict
from twicesafe._values.records import Row, State
from twicesafe._values.steps import Step, StepState
from twicesafe.stores.memory import MemoryStore

from .invariants import broken

if TYPE_CHECKING:
    from .world import World

__all__ = ["OVER", "Monitor", "is_done"]

OVER = (State.COMPLETED, State.FAILED, State.FORGOTTEN)
Steps = dict[str, Step]


def is_done(step: Step | None) -> bool:
    return step is not None and step.state is StepState.DONE


def _is_over(row: Row | None, now: int) -> bool:
    return row is None or is_expired(row, now) or row.state is State.FORGOTTEN


class Monitor:
    def __init__(self, world: World) -> None:
        self._world = world
        self.seen: Counter[Any] = world.seen
        self.generation: dict[bytes, int] = {}
        self._generations: dict[tuple[bytes, int], int] = {}
        self._of_step: dict[tuple[bytes, str], int] = {}
        """The generation that recorded it; -1: a signal that waits for its run."""
        self.recorded_at: dict[tuple[bytes, str], int] = {}
        """When it was recorded, in ticks."""
        self._pending: dict[bytes, int] = {}
        """Until when signals wait for their run."""
        self._attempts: dict[bytes, int] = {}
        self.results: dict[bytes, set[bytes | None]] = {}
        """All results that were ever recorded for a key."""
        self.released: dict[bytes, int] = {}
        """The fence of the last word of an operator."""

    @property
    def _store(self) -> MemoryStore:
        return self._world.store

    def generation_of(self, id_: bytes, fence: int) -> int:
        return self._generations.get((id_, fence), -2)

    def is_of(self, id_: bytes, name: str, generation: int) -> bool:
        return self._of_step.get((id_, name)) == generation

    # -- one key --------------------------------------------------------------------------------

    def observe(
        self, ask: Any, row: Row | None, steps: Steps, answer: Any, after: Row | None, found: Steps,
        now: int,
    ) -> None:  # fmt: skip
        op, id_ = ask.op, ask.id
        verdict = getattr(answer, "verdict", answer)
        if op not in ("load_run", "read"):
            self.seen["request", f"{op} {getattr(verdict, 'name', verdict)}".lower()] += 1
        if row is not after and after is not None:
            self.seen["state", str(after.state)] += row is None or row.state is not after.state
        began = (
            after is not None and row is not after and op in ("start_run", "submit_run")
            and (row is None or is_expired(row, now))
        )  # fmt: skip
        if began or (isinstance(ask, Restart) and answer is Ack.OK):
            self.generation[id_] = self.generation.get(id_, 0) + 1
            self._attempts[id_] = 0
        if after is not None and row is not after:
            self._generations[id_, after.fence] = self.generation.get(id_, 0)
        self._look_at_steps(ask, row, steps, answer, found, now, began)
        check = _CHECKS.get(op)
        if check is not None:
            check(self, ask, row, steps, answer, after, found, now)
        if after is not None and after.state not in OVER and row is not after:
            if after.attempt != self._attempts.get(id_, 0):
                counted = self._attempts.get(id_, 0)
                broken("attempts count starts", f"{after.attempt} on record, {counted} started")
            if 0 < after.expires_at < now + FOREVER // 2:
                broken("unfinished runs are kept", f"{op} leaves it {after.state}, to be swept")

    def _look_at_steps(
        self, ask: Any, row: Row | None, steps: Steps, answer: Any, found: Steps, now: int,
        began: bool,
    ) -> None:  # fmt: skip
        id_, op = ask.id, ask.op
        current = self.generation.get(id_, 0)
        for name, old in steps.items():
            new = found.get(name)
            if new is old or not is_done(old):
                continue
            of = self._of_step.get((id_, name))
            stale = of != -1 and (_is_over(row, now) or began)
            if new is None:
                if not (isinstance(ask, Restart) and answer is Ack.OK) and not (began and stale):
                    broken("recorded steps stay", f"{op} dropped the recorded step {name}")
            elif not (op == "signal" and stale):
                broken("recorded steps stay", f"{op} changed the recorded step {name}")
        for name, new in found.items():
            if new is steps.get(name):
                continue
            if op == "record_step":
                owns = (
                    row is not None and row.owner == ask.owner and row.fence == ask.fence
                    and row.state is State.IN_PROGRESS
                )  # fmt: skip
                if not owns:
                    broken("only the owner records", f"{name}, with fence {ask.fence}")
            elif op != "signal" or answer is not True:
                broken("recorded steps stay", f"{op} wrote the step {name}")
            self.recorded_at[id_, name] = next(self._world.ticks)
            self._of_step[id_, name] = -1 if op == "signal" and _is_over(row, now) else current
        if began:
            for name in found:
                if self._of_step[id_, name] == -1:
                    self._of_step[id_, name] = current

    def _started(
        self, ask: StartRun, row: Row | None, steps: Steps, answer: Any, after: Any, found: Steps,
        now: int,
    ) -> None:  # fmt: skip
        undoable = any(step.undo for step in found.values())
        if answer.verdict is Verdict.PARKED and row is not after:
            assert row is not None
            if undoable and row.attempt < 2 * ask.max_attempts:
                broken("undoing comes before parking", f"parked at attempt {row.attempt}")
        if answer.verdict is not Verdict.WON:
            return
        if row is not after:
            self._attempts[ask.id] = self._attempts.get(ask.id, 0) + 1
            self.seen["cause", str(answer.cause)] += 1
        if answer.attempt > ask.max_attempts and not undoable:
            broken("attempts count starts", f"attempt {answer.attempt}, and nothing to undo")
        for step in answer.steps:
            if not self.is_of(ask.id, step.name, self.generation[ask.id]):
                broken("steps belong to one run", f"{step.name} is of an earlier one")
        missing = [name for name in found if all(name != step.name for step in answer.steps)]
        if missing:
            broken("steps belong to one run", f"{missing[0]} is missing")

    def _suspended(
        self, ask: Any, row: Any, steps: Steps, answer: Any, after: Any, found: Steps, now: int
    ) -> None:
        if row is after:
            return
        if (row.owner, row.fence) != (ask.owner, ask.fence):
            broken("only the owner records", "another worker suspended the run")
        self._attempts[ask.id] -= 1
        came = any(is_done(found.get(name)) for name in self._waiting_names(ask, found))
        if came and (after.lease_until > now or self._store._runs[ask.id].due_at > now):
            broken("a signal wakes", "it came before the suspension, and the run is not due")
        self.seen["suspended", "its signal came" if came else "sleeps"] += 1

    def _waiting_names(self, ask: Any, found: Steps) -> list[str]:
        """Those that its worker knew as waiting: the lab looks itself, whatever was asked."""
        return list(self._world.ledger.waiting.get((ask.id, ask.fence), ()))

    def _failed(
        self, ask: Any, row: Any, steps: Steps, answer: Any, after: Any, found: Steps, now: int
    ) -> None:
        cut = ask.error == "CancelledError" and row is not after
        if (
            cut
            and after.state is State.PARKED
            and any(s.undo and is_done(s) for s in found.values())
        ):
            broken("undoing comes before parking", "parked, because its caller was cancelled")

    def _abandoned(self, ask: Any, row: Any, steps: Any, answer: Any, *rest: Any) -> None:
        if answer is Ack.OK:
            self._attempts[ask.id] -= 1

    def _operated(
        self, ask: Any, row: Any, steps: Any, answer: Any, after: Any, found: Steps, now: int
    ) -> None:
        if answer is Ack.OK and row is not after:
            self._attempts[ask.id] = 0
            self.released[ask.id] = after.fence
        if ask.op == "resolve" and answer is Ack.OK:
            self.results.setdefault(ask.id, set()).add(ask.result)

    def _completed(
        self, ask: Any, row: Any, steps: Any, answer: Any, after: Any, found: Steps, now: int
    ) -> None:
        if row is after:
            return
        self.results.setdefault(ask.id, set()).add(ask.result)
        failed = is_done(found.get(FAILURE))
        if ask.state is State.COMPLETED and failed:
            broken("failed runs do not complete", "it completed after its failure was recorded")
        if ask.error == "CompensatedError":
            for name, step in found.items():
                if step.undo and is_done(step) and not is_done(found.get(UNDO + name)):
                    broken("undone means undone", f"{name} was not undone")
            if not failed:
                broken("undone means undone", "its failure was not recorded")
            else:
                crashed = found[FAILURE].result == EXHAUSTED.encode()
                self.seen["undone", "after crashes" if crashed else "after a failure"] += 1
                self._world.ledger.compensated(ask.id, self.generation.get(ask.id, 0), crashed)

    def _signalled(
        self, ask: Any, row: Any, steps: Steps, answer: Any, after: Any, found: Steps, now: int
    ) -> None:
        known = steps.get(ask.name)
        over = row is None or is_expired(row, now)
        if answer:
            if found[ask.name].result != ask.result:
                broken("the first signal stays", "it was accepted, and is not there")
            if over:
                self._pending[ask.id] = max(self._pending.get(ask.id, 0), now + ask.retention)
            waits = known is not None and known.state is StepState.WAITING
            if not over and row.state is State.SUSPENDED and waits:
                if after.lease_until > now or self._store._runs[ask.id].due_at > now:
                    broken("a signal wakes", "the run that waits for it is not due")
                self.seen["signal", "wakes"] += 1
            kept = "before its run" if over else "before its wait"
            self.seen["signal", "during its wait" if waits else kept] += 1
            return
        self.seen["signal", "refused"] += 1
        if not over and row.state in OVER:
            return
        of = -1 if over else self.generation.get(ask.id, 0)
        if not is_done(known) or not self.is_of(ask.id, ask.name, of):
            broken("the first signal stays", "it was refused, and there is no value")

    # -- many keys ------------------------------------------------------------------------------

    def look_around(self, ask: Any, perform: Callable[[], Any], now: int) -> Any:
        """A sweep, a look for due runs, tidying."""
        store = self._store
        rows, runs = dict(store._rows), dict(store._runs)
        steps = {id_: dict(found) for id_, found in store._steps.items()}
        answer = perform()
        for id_, row in rows.items():
            if id_ not in store._rows and (not _is_over(row, now) or row.state is State.RELEASED):
                broken("unfinished runs are kept", f"a {row.state} run was swept")
        for id_ in runs:
            if id_ in store._runs:
                continue
            self.seen["look", "dropped"] += 1
            if not _is_over(rows.get(id_), now):
                broken("unfinished runs are kept", f"{ask.op} dropped it")
            if self._pending.get(id_, 0) > now and any(
                self._of_step.get((id_, name)) == -1 for name in steps.get(id_, ())
            ):
                broken("unfinished runs are kept", f"{ask.op} dropped a signal")
        for id_, found in steps.items():
            if id_ in store._runs and len(store._steps.get(id_, ())) < len(found):
                broken("recorded steps stay", f"{ask.op} dropped a step")
        for run in getattr(answer, "runs", ()):
            row = rows[run.key.id]
            self.seen["look", "found"] += 1
            closed = row.state in (*OVER, State.HELD, State.PARKED)
            if closed or _is_over(row, now) or row.lease_until > now:
                broken("due runs can run", f"it is {row.state}")
        return answer


_CHECKS: dict[str, Callable[..., None]] = {
    "start_run": Monitor._started,
    "suspend": Monitor._suspended,
    "fail_run": Monitor._failed,
    "abandon": Monitor._abandoned,
    "release": Monitor._operated,
    "restart": Monitor._operated,
    "resolve": Monitor._operated,
    "forget": Monitor._operated,
    "complete": Monitor._completed,
    "signal": Monitor._signalled,
}
