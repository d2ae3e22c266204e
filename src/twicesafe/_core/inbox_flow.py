"""The inbox flow: one delivery in the caller's transaction, from its entry to its answer.

    await     a failure of this key that is not written yet, if waiting can help
    enter     insert the record, uncommitted, or find another delivery's record
    invoke    the handler writes through the same transaction
    leave     mark the record as done, if this is still the transaction that was entered

Nothing is durable before the caller commits; a crash before that leaves no trace. If other
transactions can see the record in progress, the handler itself committed it, with part of the work.
Such a record is *held*: the work does not run again until an operator decides.
"""

from __future__ import annotations

from typing import Any

from .. import events as ev
from .._values.context import ActiveClaim, active
from .._values.keys import Key, new_owner
from .._values.outcomes import Outcome
from ..errors import (
    AtomicityBrokenError,
    NotStorableError,
    ResultError,
    StoreError,
    StoreUnavailableError,
    TooLargeError,
    UsageError,
)
from .call import Call
from .commands import Flow, Invoke, Raised, Reply, Returned
from .duplicates import outcome_of, refusal, refuse_mismatch, refuse_own_wait
from .inbox_requests import AwaitDeferred, DeferredWrite, Enter, Entered, EnterMany, Leave
from .observing import completed, failed, replayed, started
from .outcome_recording import without_payload
from .protocol import Claimed, ClaimRequest, Complete, Fail, Verdict
from .settling import prepare
from .unkept_results import because

__all__ = ["accept", "accept_many", "accepted", "entry", "look_up", "receive"]

FOREVER = 1e9
"""Lease in seconds: here the transaction holds the claim, not a lease. Within such a claim its key
is refused; within a receiver's, the record decides, because that claim may be in another store."""

DEFERRED_WAIT = 0.25
"""Seconds that a delivery waits for the last failure of its key to be written."""


def entry(call: Call, done: bool = False) -> Enter:
    if active.get() is not None:
        refuse_own_wait(call, FOREVER)
    policy = call.policy
    return Enter(
        call.key,
        new_owner(),
        policy.retention_ms,
        policy.max_attempts - call.spent,
        call.fingerprint,
        done,
        0.0 if policy.rejects else policy.wait,
    )


def accepted(call: Call, answer: Claimed) -> bool:
    """True for the first delivery, False for a duplicate; anything else raises."""
    verdict = answer.verdict
    if verdict not in (Verdict.WON, Verdict.REPLAY, Verdict.FORGOTTEN):
        refusal(call, answer)
    if call.observed:
        if verdict is Verdict.WON:
            call.notify(ev.Started(call.key, answer.attempt, answer.cause))
        else:
            replayed(call, answer, result=answer.result)
    return verdict is Verdict.WON


def accept(call: Call) -> Flow[bool]:
    """Record a message as done, before the caller does the work in the same transaction."""
    try:
        entered: Entered = yield entry(call, done=True)
    except AtomicityBrokenError as error:
        raise _unusable(error) from error
    return accepted(call, entered.answer)


def accept_many(calls: list[Call]) -> Flow[list[bool]]:
    """`accept` for many. A key that occurs twice in one batch is new only once."""
    first = {call.key.id: call for call in reversed(calls)}
    asks = [entry(call, done=True) for call in reversed(first.values())]
    try:
        entered: list[Entered] = yield EnterMany(asks)
    except AtomicityBrokenError as error:
        raise _unusable(error) from error
    answers = {ask.id: one.answer for ask, one in zip(asks, entered, strict=True)}
    verdicts = []
    for call in calls:
        answer = answers[call.key.id]
        verdicts.append(accepted(call, answer))
        if answer.verdict is Verdict.WON:
            answers[call.key.id] = Claimed(Verdict.REPLAY)
    return verdicts


def receive(call: Call, must_keep: bool = True, waits: bool = True) -> Flow[Outcome[Any] | Raised]:
    """One delivery. The handler's own exception is returned, for the caller to raise.

    `must_keep`: a result that cannot be stored is an error. `waits`: waiting for a deferred write
    can help; it cannot where the caller's open transaction keeps out all other writers.
    """
    if waits:
        yield AwaitDeferred(call.key.id, DEFERRED_WAIT)
    ask = entry(call)
    try:
        entered: Entered = yield ask
    except AtomicityBrokenError as error:
        raise _unusable(error) from error
    answer = entered.answer
    if answer.verdict is Verdict.REPLAY:
        return outcome_of(call, answer)
    if answer.verdict is not Verdict.WON:
        refusal(call, answer)
    for deferred in entered.unwritten:
        refuse_mismatch(call, deferred.claim.fingerprint)
        if isinstance(deferred.end, Complete):
            return outcome_of(call, _remembered(deferred.end))
        answer.attempt += 1
    if answer.attempt > ask.max_attempts:
        refusal(call, Claimed(Verdict.PARKED))
    answer.attempt += call.spent
    began = call.clock()
    claim = ActiveClaim(
        call.key,
        ask.owner,
        answer.fence,
        answer.attempt,
        answer.cause,
        began,
        FOREVER,
        FOREVER,
        call.clock,
        began,
        began + FOREVER,
    )
    if call.observed:
        started(call, claim, None)
    reply: Reply = yield Invoke(claim, call.run)
    end, problem = prepare(call, claim, reply)
    if isinstance(reply, Raised):
        return (yield from _raised(call, claim, reply, end))
    assert isinstance(end, Complete)
    return (yield from _record(call, claim, reply, end, problem, entered.mark, must_keep))


def _record(
    call: Call,
    claim: ActiveClaim,
    reply: Returned,
    end: Complete,
    problem: ResultError | None,
    mark: Any,
    must_keep: bool,
) -> Flow[Outcome[Any] | Raised]:
    """The handler has returned: complete the record in the caller's transaction. `problem`: why it has no
    result."""
    if problem is not None and must_keep:
        return (yield from _not_kept(call, claim, _undone(problem)))
    try:
        try:
            recorded = yield Leave(end, mark)
        except TooLargeError as error:  # nothing was sent: the transaction is unchanged
            problem = error.about(call.key)
            problem.value = reply.value
            if must_keep:
                return (yield from _not_kept(call, claim, _undone(problem)))
            recorded = yield Leave(without_payload(end), mark)
    except AtomicityBrokenError as error:
        raise _broken(call.key, error.message) from error.__cause__
    except StoreError as error:
        if not error.retryable:
            return (yield from _not_kept(call, claim, _refused(call.key, reply, error)))
        if call.decide is None or not isinstance(error, StoreUnavailableError):
            raise
        # A consumer tries it again: without a count, a handler that closes its connection never ends.
        lost = Raised(_lost(call.key, error))
        return (yield from _raised(call, claim, lost, prepare(call, claim, lost)[0]))
    if not recorded:
        raise _broken(call.key)
    claim.settled = True
    if call.observed:
        completed(call, claim, asked=False)
    if problem is not None:
        call.notify(ev.ResultNotKept(call.key, type(problem).__name__))
    return Outcome(reply.value, False, claim.attempt, call.key, claim.fence)


def look_up(call: Call) -> Flow[Outcome[Any] | None]:
    """The recorded outcome of a message, None if it may still run. The caller then rolls back.

    It waits for another transaction that has the message, as a delivery does.
    """
    entered: Entered = yield entry(call)
    answer = entered.answer
    if answer.verdict is Verdict.REPLAY:
        return outcome_of(call, answer)
    if answer.verdict is not Verdict.WON:
        refusal(call, answer)
    return None


def _not_kept(call: Call, claim: ActiveClaim, problem: ResultError) -> Flow[Outcome[Any] | Raised]:
    """The result cannot be recorded, so the caller must roll back: a failed attempt like any other."""
    problem.done = False
    reply = Raised(problem)
    end, _ = prepare(call, claim, reply)
    return (yield from _raised(call, claim, reply, end))


def _raised(
    call: Call, claim: ActiveClaim, reply: Raised, end: Complete | Fail
) -> Flow[Outcome[Any] | Raised]:
    claim.over = True
    if call.observed:
        failed(call, claim, type(reply.error).__qualname__, type(end) is Complete)
    if _is_counted(call, reply.error):
        policy = call.policy
        owner = new_owner()
        end.owner = owner
        if isinstance(end, Fail):
            end.delay = 0
            end.max_attempts -= call.spent
            if claim.attempt - call.spent >= end.max_attempts:
                call.notify(ev.Parked(call.key, end.error))
        again = ClaimRequest(call.key, owner, 5000, policy.max_attempts, False, call.fingerprint)
        yield DeferredWrite(again, end)
    return reply


def _is_counted(call: Call, error: BaseException) -> bool:
    """A cancellation or interrupt by the caller says nothing about the message, so it does not
    count. A consumer interrupts no handler, so there the handler itself raised it. It counts:
    otherwise a message that exits the process would do so after each restart.
    """
    if isinstance(error, Exception):
        return True
    is_cancelled = type(error).__name__ == "CancelledError"  # by the consumer itself
    return call.decide is not None and not is_cancelled


def _remembered(end: Complete) -> Claimed:
    return Claimed(Verdict.REPLAY, state=end.state, result=end.result)


def _undone(problem: ResultError) -> ResultError:
    return because(
        problem,
        "",
        "; nothing was recorded: roll back, so that nothing is applied "
        '(results="optional" commits such work without its result)',
    )


def _refused(key: Key, reply: Returned, error: StoreError) -> NotStorableError:
    """The recording statement failed, and with it the transaction, so `optional` cannot help."""
    problem = NotStorableError(
        f"the database refused the result ({error.message}); nothing was recorded: roll back, so "
        "that nothing is applied",
        key=key,
        value=reply.value,
    )
    problem.__cause__ = error
    return problem


def _lost(key: Key, error: StoreUnavailableError) -> StoreUnavailableError:
    """It counts as an attempt, like an outage that the handler itself meets."""
    lost = StoreUnavailableError(
        "the connection of this message ended while its handler ran, so nothing was committed; if the handler "
        f"closed it, leave it open; otherwise look for an outage of the database ({error.message})",
        key=key,
    )
    lost.__cause__ = error
    return lost


def _unusable(error: AtomicityBrokenError) -> UsageError:
    """The transaction was already broken when we got it."""
    return UsageError(
        f"the transaction on this connection accepts no statements: {error.message}; roll it back "
        "and start a new one"
    )


def _broken(key: Key, because: str = "") -> AtomicityBrokenError:
    return AtomicityBrokenError(
        "the handler ended the caller's transaction: it committed, rolled back, ran a statement "
        f"that commits implicitly, or continued after an error{because and f' ({because})'}; the "
        "work is not recorded as done; if the handler committed the transaction, the key is held until an "
        "operator decides; if it rolled back, the next delivery runs, although the handler may have committed "
        "something since; let the caller commit, and use savepoints in the handler",
        key=key,
    )
