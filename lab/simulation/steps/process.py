"""A simulated process: its clock, its lease keeper, its fibres. It calls, submits and completes runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from twicesafe._core.call import Call
from twicesafe._core.commands import Raised
from twicesafe._core.durable.run import RunCall, run_of
from twicesafe._core.durable.run_operations import find_due
from twicesafe._core.durable.run_requests import DueRun, Submit
from twicesafe._core.durable.run_state import RunState
from twicesafe._values.keys import new_owner

from ..leases.process import SimulatedKeeper
from ..transactions.fibers import Fiber, judge
from ..virtual import Actor
from .functions import Function
from .plan import Start
from .policies import KEYS, LEASE, POLICIES
from .runtime import Runtime

if TYPE_CHECKING:
    from .world import World

__all__ = ["Process"]

NAMES = ("f0", "f1")
"""The names of the durable functions, by key."""


def _ignore(event: Any) -> None:
    """The events of simulated work have no observers."""


class Process(Actor):
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self._rate = world.plan.rates[number]
        self._since = 1000.0 * (number + 1)
        self.keeper = SimulatedKeeper(cast("Any", self))
        self.fibers: list[Fiber] = []

    def clock(self) -> float:
        return self._since + self.world.now * self._rate

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """In so many seconds of this process's own clock, if it lives."""
        self.world.after(seconds / self._rate, self, act, *args)

    def begin(self, start: Start) -> None:
        runtime = Runtime(self, f"p{self.number}.{start.at:.3f}", start.faults)
        for seconds in start.cancelled:
            self.after(seconds, runtime.cancel)
        if start.kind == "complete":
            self._spawn(partial(self._complete, runtime))
        elif start.kind == "submit":
            self._spawn(partial(self._submit, runtime, start.key))
        else:
            self._spawn(partial(self._deliver, runtime, start.key))

    def _spawn(self, work: Callable[[], None]) -> None:
        fiber = Fiber(cast("Any", self.world), work, lambda end: None)
        self.fibers.append(fiber)
        self.world.after(0.0, self, fiber.go)

    # -- in fibres ------------------------------------------------------------------------------

    def _call(self, runtime: Runtime, number: int) -> Call:
        script = self.world.plan.scripts[number]
        policy, holds = POLICIES[script.policy]
        key = KEYS[number]

        def invoke(state: RunState) -> Any:
            return Function(runtime, key, script, state)()

        call = Call(key, invoke, policy, Any, b"f" * 33, None, self.clock, _ignore, False)  # type: ignore[arg-type]
        call.durable = RunCall(NAMES[number], b"args", True, holds, invoke)
        call.run = run_of(call)
        return call

    def _deliver(self, runtime: Runtime, number: int) -> None:
        call = self._call(runtime, number)
        answer: Any
        try:
            answer = runtime.run(call)
        except (Exception, asyncio.CancelledError) as error:
            answer = error
        if isinstance(answer, Raised):
            answer = answer.error
        if self.world.say:
            self.world.say(f"◀  {runtime.name}: {str(answer)[:100]}")
        judge(cast("Any", self.world), self.world.ledger.answered, call.key, answer)

    def _submit(self, runtime: Runtime, number: int) -> None:
        policy = POLICIES[self.world.plan.scripts[number].policy][0]
        ask = Submit(
            KEYS[number], new_owner(), policy.lease_ms, policy.max_attempts, False, b"f" * 33,
            function=NAMES[number], arguments=b"args",
        )  # fmt: skip

        def flow() -> Any:
            return (yield ask)

        try:
            runtime.run(flow())
        except (Exception, asyncio.CancelledError) as error:  # its caller tries again, or gives up
            self.world.seen["answer", type(error).__name__] += 1

    def _complete(self, runtime: Runtime) -> None:
        names = NAMES[: len(self.world.plan.scripts)]
        try:
            due: list[DueRun] = runtime.run(find_due(10, round(LEASE * 1000), names))
        except (Exception, asyncio.CancelledError) as error:
            self.world.seen["answer", type(error).__name__] += 1
            return
        for run in due:
            self._spawn(partial(self._deliver, runtime, NAMES.index(run.function)))
