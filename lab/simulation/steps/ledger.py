"""The ledger: what may never happen, seen from the steps, their functions and their callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twicesafe import Key
from twicesafe._core.durable.run_state import FAILURE, UNDO, Unwind, parts_of
from twicesafe._core.durable.waits import TIMED_OUT
from twicesafe._core.lifecycle import is_expired
from twicesafe._values.codecs import DEFAULT_CODEC
from twicesafe._values.context import ActiveClaim
from twicesafe._values.outcomes import Outcome
from twicesafe._values.records import State

from .invariants import broken
from .monitor import is_done
from .plan import Op

if TYPE_CHECKING:
    from .world import World

__all__ = ["Execution", "Ledger"]


class Execution:
    """One start of one step, or of one undo."""

    __slots__ = ("died", "end", "fence", "happened", "marked", "number", "tick", "undo")

    def __init__(self, fence: int, number: int, tick: int, undo: bool, marked: bool) -> None:
        self.fence, self.marked = fence, marked
        self.undo = undo
        """There is an undo for it."""
        self.died = False
        """Its process died after the effect, and before the record."""
        self.tick = tick
        self.number = number
        """How often this step was started before, in this run."""
        self.happened = False
        self.end = "interrupted"


class Ledger:
    def __init__(self, world: World) -> None:
        self._world = world
        self._executions: dict[tuple[bytes, int, str], list[Execution]] = {}
        self._running: dict[tuple[bytes, int], set[str]] = {}
        """Steps that run now, by key and fence."""
        self.ended: set[tuple[bytes, int]] = set()
        """Functions that have ended, by key and fence."""
        self.aborted: set[tuple[bytes, int]] = set()
        """Functions that have aborted their run, by key and fence."""
        self.waiting: dict[tuple[bytes, int], dict[str, None]] = {}
        """What a function waits for, by key and fence."""
        self._asked: dict[tuple[bytes, int, str], int] = {}
        self._asleep: dict[tuple[bytes, int, str], float] = {}

    # -- steps ----------------------------------------------------------------------------------

    def start(self, key: Key, run: ActiveClaim, op: Op, name: str, holds: bool) -> Execution:
        """`name`: of the step, or of its undo."""
        world, id_ = self._world, key.id
        monitor, store = world.monitor, world.store
        generation = monitor.generation_of(id_, run.fence)
        steps, row = store._steps.get(id_, {}), store._rows.get(id_)
        same = monitor.generation.get(id_) == generation
        executions = self._executions.setdefault((id_, generation, name), [])
        undoes = name.startswith(UNDO)
        undo = op.undo and not undoes
        marked = op.probe or holds
        execution = Execution(run.fence, len(executions), next(world.ticks), undo, marked)
        known = steps.get(name)
        if (id_, run.fence) in self.ended and not undoes:
            broken("nothing starts after the end", f"{name} starts")
        if (id_, run.fence) in self.aborted and not undoes:
            broken("an abort stops the run", f"{name} starts")
        if same and is_done(known) and known is not None and known.fence <= run.fence:
            broken("recorded steps never run again", f"{name} starts")
        if any(one.fence == run.fence and one.end != "raised" for one in executions):
            broken("repeats have a cause", f"{name} starts twice in one attempt")
        live = (
            same
            and row is not None
            and row.fence == run.fence
            and not is_expired(row, world.store_now())
        )
        if live and undoes:
            self._look_at_undo(id_, run, name, generation)
        elif live and is_done(steps.get(FAILURE)):
            broken("undoing is alone", f"{name} starts, and the failure is recorded")
        if holds and not undoes:
            free = monitor.released.get(id_, 0)
            for one in executions:
                doubtful = one.happened if op.probe else True
                if (
                    one.end == "interrupted"
                    and doubtful
                    and one.fence < run.fence
                    and one.fence >= free
                ):
                    broken("held steps are not repeated", f"{name} starts again")
        if executions:
            world.seen["repeat", executions[-1].end] += 1
        executions.append(execution)
        if not undoes:
            self._running.setdefault((id_, run.fence), set()).add(name)
        return execution

    def _look_at_undo(self, id_: bytes, run: ActiveClaim, name: str, generation: int) -> None:
        steps, undone = self._world.store._steps.get(id_, {}), name.removeprefix(UNDO)
        step = steps.get(undone)
        if not is_done(steps.get(FAILURE)):
            broken("undoing is alone", f"{name} starts, and the failure is not recorded")
        beside = self._running.get((id_, run.fence))
        if beside:
            broken("undoing is alone", f"{name} starts beside {min(beside)}")
        if step is None or not is_done(step):
            broken("undoing goes backwards", f"{name} starts, and there is nothing to undo")
            return
        recorded = self._world.monitor.recorded_at[id_, undone]
        for other, each in steps.items():
            if each.undo and is_done(each) and not is_done(steps.get(UNDO + other)):
                started = self._executions[id_, generation, other][-1].tick
                if started > recorded:  # not beside this one, but after it
                    broken("undoing goes backwards", f"{name} starts before the undo of {other}")

    def stop(self, key: Key, run: ActiveClaim, name: str) -> None:
        """The step ended in whatever way, in a process that lives."""
        self._running.get((key.id, run.fence), set()).discard(name)

    def asked(self, key: Key, run: ActiveClaim, name: str) -> int:
        """How often its probe was asked, with this time."""
        step = key.id, self._world.monitor.generation_of(key.id, run.fence), name
        self._asked[step] = self._asked.get(step, 0) + 1
        return self._asked[step]

    def probed(self, key: Key, run: ActiveClaim, name: str) -> Execution | None:
        """The truth, for a probe: an execution whose effect happened."""
        generation = self._world.monitor.generation_of(key.id, run.fence)
        found = self._executions.get((key.id, generation, name), [])
        return next((one for one in found if one.happened and one.end == "interrupted"), None)

    def compensated(self, id_: bytes, generation: int, crashed: bool) -> None:
        """The run is recorded as undone; `crashed`: its attempts were used up by crashes. Else only a step
        that is marked at its start is known to be in doubt."""
        steps = self._world.store._steps.get(id_, {})
        for (of, when, name), executions in self._executions.items():
            last = executions[-1]
            known = last.died and (crashed or last.marked)
            left = last.undo and known and not is_done(steps.get(name))
            if (of, when) == (id_, generation) and left and UNDO + name not in steps:
                broken("nothing is left in doubt", f"the worker died in {name}")

    # -- replies --------------------------------------------------------------------------------

    def _step(self, key: Key, run: ActiveClaim, name: str) -> Any:
        monitor, id_ = self._world.monitor, key.id
        generation = monitor.generation_of(id_, run.fence)
        if monitor.generation.get(id_) != generation or not monitor.is_of(id_, name, generation):
            return None
        step = self._world.store._steps.get(id_, {}).get(name)
        return step if is_done(step) else None

    def told(self, key: Key, run: ActiveClaim, name: str, version: int, value: Any) -> None:
        """A step returned this value to its function."""
        if value[:2] != [name, version]:
            broken("replies are recorded", f"{name} ({version}) returned {value}")
        step = self._step(key, run, name)
        if step is not None and step.result is not None and step.fence <= run.fence:
            recorded = DEFAULT_CODEC.decode(step.result, Any)
            if recorded != value:
                broken("replies are recorded", f"{name} returned {value}, and has {recorded}")

    def asleep(self, key: Key, run: ActiveClaim, name: str) -> float:
        """When this sleep was first called, in virtual time."""
        generation = self._world.monitor.generation_of(key.id, run.fence)
        return self._asleep.setdefault((key.id, generation, name), self._world.now)

    def woken(self, name: str, since: float, seconds: float) -> None:
        """A sleep is over. The clocks of processes are wrong by 2 %."""
        if self._world.now < since + seconds * 0.97 - 0.002:
            broken("sleeps last", f"{name} was shorter than {seconds:g} s")

    def answered_wait(self, key: Key, run: ActiveClaim, name: str, value: Any) -> None:
        self.waiting.get((key.id, run.fence), {}).pop(name, None)
        step = self._step(key, run, name)
        if step is None:
            return
        recorded = None if step.result == TIMED_OUT else DEFAULT_CODEC.decode(step.result, Any)
        if recorded != value:
            broken("replies are recorded", f"{name} returned {value}, and has {recorded}")
        self._world.seen["wait", "timed out" if value is None else "signalled"] += 1

    # -- answers --------------------------------------------------------------------------------

    def answered(self, key: Key, answer: Outcome[Any] | BaseException) -> None:
        """A caller, or the completer, got this."""
        world = self._world
        if isinstance(answer, BaseException):
            world.seen["answer", type(answer).__name__] += 1
            if any(isinstance(part, Unwind) for part in parts_of(answer)):
                broken("unwinding stays inside", f"{answer!r}")
            if type(answer).__name__ == "CompensatedError" and not any(
                b"CompensatedError" in (each or b"")
                for each in world.monitor.results.get(key.id, ())
            ):
                broken("replies are recorded", "compensated, and that was never recorded")
            return
        world.seen["answer", "replayed" if answer.replayed else "completed"] += 1
        recorded = [
            DEFAULT_CODEC.decode(each, Any)
            for each in world.monitor.results.get(key.id, ())
            if each is not None and b"CompensatedError" not in each
        ]
        if answer.value not in recorded:
            broken("replies are recorded", f"{answer.value} was never recorded")

    # -- the end --------------------------------------------------------------------------------

    def is_at_its_end(self, key: Key, now: int) -> str | None:
        """None: it is. Else why not."""
        store = self._world.store
        row = store._rows.get(key.id)
        if row is None or is_expired(row, now):
            return None
        if row.state in (State.IN_PROGRESS, State.RELEASED):
            return f"it is {row.state}"
        if row.state is not State.SUSPENDED:
            return None
        steps = store._steps.get(key.id, {}).values()
        waits = [step for step in steps if step.kind == "wait" and not is_done(step)]
        if row.lease_until < now + 3_600_000:
            return "it sleeps"
        return None if any(not step.due_at for step in waits) else "it waits for nothing"
