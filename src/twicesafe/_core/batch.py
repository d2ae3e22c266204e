"""The delivery flow for a batch: claim all, run all, record all.

With quick handlers, N messages need two store requests. With slow ones, finished items are recorded
while the others still run, so that a crash loses little: no finished item waits longer than
`LINGER` to be recorded. One failing item does not affect the others.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from .. import events as ev
from .._values.clocks import WorkerClock
from .._values.context import ActiveClaim
from .._values.outcomes import Outcome
from .._values.owner_token import new_owner
from ..errors import StoreUnavailableError, TwicesafeError
from .call import Call, cause_of
from .commands import (
    Detach,
    Flow,
    Invoke,
    JoinFlight,
    Launch,
    NotStarted,
    PerformMany,
    Raised,
    Reply,
    Returned,
    Sleep,
)
from .delivery import deliver, finish, granted
from .duplicates import outcome_of, refusal
from .protocol import Abandon, Claimed, ClaimRequest, Verdict
from .recording import Recording, retry_until_recorded
from .settling import RELEASE_PATIENCE, conclude, prepare

__all__ = ["LINGER", "exchange_many"]

LINGER: Final = 0.05
"""Seconds that a finished item may wait to be recorded together with others."""

Answer: TypeAlias = Outcome[Any] | Raised
Done: TypeAlias = tuple[int, ActiveClaim, Reply]
"""A handler that ended: the index of its call, its claim, its reply."""


def exchange_many(calls: list[Call], concurrency: int) -> Flow[list[Answer]]:
    """One answer per call, in order. Equal keys of one batch run once."""
    answers: dict[int, Answer] = {}
    leaders: dict[bytes, int] = {}
    for index, call in enumerate(calls):
        leaders.setdefault(call.key.id, index)
    waiting = [index for index, call in enumerate(calls) if leaders[call.key.id] != index]

    claims = yield from _claim_all(calls, list(leaders.values()), answers, waiting)
    jobs = [(index, _job(calls[index], claim)) for index, claim in claims.items()]
    stopped: BaseException | None = None
    while claims:
        finished: list[tuple[int, Any]] = yield Launch(
            jobs, concurrency, LINGER, stopped is not None
        )
        jobs = []
        done: list[Done] = []
        unstarted: list[Abandon] = []
        for index, reply in finished:
            claim = claims.pop(index)
            if isinstance(reply, NotStarted):
                kept = calls[index].policy.retention_ms
                unstarted.append(Abandon(claim.key.id, claim.owner, kept))
            elif calls[index].policy.timeout is not None:  # detached: it records its own result
                answers[index] = reply.value if isinstance(reply, Returned) else reply
                stopped = stopped or _stop_of(answers[index])
            else:
                done.append((index, claim, reply))
                stopped = stopped or _stop_of(reply)
        if done:
            yield from _settle_all(calls, done, answers)
        if unstarted:
            yield PerformMany(unstarted)
            if stopped is None:
                return []  # cancelled: the runtime raises it after all claims are released
    if stopped is not None:
        raise stopped
    began = calls[0].clock()
    for index in waiting:  # in progress elsewhere, or a duplicate of an item in this batch
        try:  # they share one wait: a batch waits as long as a single call would
            flight = yield JoinFlight(calls[index])
            answers[index] = yield from deliver(calls[index], flight, began)
        except Exception as error:
            answers[index] = Raised(error)
    return [answers[index] for index in range(len(calls))]


def _job(call: Call, claim: ActiveClaim) -> Invoke | Detach:
    timeout = call.policy.timeout
    if timeout is None:
        return Invoke(claim, call.run)
    return Detach(finish(call, claim), timeout, claim)


def _stop_of(reply: object) -> BaseException | None:
    """An interrupt or an exit is not a failed item: it ends the batch."""
    if isinstance(reply, Raised) and not isinstance(reply.error, Exception):
        return reply.error
    return None


def _claim_all(
    calls: list[Call], leaders: list[int], answers: dict[int, Answer], waiting: list[int]
) -> Flow[dict[int, ActiveClaim]]:
    asks = [_claim_for(calls[index]) for index in leaders]
    clock = calls[leaders[0]].clock
    sent = clock()
    replies = yield from _ask_all(asks)
    late = clock() - sent
    won: dict[int, ActiveClaim] = {}
    stale: list[Abandon] = []
    for index, ask, reply in zip(leaders, asks, replies, strict=True):
        call = calls[index]
        if isinstance(reply, Exception):
            if call.policy.outage_runs and isinstance(reply, StoreUnavailableError):
                waiting.append(index)  # `deliver` knows how to run unprotected
            else:
                if isinstance(reply, StoreUnavailableError):
                    call.notify(ev.StoreFailed(call.key, "claim", cause_of(reply)))
                answers[index] = Raised(
                    reply.about(call.key) if isinstance(reply, TwicesafeError) else reply
                )
        elif reply.verdict is Verdict.WON and late < call.policy.usable:
            won[index] = granted(call, ask, reply, sent)
        else:
            if reply.verdict is Verdict.WON:
                stale.append(Abandon(ask.key.id, ask.owner, call.policy.retention_ms))
            _answer_without_running(call, reply, index, answers, waiting)
    if stale:
        yield PerformMany(stale)
    return won


def _answer_without_running(
    call: Call, reply: Claimed, index: int, answers: dict[int, Answer], waiting: list[int]
) -> None:
    busy = reply.verdict in (Verdict.BUSY, Verdict.RESTING, Verdict.WON)
    if busy and not call.policy.rejects:
        waiting.append(index)
        return
    try:
        if reply.verdict is Verdict.REPLAY:
            answers[index] = outcome_of(call, reply)
        else:
            refusal(call, reply)
    except Exception as error:
        answers[index] = Raised(error)


def _settle_all(calls: list[Call], done: list[Done], answers: dict[int, Answer]) -> Flow[None]:
    prepared = [prepare(calls[index], claim, reply) for index, claim, reply in done]
    recordings = yield from _record_all([ask for ask, _ in prepared], done, calls[0].clock)
    for (index, claim, reply), (_, unkept), one in zip(done, prepared, recordings, strict=True):
        claim.settled = True
        call = calls[index]
        try:
            ack, problem = one.answer(call), unkept or one.problem(call, reply)
            answers[index] = conclude(call, claim, reply, one.ask, ack, problem)
        except Exception as error:
            answers[index] = Raised(error)


def _claim_for(call: Call) -> ClaimRequest:
    policy = call.policy
    return ClaimRequest(
        call.key,
        new_owner(),
        policy.lease_ms,
        policy.max_attempts,
        policy.hold,
        call.fingerprint,
    )


def _ask_all(asks: list[ClaimRequest]) -> Flow[list[Any]]:
    """All answers; unanswered claims are retried, each with its own owner (P2, P10)."""
    replies: list[Any] = yield PerformMany(asks)
    for pause in (0.05, 0.2, 0.5, 1.0, 1.0):
        open_ = [i for i, r in enumerate(replies) if isinstance(r, StoreUnavailableError)]
        if not open_:
            break
        yield Sleep(pause)
        yield from _once_more(asks, open_, replies)
    return replies


def _record_all(asks: list[Any], done: list[Done], clock: WorkerClock) -> Flow[list[Recording]]:
    """Record all in one batch; refused or unanswered items are retried one by one."""
    began = clock()
    replies: list[Any] = yield PerformMany(asks)
    recordings = [
        Recording(claim, ask, answer, began, _until(reply, began))
        for (_, claim, reply), ask, answer in zip(done, asks, replies, strict=True)
    ]
    yield from retry_until_recorded(recordings, clock)
    return recordings


def _until(reply: Reply, began: float) -> float | None:
    """After an interrupt: release the claims now; those that fail expire with their lease."""
    return None if _stop_of(reply) is None else began + RELEASE_PATIENCE


def _once_more(asks: list[Any], open_: list[int], replies: list[Any]) -> Flow[None]:
    again = yield PerformMany([asks[i] for i in open_])
    for index, reply in zip(open_, again, strict=True):
        replies[index] = reply
