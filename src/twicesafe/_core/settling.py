"""Settling: the handler ended; record its outcome, then answer.

    complete    a value: the answer from now on
    remember    a failure that is the answer
    fail        released for the next delivery after a back-off, or parked
    hold        outcome unknown, and the policy is at most once

`settle_fast` is the fast path of `delivery` from here on. The value is encoded before the record
says done. If the store refuses the record or does not answer, `outcome_recording` retries.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeGuard, overload

import msgspec

from .. import events as ev
from .._values.codecs import DEFAULT_CODEC
from .._values.codecs.origin import with_origin
from .._values.context import ActiveClaim
from .._values.keys import chance
from .._values.outcomes import Outcome
from .._values.records import State
from ..errors import (
    LeaseLostError,
    NotStorableError,
    ResultError,
    StoreUnavailableError,
    text_of,
)
from .call import Call, cause_of
from .commands import (
    AsyncPerformer,
    EndFlight,
    Flow,
    LostBeforeStartError,
    Performer,
    Raised,
    Reply,
    Returned,
    Sleep,
    Within,
)
from .consuming.recovery import DeadLetter, Retry
from .driving import drive, drive_async
from .durable.run_requests import FOREVER
from .encrypting import encrypted
from .observing import completed, failed
from .outcome_recording import OutcomeRecording, retry_until_recorded, without_payload
from .protocol import Abandon, Ack, Claimed, Complete, Fail, Verdict
from .resolved_policy import ResolvedPolicy
from .unkept_results import not_encoded, recorded_without, too_large

__all__ = [
    "conclude",
    "did_not_start",
    "end_flight",
    "prepare",
    "record_again",
    "recorded_answer",
    "settle",
    "settle_fast",
    "settle_fast_async",
]

_OK, _REPLAY = Ack.OK, Verdict.REPLAY

RELEASE_TIMEOUT = 1.0
"""Seconds that a cancelled or interrupted caller waits for its claim to be released."""


def settle(call: Call, claim: ActiveClaim, reply: Reply) -> Flow[Outcome[Any] | Raised]:
    """Record the handler's outcome, then answer."""
    if did_not_start(reply):
        claim.settled = True
        with contextlib.suppress(StoreUnavailableError):  # then the claim expires
            kept = call.policy.retention_ms if call.durable is None else FOREVER
            yield Abandon(claim.key.id, claim.owner, kept)
        return reply
    ask, problem = prepare(call, claim, reply)
    if call.durable is not None and isinstance(ask, Fail):
        ask = call.durable.failing(ask)
    sent = call.clock()
    ack: Ack | None
    if isinstance(ask, Complete):
        try:
            ack = yield ask
        except Exception as error:
            ask, ack, problem = yield from record_again(
                call, claim, reply, ask, problem, sent, error
            )
    else:
        ack = yield from _give_back(call, ask, reply)
    answer = conclude(call, claim, reply, ask, ack, problem)
    if ack is _OK and call.flight is not None and call.flight.awaited and isinstance(ask, Complete):
        yield EndFlight(recorded_answer(call, claim, ask, sent))
    return answer


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
        drive(end_flight(recorded_answer(call, claim, done, sent)), run.perform)
    return outcome


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
        await drive_async(end_flight(recorded_answer(call, claim, done, sent)), run.perform)
    return outcome


def end_flight(answer: Claimed) -> Flow[None]:
    """Pass an answer to the callers in this process that wait for it."""
    yield EndFlight(answer)


def did_not_start(reply: Reply) -> TypeGuard[Raised]:
    return isinstance(reply, Raised) and isinstance(reply.error, LostBeforeStartError)


def record_again(
    call: Call,
    claim: ActiveClaim,
    reply: Reply,
    ask: Complete,
    problem: ResultError | None,
    sent: float,
    error: Exception,
) -> Flow[tuple[Any, Ack | None, ResultError | None]]:
    """The store refused this recording or did not answer: retry, and return what was recorded in the end."""
    recording = OutcomeRecording(claim, ask, error, sent)
    yield from retry_until_recorded([recording], call.clock)
    ack = recording.answer(call)
    return recording.ask, ack, problem or recording.problem(call, reply)


@overload
def prepare(
    call: Call, claim: ActiveClaim, reply: Returned
) -> tuple[Complete, ResultError | None]: ...
@overload
def prepare(
    call: Call, claim: ActiveClaim, reply: Reply
) -> tuple[Complete | Fail, ResultError | None]: ...
def prepare(
    call: Call, claim: ActiveClaim, reply: Reply
) -> tuple[Complete | Fail, ResultError | None]:
    """The request that records this reply, with the value already encoded."""
    policy, claim.ending = call.policy, True
    if call.observed:
        claim.ended = call.clock()
    if isinstance(reply, Returned):
        payload, problem = _encode(call, reply.value, claim.origin)
        return (
            Complete(claim.key.id, claim.owner, claim.fence, policy.retention_ms, payload),
            problem,
        )
    error = reply.error
    name = type(error).__qualname__
    # The handler's own exception means that it failed. After a cancellation, an interrupt or a
    # timeout the outcome is unknown.
    known = isinstance(error, Exception)
    unknown = not known or isinstance(error, call.cut_off)
    if call.decide is not None and isinstance(error, Exception):
        error = reply.error = call.decide(error, claim.attempt)
    if policy.remember and isinstance(error, policy.remember):
        failure, problem = _encode_failure(call, name, error)
        return (
            Complete(
                claim.key.id,
                claim.owner,
                claim.fence,
                policy.retention_ms,
                failure,
                State.FAILED,
                name,
            ),
            problem,
        )
    claim.over = True  # before the store releases it: tasks that the handler left running must stop
    delay = round(_delay(policy, claim, error) * 1000) if known else 0
    return (
        Fail(
            claim.key.id,
            claim.owner,
            claim.fence,
            delay,
            claim.attempt if isinstance(error, DeadLetter) else policy.max_attempts,
            policy.retention_ms + delay,  # else a longer back-off would end with attempt 1
            name,
            unknown and policy.hold,
        ),
        None,
    )


def _delay(policy: ResolvedPolicy, claim: ActiveClaim, error: BaseException) -> float:
    if isinstance(error, Retry) and error.after is not None:
        return error.after
    return policy.backoff.delay(claim.attempt, chance(claim.owner, claim.attempt))


def conclude(
    call: Call,
    claim: ActiveClaim,
    reply: Reply,
    ask: Complete | Fail,
    ack: Ack | None,
    problem: ResultError | None,
) -> Outcome[Any] | Raised:
    """The caller's answer, given the store's (None: the store could not be reached)."""
    claim.settled = True
    if isinstance(reply, Raised):
        if call.observed:
            failed(call, claim, ask.error, type(ask) is Complete)
        if ack is not Ack.OK and ack is not None:
            call.notify(ev.LeaseLost(call.key))
        elif problem is not None:
            call.notify(ev.ResultNotKept(call.key, type(problem).__name__))
        elif ack is None:
            pass  # the store was not reached: nothing is held or parked yet
        elif isinstance(ask, Fail) and ask.hold:
            call.notify(ev.Held(call.key, ask.error))
        elif isinstance(ask, Fail) and claim.attempt >= ask.max_attempts:
            call.notify(ev.Parked(call.key, ask.error))
        if ack is not Ack.OK and call.decide is not None and isinstance(reply.error, Exception):
            return Raised(_undecided(call, ack))
        return reply
    if ack is not _OK:
        claim.gone = True
        call.notify(ev.LeaseLost(call.key))
        gone = "its record is gone" if ack is Ack.MISSING else "another worker took it over"
        raise LeaseLostError(
            f"the handler ran longer than its claim lasted and {gone}; this result was not "
            "recorded; deliver again to get the recorded one",
            key=call.key,
        )
    if call.observed:
        completed(call, claim)
    if problem is not None:
        call.notify(ev.ResultNotKept(call.key, type(problem).__name__))
        return Raised(recorded_without(problem))
    return Outcome(reply.value, False, claim.attempt, call.key, claim.fence)


def _undecided(call: Call, ack: Ack | None) -> LeaseLostError | StoreUnavailableError:
    """For a message of a consumer: a decision that is not recorded does not count."""
    if ack is None:
        return StoreUnavailableError(
            "the attempt failed, and the store did not record it; the message is tried again",
            key=call.key,
        )
    return LeaseLostError(
        "the attempt failed after another worker took over the message; that worker decides about it",
        key=call.key,
    )


def _give_back(call: Call, ask: Fail, reply: Reply) -> Flow[Ack | None]:
    """Release now, so that no caller waits for the lease; the caller's own error has priority."""
    can_wait = isinstance(reply, Raised) and isinstance(reply.error, Exception)
    for pause in (0.05, 0.2, None) if can_wait else (None,):
        try:
            return (yield ask if can_wait else Within(ask, RELEASE_TIMEOUT))  # type: ignore[no-any-return]
        except Exception as refused:
            if pause is None:
                call.notify(ev.StoreFailed(call.key, "fail", cause_of(refused)))
            elif isinstance(refused, StoreUnavailableError):
                yield Sleep(pause)
            else:
                ask = without_payload(ask)
    return None


def _encode(call: Call, value: Any, origin: bytes) -> tuple[bytes | None, ResultError | None]:
    """The bytes to store for this value, or the reason why there are none."""
    policy = call.policy
    try:
        payload = policy.codec.encode(value, call.declared)
        size = len(payload)
        if size <= policy.max_result_bytes:
            if origin and policy.codec is DEFAULT_CODEC:
                payload = with_origin(origin, payload)
            if policy.cipher is not None:
                payload = encrypted(policy.cipher, call.key, State.COMPLETED, payload)
            return payload, None
    except ResultError as error:
        error.value = value
        return None, error.about(call.key)
    except Exception as error:
        return None, not_encoded(value, error).about(call.key)
    return None, too_large(value, size, policy.max_result_bytes).about(call.key)


def _encode_failure(
    call: Call, name: str, error: BaseException
) -> tuple[bytes | None, ResultError | None]:
    """The bytes to store for a failure that is the answer; None if they cannot be encrypted."""
    payload = msgspec.json.encode({"type": name, "message": text_of(error)})
    try:
        return encrypted(call.policy.cipher, call.key, State.FAILED, payload), None
    except Exception as failed:
        problem = NotStorableError(
            f"the failure is recorded, but its text could not be encrypted ({type(failed).__name__})",
            key=call.key,
        )
        problem.__cause__ = failed
        return None, problem


def recorded_answer(call: Call, claim: ActiveClaim, ask: Complete, sent: float) -> Claimed:
    """What the store would now answer to a duplicate; its retention counts from `sent`."""
    return Claimed(
        _REPLAY,
        claim.fence,
        claim.attempt,
        claim.cause,
        0,
        ask.state,
        ask.result,
        call.fingerprint,
        0,
        ask.retention - round((call.clock() - sent) * 1000),
    )
