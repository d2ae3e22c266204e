"""The flow of one durable run: claim it with its recorded steps, run the function, settle.

    returned              complete
    raised                fail: released for the next attempt after a back-off, or parked
    suspended             no worker holds the run until it is due
    does not fit          the same, and never undone: the code changed, and the work did not fail
    final, with an undo   record the failure, undo in reverse (`compensation`), remember `CompensatedError`

The claim, the lease, the fence and the single flight are those of any delivery (`delivery`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ... import events as ev
from ..._values.context import ActiveClaim, active
from ..._values.outcomes import Outcome
from ...errors import (
    CorruptRecordError,
    HeldError,
    LeaseLostError,
    StepMismatchError,
)
from ..call import Call
from ..commands import Detach, Flow, Invoke, Raised, Reply, Returned, Sleep
from ..consuming.recovery import DeadLetter
from ..delivery import admit
from ..duplicates import outcome_of
from ..protocol import Claimed, ClaimRequest, Fail
from ..settling import settle
from .compensation import undo_all
from .run_requests import FOREVER, WITHOUT_LIMIT, FailRun, StartRun
from .run_state import RunState, Unwind, parts_of
from .run_suspension import is_unfinished, lost, suspend, wake_callers
from .transaction_step import look_up_commits

__all__ = ["RunCall", "deliver_run", "run_of"]

QUIET_POLL: Final = 0.02
"""Seconds between two looks at steps that still run in their threads when the function has ended."""

MISFITS: Final = (StepMismatchError, CorruptRecordError)
"""The code of this node does not fit what is recorded. Another deployment may finish the run."""


class RunCall:
    """What a `Call` of a durable function has besides."""

    __slots__ = (
        "arguments", "around", "completes", "function", "holds", "home", "invoke", "state", "tracer", "won",
    )  # fmt: skip

    def __init__(
        self,
        function: str,
        arguments: bytes,
        completes: bool,
        holds: bool,
        invoke: Callable[[RunState], Any],
        tracer: Any = None,
        home: int = 0,
        around: tuple[str, ...] = (),
    ) -> None:
        self.function, self.arguments, self.completes = function, arguments, completes
        self.holds, self.invoke, self.tracer = holds, invoke, tracer
        self.home = home
        """Which receiver's: runs of one home are in one store."""
        self.around = around
        """The `key_scope` of the first call, for the completer: keys that the function makes must be the same."""
        self.won: Claimed | None = None
        """The answer to the claim that this call won."""
        self.state: RunState | None = None

    def claim(self, ask: ClaimRequest) -> StartRun:
        """The same claim, of a run."""
        return StartRun(
            ask.key,
            ask.owner,
            ask.lease,
            ask.max_attempts,
            False,
            ask.fingerprint,
            function=self.function,
            arguments=self.arguments,
            completes=self.completes,
        )

    def failing(self, ask: Fail) -> FailRun:
        """An unfinished run is never swept, and the completer looks at it after its back-off."""
        state, attempts = self.state, ask.max_attempts
        hold = state is not None and state.held_by is not None
        if state is not None and state.is_cut:
            attempts = WITHOUT_LIMIT
        return FailRun(ask.id, ask.owner, ask.fence, ask.delay, attempts, FOREVER, ask.error, hold)


def run_of(call: Call) -> Callable[[], Any]:
    """The function to invoke: it makes the run's state from the claim that is active."""
    durable: RunCall = call.durable

    def run() -> Any:
        claim, won = active.get(), durable.won
        assert claim is not None
        assert won is not None
        state = durable.state = RunState(
            claim,
            call.policy,
            durable.holds,
            won.steps or (),
            won.now,
            call.notify,
            call.observed,
            durable.tracer,
        )
        if claim.attempt > call.policy.max_attempts:
            state.undoing = True  # its attempts are used up, and there is something to undo
        return durable.invoke(state)

    return run


def deliver_run(call: Call, flight: Any = None) -> Flow[Outcome[Any] | Raised]:
    """One delivery of a durable run; the function runs at most once."""
    admitted = yield from admit(call, flight)
    if type(admitted) is Claimed:
        return outcome_of(call, admitted)
    if call.policy.timeout is not None:
        return (yield Detach(_finish(call, admitted), call.policy.timeout, admitted))  # type: ignore[no-any-return]
    return (yield from _finish(call, admitted))


def _finish(call: Call, claim: ActiveClaim) -> Flow[Outcome[Any] | Raised]:
    reply: Reply = yield Invoke(claim, call.run, call.policy.timeout)
    state: RunState | None = call.durable.state
    if state is None:  # it was never called
        return (yield from settle(call, claim, reply))
    state.ended = True
    yield from _until_quiet(state)
    if claim.gone or _only_the_next_knows(state, reply):
        call.notify(ev.LeaseLost(call.key))
        if isinstance(reply, Raised) and isinstance(reply.error, LeaseLostError):
            return reply
        return Raised(lost(call))
    if state.committing and isinstance(reply, Raised):
        yield from look_up_commits(state)
    ended = yield from _settled(call, claim, state, reply)
    if not state.goes_on:
        yield from wake_callers(call, state)
    return ended


def _settled(
    call: Call, claim: ActiveClaim, state: RunState, reply: Reply
) -> Flow[Outcome[Any] | Raised]:
    if state.undoing:
        return (yield from undo_all(call, state, reply))
    parts = [] if isinstance(reply, Returned) else list(parts_of(reply.error))
    if state.held_by is not None and all(isinstance(part, Unwind) for part in parts):
        reply, parts = Raised(state.held_by), [state.held_by]  # the function caught it
    if state.aborted is not None and all(isinstance(part, Unwind) for part in parts):
        return (yield from undo_all(call, state, reply))
    inner = [part for part in parts if is_unfinished(part)]
    # A function that returned its answer does not wait for the branches that it left behind.
    sleeps = bool(state.suspends) and (state.leaving or bool(parts))
    if (inner or sleeps) and all(isinstance(part, Unwind) or is_unfinished(part) for part in parts):
        return (yield from suspend(call, state, inner))
    # Steps still run if the claim seems lost, and may be recorded.
    undoable = bool(state.undos or state.in_doubt or state.running or state.unregistered())
    is_final = isinstance(reply, Raised) and _is_final(call, claim, reply.error)
    if undoable and is_final and state.held_by is None:
        return (yield from undo_all(call, state, reply))
    state.goes_on = isinstance(reply, Raised) and not is_final
    state.is_cut = undoable and isinstance(reply, Raised) and not isinstance(reply.error, Exception)
    return (yield from settle(call, claim, reply))


def _until_quiet(state: RunState) -> Flow[None]:
    """Steps of other threads and tasks may still run: their results are recorded first."""
    while state.running and not state.claim.lost:
        yield Sleep(QUIET_POLL)


def _only_the_next_knows(state: RunState, reply: Reply) -> bool:
    """The claim seems lost, and steps still run: whether they are recorded, and must be undone, is not known here."""
    if not state.running or not isinstance(reply, Raised):
        return False
    return all(isinstance(part, (Exception, Unwind)) for part in parts_of(reply.error))


def _is_final(call: Call, claim: ActiveClaim, error: BaseException) -> bool:
    if isinstance(error, (HeldError, LeaseLostError)) or not isinstance(error, Exception):
        return False
    if any(isinstance(part, MISFITS) for part in parts_of(error)):
        return False
    if isinstance(error, DeadLetter):
        return True
    remembered = bool(call.policy.remember) and isinstance(error, call.policy.remember)
    return remembered or claim.attempt >= call.policy.max_attempts
