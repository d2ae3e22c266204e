"""The Kafka source: order, prefix commits, rebalances, back-pressure, and what its settings hide.

On the mock cluster, or on the real broker after `make kafka`; what only the real one has (the
protocol of KIP-848, a log that survives a restart, settings of topics) says so and is skipped
elsewhere. ``TWICESAFE_KAFKA_REBALANCES`` (50; 4 on the mock, which waits for seconds each time) is how
often the group changes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.consumers.kafka_group import Done, Member, Topic, handle_all, read_topic
from tests.polling import until
from tests.servers.kafka import broker
from twicesafe import BrokerUnavailableError, ConfigurationError, Receiver
from twicesafe._core.consuming.message import Received, key_of
from twicesafe._core.consuming.source import ConsumerSettings
from twicesafe.consumers import Consumer, DeadLetter, Message
from twicesafe.consumers.sources import _kafka_member as member_module
from twicesafe.consumers.sources import kafka as kafka_module
from twicesafe.consumers.sources._kafka_settings import check_settings, complete
from twicesafe.consumers.sources.kafka import KafkaSource
from twicesafe.outbox.publishers import Message as OutboxMessage
from twicesafe.outbox.publishers import open_publisher
from twicesafe.outbox.publishers._kafka_wire import record_of
from twicesafe.testing import ConsumerConformance

REBALANCES = int(os.environ.get("TWICESAFE_KAFKA_REBALANCES", "4" if broker() == "mock" else "50"))
SESSION = "3000" if broker() == "mock" else "6000"  # the shortest that a real broker allows
"""The mock lets every rebalance of a group with members take so long, less a second."""
QUICK = {"session.timeout.ms": SESSION, "heartbeat.interval.ms": "200"}
EAGER = {"partition.assignment.strategy": "range", **QUICK}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky", **QUICK}
KIP_848 = {"group.protocol": "consumer"}
PROTOCOLS = [
    pytest.param(EAGER, id="eager"),
    pytest.param(COOPERATIVE, id="cooperative"),
    pytest.param(KIP_848, id="kip-848"),
]
SHORT = {**QUICK, "max.poll.interval.ms": SESSION}
SETTINGS = ConsumerSettings(30, 86400, 5, 60, 8, 100, True)


class TestKafka(ConsumerConformance):
    """The rules of all sources. A client finds its brokers by itself, so no proxy stands in between; what
    outages do is tested below, by fault injection and on a broker that is killed."""

    counts = breaks = restarts = False

    @pytest.fixture(autouse=True)
    def _broker(self, kafka: Any) -> Iterator[None]:
        self.orders = Topic(kafka.bootstrap)
        yield
        self.orders.close()

    def open_source(self) -> KafkaSource:
        return self.orders.source(**COOPERATIVE)

    def publisher_url(self) -> str:
        return f"kafka://{self.orders.bootstrap}"

    def topic(self) -> str:
        return self.orders.name

    def lose(self, source: Any) -> None:
        source.close()

    def dead_letters(self) -> list[str]:
        dead = KafkaSource.open(
            f"kafka://{self.orders.bootstrap}?topics={self.orders.name}.dead&group={self.orders.name}.d"
        )
        found: list[str | None] = []
        until(lambda: found.extend(m.message.id for m in dead.fetch(10, 1)) or len(found) >= 2)
        dead.close()
        return [id_ for id_ in found if id_ is not None]


@pytest.fixture
def topic(kafka: Any) -> Iterator[Topic]:
    made = Topic(kafka.bootstrap)
    yield made
    made.close()


@pytest.fixture
def open_source(topic: Topic) -> Iterator[Callable[..., KafkaSource]]:
    opened: list[KafkaSource] = []

    def open_source(**options: str) -> KafkaSource:
        opened.append(topic.source(**options))
        return opened[-1]

    yield open_source
    for source in opened:
        source.close()


@pytest.fixture
def needs_real(kafka_broker: str) -> None:
    if kafka_broker != "real":
        pytest.skip(f"kafka: {kafka_broker}, not our own real broker; make kafka")


def fetched(source: KafkaSource, count: int, most: int = 100) -> list[Received]:
    found: list[Received] = []
    until(lambda: found.extend(source.fetch(most, 0.5)) or len(found) >= count, 60)
    assert len(found) == count
    return found


def bodies(found: list[Received]) -> list[str]:
    return [received.message.body.decode() for received in found]


def receipts(found: list[Received]) -> list[Any]:
    return [received.receipt for received in found]


def ours(source: KafkaSource) -> frozenset[str]:
    """The partitions that this member has now."""
    return source._member.partitions() if source._member is not None else frozenset()


# --- draining ---------------------------------------------------------------------------------------


def test_a_short_drain_waits_until_kafka_has_answered_for_every_partition(topic: Topic):
    topic.put("one", partition=0, headers={"id": "1"})
    topic.put("two", partition=3, headers={"id": "2"})
    with Receiver.open("memory://") as receiver, Consumer(topic.source(), receiver=receiver) as it:
        assert it.drain(lambda message: None, idle=0.01).ran == 2


def test_a_drain_of_an_empty_topic_ends(topic: Topic):
    with Receiver.open("memory://") as receiver, Consumer(topic.source(), receiver=receiver) as it:
        assert it.drain(lambda message: None, idle=0.01).received == 0


# --- messages --------------------------------------------------------------------------------------


def test_a_partition_comes_in_order(topic: Topic, open_source: Callable[..., KafkaSource]):
    for partition in range(topic.partitions):
        topic.put(*(f"{partition}.{n}" for n in range(50)), partition=partition)
    found = fetched(open_source(), 200, most=7)
    for partition in range(topic.partitions):
        mine = [one for one in found if one.partition == f"{topic.name}/{partition}"]
        assert bodies(mine) == [f"{partition}.{n}" for n in range(50)]
        assert [one.message.position.partition("@")[0] for one in mine] == [
            f"{topic.name}/{partition}/{n}" for n in range(50)
        ]


def test_no_more_than_asked_for(topic: Topic, open_source: Callable[..., KafkaSource]):
    topic.put(*"abcdefgh")
    source = open_source()
    found = fetched(source, 3, most=3)
    assert bodies(found) == ["a", "b", "c"]


def test_a_message_as_text(topic: Topic, open_source: Callable[..., KafkaSource]):
    topic.put("x", key="käse", headers=[("Trace", b"1"), ("raw", b"\xff\x00"), ("none", None)])
    topic.put("y", key=b"\xff\x01")
    topic.put("z", headers=[("id", "m-1")])
    text, raw, known = (received.message for received in fetched(open_source(), 3))
    assert (text.key, text.id) == ("käse", None)
    assert text.headers == {
        "trace": "1", "raw": "0xff00", "none": "", "twicesafe-raw": '{"headers":["raw"]}',
    }  # fmt: skip
    assert raw.key == "0xff01"
    assert (known.key, known.id, known.deliveries) == (None, "m-1", None)
    assert key_of(known) == "m-1"
    assert str(key_of(text)).startswith(f"position:{topic.name}/0/0@")


def test_a_record_without_a_value_has_an_empty_body(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    topic._producer.produce(topic.name, None, b"k", partition=0)
    topic._producer.flush(20)
    assert fetched(open_source(), 1)[0].message.body == b""


def test_a_record_of_bytes_is_sent_on_as_it_was(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    """To the dead letters, and by a replay: Avro keys, trace headers, tombstones, hex texts."""
    topic._producer.produce(topic.name, None, b"\xff\x01", 0, headers=[("t", b"\xfe")])
    topic._producer.produce(topic.name, b"", "0xff01", 0, headers=[("id", "m-1"), ("t", "0xfe")])
    topic._producer.flush(20)
    first, second = (one.message for one in fetched(open_source(), 2))
    raw = record_of(OutboxMessage("m-0", topic.name, first.body, first.key, first.headers))
    text = record_of(OutboxMessage("m-1", topic.name, second.body, second.key, second.headers))
    assert raw == {"value": None, "key": b"\xff\x01", "headers": [("id", b"m-0"), ("t", b"\xfe")]}
    assert text == {"value": b"", "key": "0xff01", "headers": [("id", b"m-1"), ("t", b"0xfe")]}


@pytest.mark.parametrize("said", ["no json", '{"key": true, "headers": ["a"]}'])
def test_a_word_about_bytes_that_is_not_ours_changes_nothing(said: str):
    sent = OutboxMessage("m", "orders", b"", "plain", {"a": "0xno hex", "twicesafe-raw": said})
    assert record_of(sent) == {
        "value": b"",
        "key": "plain",
        "headers": [("id", b"m"), ("a", b"0xno hex")],
    }


def test_a_member_whose_driver_fails_is_replaced(
    topic: Topic, open_source: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch
):
    """It was an empty fetch for ever, without an error and without a pause."""
    reads: list[Any] = []
    plain = member_module.message_of

    def read(record: Any) -> Message:
        reads.append(record)
        if len(reads) == 1:
            raise RuntimeError("a bug of the driver")
        return plain(record)

    monkeypatch.setattr(member_module, "message_of", read)
    topic.put("a")
    source = open_source()
    with pytest.raises(BrokerUnavailableError, match="RuntimeError: a bug of the driver"):
        until(lambda: source.fetch(1, 0.1) is None, 60)
    found: list[Received] = []

    def comes() -> bool:
        with contextlib.suppress(BrokerUnavailableError):
            found.extend(source.fetch(1, 0.1))
        return bool(found)

    until(comes, 60)
    assert found[0].message.body == b"a"


def test_a_group_that_forms_says_so(topic: Topic, open_source: Callable[..., KafkaSource]):
    topic.put("a")
    source = open_source()
    assert not source.joined
    until(lambda: source.fetch(1, 0.1) is None or source.joined)


def test_what_the_outbox_publishes_has_its_id(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    publisher: Any = open_publisher(f"kafka://{topic.bootstrap}")
    sent = OutboxMessage("id-7", topic.name, b"{}", "customer 1", {"type": "order"})
    assert publisher.publish([sent]) == [None]
    publisher.close()
    (received,) = fetched(open_source(), 1)
    message = received.message
    assert (message.id, message.key, message.headers["type"]) == ("id-7", "customer 1", "order")


# --- commits ---------------------------------------------------------------------------------------


def test_what_is_not_acknowledged_comes_again(topic: Topic):
    topic.put("a", "b", "c")
    for _ in range(2):
        source = topic.source(**QUICK)  # the mock forgets a member only after its session
        assert bodies(fetched(source, 3)) == ["a", "b", "c"]
        source.close()
    assert topic.committed() == {}


def test_only_the_prefix_is_committed(topic: Topic, open_source: Callable[..., KafkaSource]):
    topic.put("a", "b", "c", "d")
    source = open_source()
    a, b, c, d = receipts(fetched(source, 4))
    source.acknowledge([b, d])
    assert topic.committed() == {}
    source.acknowledge([a])
    assert topic.committed() == {f"{topic.name}/0": 2}
    source.acknowledge([c])
    assert topic.committed() == {f"{topic.name}/0": 4}
    source.acknowledge([a, c])  # again
    assert topic.committed() == {f"{topic.name}/0": 4}


def test_what_is_behind_a_gap_comes_again(topic: Topic):
    topic.put("a", "b", "c", "d")
    source = topic.source(**QUICK)
    a, _, c, d = receipts(fetched(source, 4))
    source.acknowledge([a, c, d])
    source.close()
    again = topic.source()
    assert bodies(fetched(again, 3)) == ["b", "c", "d"]
    again.close()


def test_what_is_given_back_comes_again_before_later_ones(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    topic.put("a", "b", "c", "d")
    source = open_source()
    first = fetched(source, 3, most=3)
    source.acknowledge(receipts(first[:1]))
    source.give_back(list(reversed(receipts(first[1:]))), 0)
    assert topic.committed() == {f"{topic.name}/0": 1}
    again = fetched(source, 3, most=1)
    assert bodies(again) == ["b", "c", "d"]
    source.acknowledge(receipts(again))
    assert topic.committed() == {f"{topic.name}/0": 4}


class Refusing:
    """A driver's consumer whose first commits fail."""

    def __init__(self, member: Any, *answers: int) -> None:
        self._consumer, self.answers = member._consumer, list(answers)
        member._consumer = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def commit(self, **given: Any) -> Any:
        from confluent_kafka import KafkaError, KafkaException

        if self.answers:
            raise KafkaException(KafkaError(self.answers.pop(0)))
        return self._consumer.commit(**given)


def test_a_commit_that_fails_is_an_outage_and_stays_due(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    from confluent_kafka import KafkaError

    topic.put("a", "b")
    source = open_source()
    a, b = receipts(fetched(source, 2))
    Refusing(source._member, KafkaError.COORDINATOR_NOT_AVAILABLE)
    with pytest.raises(BrokerUnavailableError, match="COORDINATOR_NOT_AVAILABLE"):
        source.acknowledge([a])
    assert topic.committed() == {}
    source.acknowledge([b])
    assert topic.committed() == {f"{topic.name}/0": 2}


def test_a_commit_in_a_rebalance_is_no_error_and_is_sent_again(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    from confluent_kafka import KafkaError

    topic.put("a")
    source = open_source()
    (a,) = receipts(fetched(source, 1))
    refusing = Refusing(source._member, KafkaError.REBALANCE_IN_PROGRESS)
    source.acknowledge([a])
    assert refusing.answers == []
    until(lambda: topic.committed() == {f"{topic.name}/0": 1})


# --- the group -------------------------------------------------------------------------------------


def joined(*sources: KafkaSource) -> list[set[str]]:
    """Fetch until each has partitions; returns them."""

    def each_has() -> bool:
        for source in sources:
            source.fetch(0, 0.05)
        return all(ours(source) for source in sources)

    until(each_has, 60)
    return [set(ours(source)) for source in sources]


@pytest.mark.usefixtures("needs_real")  # the mock accepts no commit while a group rebalances
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_revocation_waits_for_the_release_and_commits_what_is_done(
    topic: Topic, protocol: dict[str, str]
):
    for partition in range(topic.partitions):
        topic.put("a", "b", partition=partition)
    told = threading.Event()
    names: list[frozenset[str]] = []
    first, second = topic.source(**protocol), topic.source(**protocol)

    def revoke(partitions: frozenset[str]) -> None:
        names.append(partitions)
        told.set()

    first.listen(revoke)
    found = fetched(first, 2 * topic.partitions)
    with Polling(second), Polling(first):
        assert told.wait(60)
        taken = names[0]
        # While the flow finishes what runs, no other member gets it, and it can be acknowledged.
        done = [one.receipt for one in found if one.message.body == b"a"]
        first.acknowledge(done)
        assert topic.committed() == {f"{topic.name}/{n}": 1 for n in range(topic.partitions)}
        rest = [one for one in found if one.message.body == b"b" and one.partition in taken]
        assert ours(second) & taken == set()
        for received in rest[:1]:
            received.receipt.prefix.settle(received.receipt.offset)  # done, and not yet committed
        first.release(taken)
        until(lambda: ours(second), 60)
        expected = {f"{topic.name}/{n}": 1 for n in range(topic.partitions)}
        expected[rest[0].partition] = 2
        assert topic.committed() == expected
        # A late acknowledgement changes nothing for the new owner.
        first.acknowledge(receipts(rest))
        assert topic.committed() == expected
        for name in names[1:]:
            first.release(name)
    first.close()
    second.close()


@pytest.mark.parametrize("runs_again", [False, True])
def test_a_consumer_whose_first_run_has_ended_gives_up_partitions_at_once(
    topic: Topic, open_source: Callable[..., KafkaSource], runs_again: bool
):
    topic.put("a", "b")
    with (
        Receiver.open("memory://") as receiver,
        Consumer.open(topic.url(**COOPERATIVE), receiver=receiver) as consumer,
    ):
        assert consumer.drain(lambda message: None, idle=0.5).ran == 2
        later = threading.Thread(target=lambda: consumer.run(lambda message: None))
        if runs_again:
            later.start()
        second = open_source(**COOPERATIVE)
        until(lambda: [second.fetch(0, 0.05), ours(second)][1], 100)  # Kafka would wait for 240 s
        consumer.stop()
        if runs_again:
            later.join()


class Polling:
    """Fetches, asking for nothing, in its own thread."""

    def __init__(self, source: KafkaSource) -> None:
        self._source, self._over = source, threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def _poll(self) -> None:
        while not self._over.is_set():
            self._source.fetch(0, 0.05)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("late", [False, True])
def test_nothing_is_taken_from_partitions_that_are_being_revoked(
    topic: Topic, open_source: Callable[..., KafkaSource], late: bool
):
    topic.put("a")
    first, second = open_source(**EAGER), open_source(**EAGER)
    taken: list[list[Received]] = []
    found: list[Received] = []

    def revoke(partitions: frozenset[str]) -> None:
        if late:  # it was taken just before
            first.give_back(receipts(found), 0.0)
        taken.append(first.fetch(10, 0))
        first.release(partitions)

    first.listen(revoke)
    found += fetched(first, 1)
    if not late:
        first.give_back(receipts(found), 0.0)  # it is ready to be taken again
    with Polling(first):
        joined(second)
    assert taken[0] == []


def test_a_revocation_waits_no_longer_than_kafka_allows(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    topic.put("a")
    first, second = open_source(**EAGER), open_source(**EAGER)
    first.listen(lambda _: None)  # the flow never releases: its handler hangs
    fetched(first, 1)
    assert first._member is not None
    first._member._longest_wait = 0.5
    with Polling(first):
        joined(second)
    assert topic.committed() == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lost_partitions_are_reported_and_not_committed(
    topic: Topic,
    protocol: dict[str, str],
    kafka_broker: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """The member does not poll for longer than Kafka allows: Kafka excludes it."""
    if protocol is KIP_848 and kafka_broker == "mock":
        pytest.skip("kafka: mock, which does not balance by this protocol; make kafka")
    monkeypatch.setattr(member_module, "PAUSED_AFTER", 3600.0)
    told: list[frozenset[str]] = []
    short = {"max.poll.interval.ms": "1000"} if protocol is KIP_848 else SHORT
    source = topic.source(**protocol | short)
    source.listen(told.append)
    topic.put("a")
    (a,) = fetched(source, 1)
    limit = time.monotonic() + float(short["max.poll.interval.ms"]) / 1000 * 1.5
    until(lambda: time.monotonic() > limit)  # librdkafka's own clock
    again: list[Received] = []
    until(lambda: again.extend(source.fetch(1, 0.1)) or told, 60)
    assert a.partition in told[0]
    source.acknowledge([a.receipt])
    assert topic.committed() == {}
    until(lambda: again.extend(source.fetch(1, 0.1)) or again, 60)  # it joins again
    assert bodies(again) == ["a"]
    source.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_group_changes_often_and_nothing_is_lost_or_committed_early(
    topic: Topic, protocol: dict[str, str], kafka_broker: str
):
    if kafka_broker == "mock":
        pytest.skip("kafka: mock, whose rebalances take as long as the machine is busy; make kafka")
    done, sent = Done(), 0
    first = Member(topic.source(**protocol), done)
    for number in range(REBALANCES // 2):
        until(lambda: len(ours(first.source)) == topic.partitions, 60)
        for partition in range(topic.partitions):
            topic.put(*(f"{sent + n}" for n in range(20)), partition=partition)
            sent += 20
        second = Member(topic.source(**protocol), done, seed=number)
        until(lambda member=second: ours(member.source), 60)
        assert done.holds_all_before(topic.committed())
        second.stop()
        assert done.holds_all_before(topic.committed())
    until(lambda: sum(topic.committed().values()) == sent, 120)
    first.stop()
    assert done.count() == sent
    assert done.holds_all_before(topic.committed())
    assert first.revocations >= REBALANCES // 2
    print(f"{sent} messages, {first.revocations} revocations, {done.repeats()} repeats")


def test_a_member_that_asks_for_nothing_stays_in_the_group(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    """Kafka excludes a member that does not poll; the background thread polls."""
    source = open_source(**SHORT)
    told: list[frozenset[str]] = []
    source.listen(told.append)
    topic.put("a")
    (a,) = fetched(source, 1)
    topic.put("b")
    # Longer than Kafka allows, by librdkafka's own clock.
    limit = time.monotonic() + 1.7 * int(SESSION) / 1000
    until(lambda: time.monotonic() > limit)
    assert told == []
    source.acknowledge([a.receipt])
    assert topic.committed() == {f"{topic.name}/0": 1}
    assert bodies(fetched(source, 1)) == ["b"]


def test_no_message_comes_while_nothing_is_asked_for_and_all_come_afterwards(
    topic: Topic, open_source: Callable[..., KafkaSource]
):
    source = open_source()
    joined(source)
    topic.put(*(str(n) for n in range(100)))
    for _ in range(5):
        assert source.fetch(0, 0.1) == []
    assert source._member is not None
    assert len(source._member._ready) <= topic.partitions
    assert bodies(fetched(source, 100)) == [str(n) for n in range(100)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_partition_that_was_paused_comes_back_from_another_member(
    topic: Topic,
    open_source: Callable[..., KafkaSource],
    protocol: dict[str, str],
    kafka_broker: str,
):
    """librdkafka remembers that it was paused: it would never bring a message again."""
    if protocol is KIP_848 and kafka_broker == "mock":
        pytest.skip("the mock cluster does not know KIP-848")
    source = open_source(**protocol)
    joined(source)
    member = source._member
    assert member is not None
    everything = ours(source)
    until(lambda: member._paused == everything)
    with contextlib.closing(topic.source(**protocol)) as other:
        until(lambda: other.fetch(1, 0.1) == [] and ours(other), 60)
    until(lambda: ours(source) == everything, 60)
    for number in range(topic.partitions):
        topic.put(str(number), partition=number)
    assert sorted(bodies(fetched(source, topic.partitions))) == ["0", "1", "2", "3"]


def test_others_have_a_turn_after_each_poll(
    open_source: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch
):
    """Under gevent, which replaces threads, nothing else would ever run: the driver does not let it."""
    turns: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=turns.append)
    monkeypatch.setattr(member_module, "time", clock)
    source = open_source()
    until(lambda: [source.fetch(10, 0.1), 0.0 in turns][1], 60)


def test_close_ends_a_fetch_that_waits(open_source: Callable[..., KafkaSource]):
    source = open_source()
    ended: list[object] = []
    waiting = threading.Thread(target=lambda: ended.append(source.fetch(1, 3600)))
    waiting.start()
    until(lambda: source._member is not None)
    source.close()
    waiting.join(60)
    assert ended == [[]]


# --- when Kafka is away ----------------------------------------------------------------------------


def test_a_broker_that_is_away_is_reported_by_fetch():
    source = KafkaSource.open("kafka://127.0.0.1:1?topics=orders&group=billing")
    try:
        with pytest.raises(BrokerUnavailableError, match="_ALL_BROKERS_DOWN"):
            source.fetch(1, 60)
        with pytest.raises(BrokerUnavailableError):
            source.check(SETTINGS)
    finally:
        source.close()


@pytest.mark.usefixtures("needs_real")
def test_a_broker_that_is_killed_loses_nothing(own_server: Callable[..., Any]):
    server = own_server("kafka")
    topic, done, sent = Topic(server.bootstrap), Done(), 0
    member = Member(topic.source(), done)
    for _ in range(3):
        for partition in range(topic.partitions):
            topic.put(*"abcdefghij", partition=partition)
            sent += 10
        already = done.count()
        until(lambda already=already: done.count() > already, 60)
        server.kill()
        server.start()
    until(lambda: sum(topic.committed().values()) == sent, 120)
    assert done.holds_all_before(topic.committed())
    assert done.count() == sent
    member.stop()
    topic.close()


@pytest.mark.usefixtures("needs_real")  # the mock writes no markers
@pytest.mark.parametrize("last", ["commit", "abort"])
def test_markers_of_transactions_are_no_lag(
    topic: Topic, open_source: Callable[..., KafkaSource], last: str
):
    from confluent_kafka import Producer

    producer: Any = Producer(
        {"bootstrap.servers": topic.bootstrap, "transactional.id": topic.name, "log_level": 0}
    )
    producer.init_transactions(60)
    source = open_source()
    for end in ("commit", last):
        producer.begin_transaction()
        producer.produce(topic.name, b"a", partition=0)
        producer.flush(60)
        getattr(producer, f"{end}_transaction")(60)
        if end == "commit":
            source.acknowledge(receipts(fetched(source, 1)))

    def has_caught_up() -> bool:
        assert list(source.fetch(1, 2)) == []
        return source.status().waiting == 0

    until(has_caught_up, 60)


@pytest.mark.usefixtures("needs_real")  # the mock has no limit
@pytest.mark.parametrize("room, kept", [(20_000, 2000), (900, 80)], ids=["whole", "brief"])
def test_a_message_near_the_size_limit_becomes_a_dead_letter(topic: Topic, room: int, kept: int):
    body = topic.put_large(room)

    def refuse(message: Message) -> None:
        raise DeadLetter(os.urandom(1000).hex())

    receiver = Receiver.open("memory://")
    with receiver, Consumer.open(topic.url(), receiver=receiver) as consumer:
        assert handle_all(consumer, refuse, 1).dead == 1
    (dead,) = read_topic(topic.bootstrap, f"{topic.name}.dead")
    assert dead.value() == body
    assert len(dict(dead.headers())["twicesafe-dead-reason"]) == kept


# --- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url, problem",
    [
        ("kafka://?topics=a&group=b", "a Kafka URL is"),
        ("kafka://user:word@host?topics=a&group=b", "credentials go into the query"),
        ("kafka://host?group=b", "topics"),
        ("kafka://host?topics=a", "group"),
        ("kafka://host?topics=a&group=b&enable.auto.commit=true", "twicesafe sets it"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        KafkaSource.open(url)


def test_a_setting_that_librdkafka_does_not_know_is_refused():
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "b", "no.such": "1"}
    source = KafkaSource(config, ["a"])
    with pytest.raises(ConfigurationError, match=r"no\.such"):
        source.fetch(1, 0)
    source.close()


def test_dead_letters_go_to_the_same_cluster_as_the_same_user():
    source = KafkaSource.open(
        "kafka://h1:9092,h2:9092?topics=a&group=b&max.poll.interval.ms=90000"
        "&security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=u&sasl.password=p%26q"
    )
    assert source.dead_url == (
        "kafka://h1:9092,h2:9092?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=u"
        "&sasl.password=p%26q"
    )
    assert source.dead_topic("orders") == "orders.dead"
    assert (source.name, source.can_delay, source.ack_wait) == ("b", False, 0)


@pytest.mark.parametrize(
    "options, terms, problem",
    [
        ({"max.poll.interval.ms": "10000"}, {"timeout": 20.0}, "a rebalance waits 8 s"),
        ({"max.poll.interval.ms": "10000"}, {"lease": 30.0}, "a rebalance waits 8 s"),
        ({"auto.offset.reset": "latest"}, {}, "skips all messages"),
        ({"isolation.level": "read_uncommitted"}, {}, "aborted transactions"),
        ({"partition.assignment.strategy": "range"}, {}, "takes all partitions"),
    ],
)
def test_the_check_finds_a_wrong_setting(
    options: dict[str, str], terms: dict[str, float], problem: str
):
    (found,) = check_settings(complete(options), replace(SETTINGS, **terms))
    assert problem in found.problem
    assert found.remedy


@pytest.mark.usefixtures("needs_real")  # the mock does not describe its topics
@pytest.mark.parametrize("options", [{}, KIP_848], ids=["classic", "kip-848"])
def test_the_check_finds_nothing_wrong_with_the_defaults(topic: Topic, options: dict[str, str]):
    assert topic.source(**options).check(SETTINGS) == []


def test_the_check_names_a_topic_that_is_missing(kafka: Any):
    source = KafkaSource.open(f"kafka://{kafka.bootstrap}?topics=not-there&group=b")
    assert [found.problem for found in source.check(SETTINGS)] == ["Kafka has no topic not-there"]


@pytest.mark.usefixtures("needs_real")
def test_the_check_compares_the_retention_with_the_retries(topic: Topic):
    from confluent_kafka import admin as kafka_admin

    shorter = kafka_admin.ConfigEntry(
        "retention.ms", "60000", incremental_operation=kafka_admin.AlterConfigOpType.SET
    )
    changed = kafka_admin.ConfigResource(
        kafka_admin.ResourceType.TOPIC, topic.name, incremental_configs=[shorter]
    )
    client = kafka_admin.AdminClient({"bootstrap.servers": topic.bootstrap})
    for answer in client.incremental_alter_configs([changed]).values():
        answer.result(120)
    until(lambda: topic.source().check(SETTINGS))  # the broker learns it from its own log
    (found,) = topic.source().check(SETTINGS)
    assert "keeps messages for 60 s, and their retries take up to 240 s" in found.problem


@pytest.mark.usefixtures("needs_real")
def test_the_topic_of_dead_letters_is_created_like_its_topic(own_server: Callable[..., Any]):
    from confluent_kafka.admin import AdminClient, NewTopic

    server = own_server("kafka", auto_create_topics_enable="false")
    admin = AdminClient({"bootstrap.servers": server.bootstrap})

    for answer in admin.create_topics([NewTopic("orders", 3)]).values():
        answer.result(120)
    source = KafkaSource.open(f"kafka://{server.bootstrap}?topics=orders,missing&group=g")
    for _ in range(2):  # once is enough, twice is no error
        source.prepare_dead_letters()
    topics = admin.list_topics(timeout=120).topics
    assert len(topics["orders.dead"].partitions) == 3
    assert "missing.dead" not in topics


def test_prepare_dead_letters_leaves_a_broker_alone_that_refuses(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
):
    """The mock cluster creates no topics by request; a real one may refuse it by authorization."""
    monkeypatch.setattr(kafka_module, "ADMIN", 1.0)
    topic.source().prepare_dead_letters()


def test_messages_that_are_settled_are_freed(topic: Topic, open_source: Callable[..., KafkaSource]):
    """A receipt must not refer to what refers to it: such a circle would never be freed."""
    topic.put("a")
    source = open_source()
    found: list[Received] = []
    until(lambda: found.extend(source.fetch(1, 1)) or found)
    source.acknowledge([found[0].receipt])
    message = found[0].message
    held = sys.getrefcount(message)
    found.clear()
    until(lambda: sys.getrefcount(message) < held)
