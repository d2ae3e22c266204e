"""The delivery flow: one delivery, from its claim to its answer.

    admit     claim → replay | refuse | wait | win
    finish    invoke the handler, then settle (`settling`)

The blocking and the async runtime run the same generators. They implement the protocol rules P2,
P7, P9, P10 and P11; stores implement the others.

The usual delivery takes the fast path, `deliver_fast`: plain calls instead of a generator. They
call the functions of the flow in the same order, so the decisions are the same. If anything unusual
happens, the delivery continues in the flow at that point: the store does not answer, another worker
has the key, the handler raises, or the result is not recorded. A delivery that is unusual from the
start (it has a timeout, or may run without the store) is a flow from the start. Manual claims and
HTTP requests use the two halves, `admit_fast` and `settle_fast`. The lab runs every schedule on
both paths, compares what happened, and looks for its mutants on both.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias

from .. import events as ev
from .._values.context import ActiveClaim
from .._values.keys import chance, new_owner, new_owner_ahead
from .._values.outcomes import Outcome
from .._values.records import State
from ..errors import StoreError, StoreUnavailableError, TwicesafeError
from .call import Call, cause_of
from .commands import (
    AsyncPerformer,
    AwaitFlight,
    Detach,
    EndFlight,
    Flow,
    Invoke,
    JoinFlight,
    Performer,
    Raised,
    Reply,
    Sleep,
    Watch,
)
from .driving import drive, drive_async
from .duplicates import (
    outcome_of,
    refusal,
    refuse_busy,
    refuse_mismatch,
    refuse_own_wait,
    refuse_suspended,
    refuse_waiter,
)
from .durable.run_requests import FOREVER
from .observing import started, waited
from .protocol import Abandon, Claimed, ClaimRequest, Verdict
from .settling import end_flight, settle, settle_fast, settle_fast_async

__all__ = [
    "Asked",
    "admit",
    "admit_fast",
    "admit_fast_async",
    "admitted",
    "ask_again",
    "claim_request",
    "deliver",
    "deliver_fast",
    "deliver_fast_async",
    "finish",
    "granted",
    "unprotected",
    "without_claim",
]

Asked: TypeAlias = tuple[ClaimRequest, float, Claimed | StoreUnavailableError]
"""A claim that was requested, when, and the answer or the error."""

_WON, _REPLAY, _BUSY, _RESTING = Verdict.WON, Verdict.REPLAY, Verdict.BUSY, Verdict.RESTING

LONGEST_WATCH = 2.0
"""Seconds after which a waiter asks the store itself, in case its wake-up was lost."""

CLAIM_RETRIES = 3.0
"""Seconds for which an unanswered claim is retried, with the same owner."""


def deliver(
    call: Call, flight: Any = None, began: float | None = None, asked: Asked | None = None
) -> Flow[Outcome[Any] | Raised]:
    """One delivery; runs the handler at most once.

    `flight`: another caller in this process already works on the key; None: this call leads.
    `asked`: its first claim is already answered. The handler's own exception is returned, for the
    caller to raise: inside a generator a `StopIteration` would change its meaning.
    """
    try:
        found = yield from admit(call, flight, began, asked)
    except StoreUnavailableError:
        if not call.policy.outage_runs:
            raise
        call.notify(ev.Unprotected(call.key))
        if call.policy.timeout is not None:
            return (yield Detach(unprotected(call), call.policy.timeout, None))  # type: ignore[no-any-return]
        return (yield from unprotected(call))
    if type(found) is Claimed:
        return outcome_of(call, found)
    if call.policy.timeout is not None:
        return (yield Detach(finish(call, found), call.policy.timeout, found))  # type: ignore[no-any-return]
    reply: Reply = yield Invoke(found, call.run)
    return (yield from settle(call, found, reply))


def finish(call: Call, claim: ActiveClaim) -> Flow[Outcome[Any] | Raised]:
    """Run the handler, then record. A detached thread does this part alone."""
    reply: Reply = yield Invoke(claim, call.run, call.policy.timeout)
    return (yield from settle(call, claim, reply))


def unprotected(call: Call) -> Flow[Outcome[Any] | Raised]:
    """Run the handler without a claim, as `outage="run"` says."""
    return without_claim(call, (yield Invoke(None, call.run, call.policy.timeout)))


def without_claim(call: Call, reply: Reply) -> Outcome[Any] | Raised:
    """The answer of a handler that ran without a claim."""
    if isinstance(reply, Raised):
        return reply
    return Outcome(reply.value, False, 0, call.key, 0)


def deliver_fast(call: Call, flight: Any, run: Performer) -> Outcome[Any] | Raised:
    """The fast path: `drive(deliver(call, flight), run.perform)`, in less time."""
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


# --- admit: who runs? ------------------------------------------------------------------------


def admit(
    call: Call, flight: Any = None, began: float | None = None, asked: Asked | None = None
) -> Flow[Any]:
    """An `ActiveClaim` to run under, or the `Claimed` answer to replay; refusals are raised.

    `began`: when it started to wait, if it did. Observers are notified of an outage here, once, for
    every kind of delivery: a call, a manual claim, an HTTP request.
    """
    clock = call.clock
    turn = 0  # more than 0: it has waited
    try:
        if flight is not None:
            began = clock() if began is None else began
            found = yield from _follow(call, flight, began)
            if type(found) is Claimed:
                return found
            turn = int(found)
        while True:
            answer: Claimed | StoreUnavailableError
            if asked is None:
                ask = claim_request(call, call.looked and turn == 0)
                if call.durable is not None:
                    ask = call.durable.claim(ask)
                sent = clock()
                try:
                    answer = yield ask
                except StoreUnavailableError as error:
                    answer = error
            else:
                (ask, sent, answer), asked = asked, None
            if isinstance(answer, StoreUnavailableError):
                answer = yield from ask_again(call, ask, sent, answer)
            verdict = answer.verdict
            if turn and call.observed and verdict is not _BUSY and verdict is not _RESTING:
                waited(call, sent if began is None else began)
            if call.durable is not None:
                call.durable.won = answer
            decided = admitted(call, ask, sent, answer)
            if decided is not None:
                if decided is answer and call.flight is not None and call.flight.awaited:
                    yield EndFlight(answer)
                return decided
            if verdict is _WON:
                took = clock() - sent
                yield _abandon(call, ask)
                raise _late(call, took)
            if verdict is not _BUSY and verdict is not _RESTING:
                refusal(call, answer)
            # Another worker holds the key, or it backs off after a failure: wait, then ask again.
            began = sent if began is None else began
            yield from _pause_before(call, answer, began, turn, ask.owner)
            turn += 1
    except StoreUnavailableError as error:
        call.notify(ev.StoreFailed(call.key, "claim", cause_of(error)))
        raise


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
        drive(end_flight(claim), run.perform)
    return claim


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
        await drive_async(end_flight(claim), run.perform)
    return claim


def claim_request(call: Call, looked: bool = False, ahead: bool = False) -> ClaimRequest:
    """`looked`: the store has just said that the key is new. `ahead`: the handler may start later, so the
    attempt is not counted if the claim is lost."""
    policy = call.policy
    return ClaimRequest(
        call.key,
        new_owner_ahead() if ahead else new_owner(),
        policy.lease_ms,
        policy.max_attempts,
        policy.hold,
        call.fingerprint,
        looked,
    )


def admitted(
    call: Call, ask: ClaimRequest, sent: float, answer: Claimed
) -> ActiveClaim | Claimed | None:
    """A claim to run under, or the answer to replay. None: neither."""
    took = call.clock() - sent
    if answer.verdict is _WON:
        return granted(call, ask, answer, sent, took) if took < call.policy.usable else None
    if answer.verdict is not _REPLAY:
        return None
    call.claimed_in = took
    return answer


def _follow(call: Call, flight: Any, began: float) -> Flow[Claimed | bool]:
    """Another caller in this process works on the key: wait for its answer. Else ask the store: True: after a wait.

    The flights that it follows are one wait, with what it waits for afterwards.
    """
    policy, clock = call.policy, call.clock
    has_waited = False
    try:
        while flight is not None:
            if flight.started:
                refuse_mismatch(call, flight.fingerprint)
            elif call.fingerprint is not None and flight.fingerprint not in (
                None,
                call.fingerprint,
            ):
                break  # one of the two will be refused, and only the store knows which
            if policy.rejects and flight.delayed and not flight.started:
                break  # its leader may wait for long: ask the store instead
            asks = policy.rejects and not flight.started  # the answer to its claim may be ours too
            left = (CLAIM_RETRIES if asks else policy.wait) - (clock() - began)
            refuse_own_wait(call)
            if (policy.rejects and not asks) or left <= 0:
                refuse_busy(call, None)
            try:
                found = yield AwaitFlight(flight, left, policy.max_waiters, asks)
            except OverflowError:
                refuse_waiter(call)
            has_waited = has_waited or not asks
            # A leader without a fingerprint does not know the record's: the store must compare.
            if type(found) is Claimed and (
                call.fingerprint is None or found.fingerprint is not None
            ):
                refuse_mismatch(call, found.fingerprint)
                if has_waited and call.observed:
                    waited(call, began)
                return found
            flight = yield JoinFlight(call)  # it ended without an answer for us
    except TwicesafeError:
        if has_waited and call.observed:
            waited(call, began)
        raise
    return has_waited


def _late(call: Call, took: float) -> StoreUnavailableError:
    """P7: the lease may have expired before the answer arrived, so the handler does not start."""
    return StoreUnavailableError(
        f"the store took {took:.1f} s to answer a claim with a lease of {call.policy.lease:g} s; "
        "the handler was not started; try again, or use a longer lease",
        key=call.key,
    )


def _pause_before(call: Call, answer: Claimed, began: float, turn: int, owner: bytes) -> Flow[None]:
    """Wait until the key may be free. If the call has waited long enough, it is refused."""
    policy = call.policy
    left = policy.wait - (call.clock() - began)
    if answer.state is State.SUSPENDED and (policy.rejects or left * 1000 < answer.wait):
        refuse_suspended(call, answer)
    refuse_own_wait(call)
    if policy.rejects or left <= 0:
        if turn and call.observed:
            waited(call, began)
        refuse_busy(call, answer)
    promised = min(left, answer.wait / 1000 + 0.001)
    poll = min(promised, _pause(answer, turn, owner))
    if not answer.locked:
        try:
            yield Watch(call.key.id, min(promised, LONGEST_WATCH), poll)
        except StoreUnavailableError:
            pass  # A wake-up only saves time: poll, and the next claim finds out.
        else:
            return
    yield Sleep(poll)


def ask_again(
    call: Call, ask: ClaimRequest, sent: float, error: StoreUnavailableError
) -> Flow[Claimed]:
    """P2 and P10: an unanswered claim is retried with the same owner, never assumed."""
    tries = 0
    while True:
        left = min(CLAIM_RETRIES, call.policy.usable) - (call.clock() - sent)
        pause = min(0.02 * 2**tries, 0.5)
        if left <= pause or not error.asked:
            if error.written:  # else it would count as an attempt, although nothing ran
                with suppress(StoreError):
                    yield _abandon(call, ask)
            raise error.about(call.key) from error.__cause__
        tries += 1
        yield Sleep(pause)
        try:
            return (yield ask)  # type: ignore[no-any-return]
        except StoreUnavailableError as again:
            error = again


def _abandon(call: Call, ask: ClaimRequest) -> Abandon:
    """Release a claim under which nothing will run."""
    kept = call.policy.retention_ms if call.durable is None else FOREVER
    return Abandon(call.key.id, ask.owner, kept)


def granted(
    call: Call, ask: ClaimRequest, answer: Claimed, sent: float, took: float
) -> ActiveClaim:
    """`took`: seconds until the store answered."""
    claim = ActiveClaim(
        call.key,
        ask.owner,
        answer.fence,
        answer.attempt,
        answer.cause,
        sent,
        call.policy.lease,
        call.policy.max_lease,
        call.clock,
        sent,
        sent + call.policy.usable,
    )
    if call.observed:
        started(call, claim, took)
    return claim


def _pause(answer: Claimed, turn: int, owner: bytes) -> float:
    """The poll interval, from 2 ms to 250 ms, with jitter; a back-off says when it ends.

    It grows by 4 ms per poll. So a waiter polls about 12 times during work of 200 ms and sees its end about
    20 ms later; during work of a second, 26 times and 40 ms later.
    """
    if answer.verdict is Verdict.RESTING:
        return answer.wait / 1000 + 0.001
    grown = min(0.002 + 0.004 * turn, 0.25)
    return grown * (1 - 0.5 * chance(owner, turn))
