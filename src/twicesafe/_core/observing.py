"""What an observed call reports, in one place: its start, its end, its waits.

Each is called only if `Call.observed`, so a receiver without observers pays nothing.
"""

from __future__ import annotations

from .. import events as ev
from .._values.codecs.origin import MARK, origin_of
from .._values.context import ActiveClaim
from .._values.records import Cause
from .call import Call
from .protocol import Claimed

__all__ = ["completed", "failed", "replayed", "started", "waited"]

_LEASE_EXPIRED = Cause.LEASE_EXPIRED


def started(call: Call, claim: ActiveClaim, took: float | None) -> None:
    """The claim was granted, and the handler's time counts from here. `took`: seconds of our own request for it."""
    if call.tracer is not None:
        claim.origin = call.tracer.origin()
    call.notify(ev.Started(call.key, claim.attempt, claim.cause, took))
    if claim.cause is _LEASE_EXPIRED:
        call.notify(ev.TakenOver(call.key, claim.attempt))
    claim.invoked = call.clock()


def completed(call: Call, claim: ActiveClaim, asked: bool = True) -> None:
    now, ended = call.clock(), claim.ended
    store = now - ended if asked else None
    call.notify(ev.Completed(call.key, now - claim.started, ended - claim.invoked, store))


def failed(call: Call, claim: ActiveClaim, error: str, remembered: bool) -> None:
    took = claim.ended - claim.invoked
    call.notify(ev.Failed(call.key, error, claim.attempt, remembered, took))


def replayed(
    call: Call, answer: Claimed, cached: bool = False, result: bytes | None = None
) -> None:
    """`result`: the recorded one as the codec gets it."""
    window = call.policy.retention_ms / 1000
    origin = origin_of(result) if result is not None and result[:1] == MARK else b""
    call.notify(ev.Replayed(call.key, answer.age / 1000, cached, window, origin, call.claimed_in))


def waited(call: Call, began: float) -> None:
    """The wait has ended: the call runs, has its answer, or is refused."""
    call.notify(ev.Waited(call.key, call.clock() - began))
