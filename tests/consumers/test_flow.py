"""The consumer flow, command by command: what the simulation of consumers has found."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from twicesafe import Key, Policy
from twicesafe._core.call import Call
from twicesafe._core.commands import PerformMany, Raised, Returned, Sleep
from twicesafe._core.consuming.flow import consume
from twicesafe._core.consuming.message import Message, Received, lane_of
from twicesafe._core.consuming.recovery import DeadLetter, Retry, decide, default_recovery
from twicesafe._core.consuming.state import (
    Acknowledge,
    CollectEvents,
    ConsumerState,
    FetchMessages,
    GiveBack,
    HandlerEnded,
    MessagesFetched,
    ReadParkedLanes,
    ReleasePartitions,
    Revoked,
    Start,
)
from twicesafe._core.protocol import Abandon, Ack, ClaimRequest, Complete, Fail, Renew
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._values.keys import new_owner
from twicesafe._values.policy import Backoff
from twicesafe._values.records import State
from twicesafe.errors import (
    BrokerUnavailableError,
    CorruptRecordError,
    SchemaVersionError,
    StoreUnavailableError,
)
from twicesafe.events import StoreFailed
from twicesafe.stores.memory import MemoryStore

POLICY = ResolvedPolicy(Policy(lease=10, max_attempts=2, backoff=Backoff(first=0.1, most=0.1)))


class Bench:
    """Performs a flow's commands one by one, by hand, under a clock that the test sets."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.store = MemoryStore(now=lambda: 1_000_000 + int(self.now * 1000))
        self.dead: list[str] = []
        self.parked: list[str] = []
        self.sent: list[Any] = []
        """All that the flow asked for, except `CollectEvents`."""
        self.deaf: Callable[[Any], bool] = lambda ask: False
        """Requests whose answers get lost."""
        self.lost: Callable[[Any], bool] = lambda ask: False
        """Requests that never reach the store."""
        self.refusal: Exception | None = None
        """What the store answers instead."""
        self.told: list[Any] = []
        """The events."""
        settings = {
            "concurrency": 2, "batch": 10, "most_held": 10, "ordered": False, "leases": True,
            "ack_wait": lambda: 0.0, "can_delay": False, **settings,
        }  # fmt: skip
        self.state = ConsumerState(
            call=lambda message: self._call(Key(message.id or ""), message),
            dead_call=self._dead_call,
            clock=lambda: self.now,
            notify=self.told.append,
            **settings,
        )
        self.flow: Generator[Any, Any, Any] = consume(self.state)
        self.waits = self._until_collect(self.flow.send(None))

    def _call(self, key: Key, message: Message) -> Call:
        return Call(
            key, lambda: None, POLICY, None, None, None, lambda: self.now, lambda event: None, False,
            decide=decide(default_recovery, message, POLICY),
        )  # fmt: skip

    def _dead_call(self, message: Message, error: Exception) -> Call:
        self.dead.append(f"{message.id}: {error}")
        return self._call(Key(f"dead {message.id}"), message)

    def happens(self, *what: Any) -> None:
        """These happen, and the flow acts until it waits again."""
        self.waits = self._until_collect(self.flow.send(list(what)))

    def fetched(self, *messages: Message, partition: str = "") -> None:
        self.happens(MessagesFetched([Received(one, one.id, partition) for one in messages]))

    def started(self) -> list[tuple[int, Any]]:
        """The jobs that were started since the last look."""
        found = [job for one in self.sent if isinstance(one, Start) for job in one.jobs]
        self.sent.clear()
        return found

    def _until_collect(self, command: Any) -> CollectEvents:
        while not isinstance(command, CollectEvents):
            self.sent.append(command)
            try:
                reply = self._perform(command)
            except StoreUnavailableError as error:
                command = self.flow.throw(error)
            else:
                command = self.flow.send(reply)
        return command

    def _perform(self, command: Any) -> Any:
        if isinstance(command, PerformMany):
            return [self._ask(one) for one in command.requests]
        if isinstance(command, Sleep):
            self.now += command.seconds
        if isinstance(command, ReadParkedLanes):
            return list(self.parked)
        if not isinstance(command, (Complete, Fail, Renew)):
            return None
        answer = self._ask(command)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ask(self, request: Any) -> Any:
        if self.lost(request):
            return StoreUnavailableError("the request was lost")
        if self.refusal is not None:
            return self.refusal
        answer = self.store.perform(request)
        return StoreUnavailableError("the answer was lost") if self.deaf(request) else answer

    def record(self, id_: str) -> Any:
        return self.store._rows[Key(id_).id]


def message(id_: str, key: str | None = None) -> Message:
    return Message(id_, "orders", b"", key)


def test_a_rest_that_ends_while_all_run_does_not_make_the_flow_spin() -> None:
    bench = Bench(concurrency=1)
    bench.fetched(message("a"))
    ((number, _),) = bench.started()
    bench.happens(HandlerEnded(number, Raised(Retry(after=0.2))))
    bench.fetched(message("b"))
    assert len(bench.started()) == 1
    bench.now += 0.3
    bench.happens()
    assert bench.waits.seconds > 0


def test_nothing_starts_beside_a_suspect_that_runs() -> None:
    bench = Bench()
    bench.store.perform(ClaimRequest(Key("suspect"), new_owner(), lease=0))
    bench.fetched(message("suspect"))
    ((number, _),) = bench.started()
    bench.fetched(message("b"))
    assert bench.started() == []
    assert bench.waits.seconds > 0
    bench.happens(HandlerEnded(number, Returned(None)))
    assert len(bench.started()) == 1


def test_a_message_of_a_revoked_partition_that_fails_does_not_start_again() -> None:
    bench = Bench()
    bench.fetched(message("a"), message("b"), partition="p")
    (a, _), (b, _) = bench.started()
    bench.happens(Revoked(frozenset({"p"})))
    bench.happens(HandlerEnded(a, Raised(DeadLetter("never"))))
    assert not any(isinstance(one, ReleasePartitions) for one in bench.sent)
    bench.happens(HandlerEnded(b, Raised(Retry(after=0))))
    assert [type(one) for one in bench.sent if isinstance(one, (ReleasePartitions, GiveBack))] == [
        ReleasePartitions
    ]
    bench.now += 1
    bench.happens()
    assert bench.started() == []
    assert bench.dead == []


def test_what_a_fetch_took_before_its_partition_was_revoked_does_not_start() -> None:
    bench = Bench()
    bench.happens()
    assert isinstance(bench.sent[-1], FetchMessages)
    bench.happens(Revoked(frozenset({"p", "q"})))
    bench.sent.clear()
    late = [Received(message("a"), "a", "p"), Received(message("b"), "b", "r")]
    bench.happens(MessagesFetched(late))
    given_back = [one.receipts for one in bench.sent if isinstance(one, GiveBack)]
    assert given_back == [
        ["a"]
    ]  # before the next fetch: the source may have it again, in its place
    assert isinstance(bench.sent[0], GiveBack)
    assert len(bench.started()) == 1
    bench.fetched(message("c"), partition="p")  # it is ours again
    assert len(bench.started()) == 1
    assert bench.state.report.received == 2


def test_an_unanswered_claim_is_released_before_the_next_and_not_counted() -> None:
    bench = Bench()
    bench.deaf = lambda ask: isinstance(ask, ClaimRequest)
    bench.fetched(message("a"))
    assert bench.record("a").attempt == 1
    bench.deaf = lambda ask: False
    bench.now += 1
    bench.happens()
    asked = [one for sent in bench.sent if isinstance(sent, PerformMany) for one in sent.requests]
    assert [type(one) for one in asked[-2:]] == [Abandon, ClaimRequest]
    assert len(bench.started()) == 1
    assert bench.record("a").attempt == 1


def test_a_claim_that_is_not_used_is_released_until_the_store_answers() -> None:
    """Two suspects: each is to run alone, so neither starts, and neither is counted again."""
    bench = Bench()
    for id_ in ("a", "b"):
        bench.store.perform(ClaimRequest(Key(id_), new_owner(), lease=0))
    bench.lost = lambda ask: isinstance(ask, Abandon)
    bench.fetched(message("a"), message("b"))
    bench.lost = lambda ask: False
    for _ in range(3):
        bench.now += 1
        bench.happens()
    ((number, _),) = bench.started()
    assert bench.record("a").attempt == 2
    bench.happens(HandlerEnded(number, Returned(None)))
    assert len(bench.started()) == 1


def test_winners_start_before_other_claims_are_released() -> None:
    bench = Bench()
    bench.store.perform(ClaimRequest(Key("suspect"), new_owner(), lease=0))
    bench.fetched(message("a"), message("suspect"))
    kinds = [
        type(one.requests[0]) if isinstance(one, PerformMany) else type(one) for one in bench.sent
    ]
    assert kinds.index(Start) < kinds.index(Abandon)


def test_a_store_that_has_lost_its_tables_is_an_outage_that_says_what_to_do() -> None:
    """The messages were asked again and again, and nothing told an operator why none started."""
    bench = Bench(can_delay=True)
    bench.refusal = SchemaVersionError("it has no twicesafe tables; run: twicesafe migrate")
    bench.fetched(message("a"))
    assert bench.started() == []
    assert bench.told == [StoreFailed(None, "claim", str(bench.refusal))]
    assert bench.waits.seconds > 0
    bench.refusal = None
    bench.now += 1
    bench.happens()
    assert len(bench.started()) == 1
    assert bench.record("a").attempt == 1


def test_a_record_that_cannot_be_read_is_reported_and_asked_for_again() -> None:
    bench = Bench()
    bench.refusal = CorruptRecordError("its record cannot be read")
    bench.fetched(message("a"))
    assert bench.started() == []
    (told,) = bench.told
    assert told == StoreFailed(None, "delivery", f"key {Key('a').short}: its record cannot be read")
    bench.refusal = None
    bench.now += 3
    bench.happens()
    assert len(bench.started()) == 1


def test_who_lost_the_claim_does_not_send_the_message_to_the_dead_letters() -> None:
    bench = Bench()
    bench.fetched(message("a"))
    ((number, _),) = bench.started()
    bench.now += 11
    other = ClaimRequest(Key("a"), new_owner(), lease=10_000)
    taken = bench.store.perform(other)
    bench.store.perform(Complete(Key("a").id, other.owner, taken.fence, 60_000, b"j1"))
    bench.happens(HandlerEnded(number, Raised(DeadLetter("never"))))
    bench.now += 1
    bench.happens()
    bench.happens()
    assert bench.dead == []
    assert bench.record("a").state is State.COMPLETED
    assert any(isinstance(one, Acknowledge) for one in bench.sent)


def _ends_in_an_outage(bench: Bench, reply: Any) -> Any:
    """Message "a" is started, and ends in an outage that outlasts its lease; its claim."""
    bench.fetched(message("a"))
    ((number, job),) = bench.started()
    bench.lost = lambda ask: True
    bench.happens(HandlerEnded(number, reply))
    bench.now += POLICY.lease
    bench.happens()
    assert not any(isinstance(one, (Start, Acknowledge, GiveBack)) for one in bench.sent)
    bench.lost = lambda ask: False
    bench.now += 60  # longer than any pause
    return job.claim


@pytest.mark.parametrize("can_delay", [False, True])
def test_a_handler_that_ended_in_an_outage_longer_than_its_lease_does_not_run_again(
    can_delay: bool,
) -> None:
    bench = Bench(can_delay=can_delay)
    _ends_in_an_outage(bench, Returned(1))
    bench.happens()
    bench.happens()
    assert bench.started() == []
    assert (bench.record("a").state, bench.record("a").attempt) == (State.COMPLETED, 1)
    assert bench.state.report.ran == 1


def test_a_decision_that_could_not_be_recorded_in_an_outage_is_recorded_after_it() -> None:
    bench = Bench()
    _ends_in_an_outage(bench, Raised(DeadLetter("never")))
    assert bench.dead == []
    bench.happens()
    bench.happens()
    ((_, published),) = bench.started()
    assert published.claim.key == Key("dead a")
    assert bench.dead == ["a: never"]
    assert bench.record("a").state is State.PARKED


@pytest.mark.parametrize("reply", [Returned(1), Raised(DeadLetter("never"))])
def test_what_ended_in_an_outage_is_not_recorded_if_another_worker_has_taken_over(
    reply: Any,
) -> None:
    bench = Bench()
    _ends_in_an_outage(bench, reply)
    other = ClaimRequest(Key("a"), new_owner(), lease=10_000)
    taken = bench.store.perform(other)
    bench.happens()
    bench.happens()
    assert bench.started() == []
    assert bench.dead == []
    assert bench.record("a").owner == other.owner
    bench.store.perform(Complete(Key("a").id, other.owner, taken.fence, 60_000, b"j1"))
    bench.now += POLICY.lease
    bench.happens()
    bench.happens()
    assert bench.state.report.replayed == 1


def test_what_ended_in_an_outage_and_was_parked_by_another_worker_becomes_a_dead_letter() -> None:
    """A record that comes so late could cross the dead letter of the other one."""
    bench = Bench()
    _ends_in_an_outage(bench, Returned(1))
    bench.store.perform(ClaimRequest(Key("a"), new_owner(), lease=10_000, max_attempts=1))
    assert bench.record("a").state is State.PARKED
    bench.happens()
    bench.happens()
    assert bench.record("a").state is State.PARKED
    assert len(bench.dead) == 1


def test_a_late_worker_may_still_record_a_message_whose_dead_letter_waits() -> None:
    """The limit that docs/how-to/dead-letters.md names: nothing withdraws the dead letter."""
    bench = Bench()
    late = ClaimRequest(Key("a"), new_owner(), lease=10_000)
    bench.store.perform(ClaimRequest(Key("a"), new_owner(), lease=0))
    fence = bench.store.perform(late).fence
    bench.now += 11
    bench.fetched(message("a"))
    assert bench.record("a").state is State.PARKED
    bench.happens()
    ((number, job),) = bench.started()
    assert job.claim.key == Key("dead a")
    bench.happens(HandlerEnded(number, Raised(BrokerUnavailableError("no dead letters now"))))
    answer = bench.store.perform(Complete(Key("a").id, late.owner, fence, 60_000, b"j1"))
    assert answer is Ack.OK
    bench.now += 11
    bench.happens()
    ((number, job),) = bench.started()
    assert job.claim.key == Key("dead a")
    bench.happens(HandlerEnded(number, Returned(None)))
    bench.happens()
    assert any(isinstance(one, Acknowledge) for one in bench.sent)
    assert bench.record("a").state is State.COMPLETED


def test_the_renewal_of_what_ended_in_an_outage_may_come_too_late_and_is_repeated() -> None:
    bench = Bench()
    _ends_in_an_outage(bench, Returned(1))
    asked = bench.store.perform

    def slow(ask: Any) -> Any:
        answer = asked(ask)
        if isinstance(ask, Renew) and renewals.append(ask) is None and len(renewals) == 1:
            bench.now += 11
        return answer

    renewals: list[Renew] = []
    bench.store.perform = slow  # type: ignore[method-assign]
    bench.happens()
    assert bench.record("a").state is State.IN_PROGRESS
    bench.happens()
    bench.happens()
    assert bench.record("a").state is State.COMPLETED
    assert len(renewals) == 2


def test_a_message_behind_a_dead_one_that_is_done_is_acknowledged() -> None:
    """Its acknowledgement was lost, and then a later message of its key died."""
    bench = Bench(ordered=True)
    done = ClaimRequest(Key("a"), new_owner(), lease=10_000)
    fence = bench.store.perform(done).fence
    bench.store.perform(Complete(done.key.id, done.owner, fence, 60_000, b"j1"))
    bench.parked = [lane_of(message("a", "k"))]
    bench.fetched(message("a", "k"), message("b", "k"))
    bench.happens()
    bench.now += 0.1
    bench.happens()
    assert bench.dead == ["b: an earlier message of key 'k' is dead"]
    assert [one.receipts for one in bench.sent if isinstance(one, Acknowledge)] == [["a"]]
    assert bench.record("b").attempt == 0


def test_parked_lanes_are_not_read_for_messages_without_an_ordering_key() -> None:
    """Stores without an index read all their records for it."""
    bench = Bench(ordered=True)
    bench.fetched(message("a"), message("b"))
    assert not any(isinstance(one, ReadParkedLanes) for one in bench.sent)
    bench.fetched(message("c", "ann"))
    bench.happens(*(HandlerEnded(number, Returned(None)) for number in (1, 2)))
    assert any(isinstance(one, ReadParkedLanes) for one in bench.sent)


def test_the_longer_it_takes_to_read_the_parked_lanes_the_less_often_they_are_read() -> None:
    bench, reads = Bench(ordered=True), []
    perform = bench._perform

    def slow(command: Any) -> Any:
        if isinstance(command, ReadParkedLanes):
            bench.now += 2
            reads.append(bench.now)
        return perform(command)

    bench._perform = slow  # type: ignore[method-assign]
    for number in range(1, 41):
        bench.fetched(message(str(number), "ann"))
        bench.happens(HandlerEnded(number, Returned(None)))
        bench.now += 10
    assert reads[0] == 2
    assert 2 < len(reads) < 6  # 2 % of 400 seconds


def test_a_read_that_took_an_hour_does_not_hide_lanes_for_two_days() -> None:
    """The process was suspended in it. Until the next read, what is behind another consumer's dead letter runs."""
    bench = Bench(ordered=True)
    perform = bench._perform

    def suspended(command: Any) -> Any:
        if isinstance(command, ReadParkedLanes) and not bench.parked:
            bench.now += 3600
        return perform(command)

    bench._perform = suspended  # type: ignore[method-assign]
    bench.fetched(message("a", "k"))
    bench.happens(HandlerEnded(1, Returned(None)))
    bench.now += 600
    bench.parked = [lane_of(message("b", "k"))]  # by another consumer
    bench.fetched(message("b", "k"))
    bench.happens()
    assert bench.dead == ["b: an earlier message of key 'k' is dead"]


def test_acknowledgements_that_wait_count_as_held() -> None:
    bench = Bench(concurrency=4, batch=4, most_held=4)
    bench.fetched(*(message(id_) for id_ in "abcd"))
    a, _, c, d = [number for number, _ in bench.started()]
    bench.happens(HandlerEnded(c, Raised(Retry(after=9))), HandlerEnded(d, Raised(Retry(after=9))))
    bench.happens(HandlerEnded(a, Returned(None)))
    assert not any(isinstance(one, FetchMessages) for one in bench.sent)
    bench.now += 0.1
    bench.happens()
    assert [type(one) for one in bench.sent[-2:]] == [Acknowledge, FetchMessages]
    assert bench.sent[-1].most == 1


def test_the_first_fetch_begins_at_once() -> None:
    assert Bench().waits.seconds == 0


@pytest.mark.parametrize("rest", [4, 6])
def test_a_message_that_was_not_extended_in_time_is_marked_before_it_starts_again(
    rest: int,
) -> None:
    """The broker may have delivered it elsewhere, and a worker may have died in it there."""
    asked: list[bool] = []

    def mark(message: Message, call: Call, elsewhere: bool) -> None:
        asked.append(elsewhere)

    bench = Bench(leases=False, ack_wait=lambda: 3.0, mark=mark)
    bench.fetched(message("a"))
    ((number, _),) = bench.started()
    bench.happens(HandlerEnded(number, Raised(Retry(after=rest))))
    bench.now = 5  # it is extended now, and that may be too late
    bench.happens()
    bench.now = 7
    bench.happens()
    assert len(bench.started()) == 1
    assert asked == [False, True]
