"""How a manual claim ends without an answer: it is given back, or its key is held."""

from __future__ import annotations

from typing import Any

from .._values.context import ActiveClaim
from ..errors import LeaseLostError, StoreError, StoreUnavailableError
from ..events import Held, StoreFailed
from .call import Call, cause_of
from .commands import Flow, Sleep
from .outcome_recording import without_payload
from .protocol import Abandon, Ack, Fail

__all__ = ["give_back", "hold"]


def give_back(call: Call, claim: ActiveClaim, retention: int | None = None) -> Flow[None]:
    """`retention`: milliseconds for which the record is kept; None: as long as the policy says."""
    claim.over = True
    kept = call.policy.retention_ms if retention is None else retention
    yield from _ask_three_times(call, Abandon(claim.key.id, claim.owner, kept))
    claim.settled = True


def _ask_three_times(call: Call, ask: Abandon | Fail) -> Flow[Any]:
    """Ask the store up to three times, then notify observers of the outage and raise."""
    for pause in (0.05, 0.2, None):
        try:
            return (yield ask)
        except StoreUnavailableError as error:
            if pause is None:
                call.notify(StoreFailed(call.key, ask.op, cause_of(error)))
                raise
            yield Sleep(pause)
    return None


def hold(call: Call, claim: ActiveClaim, why: str) -> Flow[None]:
    policy = call.policy
    ask = Fail(claim.key.id, claim.owner, claim.fence, 0, policy.max_attempts, policy.retention_ms)
    ask.error, ask.hold = why, True
    claim.over = True
    try:
        ack = yield from _ask_three_times(call, ask)
    except StoreUnavailableError:
        raise
    except StoreError:
        # Again without its reason: holding the key matters more.
        ack = yield from _ask_three_times(call, without_payload(ask))
    claim.settled = True
    if ack is not Ack.OK:
        raise LeaseLostError("another worker took over before it could be held", key=claim.key)
    call.notify(Held(call.key, why))
