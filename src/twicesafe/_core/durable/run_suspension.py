"""Suspending a run: give it back until it is due. No worker, no lease and no thread waits for it."""

from __future__ import annotations

import contextlib
from typing import Final, TypeAlias, TypeGuard

from ... import events as ev
from ..._values.records import Row, State
from ..._values.steps import StepState
from ...errors import (
    LeaseLostError,
    StepMismatchError,
    StillInProgressError,
    StoreError,
    StoreUnavailableError,
    SuspendedError,
)
from ..call import Call, cause_of
from ..commands import Flow, Raised
from ..duplicates import suspended
from ..protocol import Ack, Read
from .run_requests import FOREVER, RecordStep, Signal, Suspend
from .run_state import INNER, OUTER, RunState
from .step_records import ask_while_claimed, record

__all__ = ["is_unfinished", "lost", "suspend", "wake_callers"]

INNER_POLL: Final = 30_000
"""Milliseconds after which a run that waits for a suspended inner run looks again, if it was not woken."""

BUSY_POLL: Final = 1_000
"""The same for an inner run that another worker runs now: that worker does not know who waits for it."""

Unfinished: TypeAlias = SuspendedError | StillInProgressError
"""The error of a call of another durable function that has not ended."""


def is_unfinished(error: BaseException) -> TypeGuard[Unfinished]:
    """The caller waits for that run. That is not a failure of the caller."""
    is_busy = isinstance(error, StillInProgressError) and error._run is not None
    return is_busy or isinstance(error, SuspendedError)


def suspend(call: Call, state: RunState, inner: list[Unfinished]) -> Flow[Raised]:
    """A run that called an unfinished one sleeps, too, until the `inner` one has ended."""
    state.goes_on = True
    now = state.store_now()
    dues = [due for due in state.suspends.values() if due is not None]
    answer = suspended(min(dues)) if dues else None
    for error in inner:
        dues.append(now + INNER_POLL)
        if isinstance(error, StillInProgressError):
            dues.append(now + max(BUSY_POLL, round(1000 * (error.retry_after or 0))))
        else:
            answer = answer or error
            if error.resume_at is not None:
                dues.append(round(error.resume_at.timestamp() * 1000))
        soon = yield from _ask_to_wake(call, state, error)
        if soon is not None:
            dues.append(now + soon)
    answer = answer or suspended(min(dues, default=None))
    delay = max(0, min(dues) - now) if dues else FOREVER
    return (yield from _give_back(call, state, delay, tuple(state.waits), answer))


def _ask_to_wake(call: Call, state: RunState, error: Unfinished) -> Flow[int | None]:
    """Ask the inner run to wake this one at its end. If it may not, the milliseconds until this one looks itself.

    Once per inner run: if it is suspended again after its end, because an operator restarted it,
    this one looks every `INNER_POLL`."""
    if error._run is None or error._run[0] != call.durable.home:
        return None
    id_, claim = error._run[1], state.claim
    name = INNER + id_.hex()
    known = state.recorded.get(name)
    if known is not None:
        if known.state is StepState.WAITING:
            state.waits[name] = None
        return None
    waits = RecordStep(claim.key.id, claim.owner, claim.fence, name, "wait", StepState.WAITING)
    try:
        yield from record(state, waits)  # first, so that this is asked only once
        kept = yield Signal(id_, OUTER + claim.key.id.hex(), b"", call.policy.retention_ms)
        state.waits[name] = None
        inner: Row | None = (yield Read(id_)) if kept else None
    except StepMismatchError:
        return 0  # its signal is here
    except (StoreError, LeaseLostError):
        return None
    if inner is not None and inner.state in (State.SUSPENDED, State.RELEASED):
        return None
    # Else it goes on already, or has ended: its worker may not know who waits.
    return BUSY_POLL if inner is not None and inner.state is State.IN_PROGRESS else 0


def wake_callers(call: Call, state: RunState) -> Flow[None]:
    """The run is over: runs that wait for it are due. Should this fail, they look by themselves."""
    for name in state.recorded:
        if name.startswith(OUTER):
            outer, said = bytes.fromhex(name.removeprefix(OUTER)), INNER + call.key.id.hex()
            with contextlib.suppress(StoreError):
                yield Signal(outer, said, b"", call.policy.retention_ms)


def _give_back(
    call: Call, state: RunState, delay: int, waits: tuple[str, ...], answer: SuspendedError
) -> Flow[Raised]:
    claim = state.claim
    claim.over = True  # tasks that the function left running must stop
    ask = Suspend(claim.key.id, claim.owner, claim.fence, delay, waits)
    try:
        ack = yield from ask_while_claimed(claim, ask)
    except StoreUnavailableError as error:
        call.notify(ev.StoreFailed(call.key, ask.op, cause_of(error)))
        raise error.about(call.key) from error.__cause__
    claim.settled = True
    if ack is not Ack.OK:
        claim.gone = True
        call.notify(ev.LeaseLost(call.key))
        return Raised(lost(call))
    answer._run = call.durable.home, call.key.id
    if call.observed:
        call.notify(ev.RunSuspended(call.key, None if delay >= FOREVER else delay / 1000))
    return Raised(answer.about(call.key))


def lost(call: Call) -> LeaseLostError:
    """This worker no longer owns the run."""
    return LeaseLostError(
        "another worker took the run over; what this one did since its last step was not recorded",
        key=call.key,
    )
