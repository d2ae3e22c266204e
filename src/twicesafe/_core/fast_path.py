"""The fast path: the usual delivery as plain calls, without a generator.

    admit_fast      claim → won | replayed
    settle_fast     the handler returned → complete → the outcome
    deliver_fast    the two, with the handler between them

It makes the decisions of `delivery` and `settling`, in their order, with their functions. Where
anything else happens, it continues in the flow at that point: the store does not answer, another
worker has the key, the handler raises, the result is not recorded. A delivery that is unusual from
the start (it has a timeout, or may run without the store) is a flow from the start. Manual claims and HTTP
requests use the two halves.

The lab runs every schedule on both paths, compares what happened, and looks for its mutants on both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from .._values.context import ActiveClaim
from .._values.outcomes import Outcome
from ..errors import StoreUnavailableError
from .call import Call
from .commands import EndFlight, Flow, Raised, Reply, Returned
from .delivery import admit, admitted, claim_request, deliver
from .driving import drive, drive_async
from .duplicates import outcome_of
from .protocol import Ack, Claimed, ClaimRequest, Complete
from .settling import conclude, prepare, record_again, recorded_answer, settle

__all__ = [
    "AsyncPerformer",
    "Performer",
    "admit_fast",
    "admit_fast_async",
    "deliver_fast",
    "deliver_fast_async",
    "settle_fast",
    "settle_fast_async",
]

_OK = Ack.OK


class Performer(Protocol):
    """Performs every command of a flow. The three usual ones have a method each, which is faster."""

    def perform(self, command: Any, /) -> Any: ...
    def claim(self, ask: ClaimRequest, /) -> Any: ...
    def invoke(self, claim: ActiveClaim, run: Callable[[], Any], /) -> Reply: ...
    def record(self, ask: Complete, /) -> Any: ...


class AsyncPerformer(Protocol):
    """`Performer`, on an event loop."""

    def perform(self, command: Any, /) -> Any: ...
    def claim(self, ask: ClaimRequest, /) -> Awaitable[Any]: ...
    def invoke(self, claim: ActiveClaim, run: Callable[[], Any], /) -> Awaitable[Reply]: ...
    def record(self, ask: Complete, /) -> Awaitable[Any]: ...


def deliver_fast(call: Call, flight: Any, run: Performer) -> Outcome[Any] | Raised:
    """`drive(deliver(call, flight), run.perform)`, in less time."""
    if call.policy.timeout is not None or call.policy.outage_runs:
        return drive(deliver(call, flight), run.perform)
    claim = admit_fast(call, flight, run)
    if type(claim) is Claimed:
        return outcome_of(call, claim)
    reply = run.invoke(claim, call.run)
    if type(reply) is Raised:
        return drive(settle(call, claim, reply), run.perform)
    return settle_fast(call, claim, reply, run)


async def deliver_fast_async(call: Call, flight: Any, run: AsyncPerformer) -> Outcome[Any] | Raised:
    """The async version of `deliver_fast`."""
    if call.policy.timeout is not None or call.policy.outage_runs:
        return await drive_async(deliver(call, flight), run.perform)
    claim = await admit_fast_async(call, flight, run)
    if type(claim) is Claimed:
        return outcome_of(call, claim)
    reply = await run.invoke(claim, call.run)
    if type(reply) is Raised:
        return await drive_async(settle(call, claim, reply), run.perform)
    return await settle_fast_async(call, claim, reply, run)


def admit_fast(call: Call, flight: Any, run: Performer) -> ActiveClaim | Claimed:
    """`drive(admit(call, flight), run.perform)`, in less time."""
    if flight is not None:
        return drive(admit(call, flight), run.perform)  # type: ignore[no-any-return]
    ask, sent = claim_request(call, call.looked), call.clock()
    try:
        answer = run.claim(ask)
    except StoreUnavailableError as error:
        answer, claim = error, None
    else:
        claim = admitted(call, ask, sent, answer)
    if claim is None:
        return drive(admit(call, asked=(ask, sent, answer)), run.perform)  # type: ignore[no-any-return]
    if type(claim) is Claimed and call.flight.awaited:
        drive(_end_flight(claim), run.perform)
    return claim


def settle_fast(
    call: Call, claim: ActiveClaim, reply: Returned, run: Performer
) -> Outcome[Any] | Raised:
    """`drive(settle(call, claim, reply), run.perform)`, in less time."""
    done, problem = prepare(call, claim, reply)
    sent = call.clock()
    try:
        ack = run.record(done)
    except Exception as error:
        ack = error
    if ack is not _OK and isinstance(ack, Exception):
        again = record_again(call, claim, reply, done, problem, sent, ack)
        done, ack, problem = drive(again, run.perform)
    outcome = conclude(call, claim, reply, done, ack, problem)
    if ack is _OK and call.flight is not None and call.flight.awaited:
        drive(_end_flight(recorded_answer(call, claim, done, sent)), run.perform)
    return outcome


async def admit_fast_async(call: Call, flight: Any, run: AsyncPerformer) -> ActiveClaim | Claimed:
    """The async version of `admit_fast`."""
    if flight is not None:
        return await drive_async(admit(call, flight), run.perform)
    ask, sent = claim_request(call, call.looked), call.clock()
    try:
        answer = await run.claim(ask)
    except StoreUnavailableError as error:
        answer, claim = error, None
    else:
        claim = admitted(call, ask, sent, answer)
    if claim is None:
        return await drive_async(admit(call, asked=(ask, sent, answer)), run.perform)
    if type(claim) is Claimed and call.flight.awaited:
        await drive_async(_end_flight(claim), run.perform)
    return claim


async def settle_fast_async(
    call: Call, claim: ActiveClaim, reply: Returned, run: AsyncPerformer
) -> Outcome[Any] | Raised:
    """The async version of `settle_fast`."""
    done, problem = prepare(call, claim, reply)
    sent = call.clock()
    try:
        ack = await run.record(done)
    except Exception as error:
        ack = error
    if ack is not _OK and isinstance(ack, Exception):
        again = record_again(call, claim, reply, done, problem, sent, ack)
        done, ack, problem = await drive_async(again, run.perform)
    outcome = conclude(call, claim, reply, done, ack, problem)
    if ack is _OK and call.flight is not None and call.flight.awaited:
        await drive_async(_end_flight(recorded_answer(call, claim, done, sent)), run.perform)
    return outcome


def _end_flight(answer: Claimed) -> Flow[None]:
    yield EndFlight(answer)
