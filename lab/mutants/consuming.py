"""Mutants of the consumers: what is started, counted, recorded, acknowledged and dead-lettered."""

from __future__ import annotations

from functools import partial
from typing import Any

from twicesafe._core import batch, settling
from twicesafe._core.commands import PerformMany, Raised
from twicesafe._core.consuming import flow, verdicts
from twicesafe._core.consuming.flow import _ConsumerLoop
from twicesafe._core.consuming.intake import Intake
from twicesafe._core.consuming.prefix import Prefix
from twicesafe._core.consuming.settlement import Settlement
from twicesafe._core.consuming.starting import FollowsDeadLetter, Starting, _behind
from twicesafe._core.consuming.state import Acknowledge, GiveBack, Revoked
from twicesafe._core.protocol import Abandon, Ack, Fail, Renew, Verdict
from twicesafe.errors import ParkedError

from ..simulation.consumers.process import Process
from .registry import Patch, mutant, tampered

STUDY = "consumers"


# --- acknowledging -----------------------------------------------------------------------------


@mutant("a message is acknowledged when its handler ends, before the record", STUDY)
def acknowledges_before_the_record(patch: Patch) -> None:
    record = _ConsumerLoop._record

    def early(self: Any) -> Any:
        receipts = [self.intake.held[one.number].received.receipt for one in self.ended]
        if receipts:
            yield Acknowledge(receipts)
        yield from record(self)

    patch(_ConsumerLoop, "_record", early)


@mutant("a handler that ended in an outage is recorded without asking whose claim it is", STUDY)
def records_without_renewing(patch: Patch) -> None:
    """A parked record accepts it, while the worker that parked it publishes the dead letter."""

    def handle(starting: Any, command: Any) -> Any:
        reply = yield command
        renews = type(command) is PerformMany and type(command.requests[0]) is Renew
        return [Ack.OK for _ in reply] if renews else reply

    patch(Starting, "_renew_ended", tampered(Starting._renew_ended, handle))


@mutant("a message is acknowledged when it is fetched", STUDY)
def acknowledges_at_once(patch: Patch) -> None:
    start = Starting.start

    def first(self: Any) -> Any:
        waiting = [one for one in self._intake.held.values() if one.state == "waiting"]
        if waiting:
            yield Acknowledge([one.received.receipt for one in waiting])
        yield from start(self)

    patch(Starting, "start", first)


@mutant("a dead message is acknowledged before its dead letter is published", STUDY)
def acknowledges_the_dead_first(patch: Patch) -> None:
    make_dead = _ConsumerLoop._make_dead

    def first(self: Any, delivery: Any, error: Exception) -> None:
        make_dead(self, delivery, error)
        self.settlement.acknowledge(delivery)

    patch(_ConsumerLoop, "_make_dead", first)


@mutant("an acknowledgement that the broker did not take is forgotten", STUDY)
def lost_acknowledgement_in_a_log(patch: Patch) -> None:
    """In a queue the message comes again. In a log its partition is never committed."""

    def handle(loop: Any, command: Any) -> Any:
        try:
            return (yield command)
        except Exception:
            if type(command) is Acknowledge:
                return None
            raise

    patch(Settlement, "send", tampered(Settlement.send, handle))


@mutant("a log is committed up to the last message that is done, over those before it", STUDY)
def commits_over_a_gap(patch: Patch) -> None:
    def last(self: Any) -> int | None:
        if not self.is_open or self._next is None:
            return None
        first = next(iter(self._unsettled), self._next)
        later = [one for one in self._unsettled if one != first]
        furthest = later[0] if later and first == self._committed else first
        return None if furthest == self._committed else furthest

    patch(Prefix, "due", last)


@mutant("a message that is handed back never gets to the broker, and is settled as done", STUDY)
def give_back_acknowledges(patch: Patch) -> None:
    def handle(loop: Any, command: Any) -> Any:
        if type(command) is GiveBack:
            return (yield Acknowledge(command.receipts))
        return (yield command)

    patch(Settlement, "send", tampered(Settlement.send, handle))


# --- starting ----------------------------------------------------------------------------------


@mutant("a message whose last worker died starts beside others", STUDY)
def no_suspects(patch: Patch) -> None:
    take = Intake.take

    def every(self: Any, most: int, now: float) -> Any:
        suspects = list(self._suspects)
        self._suspects.clear()
        for one in suspects:
            one.state = "waiting"
            self._ready[one.lane] = None
        return take(self, most, now)

    claim = Starting._claim

    def trusting(self: Any, chosen: Any, jobs: Any) -> Any:
        running, self._intake.running = self._intake.running, 1
        yield from claim(self, chosen, jobs)
        self._intake.running += running - 1

    patch(Intake, "take", every)
    patch(Starting, "_claim", trusting)


@mutant("others start beside a suspect that runs", STUDY)
def not_alone_for_long(patch: Patch) -> None:
    patch(Intake, "isolate", lambda self, delivery: None)


@mutant("later messages of a key start beside earlier ones", STUDY)
def lanes_are_not_kept(patch: Patch) -> None:
    add = Intake.add

    def alone(self: Any, delivery: Any) -> None:
        delivery.lane = delivery.number
        add(self, delivery)

    patch(Intake, "add", alone)


@mutant("a message that rests lets later ones of its key pass", STUDY)
def rests_at_the_end(patch: Patch) -> None:
    rest = Intake.rest

    def behind(self: Any, delivery: Any, until: float) -> None:
        rest(self, delivery, until)
        lane = self._lanes[delivery.lane]
        if len(lane) > 1:
            lane.remove(delivery)
            lane.append(delivery)
            self._ready[delivery.lane] = None

    patch(Intake, "rest", behind)


@mutant("messages behind a dead one are run", STUDY)
def lanes_of_the_dead_go_on(patch: Patch) -> None:
    patch(Starting, "_is_behind", lambda self, delivery: False)


@mutant("a done message behind a dead one is dead-lettered", STUDY)
def the_done_follow_the_dead(patch: Patch) -> None:
    look_behind = Starting._look_behind

    def all_of_them(self: Any, chosen: Any) -> Any:
        yield from look_behind(self, chosen)
        for one in chosen:
            if self._is_behind(one) or isinstance(one.doomed, FollowsDeadLetter):
                one.doomed = None
                self._make_dead(one, _behind(one))

    patch(Starting, "_look_behind", all_of_them)


@mutant("a message that rests after a failure is forgotten", STUDY)
def forgets_what_rests(patch: Patch) -> None:
    patch(_ConsumerLoop, "_rest", lambda self, delivery, seconds: self.intake.done(delivery))


@mutant("a waiting message of a revoked partition still starts", STUDY)
def revoked_still_starts(patch: Patch) -> None:
    take_note = _ConsumerLoop._take_note

    def unmoved(self: Any, one: Any) -> None:
        if isinstance(one, Revoked):
            self.settlement.revoked.add(one.partitions)
        else:
            take_note(self, one)

    patch(_ConsumerLoop, "_take_note", unmoved)


@mutant("a failed message of a revoked partition starts again", STUDY)
def revoked_starts_again(patch: Patch) -> None:
    answered = _ConsumerLoop._answered

    def anyhow(self: Any, delivery: Any, answer: Any) -> None:
        delivery.revoked = False
        answered(self, delivery, answer)

    patch(_ConsumerLoop, "_answered", anyhow)


@mutant("a partition is released while its messages run", STUDY)
def releases_too_early(patch: Patch) -> None:
    release = Settlement._release_partitions

    def at_once(self: Any) -> Any:
        held, self._intake.held = self._intake.held, {}
        released = yield from release(self)
        self._intake.held = held
        return released

    patch(Settlement, "_release_partitions", at_once)


@mutant("a claim whose answer came too late starts its handler", STUDY)
def late_claim_starts(patch: Patch) -> None:
    claim = Starting._claim

    def patient(self: Any, chosen: Any, jobs: Any) -> Any:
        clock, sent = self._state.clock, self._state.clock()
        self._state.clock = lambda: sent
        steps = claim(self, chosen, jobs)
        reply: Any = None
        while True:
            try:
                command = steps.send(reply)
            except StopIteration:
                break
            reply = yield command
        self._state.clock = clock

    patch(Starting, "_claim", patient)


@mutant("one message more than `concurrency` starts", STUDY)
def one_too_many(patch: Patch) -> None:
    take = Intake.take
    patch(Intake, "take", lambda self, most, now: take(self, most + 1, now))


@mutant("messages whose acknowledgement waits do not count as held", STUDY)
def holds_more(patch: Patch) -> None:
    patch(Settlement, "unsettled", property(lambda self: sum(map(len, self.returns.values()))))


# --- counting ----------------------------------------------------------------------------------


@mutant("a failed attempt is given back as if it had not started", STUDY)
def retries_are_not_counted(patch: Patch) -> None:
    prepare = settling.prepare

    def uncounted(call: Any, claim: Any, reply: Any) -> Any:
        ask, problem = prepare(call, claim, reply)
        if type(ask) is Fail and claim.attempt < ask.max_attempts:
            return Abandon(ask.id, ask.owner, ask.retention), problem
        return ask, problem

    patch(batch, "prepare", uncounted)


@mutant("a claim without an answer is not released", STUDY)
def unanswered_claims_count(patch: Patch) -> None:
    not_claimed = Starting._not_claimed

    def forgetful(self: Any, delivery: Any, unused: Any, error: Exception) -> None:
        not_claimed(self, delivery, unused, error)
        self.unused = [one for one in self.unused if one is not unused]

    patch(Starting, "_not_claimed", forgetful)


@mutant("claims that start nothing are not released", STUDY)
def unused_claims_count(patch: Patch) -> None:
    def handle(loop: Any, command: Any) -> Any:
        if type(command) is PerformMany:
            return [None for _ in command.requests]
        return (yield command)

    patch(Starting, "release_claims", tampered(Starting.release_claims, handle))


@mutant("the last attempt rests like the others, and its message is never dead-lettered", STUDY)
def no_last_attempt(patch: Patch) -> None:
    verdict_of = verdicts.verdict_of

    def lenient(answer: Any) -> Any:
        verdict = verdict_of(answer)
        if verdict.action == "dead_letter":
            return verdicts.Verdict("retry", 0.5, error=answer)
        return verdict

    patch(flow, "verdict_of", lenient)


@mutant("a worker that has lost its claim decides about the message all the same", STUDY)
def the_late_worker_decides(patch: Patch) -> None:
    conclude = settling.conclude

    def kept(call: Any, claim: Any, reply: Any, *rest: Any) -> Any:
        answer = conclude(call, claim, reply, *rest)
        return reply if isinstance(answer, Raised) and isinstance(reply, Raised) else answer

    patch(batch, "conclude", kept)


# --- transaction mode --------------------------------------------------------------------------


@mutant("in transaction mode a crash leaves nothing that counts", STUDY)
def crashes_are_not_counted(patch: Patch) -> None:
    """A message that kills every worker loops for ever."""
    patch(Process, "_mark", lambda self, message, call, elsewhere: None)


@mutant("a mark is given back when its transaction begins", STUDY)
def marks_are_given_back_early(patch: Patch) -> None:
    job = Starting._job

    def early(self: Any, delivery: Any) -> Any:
        started = job(self, delivery)
        if delivery.is_marked:
            claim = delivery.claim
            self.unused.append(Abandon(claim.key.id, claim.owner, 60_000))
        return started

    patch(Starting, "_job", early)


@mutant("a mark is not given back when its transaction has ended", STUDY)
def marks_are_kept(patch: Patch) -> None:
    patch(Starting, "unmark", lambda self, delivery, failed: None)


@mutant("crashes do not use up attempts: only failures do", STUDY)
def crashes_cost_nothing(patch: Patch) -> None:
    job = Starting._job

    def forgetful(self: Any, delivery: Any) -> Any:
        started: Any = job(self, delivery)
        if delivery.is_marked:
            started.run = partial(started.run.func, 0)
        return started

    patch(Starting, "_job", forgetful)


@mutant("a message with too many crashes is dead-lettered, done or not", STUDY)
def the_done_are_not_looked_up(patch: Patch) -> None:
    def at_once(self: Any, delivery: Any, reply: Any) -> None:
        if delivery.is_marked and reply.verdict is Verdict.PARKED:
            self._answered(delivery, ParkedError("too many attempts"))
        else:
            without_running(self, delivery, reply)

    without_running = Starting._answered_without_running
    patch(Starting, "_answered_without_running", at_once)


# --- waiting -----------------------------------------------------------------------------------


@mutant("a rest that is over keeps the loop awake until a message can start", STUDY)
def restless(patch: Patch) -> None:
    longest_wait = _ConsumerLoop._longest_wait
    wake = Intake.wake

    def without_looking(self: Any) -> Any:
        self.intake.asleep = True
        try:
            return longest_wait(self)
        finally:
            self.intake.asleep = False

    def unless_asleep(self: Any, now: float) -> None:
        if not getattr(self, "asleep", False):
            wake(self, now)

    patch(_ConsumerLoop, "_longest_wait", without_looking)
    patch(Intake, "wake", unless_asleep)


@mutant("a retry starts at once, without its back-off", STUDY)
def retries_do_not_rest(patch: Patch) -> None:
    rest = _ConsumerLoop._rest
    patch(settling, "_delay", lambda policy, claim, error: 0.0)
    patch(_ConsumerLoop, "_rest", lambda self, delivery, seconds: rest(self, delivery, 0.0))


@mutant("a consumer that is stopped waits for more messages", STUDY)
def does_not_stop(patch: Patch) -> None:
    def kept(self: Any) -> None:
        return

    patch(_ConsumerLoop, "_return_the_rest", kept)
