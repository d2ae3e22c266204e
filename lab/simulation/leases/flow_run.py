"""A flow run: one flow under way in a simulated process, performed as the two runtimes perform it.

The differences between the modes that matter here are kept: a thread cannot be stopped (its
time-out detaches it), a coroutine is cancelled where it stands; what decides may be cancelled and
is then given back by its owner, what records runs to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twicesafe._core.call import Call
from twicesafe._core.commands import (
    AwaitFlight,
    Detach,
    EndFlight,
    Invoke,
    JoinFlight,
    Launch,
    NotStarted,
    PerformMany,
    Raised,
    Reply,
    Sleep,
    Watch,
    Within,
)  # fmt: skip
from twicesafe._core.protocol import Abandon, ClaimRequest
from twicesafe._runtime.single_flight import Flight
from twicesafe._values.context import ActiveClaim
from twicesafe._values.keys import is_ahead
from twicesafe._values.records import Cause
from twicesafe.errors import LeaseLostError, StoreUnavailableError

from ..violations import Violation
from .invariants import broken
from .launching import Jobs
from .network import unavailable
from .running import Run

if TYPE_CHECKING:
    from ..plans import Fault
    from .process import Process

__all__ = ["FlowRun"]

WAIT = object()
"""The reply comes later."""

ABANDONED_KEPT = 60_000


class FlowRun:
    __slots__ = (
        "_below", "_flow", "_jobs", "_recording", "_run", "_turn", "_unanswered", "_waits", "alive",
        "asked", "cancelled", "claims", "concurrency", "faults", "flight", "messages", "name", "on_end", "process",
    )  # fmt: skip

    def __init__(self, process: Process, name: str, faults: dict[int, Fault]) -> None:
        self.process = process
        self.name = name
        self.faults = faults
        self.messages = 0
        self.concurrency = 1
        """Of a batch: how many of its handlers run at once."""
        self.alive = True
        self.claims: list[ActiveClaim] = []
        self.flight: Flight | None = None
        self.asked: list[ClaimRequest] = []
        self.cancelled: BaseException | None = None
        self.on_end: Callable[[FlowRun, Any], None] = lambda flow_run, answer: None
        self._flow: Any = None
        self._below: list[Any] = []
        self._turn = 0
        self._waits = ""
        self._run: Run | None = None
        self._jobs: Jobs | None = None
        self._recording: Any = None
        self._unanswered: ClaimRequest | None = None
        process.open[self] = None

    # -- the driver ---------------------------------------------------------------------------

    def start_flow(self, flow: Any) -> None:
        self._flow = flow
        self.go()

    def go(self, value: Any = None, error: BaseException | None = None) -> None:
        self._turn += 1
        self._waits = ""
        while True:
            try:
                command = self._flow.send(value) if error is None else self._flow.throw(error)
            except StopIteration as end:
                if not self._below:
                    self._finish(end.value)
                    return
                self._flow, value, error = self._below.pop(), end.value, None
                continue
            except Violation:
                raise
            except BaseException as problem:
                if not self._below or not isinstance(problem, Exception):
                    self._finish(Raised(problem))
                    return
                self._flow, error = self._below.pop(), problem
                continue
            error = None
            try:
                value = _ACTS.get(type(command), FlowRun._request)(self, command)
            except OverflowError as crowd:
                error = crowd
            if value is WAIT or not self.alive:
                return

    def _finish(self, answer: Any) -> None:
        self.end()
        if self.cancelled is not None:
            answer = Raised(self.cancelled)
        world = self.process.world
        if world.say:
            told = repr(answer.error) if isinstance(answer, Raised) else answer
            told = getattr(told, "value", told)
            world.say(f"◀  {self.name}: {str(told)[:90]}")
        self.on_end(self, answer)

    def end(self) -> None:
        self.alive = False
        self.process.open.pop(self, None)
        left = () if self._jobs is None or self.process.loop else self._jobs.claims()
        for claim in self.claims:
            if claim not in left:  # who still runs in its thread keeps its claim until it ends
                self.process.keeper.remove(claim)
        if self.flight is not None:
            flight, self.flight = self.flight, None
            self.process.flights.end(flight, None)

    def _later(self, waits: str) -> Callable[..., None]:
        """What resumes this flow, unless something else did in the meantime."""
        self._waits = waits
        return partial(self._resume, self._turn)

    def _resume(self, turn: int, value: Any = None, error: BaseException | None = None) -> None:
        if self.alive and self._turn == turn:
            self.go(value, error)

    # -- requests -----------------------------------------------------------------------------

    def _carry(self, asks: list[Any], arrived: Callable[[Any], None]) -> None:
        fault = self.faults.get(self.messages)
        self.messages += 1
        self.process.world.network.carry(self.process, self.name, asks, fault, arrived)

    def _request(self, ask: Any) -> Any:
        if type(ask) is ClaimRequest:
            unanswered = self._unanswered
            if unanswered is not None and unanswered.owner != ask.owner:
                broken(
                    "an unanswered claim is repeated unchanged",
                    "an unanswered claim was asked with another owner",
                )
            self._unanswered, self.asked = ask, [ask]
            resume = self._later("claim")
        else:
            self._recording = ask
            resume = self._later("record")
        self._carry([ask], partial(self._answered, resume))
        return WAIT

    def _answered(self, resume: Callable[..., None], answers: list[Any] | None) -> None:
        if answers is None:
            resume(None, unavailable())
        else:
            if self._waits == "claim":
                self._unanswered, self.asked = None, []
            if isinstance(answers[0], Exception):
                resume(None, answers[0])
            else:
                resume(answers[0])

    def _within(self, command: Within) -> Any:
        resume = self._later("within")
        self._carry([command.request], partial(self._answered, resume))
        if self.process.loop:
            self.process.after(command.seconds, resume, None)
        return WAIT

    def _perform_many(self, command: PerformMany) -> Any:
        asks = command.requests
        if asks and type(asks[0]) is ClaimRequest:
            self._look_at_claims(asks)
            again = any(asks[0] is one for one in self.asked)
            self.asked = self.asked if again else asks  # until they are held
            resume = self._later("claims")
        else:
            self._recording = command
            resume = self._later("record")

        def arrived(answers: list[Any] | None) -> None:
            resume([unavailable() for _ in asks] if answers is None else answers)

        self._carry(asks, arrived)
        return WAIT

    def _look_at_claims(self, asks: list[ClaimRequest]) -> None:
        counted = sum(not is_ahead(ask.owner) for ask in asks)
        if counted > self.concurrency:
            broken("attempts count starts", f"{counted} claims count, {self.concurrency} can start")
        if any(is_ahead(ask.owner) and (ask.hold or ask.max_attempts == 1) for ask in asks):
            broken("attempts count starts", "claimed ahead, and one start is all that is allowed")

    # -- waiting ------------------------------------------------------------------------------

    def _sleep(self, command: Sleep) -> Any:
        self.process.after(command.seconds, self._later("pause" if command.firm else "sleep"))
        return WAIT

    def _watch(self, command: Watch) -> Any:
        resume = self._later("watch")
        if self.flight is not None:
            self.process.flights.mark_delayed(self.flight)
        process = self.process
        world = process.world
        if not world.plan.wakes:
            process.after(command.poll, resume)
            return WAIT
        wake = partial(world.after, 0.001, process, resume)
        world.network.watchers.setdefault(command.id, []).append(wake)
        process.after(command.seconds, resume)
        return WAIT

    def _board(self, command: JoinFlight) -> Any:
        if self.cancelled is not None:
            self._finish(Raised(self.cancelled))
            return WAIT
        self._unanswered, self.asked = None, []  # another exchange begins
        if self.flight is not None:  # a batch goes on: its last exchange ended without an answer
            before, self.flight = self.flight, None
            self.process.flights.end(before, None)
        return self.join(command.call)

    def join(self, call: Call) -> Flight | None:
        mine = Flight(call.key.id, call.fingerprint)
        flight = self.process.flights.table.setdefault(mine.id, mine)
        self.flight = call.flight = mine if flight is mine else None
        return None if flight is mine else flight

    def _ride(self, command: AwaitFlight) -> Any:
        flight = command.flight
        resume = self._later("ride")
        process = self.process

        def wake() -> None:
            process.after(0.0, lambda: resume(flight.answer or True))

        flights = process.flights
        waits = (
            flights.ask(flight, wake) if command.asks else flights.wait(flight, wake, command.most)
        )
        if not waits:
            return flight.answer or True

        def leave() -> None:
            if self._waits == "ride":
                process.flights.leave(flight, wake)
                resume(None)

        process.after(command.seconds, partial(self._if_still, self._turn, leave))
        return WAIT

    def _if_still(self, turn: int, act: Callable[[], None]) -> None:
        if self.alive and self._turn == turn:
            act()

    def _land(self, command: EndFlight) -> None:
        if self.flight is not None:
            flight, self.flight = self.flight, None
            self.process.flights.end(flight, command.answer)

    # -- handlers -----------------------------------------------------------------------------

    def hold(self, claim: ActiveClaim) -> None:
        self.asked = []
        claim.pid = 1
        if self.flight is not None:
            self.process.flights.mark_started(self.flight)
        self.claims.append(claim)
        self.process.keeper.add(claim)

    def _invoke(self, command: Invoke) -> Any:
        resume = self._later("invoke")
        reply = self.start(command, resume)
        return WAIT if reply is None else reply

    def start(self, command: Invoke, done: Callable[[Reply], None]) -> Reply | None:
        claim = command.claim
        if claim is not None:
            if not claim.pid:
                self.hold(claim)
            elif claim.lost:
                return Raised(LeaseLostError("the claim ended before its turn", key=claim.key))
            self._look_at_start(claim)
        timeout = command.timeout if self.process.loop else None
        self._run = Run(command.run, claim, timeout, done)  # type: ignore[arg-type]
        return None

    def _look_at_start(self, claim: ActiveClaim) -> None:
        died = claim.cause is Cause.LEASE_EXPIRED
        if is_ahead(claim.owner) and (died or claim.attempt > 1):
            broken("attempts count starts", f"attempt {claim.attempt} starts, claimed ahead")
        beside = [] if self._jobs is None else self._jobs.claims()
        for one in (claim, *beside):
            if beside and one is not None and one.cause is Cause.LEASE_EXPIRED and one.attempt > 1:
                broken(
                    "suspects run alone", f"attempt {one.attempt} of {one.key} runs beside others"
                )

    def _detach(self, command: Detach) -> Any:
        if self.process.loop:  # a coroutine can be stopped: it goes on here
            self._below.append(self._flow)
            self._flow = command.flow
            return None
        resume = self._later("detached")
        rest = self.branch(command, lambda flow_run, answer: resume(*_as_reply(answer)))
        self.process.after(command.timeout, resume, None, TimeoutError("it goes on in its thread"))
        rest.go()
        return WAIT

    def branch(self, command: Detach, on_end: Callable[[FlowRun, Any], None]) -> FlowRun:
        """The rest of a flow on its own, which takes flight and claim with it."""
        rest = FlowRun(self.process, f"{self.name}/rest", {})
        rest._flow = command.flow
        rest.flight, self.flight = self.flight, None
        rest.faults = {nth - self.messages: fault for nth, fault in self.faults.items()}
        if command.claim in self.claims:
            self.claims.remove(command.claim)
            rest.claims.append(command.claim)
        rest.on_end = on_end
        return rest

    def _launch(self, command: Launch) -> Any:
        if command.jobs:
            if self.cancelled is not None:
                return [(index, NotStarted()) for index, _ in command.jobs]
            for _, job in command.jobs:
                if job.claim is not None:  # outage="run": without a claim
                    self.hold(job.claim)
            self._jobs = Jobs(self, command)
        assert self._jobs is not None
        stop = command.stop or self.cancelled is not None
        self._jobs.ask(stop, self._later("launch"))
        return WAIT

    # -- cancellation -------------------------------------------------------------------------

    def cancel(self) -> None:
        """The caller is cancelled, or interrupted, wherever this flow stands."""
        if not self.alive:
            return
        world = self.process.world
        world.seen["incident", "cancel"] += 1
        if world.say:
            world.say(f"!! {self.name} is cancelled while: {self._waits}")
        error = asyncio.CancelledError() if self.process.loop else KeyboardInterrupt()
        if self._waits == "invoke" and self._run is not None:
            self._run.stop(error)
        elif self.process.loop and self._waits in ("launch", "record", "pause", "within"):
            self._put_off(error)
        elif self._waits in ("launch", "record", "pause") and self.cancelled is None:
            self._put_off(error)
            if self._waits == "record":  # said again, in the same words
                self._turn += 1
                _ACTS.get(type(self._recording), FlowRun._request)(self, self._recording)
            elif self._waits == "pause":
                self.go()
        else:
            if self.asked:  # and never held: given back by their owners
                back = [Abandon(ask.key.id, ask.owner, ABANDONED_KEPT) for ask in self.asked]
                self._carry(back, lambda answers: None)
            self._finish(Raised(error))

    def _put_off(self, error: BaseException) -> None:
        """It is delivered when the flow has ended; until then, nothing more is started."""
        self.cancelled = error
        if self._waits == "launch" and self._jobs is not None:
            self._jobs.stop()


def _as_reply(answer: Any) -> tuple[Any, BaseException | None]:
    """How the end of a branch looks from where it branched off: raised errors are raised there."""
    if isinstance(answer, Raised) and isinstance(
        answer.error, (LeaseLostError, StoreUnavailableError)
    ):
        return None, answer.error
    return answer, None


_ACTS: dict[type, Callable[[FlowRun, Any], Any]] = {
    JoinFlight: FlowRun._board,
    AwaitFlight: FlowRun._ride,
    EndFlight: FlowRun._land,
    Invoke: FlowRun._invoke,
    Detach: FlowRun._detach,
    Launch: FlowRun._launch,
    Watch: FlowRun._watch,
    Sleep: FlowRun._sleep,
    Within: FlowRun._within,
    PerformMany: FlowRun._perform_many,
}
