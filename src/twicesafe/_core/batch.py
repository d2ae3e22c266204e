"""The delivery flow for a batch: claim all, run all, record all.

With quick handlers, N messages need two store requests. With slow ones, finished items are recorded
while the others still run, so that a crash loses little. No finished item waits longer than
`LINGER` to be recorded. One failing item does not affect the others.

Attempts count starts, although a batch is claimed before most of it starts:

    new, can start now        claimed and counted, like a single call
    new, behind others        claimed *ahead*: if the process dies, the next claim does not count it
    tried before              claimed, and counted, when it can start: as many as run at once
    its last worker died,     delivered alone, after the others: if it kills the process again, no other
    and that start counted    message is counted
    one start at most         never claimed ahead (`takeover="hold"`, `max_attempts=1`)

So a message that waits behind one that kills the process is never counted for that. The killer may
start once uncounted: at most max_attempts + 1 times in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from .. import events as ev
from .._values.context import ActiveClaim
from .._values.keys import is_ahead
from .._values.outcomes import Outcome
from .._values.records import Cause
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
from .delivery import claim_request, deliver, finish, granted, unprotected, without_claim
from .duplicates import outcome_of, refusal
from .outcome_recording import OutcomeRecording, retry_until_recorded
from .protocol import Abandon, Claimed, ClaimRequest, Verdict
from .settling import RELEASE_TIMEOUT, conclude, did_not_start, prepare

__all__ = ["LINGER", "ask_all", "deliver_many", "job_of", "settle_all"]

LINGER: Final = 0.05
"""Seconds that a finished item may wait to be recorded together with others."""

_WON, _LEASE_EXPIRED = Verdict.WON, Cause.LEASE_EXPIRED

Answer: TypeAlias = Outcome[Any] | Raised
Done: TypeAlias = tuple[int, ActiveClaim, Reply]
"""A handler that ended: the index of its call, its claim, its reply."""


def deliver_many(calls: list[Call], concurrency: int) -> Flow[list[Answer]]:
    """One answer per call, in order. Equal keys of one batch run once."""
    return _Batch(calls, concurrency).run()


class _Batch:
    def __init__(self, calls: list[Call], concurrency: int) -> None:
        self.calls, self.concurrency = calls, concurrency
        self.answers: dict[int, Answer] = {}
        self.later: list[int] = []
        """To be claimed when they can start."""
        self.waiting: list[int] = []
        """To be delivered one by one, when nothing else of this batch runs."""
        self.stopped: BaseException | None = None
        """An interrupt or an exit that a handler raised: it ends the batch."""
        self.cancelled = False

    def run(self) -> Flow[list[Answer]]:
        calls = self.calls
        leaders: dict[bytes, int] = {}
        at_once: list[int] = []
        for index, call in enumerate(calls):
            if leaders.setdefault(call.key.id, index) != index:
                self.waiting.append(index)
            elif _is_exact(call):
                self.later.append(index)
            else:
                at_once.append(index)
        while (at_once or self.later) and self.stopped is None and not self.cancelled:
            if not at_once:
                at_once = self.later[: self.concurrency]
                del self.later[: self.concurrency]
            yield from self._handle((yield from self._claim(at_once)))
            at_once = []
        if self.stopped is not None:
            raise self.stopped
        if self.cancelled:
            return []  # the runtime raises it after all claims are released
        began = calls[0].clock()
        for index in self.waiting:
            try:  # they share one wait: a batch waits as long as a single call would
                flight = yield JoinFlight(calls[index])
                answer = yield from deliver(calls[index], flight, began)
            except Exception as error:
                answer = Raised(error)
            if (stop := _stop_of(answer)) is not None:
                raise stop
            self.answers[index] = answer
        return [self.answers[index] for index in range(len(calls))]

    # -- who runs? ----------------------------------------------------------------------------

    def _claim(self, indexes: list[int]) -> Flow[dict[int, ActiveClaim | None]]:
        """Claim these in one request, and return those that may start now.

        None in place of a claim: the store is away, and the policy says that the handler runs.
        """
        calls = self.calls
        asks = [
            claim_request(calls[index], ahead=place >= self.concurrency)
            for place, index in enumerate(indexes)
        ]
        clock = calls[indexes[0]].clock
        sent = clock()
        replies = yield from ask_all(asks)
        late = clock() - sent
        won: dict[int, ActiveClaim | None] = {}
        unused: list[Abandon] = []
        for index, ask, reply in zip(indexes, asks, replies, strict=True):
            call = calls[index]
            if isinstance(reply, Exception):
                if isinstance(reply, StoreUnavailableError) and reply.written:
                    unused.append(Abandon(ask.key.id, ask.owner, call.policy.retention_ms))
                if self._runs_anyway(index, reply):
                    won[index] = None
                continue
            if reply.verdict is _WON:
                if late < call.policy.usable and self._may_start(index, ask, reply):
                    won[index] = granted(call, ask, reply, sent, late)
                    continue
                unused.append(Abandon(ask.key.id, ask.owner, call.policy.retention_ms))
                if late < call.policy.usable:
                    continue
            self._answer_without_running(index, reply)
        if unused:
            yield PerformMany(unused)
        return won

    def _may_start(self, index: int, ask: ClaimRequest, reply: Claimed) -> bool:
        """False: it was tried before, so it starts under a claim that counts, or alone."""
        died = reply.cause is _LEASE_EXPIRED
        if died and reply.attempt > 1 and self.concurrency > 1:
            self.waiting.append(index)
            return False
        if (died or reply.attempt > 1) and is_ahead(ask.owner):
            self.later.append(index)
            return False
        return True

    def _runs_anyway(self, index: int, error: Exception) -> bool:
        """Whether a handler runs that could not be claimed. False: its answer is the error."""
        call = self.calls[index]
        if isinstance(error, StoreUnavailableError):
            call.notify(ev.StoreFailed(call.key, "claim", cause_of(error)))
            if call.policy.outage_runs:
                call.notify(ev.Unprotected(call.key))
                return True
        known = error.about(call.key) if isinstance(error, TwicesafeError) else error
        self.answers[index] = Raised(known)
        return False

    def _answer_without_running(self, index: int, reply: Claimed) -> None:
        call = self.calls[index]
        busy = reply.verdict in (Verdict.BUSY, Verdict.RESTING, Verdict.WON)
        if busy and not call.policy.rejects:
            self.waiting.append(index)
            return
        try:
            if reply.verdict is Verdict.REPLAY:
                self.answers[index] = outcome_of(call, reply)
            else:
                refusal(call, reply)
        except Exception as error:
            self.answers[index] = Raised(error)

    # -- run and record -----------------------------------------------------------------------

    def _handle(self, claims: dict[int, ActiveClaim | None]) -> Flow[None]:
        """Run all of these, and record them as they end."""
        calls = self.calls
        jobs = [(index, job_of(calls[index], claim)) for index, claim in claims.items()]
        while claims:
            finished: list[tuple[int, Any]] = yield Launch(
                jobs, self.concurrency, LINGER, self.stopped is not None
            )
            jobs = []
            done: list[Done] = []
            unstarted: list[Abandon] = []
            stops = False
            for index, reply in finished:
                claim = claims.pop(index)
                if isinstance(reply, NotStarted):
                    stops = True
                    if claim is not None:
                        kept = calls[index].policy.retention_ms
                        unstarted.append(Abandon(claim.key.id, claim.owner, kept))
                elif calls[index].policy.timeout is not None:  # detached: it records its own result
                    answer = reply.value if isinstance(reply, Returned) else reply
                    self.answers[index] = answer
                    self.stopped = self.stopped or _stop_of(answer)
                elif claim is None:
                    self.answers[index] = without_claim(calls[index], reply)
                    self.stopped = self.stopped or _stop_of(reply)
                else:
                    done.append((index, claim, reply))
                    self.stopped = self.stopped or _stop_of(reply)
            if done:
                yield from settle_all(calls, done, self.answers)
            if unstarted:
                yield PerformMany(unstarted)
            if stops and self.stopped is None:
                self.cancelled = True
                return


def _is_exact(call: Call) -> bool:
    """The policy allows one start only, so the key is claimed when its handler can start, not before."""
    return call.policy.hold or call.policy.max_attempts == 1


def job_of(call: Call, claim: ActiveClaim | None) -> Invoke | Detach:
    timeout = call.policy.timeout
    if timeout is None:
        return Invoke(claim, call.run)
    rest = unprotected(call) if claim is None else finish(call, claim)
    return Detach(rest, timeout, claim)


def _stop_of(reply: object) -> BaseException | None:
    """An interrupt or an exit is not a failed item: it ends the batch."""
    if isinstance(reply, Raised) and not isinstance(reply.error, Exception):
        return reply.error
    return None


def settle_all(
    calls: Sequence[Call] | Mapping[int, Call], done: list[Done], answers: dict[int, Answer]
) -> Flow[None]:
    """Record how these handlers ended, in one batch, and add the answer of each."""
    unused = []
    for index, claim, reply in done:
        if did_not_start(reply):
            claim.settled, answers[index] = True, reply
            unused.append(Abandon(claim.key.id, claim.owner, calls[index].policy.retention_ms))
    if unused:
        yield PerformMany(unused)
        done = [one for one in done if one[0] not in answers]
        if not done:
            return
    prepared = [prepare(calls[index], claim, reply) for index, claim, reply in done]
    clock = calls[done[0][0]].clock
    began = clock()
    acks: list[Any] = yield PerformMany([ask for ask, _ in prepared])
    again: dict[int, OutcomeRecording] = {}
    for (index, claim, reply), (ask, _), ack in zip(done, prepared, acks, strict=True):
        if isinstance(ack, Exception):
            again[index] = OutcomeRecording(claim, ask, ack, began, _until(reply, began))
        else:
            claim.settled = True
    if again:
        yield from retry_until_recorded([*again.values()], clock)
    for (index, claim, reply), (ask, problem), ack in zip(done, prepared, acks, strict=True):
        call, one = calls[index], again.get(index)
        claim.settled = True
        try:
            if one is None:
                answers[index] = conclude(call, claim, reply, ask, ack, problem)
            else:
                found, unkept = one.answer(call), problem or one.problem(call, reply)
                answers[index] = conclude(call, claim, reply, one.ask, found, unkept)
        except Exception as error:
            answers[index] = Raised(error)


def ask_all(asks: list[ClaimRequest]) -> Flow[list[Any]]:
    """All answers; unanswered claims are retried, each with its own owner (P2, P10)."""
    replies: list[Any] = yield PerformMany(asks)
    for pause in (0.05, 0.2, 0.5, 1.0, 1.0):
        open_ = [
            i for i, r in enumerate(replies) if isinstance(r, StoreUnavailableError) and r.asked
        ]
        if not open_:
            break
        yield Sleep(pause)
        yield from _once_more(asks, open_, replies)
    return replies


def _until(reply: Reply, began: float) -> float | None:
    """After an interrupt: release the claims now; those that fail expire with their lease."""
    return None if _stop_of(reply) is None else began + RELEASE_TIMEOUT


def _once_more(asks: list[Any], open_: list[int], replies: list[Any]) -> Flow[None]:
    again = yield PerformMany([asks[i] for i in open_])
    for index, reply in zip(open_, again, strict=True):
        replies[index] = reply
