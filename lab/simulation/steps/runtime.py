"""The runtime of a simulated process: performs what flows ask for, in fibres.

A fibre is what a thread is to the blocking runtime: durable functions, their branches and their steps run
in it as they are, and wait in virtual time. The driver, the flows and `Steps` are the shipped ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from greenlet import getcurrent

from twicesafe._core.call import Call
from twicesafe._core.commands import (
    Detach,
    EndFlight,
    Invoke,
    JoinFlight,
    Raised,
    Reply,
    Sleep,
    Watch,
    Within,
)
from twicesafe._core.driving import drive
from twicesafe._core.durable.run import deliver_run
from twicesafe._core.durable.run_requests import FOREVER
from twicesafe._core.durable.run_state import RunState, StepCall
from twicesafe._core.durable.steps import take, take_fast, take_fast_async
from twicesafe._core.protocol import Abandon
from twicesafe._runtime.flow_run import CLAIMS, RECORDING, invoke
from twicesafe._values.context import ActiveClaim
from twicesafe.errors import LeaseLostError

from ..leases.network import unavailable
from ..plans import Fault
from ..transactions.fibers import Fiber, ask

if TYPE_CHECKING:
    from .process import Process

__all__ = ["Runtime", "gathered"]


class FlowRun:
    """One flow: what must be released however it ends."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.held: list[ActiveClaim] = []
        self.asked: Any = None
        """The claim that was requested and is not held."""
        self.cancelled: BaseException | None = None
        """A delayed cancellation: raised when the flow has ended."""

    def perform(self, command: Any) -> Any:
        return self._runtime._perform(command, self)

    claim = record = perform

    def invoke(self, claim: ActiveClaim, run: Callable[[], Any]) -> Any:
        return self.perform(Invoke(claim, run))


class _Awaiting:
    """The same for the async version: each call suspends the coroutine, and `_await` performs it."""

    def __init__(self, run: FlowRun) -> None:
        self._run = run

    async def perform(self, command: Any) -> Any:
        return await _Suspended(lambda: self._run.perform(command))

    claim = record = perform

    async def invoke(self, claim: ActiveClaim, run: Callable[[], Any]) -> Any:
        return await _Suspended(lambda: self._run.invoke(claim, run))


class _Suspended:
    """What a coroutine awaits: it is suspended with this work."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Callable[[], Any], Any, Any]:
        return (yield self._work)


def _await(coroutine: Coroutine[Any, Any, Reply]) -> Reply:
    """Called in a fibre: what an event loop does. What the awaited work returns or raises, a cancellation too,
    the coroutine gets where it is suspended."""
    resume: Callable[[], Any] = partial(coroutine.send, None)
    try:
        while True:
            work = resume()
            try:
                resume = partial(coroutine.send, work())
            except (Exception, asyncio.CancelledError) as error:
                resume = partial(coroutine.throw, error)
    except StopIteration as end:
        return cast("Reply", end.value)
    finally:
        coroutine.close()


class Runtime:
    """Of one delivery: its messages are counted together, whichever of its fibres sends them."""

    def __init__(self, process: Process, name: str, faults: tuple[Fault, ...]) -> None:
        self.process = process
        self.name = name
        self._faults = {fault.nth: fault for fault in faults}
        self._messages = 0
        self._caller: Fiber | None = None
        """The fibre of the call, which a cancellation stops. Branches are other ones."""
        self._records: FlowRun | None = None
        """The flow of that fibre which records now: it is not stopped before the answer."""
        self._pending: asyncio.CancelledError | None = None
        """The caller cancelled itself between two waits: it is stopped at the next one."""

    def run(self, work: Any) -> Any:
        """As the async runtime does."""
        flow = deliver_run(work) if isinstance(work, Call) else work
        return self._run(lambda run: drive(flow, run.perform))

    def take(self, state: RunState, call: StepCall) -> Reply:
        """A step, on the path that the plan names. Every second process takes the async version of the fast one."""
        if not self.process.world.plan.fast:
            return self.run(take(state, call))
        if self.process.number % 2:
            return self._run(lambda run: _await(take_fast_async(state, call, _Awaiting(run))))
        return self._run(lambda run: take_fast(state, call, run))

    def _run(self, work: Callable[[FlowRun], Any]) -> Any:
        if self._caller is None or self._caller.over:
            self._caller = getcurrent()
        run = FlowRun(self)
        try:
            found = work(run)
        except asyncio.CancelledError:
            if run.asked is not None:  # and never held
                back = Abandon(run.asked.key.id, run.asked.owner, FOREVER)
                self.process.after(0.0, self._send, back, lambda answers: None)
            raise
        finally:
            for claim in run.held:
                self.process.keeper.remove(claim)
        if run.cancelled is not None:
            raise run.cancelled
        return found

    def cancel(self) -> None:
        """The caller is cancelled, wherever it is."""
        caller, world = self._caller, self.process.world
        if caller is None or caller.over or not world.network.faulty:
            return
        world.seen["incident", "cancel"] += 1
        if world.say:
            world.say(f"!! {self.name} is cancelled")
        error = asyncio.CancelledError()
        if self._records is not None:
            self._records.cancelled = error
        else:
            caller.interrupt(error)

    def cancel_itself(self) -> None:
        """Called in a fibre: code of the caller cancels its own task, which stops where it next waits."""
        world = self.process.world
        if getcurrent() is self._caller and world.network.faulty:
            world.seen["incident", "cancels itself"] += 1
            if world.say:
                world.say(f"!! {self.name} cancels itself")
            self._pending = asyncio.CancelledError()

    def _perform(self, command: Any, run: FlowRun) -> Any:
        kind, process = type(command), self.process
        if kind is Sleep:
            return self.wait(
                lambda resume: process.after(command.seconds, resume), run if command.firm else None
            )
        if kind is Watch:
            return self.wait(
                lambda resume: process.after(min(command.seconds, command.poll), resume)
            )
        if kind is Invoke:
            return self._invoke(command, run)
        if kind is Detach:
            return self._detach(command)
        if kind in (JoinFlight, EndFlight):
            return None  # other callers of this process ask the store
        if kind in CLAIMS:
            run.asked = command
        records = kind is Within or kind in RECORDING
        return self._request(
            command.request if kind is Within else command, run if records else None
        )

    def wait(self, command: Any, records: FlowRun | None = None) -> Any:
        """Wait in this fibre; `records`: the flow that a cancellation does not stop meanwhile."""
        if getcurrent() is not self._caller:
            return ask(command)
        pending, self._pending = self._pending, None
        if records is None:
            if pending is not None:
                raise pending
            return ask(command)
        records.cancelled = pending or records.cancelled
        self._records = records
        try:
            return ask(command)
        finally:
            self._records = None

    def _send(self, request: Any, arrived: Callable[[Any], None]) -> None:
        fault = self._faults.get(self._messages)
        self._messages += 1
        carry = self.process.world.network.carry
        carry(self.process, self.name, [request], fault, arrived)  # type: ignore[arg-type]

    def _request(self, request: Any, records: FlowRun | None) -> Any:
        answers = self.wait(lambda resume: self._send(request, resume), records)
        if answers is None:
            raise unavailable()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _invoke(self, command: Invoke, run: FlowRun) -> Any:
        claim = command.claim
        assert claim is not None
        if not claim.pid:
            claim.pid = 1
            run.asked = None
            run.held.append(claim)
            self.process.keeper.add(claim)
        elif claim.lost:
            return Raised(LeaseLostError("the claim ended before its turn", key=claim.key))
        return invoke(claim, command.run)

    def _detach(self, command: Detach) -> Any:
        """The rest runs in its own fibre, which cannot be stopped."""
        rest = [lambda: self.run(command.flow)]
        [ended] = gathered(self, rest, joins=True, timeout=command.timeout)
        if ended is None:
            raise TimeoutError("it goes on in its thread")
        value, error = ended
        if error is not None:
            raise error
        return value


Ended = tuple[Any, BaseException | None]


def gathered(
    runtime: Runtime, works: list[Callable[[], Any]], joins: bool, timeout: float | None = None
) -> list[Ended | None]:
    """Called in a fibre: run each in a new one; the results and errors of those that ended in time.

    `joins`: wait for all of them, else only until the first error.
    """
    process = runtime.process
    ends: list[Ended | None] = [None] * len(works)
    waiting: list[Callable[..., None]] = []

    def branch(index: int) -> None:
        try:
            ends[index] = works[index](), None
        except BaseException as error:
            ends[index] = None, error

    def done(index: int) -> None:
        end = ends[index]
        failed = end is not None and end[1] is not None and not joins
        if waiting and (failed or all(each is not None for each in ends)):
            process.world.after(0.0, process, waiting.pop())

    def wait(resume: Callable[..., None]) -> None:
        waiting.append(resume)
        if timeout is not None:
            process.after(timeout, resume)
        for index in range(len(works)):
            fiber = Fiber(process.world, lambda i=index: branch(i), lambda _, i=index: done(i))  # type: ignore[misc]
            process.fibers.append(fiber)
            process.world.after(0.0, process, fiber.go)

    runtime.wait(wait)
    return ends
