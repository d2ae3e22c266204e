"""Starting messages: which may start, under which claim, and what is known without starting them.

    lease mode          a message is claimed under its key, and that claim counts the start
    transaction mode    its record is written by its own transaction, which a crash rolls back. So the
                        start is counted outside of it: a *mark* is claimed before it and always given
                        back after it. A worker that dies leaves its mark, and the next
                        claim of the mark counts the crash. A first delivery, as the broker counts them,
                        needs no mark: nothing can have died in it, as long as the broker waits for us.
    dead letters        claimed under a separate key, in both modes

Attempts count starts: no message is claimed before it can start, so a process that dies has counted
those that ran, and no others (`intake` says why a suspect runs alone).

A handler that ended while the store did not answer, until its lease had expired, is not started again: its
claim is renewed and its end recorded, unless another worker has taken over, parked or held the key meanwhile.
The renewal decides that. A recording alone could come when the other one already publishes a dead letter.

Before a message that has not run becomes a dead letter, its record is asked whether it is done: by its
claim in lease mode, by a transaction that only looks in transaction mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias

from ..._values.context import MARGIN, ActiveClaim
from ..._values.outcomes import Outcome
from ..._values.records import Cause
from ...errors import SchemaVersionError, StoreUnavailableError, TwicesafeError
from ..batch import ask_all, job_of
from ..call import Call
from ..commands import Detach, Flow, Invoke, PerformMany
from ..delivery import claim_request, granted
from ..duplicates import outcome_of, refusal
from ..protocol import Abandon, Ack, ClaimRequest, Renew
from ..protocol import Verdict as Answer
from .intake import Delivery, Intake
from .outage import Outage
from .state import ConsumerState, HandlerEnded, ReadParkedLanes, Start
from .verdicts import verdict_of

__all__ = ["FollowsDeadLetter", "Starting"]

LANES_KNOWN_FOR: Final = 5.0
"""Seconds for which the list of parked lanes is not read again…"""
READING_LANES: Final = 0.02
"""…the largest part of the time that is spent reading it: some stores read all their records for it…"""
LANES_KNOWN_AT_MOST: Final = 300.0
"""…and the limit: one read may take long because the process or the store was stopped, and until the next one
the messages behind another consumer's dead letter run."""

MARK_KEPT: Final = 60_000
"""Milliseconds for which a mark is kept that has counted nothing."""

Jobs: TypeAlias = list[tuple[int, Invoke | Detach]]
Answered: TypeAlias = Callable[[Delivery, "Outcome[Any] | BaseException"], None]


class FollowsDeadLetter(Exception):  # noqa: N818 - a reason, not an error
    """This message follows an earlier one of its key to the dead letters, to keep their order."""


class Starting:
    def __init__(
        self,
        state: ConsumerState,
        intake: Intake,
        outage: Outage,
        answered: Answered,
        make_dead: Callable[[Delivery, Exception], None],
        ended: Callable[[HandlerEnded], None],
    ) -> None:
        self._state, self._intake, self._outage = state, intake, outage
        self._answered, self._make_dead, self._ended = answered, make_dead, ended
        self.unused: list[Abandon] = []
        """Claims that count no start, until the store has released them."""
        self.parked: set[Hashable] = set()
        """Lanes with a dead message that was not replayed."""
        self._lanes_read = float("-inf")
        self._lanes_known_for = LANES_KNOWN_FOR
        self._partitions: set[str] = set()
        """Partitions that had messages with an ordering key since the parked lanes were read. None:
        no lane can be parked."""

    def take_in(self, delivery: Delivery) -> None:
        """A message with an ordering key has come: its lane may be parked."""
        if delivery.received.partition not in self._partitions:
            self._lanes_read = float("-inf")
            self._partitions.add(delivery.received.partition)

    def forget(self, partitions: frozenset[str]) -> None:
        self._partitions -= partitions

    def start(self) -> Flow[None]:
        """Start the first message of each free lane, as many as may run at once."""
        state, intake = self._state, self._intake
        if self._outage.lasts or not (yield from self.release_claims()):
            return
        if self._partitions and not (yield from self._know_parked_lanes()):
            return
        free = state.concurrency - intake.running
        chosen = intake.take(free, state.clock()) if free > 0 else []
        yield from self._renew_ended(chosen)
        yield from self._look_behind(chosen)
        if not state.leases:
            self._mark_overdue(chosen)
        jobs: Jobs = []
        claimed: list[tuple[Delivery, Call]] = []
        unclaimed: list[Delivery] = []
        for delivery in chosen:
            if (claims := delivery.claims) is not None:
                claimed.append((delivery, claims))
            else:
                unclaimed.append(delivery)
        if claimed:
            yield from self._claim(claimed, jobs)
        for delivery in unclaimed:
            assert delivery.call is not None
            run = delivery.call.run
            if delivery.doomed is not None:
                run = state.look_up(delivery.received.message, delivery.doomed)
            jobs.append((delivery.number, Invoke(None, run)))
        if jobs:
            yield Start(jobs)
        if not self._outage.lasts:  # after the starts: their leases run
            yield from self.release_claims()

    # -- claims -------------------------------------------------------------------------------

    def _renew_ended(self, chosen: list[Delivery]) -> Flow[None]:
        """Of these, the handlers that have ended without a record are recorded next, and do not start."""
        late: list[tuple[Delivery, ActiveClaim]] = [
            (one, one.claim)
            for one in chosen
            if one.unrecorded is not None and one.claim is not None
        ]
        if not late:
            return
        sent = self._state.clock()
        replies = yield PerformMany(
            [Renew(one.key.id, one.owner, one.fence, round(one.lease * 1000)) for _, one in late]
        )
        now = self._state.clock()
        for (delivery, claim), reply in zip(late, replies, strict=True):
            if isinstance(reply, StoreUnavailableError):
                chosen.remove(delivery)
                self._intake.again(delivery)
                self._outage.begins("renew", reply)
            elif reply is not Ack.OK:
                delivery.claim = delivery.unrecorded = None
            elif now >= (expires := sent + claim.lease * (1 - MARGIN)):  # P7
                chosen.remove(delivery)
                self._intake.again(delivery)
            else:
                chosen.remove(delivery)
                claim.renewed, claim.expires = sent, expires
                self._ended(HandlerEnded(delivery.number, delivery.unrecorded))

    def _claim(self, chosen: list[tuple[Delivery, Call]], jobs: Jobs) -> Flow[None]:
        """Claim what can start now, in one request; the winners are added to `jobs`."""
        asks = [claim_request(call) for _, call in chosen]
        clock = self._state.clock
        sent = clock()
        replies = yield from ask_all(asks)
        late = clock() - sent
        alone = self._intake.running == 1
        for (delivery, call), ask, reply in zip(chosen, asks, replies, strict=True):
            if isinstance(reply, Exception):
                self._not_claimed(delivery, _unused(call, ask), reply)
                continue
            suspect = reply.cause is Cause.LEASE_EXPIRED
            if reply.verdict is not Answer.WON:
                self._answered_without_running(delivery, reply)
            elif late >= call.policy.usable:  # P7
                self.unused.append(_unused(call, ask))
                self._intake.again(delivery)
            elif self._is_behind(delivery):
                self.unused.append(_unused(call, ask))
                self._make_dead(delivery, _behind(delivery))
                self._intake.again(delivery)
            elif suspect and not alone:
                self.unused.append(_unused(call, ask))
                self._intake.suspect(delivery)
            else:
                if suspect:
                    self._intake.isolate(delivery)
                delivery.claim = granted(call, ask, reply, sent, late)
                jobs.append((delivery.number, self._job(delivery)))

    def _mark_overdue(self, chosen: list[Delivery]) -> None:
        """What the broker waits for no longer may run elsewhere, too: its starts are counted from now on."""
        state, now = self._state, self._state.clock()
        for delivery in chosen:
            late = state.ack_wait and now - delivery.extended >= state.ack_wait
            if (late or delivery.overdue) and delivery.mark is None and delivery.dead is None:
                assert delivery.call is not None
                delivery.mark = state.mark(delivery.received.message, delivery.call, True)

    def _job(self, delivery: Delivery) -> Invoke | Detach:
        call, claim = delivery.call, delivery.claim
        assert call is not None
        assert claim is not None
        if not delivery.is_marked:
            return job_of(call, claim)
        deliver: Callable[..., Any] = call.run
        return Invoke(claim, functools.partial(deliver, claim.attempt - 1))

    def unmark(self, delivery: Delivery, failed: bool) -> None:
        """The transaction has ended, so its worker has not died in it: this start is not a crash."""
        claim, mark = delivery.claim, delivery.mark
        assert claim is not None
        assert mark is not None
        claim.settled = True
        crashed = failed and claim.attempt > 1
        kept = mark.policy.retention_ms if crashed else MARK_KEPT
        self.unused.append(Abandon(claim.key.id, claim.owner, kept))

    def release_claims(self) -> Flow[bool]:
        """Only starts count, so other claims are given back. False: the store does not answer."""
        if self.unused:
            replies = yield PerformMany(self.unused)
            answered = zip(self.unused, replies, strict=True)
            self.unused = [one for one, r in answered if isinstance(r, StoreUnavailableError)]
            if self.unused:
                error = next(r for r in replies if isinstance(r, StoreUnavailableError))
                self._outage.begins("abandon", error)
        return not self.unused

    def _not_claimed(self, delivery: Delivery, unused: Abandon, error: Exception) -> None:
        assert delivery.call is not None
        if isinstance(error, StoreUnavailableError):
            self._outage.begins("claim", error)
            self.unused.append(unused)  # the store may have granted it
            self._intake.again(delivery)  # P9: it starts when the store answers
        elif isinstance(error, SchemaVersionError):  # so is every other claim
            self._outage.begins("claim", error)
            self._intake.again(delivery)
        else:
            known = error.about(delivery.call.key) if isinstance(error, TwicesafeError) else error
            self._answered(delivery, known)

    def _answered_without_running(self, delivery: Delivery, reply: Any) -> None:
        call = delivery.claims
        assert call is not None
        try:
            if reply.verdict is Answer.REPLAY:
                self._answered(delivery, outcome_of(call, reply))
            else:
                refusal(call, reply)
        except Exception as error:
            if delivery.is_marked and verdict_of(error).action == "dead_letter":
                delivery.doomed = error  # unless its record says that it is done
                self._intake.again(delivery)
            else:
                self._answered(delivery, error)

    # -- lanes of the dead --------------------------------------------------------------------

    def _look_behind(self, chosen: list[Delivery]) -> Flow[None]:
        """Messages behind a dead one become dead letters, too, unless the lane was just replayed.

        Their claims tell first which of them are done, or dead themselves. In transaction mode they
        are looked up instead.
        """
        behind = [delivery for delivery in chosen if self._is_behind(delivery)]
        if not behind:
            return
        self._lanes_read = float("-inf")
        if not (yield from self._know_parked_lanes()):
            for delivery in behind:
                chosen.remove(delivery)
                self._intake.again(delivery)
            return
        for delivery in behind:
            if self._is_behind(delivery) and not self._state.leases:
                delivery.doomed = _behind(delivery)

    def _is_behind(self, delivery: Delivery) -> bool:
        if not self.parked or delivery.lane not in self.parked:
            return False
        return delivery.dead is None and delivery.doomed is None

    def _know_parked_lanes(self) -> Flow[bool]:
        """Read the parked lanes if they may have changed. False: the store does not answer."""
        now = self._state.clock()
        if now - self._lanes_read < self._lanes_known_for:
            return True
        try:
            parked = yield ReadParkedLanes()
        except Exception as error:
            self._outage.begins("lanes", error)
            return False
        self.parked, self._lanes_read = set(parked), now
        took = self._state.clock() - now
        known_for = max(LANES_KNOWN_FOR, took / READING_LANES)
        self._lanes_known_for = min(known_for, LANES_KNOWN_AT_MOST)
        return True


def _unused(call: Call, ask: ClaimRequest) -> Abandon:
    return Abandon(ask.key.id, ask.owner, call.policy.retention_ms)


def _behind(delivery: Delivery) -> FollowsDeadLetter:
    return FollowsDeadLetter(f"an earlier message of key {delivery.received.message.key!r} is dead")
