"""The exchange: one delivery, from its claim to its answer.

    admit     claim → replay | refuse | wait | win
    finish    invoke the handler, then settle
    settle    complete | remember | fail | hold

Both colours run these same generators. The rules they keep are P2, P7, P9, P10 and P11 of the
protocol; the others are the store's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from .. import events as ev
from ..clocks import WorkerClock
from ..context import ActiveClaim, active
from ..errors import (
    CorruptRecordError,
    FingerprintMismatchError,
    HeldError,
    LeaseLostError,
    NotStorableError,
    ParkedError,
    RememberedFailureError,
    ResultError,
    ResultUnavailableError,
    StillInProgressError,
    StoreUnavailableError,
    TooLargeError,
    TooManyWaitersError,
    TwicesafeError,
)
from ..fingerprint import fields_that_differ
from ..keys import Key
from ..outcomes import Outcome
from ..records import Cause, State
from ..tokens import chance, new_owner
from .commands import (
    Board,
    Detach,
    Flow,
    Invoke,
    Land,
    Raised,
    Reply,
    Returned,
    Ride,
    Sleep,
    Watch,
)
from .protocol import Abandon, Ack, Claim, Claimed, Complete, Fail, Verdict
from .terms import Terms

__all__ = [
    "Call",
    "admit",
    "conclude",
    "exchange",
    "finish",
    "granted",
    "outcome_of",
    "prepare",
    "refusal",
    "settle",
]

LONGEST_WATCH = 2.0
"""Seconds after which a waiter looks for itself, in case its wake-up was lost."""

CLAIM_PATIENCE = 3.0
"""Seconds for which an unanswered claim is asked again, with the same owner, before giving up."""


class Call:
    """One delivery: what to run under which key, on which terms."""

    __slots__ = (
        "clock",
        "declared",
        "field_names",
        "fingerprint",
        "key",
        "notify",
        "observed",
        "run",
        "terms",
    )

    def __init__(
        self,
        key: Key,
        run: Callable[[], Any],
        terms: Terms,
        declared: Any,
        fingerprint: bytes | None,
        field_names: Callable[[], Sequence[str]] | None,
        clock: WorkerClock,
        notify: Callable[[ev.Event], None],
        observed: bool,
    ) -> None:
        self.key = key
        self.run = run
        self.terms = terms
        self.declared = declared
        self.fingerprint = fingerprint
        self.field_names = field_names
        self.clock = clock
        self.notify = notify
        self.observed = observed


def exchange(call: Call) -> Flow[Outcome[Any] | Raised]:
    """The whole of it; runs the handler at most once.

    The handler's own exception is returned, for the caller to raise: inside a generator a
    `StopIteration` would change its meaning.
    """
    try:
        admitted = yield from admit(call)
    except StoreUnavailableError as error:
        call.notify(ev.StoreFailed(call.key, "claim", _cause_of(error)))
        if not call.terms.outage_runs:
            raise
        return (yield from _unprotected(call))
    if type(admitted) is Claimed:
        return outcome_of(call, admitted)
    timeout = call.terms.timeout
    if timeout is not None:
        return (yield Detach(finish(call, admitted), timeout, admitted))  # type: ignore[no-any-return]
    return (yield from finish(call, admitted))


# --- admit: who runs? ------------------------------------------------------------------------


def admit(call: Call) -> Flow[Any]:
    """An `ActiveClaim` to run under, or the `Claimed` answer to replay; refusals are raised."""
    key, terms, clock = call.key, call.terms, call.clock
    began = turn = None
    flight = yield Board(key.id, call.fingerprint)
    while flight is not None:  # this very process is at work on the key
        if began is None:
            began = clock()
        _refuse_mismatch(call, flight.fingerprint)
        patience = terms.wait - (clock() - began)
        if terms.rejects or patience <= 0:
            _refuse_busy(call, None)
        _refuse_own_wait(call)
        try:
            landing = yield Ride(flight, patience, terms.max_waiters)
        except OverflowError:
            _refuse(
                call,
                TooManyWaitersError(
                    f"{terms.max_waiters} callers of this process already wait for this key "
                    "(max_waiters); come back later"
                ),
            )
        if call.observed:
            call.notify(ev.Waited(key, clock() - began))
        if type(landing) is Claimed:
            return landing
        flight = yield Board(key.id, call.fingerprint)  # it ended without an answer: our turn?

    while True:
        ask = Claim(
            key, new_owner(), terms.lease_ms, terms.max_attempts, terms.hold, call.fingerprint
        )
        sent = clock()
        answer: Claimed = yield from _ask(call, ask, sent)
        verdict = answer.verdict
        if verdict is Verdict.WON:
            now = clock()
            if now - sent < terms.usable:
                return granted(call, ask, answer, sent)
            # P7: the answer is older than what it grants. Nobody may start on it.
            yield Abandon(key.id, ask.owner, terms.retention_ms)
            raise StoreUnavailableError(
                f"the store took {now - sent:.1f} s to answer a claim with a lease of "
                f"{terms.lease:g} s; the handler was not started; try again, or use a longer lease",
                key=key,
            )
        if verdict is Verdict.REPLAY:
            yield Land(answer)
            return answer
        if verdict is not Verdict.BUSY and verdict is not Verdict.RESTING:
            refusal(call, answer)
        # Somebody else is at it (or it rests after a failure): wait, then ask again.
        if began is None:
            began = sent
        patience = terms.wait - (clock() - began)
        if terms.rejects or patience <= 0:
            _refuse_busy(call, answer)
        _refuse_own_wait(call)
        turn = 0 if turn is None else turn + 1
        promised = min(patience, answer.wait / 1000 + 0.001)
        poll = min(promised, _pause(answer, turn, ask.owner))
        yield Watch(key.id, min(promised, LONGEST_WATCH), poll)
        if call.observed:
            call.notify(ev.Waited(key, clock() - began))


def _ask(call: Call, ask: Claim, sent: float) -> Flow[Claimed]:
    """P2 and P10: an unanswered claim is asked again with the same owner, never assumed."""
    tries = 0
    while True:
        try:
            return (yield ask)  # type: ignore[no-any-return]
        except StoreUnavailableError as error:
            left = min(CLAIM_PATIENCE, call.terms.usable) - (call.clock() - sent)
            pause = min(0.02 * 2**tries, 0.5)
            if left <= pause:
                raise error.about(call.key) from error.__cause__
            tries += 1
            yield Sleep(pause)


def granted(call: Call, ask: Claim, answer: Claimed, sent: float) -> ActiveClaim:
    if call.observed:
        call.notify(ev.Started(call.key, answer.attempt, answer.cause))
        if answer.cause is Cause.LEASE_EXPIRED:
            call.notify(ev.TakenOver(call.key, answer.attempt))
    return ActiveClaim(
        call.key,
        ask.owner,
        answer.fence,
        answer.attempt,
        answer.cause,
        sent,
        call.terms.lease,
        call.terms.max_lease,
        call.clock,
    )


def _pause(answer: Claimed, turn: int, owner: bytes) -> float:
    """Polls grow from 2 ms to 250 ms, jittered; a resting key tells when to come back."""
    if answer.verdict is Verdict.RESTING:
        return answer.wait / 1000 + 0.001
    grown = min(0.002 * 1.5**turn, 0.25) if turn < 16 else 0.25
    return grown * (1 - 0.5 * chance(owner, turn))


# --- finish: run, then record ----------------------------------------------------------------


def finish(call: Call, claim: ActiveClaim) -> Flow[Outcome[Any] | Raised]:
    reply: Reply = yield Invoke(claim, call.run, call.terms.timeout)
    return (yield from settle(call, claim, reply))


def settle(call: Call, claim: ActiveClaim, reply: Reply) -> Flow[Outcome[Any] | Raised]:
    """Record what the handler did, then answer."""
    ask, problem = prepare(call, claim, reply)
    ack: Ack | None
    if isinstance(ask, Complete):
        ack = yield from _record(call, claim, ask)
    else:
        ack = yield from _give_back(call, ask, reply)
    claim.settled = True
    answer = conclude(call, claim, reply, ask, ack, problem)
    if isinstance(ask, Complete):
        yield Land(_landing(call, claim, ask))
    return answer


def prepare(
    call: Call, claim: ActiveClaim, reply: Reply
) -> tuple[Complete | Fail, ResultError | None]:
    """What the store must be told about this reply, encoded before the record says done."""
    terms = call.terms
    if isinstance(reply, Returned):
        payload, problem = _encode(call, reply.value)
        return (
            Complete(claim.key.id, claim.owner, claim.fence, terms.retention_ms, payload),
            problem,
        )
    error = reply.error
    name = type(error).__qualname__
    if terms.remember and isinstance(error, terms.remember):
        failure = msgspec.json.encode({"type": name, "message": _text_of(error)})
        return (
            Complete(
                claim.key.id,
                claim.owner,
                claim.fence,
                terms.retention_ms,
                failure,
                State.FAILED,
                name,
            ),
            None,
        )
    # The handler's own exception says that it failed. A cancellation, an interrupt or a time-out
    # says only that nobody knows how far it came.
    known = isinstance(error, Exception)
    delay = terms.backoff.delay(claim.attempt, chance(claim.owner, claim.attempt)) if known else 0
    unknown = not known or isinstance(error, TimeoutError)
    return (
        Fail(
            claim.key.id,
            claim.owner,
            claim.fence,
            round(delay * 1000),
            terms.max_attempts,
            terms.retention_ms,
            name,
            unknown and terms.hold,
        ),
        None,
    )


def conclude(
    call: Call,
    claim: ActiveClaim,
    reply: Reply,
    ask: Complete | Fail,
    ack: Ack | None,
    problem: ResultError | None,
) -> Outcome[Any] | Raised:
    """The caller's answer, now that the store has spoken (None: it could not be told)."""
    if isinstance(reply, Raised):
        if call.observed:
            remembered = type(ask) is Complete
            call.notify(ev.Failed(call.key, ask.error, claim.attempt, remembered))
        if ack is not Ack.OK and ack is not None:
            call.notify(ev.LeaseLost(call.key))
        return reply
    if ack is not Ack.OK:
        call.notify(ev.LeaseLost(call.key))
        gone = "its record is gone" if ack is Ack.MISSING else "another worker took it over"
        raise LeaseLostError(
            f"the handler ran longer than its claim lasted and {gone}; this result was not "
            "recorded; deliver again to get the recorded one",
            key=call.key,
        )
    if call.observed:
        call.notify(ev.Completed(call.key, call.clock() - claim.started))
    if problem is not None:
        call.notify(ev.ResultNotKept(call.key, type(problem).__name__))
        return Raised(problem)
    return Outcome(reply.value, False, claim.attempt, call.key, claim.fence)


def _record(call: Call, claim: ActiveClaim, ask: Complete) -> Flow[Ack]:
    """P10: the same words again until the store answers or the claim is surely over."""
    tries = 0
    while True:
        try:
            return (yield ask)  # type: ignore[no-any-return]
        except StoreUnavailableError as error:
            pause = min(0.02 * 2**tries, 1.0)
            if claim.gone or call.clock() + pause >= claim.expires:
                call.notify(ev.StoreFailed(call.key, "complete", _cause_of(error)))
                raise StoreUnavailableError(
                    "the handler finished, but the store did not answer while the claim lasted: "
                    "whether the result was recorded is unknown; deliver again to find out",
                    key=call.key,
                ) from error
            tries += 1
            yield Sleep(pause)


def _give_back(call: Call, ask: Fail, reply: Reply) -> Flow[Ack | None]:
    """Release at once, so that nobody waits for a lease; but the caller's own error comes first."""
    patient = isinstance(reply, Raised) and isinstance(reply.error, Exception)
    for pause in (0.05, 0.2, None) if patient else (None,):
        try:
            return (yield ask)  # type: ignore[no-any-return]
        except StoreUnavailableError as trouble:
            if pause is None:
                call.notify(ev.StoreFailed(call.key, "fail", _cause_of(trouble)))
            else:
                yield Sleep(pause)
    return None


def _encode(call: Call, value: Any) -> tuple[bytes | None, ResultError | None]:
    """Before the record says done: bytes, or the reason why there are none."""
    try:
        payload = call.terms.codec.encode(value, call.declared)
    except ResultError as error:
        error.value = value
        return None, error.about(call.key)
    except Exception as error:
        problem = NotStorableError(
            f"the work is done and recorded, but its result could not be encoded "
            f"({type(error).__name__}); duplicates get ResultUnavailableError",
            key=call.key,
            value=value,
        )
        problem.__cause__ = error
        return None, problem
    if len(payload) > call.terms.max_result_bytes:
        return None, TooLargeError(
            f"the work is done and recorded, but its result has {len(payload)} bytes and "
            f"max_result_bytes is {call.terms.max_result_bytes}; duplicates get "
            "ResultUnavailableError",
            key=call.key,
            value=value,
        )
    return payload, None


def _landing(call: Call, claim: ActiveClaim, ask: Complete) -> Claimed:
    """What the store would now answer to a duplicate."""
    return Claimed(
        Verdict.REPLAY,
        claim.fence,
        claim.attempt,
        claim.cause,
        0,
        ask.state,
        ask.result,
        call.fingerprint,
        0,
        ask.retention,
    )


def _unprotected(call: Call) -> Flow[Outcome[Any] | Raised]:
    call.notify(ev.Unprotected(call.key))
    reply: Reply = yield Invoke(None, call.run, call.terms.timeout)
    if isinstance(reply, Raised):
        return reply
    return Outcome(reply.value, False, 0, call.key, 0)


# --- answers ---------------------------------------------------------------------------------


def outcome_of(call: Call, answer: Claimed, cached: bool = False) -> Outcome[Any]:
    """A recorded answer as the outcome, or the error, that a duplicate gets."""
    if call.observed:
        call.notify(ev.Replayed(call.key, answer.age / 1000, cached))
    if answer.state is State.FAILED:
        try:
            failure = msgspec.json.decode(answer.result or b"{}", type=dict[str, str])
        except (ValueError, msgspec.MsgspecError) as error:
            raise CorruptRecordError(
                "the stored failure is not what was written; the work is not run again",
                key=call.key,
            ) from error
        name, message = failure.get("type", "?"), failure.get("message", "")
        raise RememberedFailureError(
            f"the first delivery failed for good with {name}: {message}",
            key=call.key,
            type_name=name,
            original_message=message,
        )
    if answer.result is None:
        raise ResultUnavailableError(
            "the work of this key is done, but its result was not kept (too large or not "
            "storable); it is not run again",
            key=call.key,
        )
    try:
        value = call.terms.codec.decode(answer.result, call.declared)
    except TwicesafeError as error:
        raise error.about(call.key) from error.__cause__
    return Outcome(value, True, answer.attempt, call.key, answer.fence)


def refusal(call: Call, answer: Claimed) -> NoReturn:
    """The error that says why this delivery neither runs nor replays."""
    match answer.verdict:
        case Verdict.MISMATCH:
            _refuse_mismatch(call, answer.fingerprint, known=True)
        case Verdict.HELD:
            _refuse(
                call,
                HeldError(
                    "a worker died in mid-work and the policy is at most once, so the outcome is "
                    "unknown; an operator must find out and say resolve or release"
                ),
            )
        case Verdict.PARKED:
            _refuse(
                call,
                ParkedError(
                    f"{call.terms.max_attempts} attempts (max_attempts) did not finish this key; an "
                    "operator must look at it and say release or resolve"
                ),
            )
        case Verdict.FORGOTTEN:
            _refuse(
                call,
                ResultUnavailableError(
                    "the work of this key is done and its result was forgotten on request; it is not "
                    "run again"
                ),
            )
    _refuse_busy(call, answer)


def _refuse_busy(call: Call, answer: Claimed | None) -> NoReturn:
    if answer is not None and answer.verdict is Verdict.RESTING:
        hint = answer.wait / 1000
        text = f"the last attempt failed a moment ago; the next one may start in {hint:.1f} s"
    else:
        # The lease is renewed while the handler lives: its end is no promise. Half a second is.
        hint = 0.5 if answer is None else min(1.0, answer.wait / 1000)
        text = "another delivery of this key is being worked on"
        if not call.terms.rejects:
            text += f", and did not end within wait={call.terms.wait:g} s"
    _refuse(call, StillInProgressError(f"{text}; come back later", retry_after=hint))


def _refuse_mismatch(call: Call, stored: bytes | None, known: bool = False) -> None:
    asked = call.fingerprint
    if not known and (stored is None or asked is None or stored == asked):
        return
    names = call.field_names() if call.field_names is not None else ()
    fields = fields_that_differ(stored, asked, names) if stored and asked else ()
    which = f" (differs in: {', '.join(fields)})" if fields else ""
    _refuse(
        call,
        FingerprintMismatchError(
            f"this key was first used for a different request{which}; the sender must use a new key",
            fields=fields,
        ),
    )


def _refuse_own_wait(call: Call) -> None:
    claim = active.get()
    while claim is not None:
        if claim.key.id == call.key.id:
            _refuse(
                call,
                StillInProgressError(
                    "a handler called the receiver again with the key it runs under and would wait "
                    "for itself; use current_key().derive(step) for inner calls"
                ),
            )
        claim = claim.outer


def _refuse(call: Call, error: TwicesafeError) -> NoReturn:
    if call.observed:
        call.notify(ev.Refused(call.key, type(error).__name__))
    raise error.about(call.key)


def _text_of(error: BaseException) -> str:
    """What an error says, as text that can be stored; some errors cannot even be printed."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return text[:2000].encode(errors="replace").decode()


def _cause_of(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__
