"""The consumer flow: fetch, claim, run, record, and only then acknowledge.

    fetch        while there is room: a bounded number of messages is held (back-pressure)
    start        the first message of each free lane, as many as may run at once: their claims are one
                 request, and each claim is followed by its start at once (`starting`)
    record       what has ended since the last time, in one request
    settle       acknowledge, give back, or publish to the dead letters (`settlement`)

A dead letter is a delivery like any other, under a key derived from the message's: its handler
publishes the message with confirmation. So it is published before the message is acknowledged, a
repeat does not publish it again, and its lane waits for it. With ``order="key"`` the lane is parked
first: later messages of the key follow it to the dead letters, until it is replayed.

What a crash leaves behind:
    before a claim             nothing; the broker redelivers
    while a handler runs       a claim that expires; the next delivery takes it over
    recorded, not acknowledged the record; the redelivery is answered from it and acknowledged
    dead, not acknowledged     the dead letter's own record, as above
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ... import events as ev
from ..._values.outcomes import Outcome
from ...errors import (
    CorruptRecordError,
    StoreError,
    StoreUnavailableError,
    UsageError,
    text_of,
)
from ..batch import settle_all
from ..call import Call
from ..commands import Flow, Raised, Returned
from .intake import Delivery, Intake
from .message import Received, lane_of
from .outage import REST, Outage
from .settlement import Settlement
from .starting import Starting
from .state import (
    CollectEvents,
    ConsumerState,
    FetchMessages,
    HandlerEnded,
    MessagesFetched,
    Report,
    Revoked,
)
from .verdicts import is_counted, is_repeat, verdict_of

__all__ = ["consume"]

LONGEST_WAIT: Final = 1.0
"""Seconds after which the loop looks again, at the latest."""

HANDED_BACK: Final = 1.0
"""A shorter rest is kept here: the broker's own delay is coarse and costs a request."""


def consume(state: ConsumerState) -> Flow[Report]:
    """Handle messages until stopped; then finish what runs, and give back the rest."""
    return _ConsumerLoop(state).run()


class _ConsumerLoop:
    def __init__(self, state: ConsumerState) -> None:
        self.state = state
        self.intake = Intake()
        self.outage = Outage(state, self.intake)
        self.settlement = Settlement(state, self.intake, self.outage)
        self.starting = Starting(
            state, self.intake, self.outage, self._answered, self._make_dead, self._take_note
        )
        self.numbers = 0
        self.fetching = False
        self.ended: list[HandlerEnded] = []
        self.asked_at = 0.0
        """When the running fetch began."""
        self.revoked_meanwhile: set[str] = set()
        """Partitions that were taken away while the fetch runs: it may have taken messages of theirs before."""
        self.empty_since: float | None = None
        """Since when the source has had nothing, as far as its answers say."""
        self.raised: BaseException | None = None

    def run(self) -> Flow[Report]:
        state = self.state
        while True:
            happened = yield CollectEvents(self._longest_wait())
            for one in happened:
                self._take_note(one)
            yield from self._record()
            yield from self._settle()
            if state.stopping:
                self._return_the_rest()
                yield from self._settle()
                if not self.intake.held and not self.fetching:
                    yield from self.starting.release_claims()
                    break
            elif self._is_idle():
                state.stopping = True  # after the running fetch
            else:
                yield from self.starting.start()
                if (room := self._room()) > 0:
                    self.fetching, self.asked_at = True, state.clock()
                    yield FetchMessages(room)
            yield from self.settlement.extend()
        if self.raised is not None:
            raise self.raised
        return state.report

    # -- waiting ------------------------------------------------------------------------------

    def _longest_wait(self) -> float:
        """How long there is nothing to do, unless something happens."""
        state, now = self.state, self.state.clock()
        self.intake.wake(now)
        if self.ended:
            return 0.0
        if state.stopping:
            return 0.0 if not (self.intake.running or self.fetching) else LONGEST_WAIT
        if self._room() > 0:
            return 0.0  # nothing is being fetched: it begins
        if self.intake.can_take(state.concurrency) and not self.outage.lasts:
            return 0.0
        dues = [LONGEST_WAIT]
        if self.outage.lasts:
            dues.append(self.outage.until - now)
        elif self.settlement.acks:
            dues.append(self.settlement.acknowledge_by - now)
        rest = self.intake.next_rest()
        if rest is not None:
            dues.append(rest - now)
        if state.ack_wait:
            dues.append(state.ack_wait / 6)
        if state.idle is not None:
            dues.append(state.idle / 4)
        return max(0.0, min(dues))

    def _is_idle(self) -> bool:
        state = self.state
        if state.idle is None or self.intake.held or self.settlement.unsettled:
            return False
        return self.empty_since is not None and state.clock() - self.empty_since >= state.idle

    def _take_note(self, one: Any) -> None:
        if type(one) is HandlerEnded:
            self.ended.append(one)
        elif isinstance(one, MessagesFetched):
            self.fetching = False
            if one.messages or not one.joined:
                self.empty_since = None
            elif self.empty_since is None:
                self.empty_since = self.asked_at
            self._take_in(self._still_ours(one.messages))
        elif isinstance(one, Revoked):
            if self.fetching:
                self.revoked_meanwhile |= one.partitions
            self.settlement.revoked.add(one.partitions)
            gone = [d for d in self.intake.held.values() if d.received.partition in one.partitions]
            for delivery in gone:
                delivery.revoked = True
            self.intake.drop_waiting(gone)
        else:
            self.fetching, self.empty_since = False, None
            self.revoked_meanwhile.clear()
            self.outage.begins("fetch", one.error)

    # -- fetching -----------------------------------------------------------------------------

    def _room(self) -> int:
        """How many more messages may be held. Those that wait for a retry do not count."""
        state, intake = self.state, self.intake
        if self.fetching or self.outage.lasts:
            return 0
        held = len(intake.held)
        active = held - intake.resting
        if 2 * active > state.batch:
            return 0  # fetch many at once, not one for each that ends
        return min(state.batch - active, state.most_held - held - self.settlement.unsettled)

    def _still_ours(self, messages: Sequence[Received]) -> Sequence[Received]:
        """The source took these before it told that their partition is revoked, or after it came
        back: only the source knows. So they are given back. It fetches those again that are
        ours."""
        revoked, self.revoked_meanwhile = self.revoked_meanwhile, set()
        if not revoked:
            return messages
        self.settlement.give_back([one for one in messages if one.partition in revoked], 0.0)
        return [one for one in messages if one.partition not in revoked]

    def _take_in(self, messages: Sequence[Received]) -> None:
        state, intake = self.state, self.intake
        now, leases, ordered, call_of = state.clock(), state.leases, state.ordered, state.call
        for number, received in enumerate(messages, self.numbers + 1):
            self.numbers = number
            message = received.message
            delivery = Delivery(number, received, now, leases, number)
            try:
                delivery.call = call = call_of(message)
                delivery.lane = call.key.id
                if not leases:
                    delivery.mark = state.mark(message, call, False)
            except Exception as error:
                self._make_dead(delivery, error)
            if ordered and message.key:
                delivery.lane = lane_of(message)
                self.starting.take_in(delivery)
            intake.add(delivery)
        if messages:
            self.outage.is_over()
            state.report.received += len(messages)

    # -- recording ----------------------------------------------------------------------------

    def _record(self) -> Flow[None]:
        """Record what has ended, in one request, and decide what each message needs next."""
        ended, self.ended = self.ended, []
        if not ended:
            return
        held = self.intake.held
        answers: dict[int, Outcome[Any] | Raised] = {}
        done = []
        calls: dict[int, Call] = {}
        marked = False
        for one in ended:
            delivery = held[one.number]
            call = delivery.call
            assert call is not None
            if delivery.claim is not None and not delivery.is_marked and not call.policy.timeout:
                calls[one.number] = call
                done.append((one.number, delivery.claim, one.reply))
                continue
            value = one.reply.value if isinstance(one.reply, Returned) else one.reply
            answers[one.number] = value  # it recorded its own end
            if delivery.claim is not None and delivery.is_marked:
                self.starting.unmark(delivery, failed=isinstance(value, Raised))
                marked = True
        if done:
            yield from settle_all(calls, done, answers)
            for number, _, reply in done:
                held[number].unrecorded = reply if _is_unrecorded(answers[number]) else None
        if marked:  # before the acknowledgement: no delivery would release them after it
            yield from self.starting.release_claims()
        for number, answer in answers.items():
            delivery = held[number]
            if delivery.unrecorded is None:
                delivery.claim = None
            self._answered(delivery, answer.error if isinstance(answer, Raised) else answer)

    def _answered(self, delivery: Delivery, answer: Outcome[Any] | BaseException) -> None:
        if type(answer) is Outcome and not answer.replayed and delivery.dead is None:
            self.state.report.ran += 1  # what most messages come to; the table below says the same
            self.settlement.acknowledge(delivery)
            self.intake.done(delivery)
            return
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            self.raised, self.state.stopping = self.raised or answer, True
            self.intake.again(delivery)
            return
        verdict, report = verdict_of(answer), self.state.report
        if delivery.revoked and verdict.action != "ack":
            self.intake.done(delivery)  # its partition's next consumer continues with it
        elif verdict.action == "ack":
            replayed = is_repeat(verdict)
            if delivery.dead is not None:
                report.dead += not replayed
                if self.state.ordered and delivery.received.message.key:
                    self.starting.parked.add(delivery.lane)
            elif replayed:
                report.replayed += 1
            else:
                report.ran += 1
            self.settlement.acknowledge(delivery)
            self.intake.done(delivery)
        elif verdict.action == "retry":
            wait = verdict.retry_after or 0.0
            if delivery.dead is None:
                report.retried += is_counted(verdict)
                self._tell_silent(verdict.error, wait)
            elif is_counted(verdict):
                assert verdict.error is not None
                self.outage.tell("dead letter", verdict.error.__cause__ or verdict.error, wait)
            delivery.doomed = None  # what is true then is asked again
            self._rest(delivery, wait)
        elif delivery.dead is None:
            assert verdict.error is not None
            self._make_dead(delivery, verdict.error)
            self.intake.again(delivery)
        else:  # the dead letter itself cannot be published: it is not lost, and its lane waits
            self.outage.begins("dead letter", verdict.error)
            self._rest(delivery, REST.delay(6, 0))

    def _tell_silent(self, error: Exception | None, wait: float) -> None:
        """The message is not to blame, and is retried until the cause is gone, so an operator must
        know. In lease mode the flow's own requests already report a store that does not answer."""
        silent: tuple[type[Exception], ...] = (UsageError, CorruptRecordError)
        if not self.state.leases:
            silent = (UsageError, StoreError)
        if isinstance(error, silent):
            self.outage.tell("delivery", error, wait)

    def _rest(self, delivery: Delivery, seconds: float) -> None:
        """Try again later: the broker keeps it if it can, and if its lane need not wait."""
        state = self.state
        alone = not (state.ordered and delivery.received.message.key)
        ours = delivery.dead is not None or delivery.unrecorded is not None
        if state.can_delay and alone and seconds >= HANDED_BACK and not ours:
            self.settlement.give_back([delivery.received], seconds)
            self.intake.done(delivery)
        else:
            self.intake.rest(delivery, state.clock() + seconds)

    def _make_dead(self, delivery: Delivery, error: Exception) -> None:
        message = delivery.received.message
        delivery.dead = error
        delivery.call = self.state.dead_call(message, error)
        why = f"{type(error).__name__}: {text_of(error)}"
        self.state.notify(ev.DeadLettered(message.id or message.position, message.topic, why))

    # -- settling -----------------------------------------------------------------------------

    def _settle(self) -> Flow[None]:
        for partitions in (yield from self.settlement.send()):
            self.starting.forget(partitions)

    def _return_the_rest(self) -> None:
        idle = self.intake.drop_waiting(list(self.intake.held.values()))
        self.settlement.give_back([delivery.received for delivery in idle], 0.0)


def _is_unrecorded(answer: Outcome[Any] | Raised) -> bool:
    """The handler has ended, and the store has not answered since."""
    return isinstance(answer, Raised) and isinstance(answer.error, StoreUnavailableError)
