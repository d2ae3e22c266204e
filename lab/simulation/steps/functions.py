"""Durable functions of the lab: they do what their script says, through the shipped `Steps`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from twicesafe import Key
from twicesafe._core.durable.run_state import RunState, Unwind
from twicesafe._values.steps import SIGNAL
from twicesafe.receiver._steps import Steps

from ..transactions.fibers import ask, judge
from .invariants import broken
from .ledger import Execution
from .plan import Op, Script
from .policies import POLICIES, BoomError
from .runtime import Runtime, gathered

if TYPE_CHECKING:
    from .world import World

__all__ = ["Function"]

CLEANUP = Op("run", "cleanup")


class Function:
    """One attempt of one run."""

    def __init__(self, runtime: Runtime, key: Key, script: Script, state: RunState) -> None:
        self._runtime, self._key, self._script = runtime, key, script
        self._process = runtime.process
        self._world: World = runtime.process.world
        self._run = state.claim
        self._state, self._steps = state, Steps(runtime, state)
        self._holds = POLICIES[script.policy][1]
        self._unseen = set(_behind_caught(script.ops))

    def __call__(self) -> Any:
        try:
            return self._play(self._script.ops)
        finally:
            try:
                if self._script.cleanup:
                    self._step(CLEANUP)
            finally:
                self._world.ledger.ended.add((self._key.id, self._run.fence))

    def _play(self, ops: tuple[Op, ...]) -> list[Any]:
        found = []
        for op in ops:
            try:
                found.append(_ACTS[op.kind](self, op))
            except Exception:
                if not op.caught:
                    raise
                found.append("caught")
        return found

    # -- what a function does -------------------------------------------------------------------

    def _step(self, op: Op) -> Any:
        steps = self._steps
        if op.tries > 1 or op.timeout or op.probe:
            probe = partial(self._probe, op) if op.probe else None
            steps = steps.options(attempts=op.tries, timeout=op.timeout, probe=probe)
        version = self._run.attempt if op.fickle else 0
        undo = partial(self._undo, op) if op.undo else None
        try:
            found = steps.run(op.name, partial(self._act, op), op.name, version, undo=undo)
        except Unwind:
            if op is not CLEANUP:
                judge(self._world, self._refused, op.name)
            raise
        judge(self._world, self._world.ledger.told, self._key, self._run, op.name, version, found)
        return found

    def _refused(self, name: str) -> None:
        state = self._state
        if state.leaving and not (state.undoing or state.aborted or state.claim.lost):
            broken("branches go on", f"{name} was not started, because another branch waits")

    def _capture(self, op: Op) -> Any:
        found = self._steps.capture(op.name, lambda: next(self._world.numbers))
        return [op.name, found]

    def _sleep(self, op: Op) -> None:
        since = self._world.ledger.asleep(self._key, self._run, op.name)
        self._steps.sleep(op.name, op.seconds)
        judge(self._world, self._world.ledger.woken, op.name, since, op.seconds)

    def _wait(self, op: Op) -> Any:
        ledger = self._world.ledger
        name = SIGNAL + op.name
        ledger.waiting.setdefault((self._key.id, self._run.fence), {})[name] = None
        found = self._steps.wait(op.name, timeout=op.seconds or None)
        judge(self._world, ledger.answered_wait, self._key, self._run, name, found)
        if op.aborts and found == "no":
            self._abort(op)
        return found

    def _branches(self, op: Op) -> list[Any]:
        works: list[Any] = [partial(self._play, part) for part in op.branches]
        found = gathered(self._runtime, works, op.joins)
        errors = [end[1] for end in found if end is not None and end[1] is not None]
        if errors:
            raise errors[0]
        return [end[0] for end in found if end is not None]

    def _fail(self, op: Op) -> None:
        if self._run.attempt <= op.fails:
            raise BoomError("the function failed")

    def _abort(self, op: Op) -> None:
        self._world.ledger.aborted.add((self._key.id, self._run.fence))
        self._steps.abort("changed its mind")

    # -- what steps do --------------------------------------------------------------------------

    def _act(self, op: Op, name: str, version: int) -> list[Any]:
        return [name, version, self._work(op, name, op.seconds, op.fails, op.dies)]

    def _undo(self, op: Op, value: Any) -> None:
        self._work(op, f"undo:{op.name}", 0.01, op.undo_fails, op.undo_dies)

    def _work(self, op: Op, name: str, seconds: float, fails: int, dies: tuple[str, ...]) -> int:
        world, process, key, run = self._world, self._process, self._key, self._run
        ledger = world.ledger
        found: list[Any] = []
        judge(world, lambda: found.append(ledger.start(key, run, op, name, self._holds)))
        [execution] = found
        number: int = next(world.numbers)
        if world.say:
            world.say(f"▶  p{process.number} {name} starts ({number}), fence {run.fence}")
        try:
            end = dies[execution.number] if execution.number < len(dies) else ""
            if end == "before":
                self._die()
            try:
                self._runtime.wait(lambda resume: process.after(seconds, resume))
            except asyncio.CancelledError:
                world.seen["effect", "cancelled beside it"] += 1
                self._happened(execution, op, number % 2 == 0)
                raise
            execution.happened = True
            if end == "after":
                self._happened(execution, op, world.network.faulty)
                self._die()
            world.seen["effect", "undo" if name.startswith("undo:") else "step"] += 1
            if op.cancels and execution.number == 0:
                self._runtime.cancel_itself()
            if execution.number < fails:
                execution.end = "raised"
                raise BoomError(name)
            return number
        finally:
            ledger.stop(key, run, name)

    def _happened(self, execution: Execution, op: Op, is_cut: bool) -> None:
        """The effect is there, and nothing more of this step comes."""
        execution.happened = execution.happened or is_cut
        execution.died = is_cut and op.name not in self._unseen

    def _die(self) -> None:
        world, process = self._world, self._process
        if world.network.faulty:
            world.seen["effect", "died beside it"] += 1
            world.after(0.0, None, world.crash, process)
            ask(lambda resume: None)

    def _probe(self, op: Op, name: str, version: int) -> tuple[Any] | None:
        if self._world.ledger.asked(self._key, self._run, name) <= op.probe_fails:
            self._world.seen["probe", "raised"] += 1
            raise BoomError("the probe has no answer")
        found = self._world.ledger.probed(self._key, self._run, name)
        self._world.seen["probe", "happened" if found else "did not happen"] += 1
        return None if found is None else ([name, version, -found.fence],)


def _behind_caught(ops: tuple[Op, ...], behind: bool = False) -> Iterator[str]:
    """Names of steps behind one whose error the function catches: a replay ends at that step, and does not see
    them. Branches run side by side, so one that catches hides the steps of the others, too."""
    for op in ops:
        if behind:
            yield op.name
        catches = op.caught or any(map(_catches, op.branches))
        for branch in op.branches:
            yield from _behind_caught(branch, behind or catches)
        behind = behind or catches


def _catches(ops: tuple[Op, ...]) -> bool:
    return any(op.caught or any(map(_catches, op.branches)) for op in ops)


_ACTS = {
    "run": Function._step,
    "capture": Function._capture,
    "sleep": Function._sleep,
    "wait": Function._wait,
    "branches": Function._branches,
    "fail": Function._fail,
    "abort": Function._abort,
}
