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

from .. import events as ev
from .._values.context import ActiveClaim, active
from .._values.outcomes import Outcome
from ..errors import (
    CorruptRecordError,
    HeldError,
    LeaseLostError,
    StepMismatchError,
    StoreUnavailableError,
    SuspendedError,
)
from .call import Call, cause_of
from .commands import Detach, Flow, Invoke, Raised, Reply, Returned, Sleep
from .compensation import undo_all
from .delivery import admit
from .duplicates import outcome_of, suspended
from .protocol import Ack, Claimed, ClaimRequest, Fail
from .record_retry import pause_after
from .run_requests import FOREVER, FailRun, StartRun, Suspend
from .run_state import RunState, Unwind, parts_of
from .settling import settle

__all__ = ["RunCall", "deliver_run", "run_of"]

QUIET_POLL: Final = 0.02
"""Seconds between two looks at steps that still run in their threads when the function has ended."""

MISFITS: Final = (StepMismatchError, CorruptRecordError)
"""The code of this node does not fit what is recorded. Another deployment may finish the run."""

INNER_POLL: Final = 30_000
"""Milliseconds after which a run that waits for a suspended inner run looks again."""


class RunCall:
    """What a `Call` of a durable function has besides."""

    __slots__ = ("arguments", "completes", "function", "holds", "invoke", "state", "tracer", "won")

    def __init__(
        self,
        function: str,
        arguments: bytes,
        completes: bool,
        holds: bool,
        invoke: Callable[[RunState], Any],
        tracer: Any = None,
    ) -> None:
        self.function, self.arguments, self.completes = function, arguments, completes
        self.holds, self.invoke, self.tracer = holds, invoke, tracer
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
        hold = self.state is not None and self.state.held
        return FailRun(
            ask.id, ask.owner, ask.fence, ask.delay, ask.max_attempts, FOREVER, ask.error, hold
        )


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
    if claim.gone:
        call.notify(ev.LeaseLost(call.key))
        return Raised(_lost(call, reply))
    if state.undoing:
        return (yield from undo_all(call, state, reply))
    parts = [] if isinstance(reply, Returned) else list(parts_of(reply.error))
    if state.aborted is not None and all(isinstance(part, Unwind) for part in parts):
        return (yield from undo_all(call, state, reply))
    inner = [part for part in parts if isinstance(part, SuspendedError)]
    if (inner or state.suspends) and all(
        isinstance(part, (Unwind, SuspendedError)) for part in parts
    ):
        return (yield from _suspend(call, state, inner))
    undoable = bool(state.undos) or bool(state.unregistered())
    is_final = isinstance(reply, Raised) and _is_final(call, claim, reply.error)
    if undoable and is_final and not state.held:
        return (yield from undo_all(call, state, reply))
    return (yield from settle(call, claim, reply))


def _until_quiet(state: RunState) -> Flow[None]:
    """Steps of other threads and tasks may still run: their results are recorded first."""
    while state.running and not state.claim.lost:
        yield Sleep(QUIET_POLL)


def _is_final(call: Call, claim: ActiveClaim, error: BaseException) -> bool:
    if isinstance(error, (HeldError, LeaseLostError)) or not isinstance(error, Exception):
        return False
    if any(isinstance(part, MISFITS) for part in parts_of(error)):
        return False
    remembered = bool(call.policy.remember) and isinstance(error, call.policy.remember)
    return remembered or claim.attempt >= call.policy.max_attempts


def _lost(call: Call, reply: Reply) -> BaseException:
    if isinstance(reply, Raised) and isinstance(reply.error, LeaseLostError):
        return reply.error
    return LeaseLostError(
        "another worker took the run over; what this one did since its last step was not recorded",
        key=call.key,
    )


# --- suspending ------------------------------------------------------------------------------


def _suspend(call: Call, state: RunState, inner: list[SuspendedError]) -> Flow[Raised]:
    """A run that called a suspended one sleeps, too. A signal may wake the `inner` one earlier."""
    now = state.store_now()
    dues = [due for due in state.suspends.values() if due is not None]
    answer = inner[0] if inner and not dues else suspended(min(dues, default=None))
    for error in inner:
        dues.append(now + INNER_POLL)
        if error.resume_at is not None:
            dues.append(round(error.resume_at.timestamp() * 1000))
    delay = max(0, min(dues) - now) if dues else FOREVER
    return (yield from _give_back(call, state, delay, tuple(state.waits), answer))


def _give_back(
    call: Call, state: RunState, delay: int, waits: tuple[str, ...], answer: SuspendedError
) -> Flow[Raised]:
    claim, tries = state.claim, 0
    claim.over = True  # tasks that the function left running must stop
    ask = Suspend(claim.key.id, claim.owner, claim.fence, delay, waits)
    ack: Ack | None = None
    while ack is None:
        try:
            ack = yield ask
        except StoreUnavailableError as error:
            pause = pause_after(tries)
            if claim.gone or claim.clock() + pause >= claim.expires:
                call.notify(ev.StoreFailed(call.key, ask.op, cause_of(error)))
                raise error.about(call.key) from error.__cause__
            tries += 1
            yield Sleep(pause, firm=True)
    claim.settled = True
    if ack is not Ack.OK:
        claim.gone = True
        call.notify(ev.LeaseLost(call.key))
        return Raised(_lost(call, Returned(None)))
    if call.observed:
        call.notify(ev.RunSuspended(call.key, None if delay >= FOREVER else delay / 1000))
    return Raised(answer.about(call.key))
