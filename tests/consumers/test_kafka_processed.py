"""The log of processed ids: a compacted topic that recognises repeats without a store.

All that talks to a broker needs the real one (`make kafka`): the mock cluster accepts transactions, but
enforces none, stores no offsets in them, and compacts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from tests.consumers.kafka_group import Topic, handle_all, read_topic
from tests.polling import until
from twicesafe import BrokerUnavailableError, ConfigurationError, Policy
from twicesafe.consumers import Consumer, KafkaTransaction, Message
from twicesafe.consumers.sources import _kafka_processed as processed_module
from twicesafe.consumers.sources._kafka_processed import ProcessedIds
from twicesafe.consumers.sources.kafka import KafkaSource

IDS = [bytes([n]) * 16 for n in range(10)]


@pytest.fixture
def topic(kafka: Any, kafka_broker: str) -> Iterator[Topic]:
    if kafka_broker == "mock":
        pytest.skip("needs a real Kafka broker, which enforces transactions: make kafka")
    made = Topic(kafka.bootstrap)
    yield made
    made.close()


def log_of(topic: Topic) -> str:
    return f"{topic.name}.processed"


def url_of(topic: Topic) -> str:
    return topic.url(transactional_id=f"{topic.name}-1", processed=log_of(topic))


def ids_of(topic: Topic) -> ProcessedIds:
    return ProcessedIds(log_of(topic), {"bootstrap.servers": topic.bootstrap, "log_level": 0})


class Handler:
    """Publishes what it gets, and keeps count."""

    def __init__(self, topic: Topic) -> None:
        self.ran: list[str] = []
        self._out = f"{topic.name}.out"

    def __call__(self, transaction: KafkaTransaction, message: Message) -> None:
        self.ran.append(message.body.decode())
        transaction.publish(self._out, message.body)


def test_a_repeat_of_an_id_does_not_run(topic: Topic):
    handler = Handler(topic)
    topic.put("a", headers=[("id", "1")])
    topic.put("a", headers=[("id", "1")])
    topic.put("b", headers=[("id", "2")])
    with Consumer.open(url_of(topic)) as consumer:
        report = handle_all(consumer, handler, 3)
    assert (report.ran, report.replayed) == (2, 1)
    assert sorted(handler.ran) == ["a", "b"]
    assert topic.committed() == {f"{topic.name}/0": 3}


def test_the_next_process_reads_the_log_before_its_first_message(topic: Topic):
    for partition in range(4):
        topic.put(f"p{partition}", partition=partition, headers=[("id", "1")])
    with Consumer.open(url_of(topic)) as consumer:
        assert handle_all(consumer, Handler(topic), 4).ran == 4  # an id counts in its partition
    for partition in range(4):
        topic.put(f"p{partition}", partition=partition, headers=[("id", "1")])
    with Consumer.open(url_of(topic)) as consumer:
        assert handle_all(consumer, Handler(topic), 4).replayed == 4
    entries = read_topic(topic.bootstrap, log_of(topic))
    assert sorted(entry.partition() for entry in entries) == [0, 1, 2, 3]
    assert entries[0].value().startswith(b'{"position":"' + topic.name.encode())


def test_another_body_under_a_known_id_is_a_dead_letter(topic: Topic):
    topic.put("a", headers=[("id", "1")])
    topic.put("other", headers=[("id", "1")])
    handler = Handler(topic)
    with Consumer.open(url_of(topic)) as consumer:
        report = handle_all(consumer, handler, 2)
    assert (report.ran, report.dead) == (1, 1)
    (dead,) = read_topic(topic.bootstrap, f"{topic.name}.dead")
    assert dead.value() == b"other"
    assert dict(dead.headers())["twicesafe-dead-error"] == b"FingerprintMismatchError"


def test_a_dead_letter_is_not_processed(topic: Topic):
    """Its id is not logged: when it is replayed, it runs."""
    topic.put("a", headers=[("id", "1")])

    def fail(transaction: KafkaTransaction, message: Message) -> None:
        raise ValueError("no")

    with Consumer.open(url_of(topic), policy=Policy(max_attempts=1)) as consumer:
        assert handle_all(consumer, fail, 1).dead == 1
    topic.put("a", headers=[("id", "1")])
    handler = Handler(topic)
    with Consumer.open(url_of(topic)) as consumer:
        handle_all(consumer, handler, 1)
    assert handler.ran == ["a"]


def test_a_group_that_is_reset_skips_what_was_processed(topic: Topic):
    """A restore or a mirrored cluster brings old offsets: the ids decide."""
    from confluent_kafka import Consumer as Member
    from confluent_kafka import TopicPartition

    topic.put(*"abc", partition=1)
    with Consumer.open(url_of(topic)) as consumer:
        handle_all(consumer, Handler(topic), 3)
    member = Member({"bootstrap.servers": topic.bootstrap, "group.id": topic.name})
    member.commit(offsets=[TopicPartition(topic.name, 1, 0)], asynchronous=False)
    member.close()
    handler = Handler(topic)
    with Consumer.open(url_of(topic)) as consumer:
        assert handle_all(consumer, handler, 3).replayed == 3
    assert handler.ran == []


# --- reading to the end ------------------------------------------------------------------------------


def put(topic: Topic, ids: ProcessedIds, *identities: bytes, commit: bool | None = True) -> Any:
    """Write entries to partition 0 of the log, in one transaction. None: it stays open."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for identity in identities:
        producer.produce(**ids.record(f"{topic.name}/0", "here", identity, b"12345678"))
    assert producer.flush(30) == 0
    if commit is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    return producer


def test_only_committed_entries_count(topic: Topic):
    ids = ids_of(topic)
    ids.prepare([topic.name])
    put(topic, ids, IDS[0])
    put(topic, ids, IDS[1], commit=False)
    ids.load(f"{topic.name}/0")
    assert ids.find(f"{topic.name}/0", IDS[0]) == b"12345678"
    assert ids.find(f"{topic.name}/0", IDS[1]) is None


def test_a_read_waits_for_an_open_transaction(topic: Topic, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processed_module, "STALLED", 1.0)
    ids = ids_of(topic)
    ids.prepare([topic.name])
    put(topic, ids, IDS[0])
    producer = put(topic, ids, IDS[1], commit=None)
    with pytest.raises(BrokerUnavailableError, match="a transaction is still open"):
        ids.load(f"{topic.name}/0")
    assert ids._ids == {}
    producer.commit_transaction(30)
    ids.load(f"{topic.name}/0")
    assert ids.find(f"{topic.name}/0", IDS[1]) is not None


def test_a_log_that_cannot_be_read_keeps_its_messages_waiting(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
):
    failures: list[int] = []
    load = ProcessedIds.load

    def failing(ids: ProcessedIds, partition: str) -> None:
        if len(failures) < 3:
            failures.append(1)
            raise BrokerUnavailableError("not now")
        load(ids, partition)

    monkeypatch.setattr(ProcessedIds, "load", failing)
    topic.put("a", "b")
    handler = Handler(topic)
    with Consumer.open(url_of(topic)) as consumer:
        handle_all(consumer, handler, 2)
    assert len(failures) == 3
    assert sorted(handler.ran) == ["a", "b"]


def test_a_compacted_log_knows_the_same_ids(topic: Topic):
    from confluent_kafka.admin import AdminClient, NewTopic

    quick = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "200",
    }
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    for answer in admin.create_topics([NewTopic(log_of(topic), 4, config=quick)]).values():
        answer.result(120)
    ids = ids_of(topic)
    for _ in range(5):
        put(topic, ids, *IDS)

    def is_compacted() -> bool:
        put(topic, ids, IDS[0])  # a segment rolls on the next append
        return len(read_topic(topic.bootstrap, log_of(topic))) < 45

    until(is_compacted, 60)
    ids.load(f"{topic.name}/0")
    assert all(ids.find(f"{topic.name}/0", identity) is not None for identity in IDS)


# --- what is known -------------------------------------------------------------------------------------


def test_an_id_is_forgotten_after_the_retention(monkeypatch: pytest.MonkeyPatch):
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    ids = ProcessedIds("log", {})
    ids.retention = 100.0
    ids._ids["t/0"] = {}
    ids.add("t/0", IDS[0], b"12345678")
    now += 99
    assert ids.find("t/0", IDS[0]) == b"12345678"
    assert ids.find("t/1", IDS[0]) is None
    now += 2
    assert ids.find("t/0", IDS[0]) is None
    ids.add("t/0", IDS[1], b"12345678")
    assert list(ids._ids["t/0"]) == [IDS[1]]  # its memory is given back
    ids.forget(["t/0"])
    assert ids._ids == {}


@pytest.mark.parametrize(
    "refusal, told",
    [
        (None, "still creating the topic orders.processed"),
        ("TOPIC_ALREADY_EXISTS", "still creating the topic orders.processed"),
        (
            "TOPIC_AUTHORIZATION_FAILED",
            r"does not create the topic orders.processed \(TOPIC_AUTHORIZATION_FAILED\): create it with",
        ),
    ],
)
def test_a_log_that_is_missing_says_why(
    refusal: str | None, told: str, monkeypatch: pytest.MonkeyPatch
):
    """A broker shows a new topic a moment after it has created it."""
    from confluent_kafka import KafkaError, KafkaException, admin

    created: Future[None] = Future()
    if refusal is None:
        created.set_result(None)
    else:
        created.set_exception(KafkaException(KafkaError(getattr(KafkaError, refusal))))
    topics = {
        "orders": SimpleNamespace(partitions=range(4)),
        "orders.processed": SimpleNamespace(partitions=()),
    }

    class Cluster:
        def __init__(self, _: Any) -> None: ...

        def list_topics(self, name: str = "orders", timeout: float = 0) -> Any:
            return SimpleNamespace(topics={name: topics[name]})

        def create_topics(self, new: Any, request_timeout: float) -> Any:
            return {new[0].topic: created}

    monkeypatch.setattr(admin, "AdminClient", Cluster)
    with pytest.raises(BrokerUnavailableError, match=told):
        ProcessedIds("orders.processed", {}).prepare(["orders"])


def test_a_log_with_too_few_partitions_is_refused(topic: Topic):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    for answer in admin.create_topics([NewTopic(log_of(topic), 2)]).values():
        answer.result(120)
    with (
        Consumer.open(url_of(topic)) as consumer,
        pytest.raises(ConfigurationError, match="has 2 partitions and needs 4"),
    ):
        consumer.run(Handler(topic))


def test_the_log_is_created_to_fit_and_the_check_compares_its_retention(topic: Topic):
    with Consumer.open(url_of(topic)) as consumer:
        assert consumer.check() == []
    with Consumer.open(url_of(topic), policy=Policy(retention=2 * 86400)) as consumer:
        (found,) = consumer.check()
    assert "keeps ids for 86400 s, and the policy's retention is 172800 s" in found.problem


@pytest.mark.parametrize(
    "options, problem",
    [
        ("processed=log", "needs transactional_id="),
        ("processed=log&transactional_id=a", "name each"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: str, problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        KafkaSource.open(f"kafka://127.0.0.1:1?topics=^a&group=b&{options}")
