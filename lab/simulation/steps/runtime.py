"""The runtime of a simulated process: performs what flows ask for, in fibres.

A fibre is what a thread is to the blocking runtime: durable functions, their branches and their steps run
in it as they are, and wait in virtual time. The driver, the flows and `Steps` are the shipped ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twicesafe._core.call import Call
from twicesafe._core.commands import (
    Detach,
    EndFlight,
    Invoke,
    JoinFlight,
    Raised,
    Sleep,
    Watch,
    Within,
)
from twicesafe._core.driving import drive
from twicesafe._core.durable.run import deliver_run
from twicesafe._runtime.flow_run import invoke
from twicesafe._values.context import ActiveClaim
from twicesafe.errors import LeaseLostError

from ..leases.network import unavailable
from ..plans import Fault
from ..transactions.fibers import Fiber, ask

if TYPE_CHECKING:
    from .process import Process

__all__ = ["Runtime", "gathered"]


class Runtime:
    """Of one delivery: its messages are counted together, whichever of its fibres sends them."""

    def __init__(self, process: Process, name: str, faults: tuple[Fault, ...]) -> None:
        self.process = process
        self.name = name
        self._faults = {fault.nth: fault for fault in faults}
        self._messages = 0

    def run(self, work: Any) -> Any:
        """As the blocking runtime does."""
        held: list[ActiveClaim] = []
        flow = deliver_run(work) if isinstance(work, Call) else work
        try:
            return drive(flow, lambda command: self._perform(command, held))
        finally:
            for claim in held:
                self.process.keeper.remove(claim)

    def _perform(self, command: Any, held: list[ActiveClaim]) -> Any:
        kind, process = type(command), self.process
        if kind is Sleep:
            return ask(lambda resume: process.after(command.seconds, resume))
        if kind is Watch:
            return ask(lambda resume: process.after(min(command.seconds, command.poll), resume))
        if kind is Invoke:
            return self._invoke(command, held)
        if kind is Detach:
            return self._detach(command)
        if kind in (JoinFlight, EndFlight):
            return None  # other callers of this process ask the store
        return self._request(command.request if kind is Within else command)

    def _request(self, request: Any) -> Any:
        fault = self._faults.get(self._messages)
        self._messages += 1
        process = self.process
        carry = process.world.network.carry
        answers = ask(lambda resume: carry(process, self.name, [request], fault, resume))  # type: ignore[arg-type]
        if answers is None:
            raise unavailable()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _invoke(self, command: Invoke, held: list[ActiveClaim]) -> Any:
        claim = command.claim
        assert claim is not None
        if not claim.pid:
            claim.pid = 1
            held.append(claim)
            self.process.keeper.add(claim)
        elif claim.lost:
            return Raised(LeaseLostError("the claim ended before its turn", key=claim.key))
        return invoke(claim, command.run)

    def _detach(self, command: Detach) -> Any:
        """The rest runs in its own fibre, which cannot be stopped."""
        rest = [lambda: self.run(command.flow)]
        [ended] = gathered(self.process, rest, joins=True, timeout=command.timeout)
        if ended is None:
            raise TimeoutError("it goes on in its thread")
        value, error = ended
        if error is not None:
            raise error
        return value


Ended = tuple[Any, BaseException | None]


def gathered(
    process: Process, works: list[Callable[[], Any]], joins: bool, timeout: float | None = None
) -> list[Ended | None]:
    """Called in a fibre: run each in a new one; the results and errors of those that ended in time.

    `joins`: wait for all of them, else only until the first error.
    """
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

    ask(wait)
    return ends
