"""Suspending a run: give it back until it is due. No worker, no lease and no thread waits for it."""

from __future__ import annotations

from typing import Final

from ... import events as ev
from ...errors import LeaseLostError, StoreUnavailableError, SuspendedError
from ..call import Call, cause_of
from ..commands import Flow, Raised, Sleep
from ..duplicates import suspended
from ..protocol import Ack
from ..record_retry import pause_after
from .run_requests import FOREVER, Suspend
from .run_state import RunState

__all__ = ["lost", "suspend"]

INNER_POLL: Final = 30_000
"""Milliseconds after which a run that waits for a suspended inner run looks again."""


def suspend(call: Call, state: RunState, inner: list[SuspendedError]) -> Flow[Raised]:
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
        return Raised(lost(call))
    if call.observed:
        call.notify(ev.RunSuspended(call.key, None if delay >= FOREVER else delay / 1000))
    return Raised(answer.about(call.key))


def lost(call: Call) -> LeaseLostError:
    """This worker no longer owns the run."""
    return LeaseLostError(
        "another worker took the run over; what this one did since its last step was not recorded",
        key=call.key,
    )
