"""Kafka transaction mode: what a handler publishes and its message's offset commit together.

The mock cluster accepts transactions, but enforces nothing and stores no offsets in them: what runs there
proves only that messages are handled and published. What is about offsets, atomicity, fencing or a
killed process needs the real broker (`make kafka`) and is skipped elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.consumers.kafka_group import Topic, handle_all, read_topic
from tests.house.repository import ROOT
from tests.polling import until
from twicesafe import Backoff, Policy, Receiver
from twicesafe.consumers import (
    AsyncConsumer,
    Consumer,
    DeadLetter,
    KafkaTransaction,
    Message,
    Retry,
)
from twicesafe.consumers.sources import _kafka_transactions
from twicesafe.consumers.sources._kafka_transactions import TransactionalMember
from twicesafe.errors import BrokerUnavailableError, ConfigurationError, UsageError

QUICK = Policy(backoff=Backoff(first=0.01), max_attempts=3)


@pytest.fixture
def topic(kafka: Any) -> Iterator[Topic]:
    made = Topic(kafka.bootstrap)
    yield made
    made.close()


@pytest.fixture
def needs_real(kafka_broker: str) -> None:
    if kafka_broker == "mock":
        pytest.skip("needs a real Kafka broker, which enforces transactions: make kafka")


def url_of(topic: Topic, id_: str = "", **options: str) -> str:
    return topic.url(transactional_id=id_ or f"{topic.name}-1", **options)


def out_of(topic: Topic) -> str:
    return f"{topic.name}.out"


def copier(topic: Topic) -> Any:
    def copy(transaction: KafkaTransaction, message: Message) -> None:
        transaction.publish(out_of(topic), message.body, key=message.key)

    return copy


def texts(topic: Topic, name: str, isolation: str = "read_committed") -> list[str]:
    return [record.value().decode() for record in read_topic(topic.bootstrap, name, isolation)]


def open_transaction(topic: Topic, offsets: dict[str, int]) -> Any:
    """A producer whose transaction has sent these offsets and is not ended."""
    from confluent_kafka import Consumer as Reader
    from confluent_kafka import Producer, TopicPartition

    common = {"bootstrap.servers": topic.bootstrap, "log_level": 0}
    producer = Producer({**common, "transactional.id": f"{topic.name}-dead"})
    producer.init_transactions(20)
    producer.begin_transaction()
    places = [TopicPartition(topic.name, int(name[-1]), end) for name, end in offsets.items()]
    group = Reader({**common, "group.id": topic.name}).consumer_group_metadata()
    producer.send_offsets_to_transaction(places, group, 20)
    return producer


# --- the way of a message --------------------------------------------------------------------------


@pytest.mark.usefixtures("needs_real")
def test_what_is_published_and_the_offsets_are_committed(topic: Topic):
    for partition in range(4):
        topic.put(*(f"{partition}.{n}" for n in range(25)), partition=partition)
    with Consumer.open(url_of(topic)) as consumer:
        report = handle_all(consumer, copier(topic), 100)
    assert (report.received, report.ran) == (100, 100)
    assert topic.committed() == {f"{topic.name}/{partition}": 25 for partition in range(4)}
    expected = sorted(f"{partition}.{n}" for partition in range(4) for n in range(25))
    assert sorted(texts(topic, out_of(topic))) == expected


def test_ids_of_what_is_published_are_the_same_in_a_re_run(topic: Topic):
    topic.put("x", headers=[("id", "m-1")])
    seen = []

    def twice(transaction: KafkaTransaction, message: Message) -> None:
        seen.append([transaction.publish(out_of(topic), {"n": n}) for n in range(2)])
        if len(seen) == 1:
            raise Retry(after=0)

    with Consumer.open(url_of(topic), policy=QUICK) as consumer:
        assert handle_all(consumer, twice, 1).retried == 1
    assert seen[0] == seen[1]
    records = read_topic(topic.bootstrap, out_of(topic))
    assert sorted(dict(record.headers())["id"].decode() for record in records) == sorted(seen[0])
    assert {record.value() for record in records} == {b'{"n":0}', b'{"n":1}'}


@pytest.mark.usefixtures("needs_real")
def test_a_failed_attempt_publishes_nothing_and_the_last_one_is_a_dead_letter(topic: Topic):
    topic.put("good", "bad", "good")
    attempts = []

    def handle(transaction: KafkaTransaction, message: Message) -> None:
        transaction.publish(out_of(topic), message.body)
        if message.body == b"bad":
            attempts.append(1)
            raise ValueError("no")

    with Consumer.open(url_of(topic), policy=QUICK) as consumer:
        report = handle_all(consumer, handle, 3)
    assert (report.ran, report.retried, report.dead, len(attempts)) == (2, 2, 1, 3)
    assert texts(topic, out_of(topic)) == ["good", "good"]
    (dead,) = read_topic(topic.bootstrap, f"{topic.name}.dead")
    headers = dict(dead.headers())
    assert dead.value() == b"bad"
    assert headers["twicesafe-dead-error"] == b"ValueError"
    assert topic.committed() == {f"{topic.name}/0": 3}


@pytest.mark.usefixtures("needs_real")
def test_later_messages_of_a_key_wait_behind_a_failing_one_and_go_on_after_it_is_dead(topic: Topic):
    topic.put("a", "b", "c", key="k")
    ran = []

    def handle(transaction: KafkaTransaction, message: Message) -> None:
        ran.append(message.body.decode())
        if message.body == b"a":
            raise DeadLetter("no") if len(ran) == 2 else Retry(after=0.05)

    with Consumer.open(url_of(topic), policy=QUICK) as consumer:
        assert handle_all(consumer, handle, 3).dead == 1
    assert ran == ["a", "a", "b", "c"]


@pytest.mark.usefixtures("needs_real")
async def test_the_async_consumer_too(topic: Topic):
    topic.put("a", "bad", "c")

    async def handle(transaction: KafkaTransaction, message: Message) -> None:
        transaction.publish(out_of(topic), message.body)
        if message.body == b"bad":
            raise DeadLetter("no")

    async with AsyncConsumer.open(url_of(topic)) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await asyncio.to_thread(until, lambda: consumer.report.dead + consumer.report.ran == 3, 100)
        consumer.stop()
        report = await running
    assert (report.ran, report.dead) == (2, 1)
    assert sorted(texts(topic, out_of(topic))) == ["a", "c"]
    assert texts(topic, f"{topic.name}.dead") == ["bad"]


@pytest.mark.usefixtures("needs_real")
def test_a_transaction_that_ended_takes_nothing(topic: Topic):
    topic.put("x")
    kept: list[KafkaTransaction] = []
    with Consumer.open(url_of(topic)) as consumer:
        handle_all(consumer, lambda transaction, message: kept.append(transaction), 1)
    with pytest.raises(UsageError, match="before it returns"):
        kept[0].publish("late", b"")


# --- killed, fenced, in doubt ------------------------------------------------------------------------


def worker(topic: Topic, point: str, number: int = 1, id_: str = "", **options: str) -> Any:
    words = [url_of(topic, id_, **options), out_of(topic), point, str(number)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.consumers.kafka_worker", *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("needs_real")
@pytest.mark.parametrize("point", ["produced", "committed"])
def test_a_process_that_is_killed_around_a_commit_publishes_everything_once(
    topic: Topic, point: str
):
    """The next process has the same transactional id: it ends what the dead one left open. It has the
    same instance id, too, so the group does not wait for the dead one."""
    same = {"group.instance.id": "one"}
    topic.put(*map(str, range(40)))
    for number in (1, 3):
        killed = worker(topic, point, number, **same)
        killed.communicate(timeout=120)
        assert killed.returncode == -signal.SIGKILL
    all_of_them = {f"{topic.name}/0": 40}
    with Consumer.open(url_of(topic, **same)) as consumer:
        handle_all(
            consumer,
            copier(topic),
            # Not before: Kafka does not tell the offsets while the dead one's transaction is open.
            lambda: consumer.report.ran > 0 and topic.committed() == all_of_them,
        )
    assert sorted(texts(topic, out_of(topic))) == sorted(map(str, range(40)))
    written = Counter(texts(topic, out_of(topic), "read_uncommitted"))
    assert (max(written.values()) > 1) == (point == "produced")


@pytest.mark.usefixtures("needs_real")
def test_a_second_consumer_with_the_same_transactional_id_fences_the_first(topic: Topic):
    topic.put("a")
    started, goes_on = threading.Event(), threading.Event()

    def stuck(transaction: KafkaTransaction, message: Message) -> None:
        transaction.publish(out_of(topic), b"from the first")
        started.set()
        goes_on.wait(60)

    ended: list[Exception] = []

    def run() -> None:
        try:
            first.run(stuck)
        except Exception as error:
            ended.append(error)

    with Consumer.open(url_of(topic)) as first:
        thread = threading.Thread(target=run)
        thread.start()
        assert started.wait(60)
        other = topic.url(transactional_id=f"{topic.name}-1").replace(
            f"group={topic.name}", f"group={topic.name}-other"
        )
        with Consumer.open(other) as second:
            handle_all(second, lambda transaction, message: None, 1)
        goes_on.set()
        thread.join(60)
    assert isinstance(ended[0], ConfigurationError)
    assert "another consumer uses the transactional id" in str(ended[0])
    assert topic.committed() == {}
    with Consumer.open(url_of(topic)) as third:
        handle_all(third, copier(topic), 1)
    assert texts(topic, out_of(topic)) == ["a"]


@pytest.mark.usefixtures("needs_real")
def test_a_process_that_slept_through_the_loss_of_its_partitions_commits_nothing(topic: Topic):
    """Its transactional id is its own: Kafka refuses it by its generation in the group."""
    quick = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
    topic.put("a", "b")
    zombie = worker(topic, "stuck", id_=f"{topic.name}-zombie", **quick)
    assert zombie.stdout.readline() == "stuck\n"
    zombie.send_signal(signal.SIGSTOP)
    with Consumer.open(url_of(topic, **quick)) as consumer:
        handle_all(consumer, copier(topic), 2)
        assert sorted(texts(topic, out_of(topic))) == ["a", "b"]
        zombie.send_signal(signal.SIGCONT)
        zombie.communicate("go\n", timeout=120)
    assert zombie.returncode == 0
    assert sorted(texts(topic, out_of(topic))) == ["a", "b"]
    assert topic.committed() == {f"{topic.name}/0": 2}


@pytest.mark.usefixtures("needs_real")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_behind_an_open_transaction_starts_no_partition_from_the_beginning(
    topic: Topic, protocol: str
):
    """While a dead member's transaction is open, Kafka tells no offsets. If the group changes meanwhile, librdkafka
    takes that for a group without offsets, as the field found: it starts at the earliest message."""
    for partition in range(topic.partitions):
        topic.put("done", partition=partition)
    own = {"group.protocol": protocol}
    with Consumer.open(url_of(topic, **own)) as consumer:
        handle_all(consumer, copier(topic), topic.partitions)
    everything = dict.fromkeys((f"{topic.name}/{n}" for n in range(topic.partitions)), 1)
    until(lambda: topic.committed() == everything)
    dead = open_transaction(topic, everything)

    sources = [topic.source(transactional_id=f"{topic.name}-{n}", **own) for n in (2, 3)]
    got: list[str] = []

    def share(members: int) -> bool:
        """They poll; have they divided the partitions among them?"""
        for source in sources[:members]:
            with contextlib.suppress(BrokerUnavailableError):  # Kafka tells no offsets
                got.extend(one.message.body.decode() for one in source.fetch(10, 0.2))
        counts = [len(source._member.partitions()) for source in sources[:members]]  # type: ignore[union-attr]
        return sum(counts) == topic.partitions and all(counts)

    try:
        until(lambda: share(1), 60)
        until(lambda: share(2), 60)
        dead.abort_transaction(20)
        for partition in range(topic.partitions):
            topic.put("new", partition=partition)
        until(lambda: share(2) and got.count("new") == topic.partitions, 60)
    finally:
        for source in sources:
            source.close()
    assert got == ["new"] * topic.partitions


@pytest.mark.usefixtures("needs_real")
@pytest.mark.parametrize("is_committed", [True, False])
def test_an_answer_that_is_lost_is_found_out(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, is_committed: bool
):
    from confluent_kafka import KafkaError, KafkaException

    class Lossy:
        """Its first commit ends without an answer."""

        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def commit_transaction(self, timeout: float) -> None:
            if lost or is_committed:
                self._producer.commit_transaction(timeout)
            if not lost:
                lost.append(1)
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "lost", retriable=True))

    lost: list[int] = []
    connect = TransactionalMember._connect

    def lossy(member: Any) -> bool:
        done = connect(member)
        if not isinstance(member._producer, Lossy):
            member._producer = Lossy(member._producer)
        return done

    monkeypatch.setattr(TransactionalMember, "_connect", lossy)
    topic.put(*map(str, range(10)))
    with Consumer.open(url_of(topic)) as consumer:
        all_of_them = {f"{topic.name}/0": 10}
        report = handle_all(consumer, copier(topic), lambda: topic.committed() == all_of_them)
    assert lost == [1]
    assert report.ran == 10
    assert sorted(texts(topic, out_of(topic))) == sorted(map(str, range(10)))


@pytest.mark.usefixtures("needs_real")
def test_a_confirmed_transaction_that_kafka_loses_is_handled_again(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
):
    """The field found it: a broker that starts may confirm a transaction and never end it in its partitions. It
    is then aborted with the producer's next one."""
    from confluent_kafka import KafkaError, KafkaException

    class Forgetful:
        """Confirms its first transaction, which is aborted; the second one fails."""

        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def commit_transaction(self, timeout: float) -> None:
            commits.append(1)
            if len(commits) == 1:
                self._producer.abort_transaction(timeout)
            elif len(commits) == 2:
                raise KafkaException(KafkaError(KafkaError._STATE, "x", txn_requires_abort=True))
            else:
                self._producer.commit_transaction(timeout)

    commits: list[int] = []
    connect = TransactionalMember._connect

    def forgetful(member: Any) -> bool:
        done = connect(member)
        if not isinstance(member._producer, Forgetful):
            member._producer = Forgetful(member._producer)
        return done

    monkeypatch.setattr(TransactionalMember, "_connect", forgetful)
    topic.put(*map(str, range(5)))
    later = list(map(str, range(5, 10)))

    def is_done() -> bool:
        if commits and later:
            topic.put(*later)
            later.clear()
        return topic.committed() == {f"{topic.name}/0": 10}

    with Consumer.open(url_of(topic)) as consumer:
        handle_all(consumer, copier(topic), is_done)
    assert sorted(texts(topic, out_of(topic))) == sorted(map(str, range(10)))


@pytest.mark.usefixtures("needs_real")
def test_a_request_that_never_ends_is_given_up_and_fenced(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
):
    """librdkafka does not end it if the group's coordinator goes away meanwhile, as the field found."""

    class Hanging:
        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def send_offsets_to_transaction(self, *given: Any) -> None:
            if not hung:
                hung.append(1)
                over.wait()
            self._producer.send_offsets_to_transaction(*given)

    hung: list[int] = []
    over = threading.Event()
    connect = TransactionalMember._connect

    def hanging(member: Any) -> bool:
        done = connect(member)
        if not isinstance(member._producer, Hanging):
            member._producer = Hanging(member._producer)
        return done

    monkeypatch.setattr(TransactionalMember, "_connect", hanging)
    monkeypatch.setattr(_kafka_transactions, "OFFSETS", 3.0)
    topic.put(*map(str, range(10)))
    with Consumer.open(url_of(topic)) as consumer:
        all_of_them = {f"{topic.name}/0": 10}
        handle_all(consumer, copier(topic), lambda: topic.committed() == all_of_them)
    over.set()  # the late request is refused: its producer is fenced
    assert hung == [1]
    assert sorted(texts(topic, out_of(topic))) == sorted(map(str, range(10)))


@pytest.mark.usefixtures("needs_real")
def test_what_kafka_refuses_is_a_dead_letter_and_its_neighbours_go_on(topic: Topic):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    small = NewTopic(out_of(topic), 1, config={"max.message.bytes": "300"})
    for answer in admin.create_topics([small]).values():
        answer.result(120)
    topic.put("a", "x", "b")

    def grow(transaction: KafkaTransaction, message: Message) -> None:
        noise = json.dumps([hash((n, message.position)) for n in range(200)])
        transaction.publish(out_of(topic), noise if message.body == b"x" else message.body)

    with Consumer.open(url_of(topic)) as consumer:
        handle_all(consumer, grow, lambda: topic.committed() == {f"{topic.name}/0": 3})
    assert sorted(texts(topic, out_of(topic))) == ["a", "b"]
    (dead,) = read_topic(topic.bootstrap, f"{topic.name}.dead")
    assert dead.value() == b"x"
    assert b"MSG_SIZE_TOO_LARGE" in dict(dead.headers())["twicesafe-dead-reason"]


@pytest.mark.usefixtures("needs_real")
def test_a_dead_letter_that_does_not_fit_is_brief(topic: Topic):
    body = topic.put_large(900)

    def refuse(transaction: KafkaTransaction, message: Message) -> None:
        raise DeadLetter(os.urandom(1000).hex())

    with Consumer.open(url_of(topic)) as consumer:
        handle_all(consumer, refuse, lambda: topic.committed() == {f"{topic.name}/0": 1})
    (dead,) = read_topic(topic.bootstrap, f"{topic.name}.dead")
    assert dead.value() == body
    assert len(dict(dead.headers())["twicesafe-dead-reason"]) == 80


# --- what is refused ---------------------------------------------------------------------------------

URL = "kafka://127.0.0.1:1?topics=a&group=b&transactional_id=c"


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"policy": Policy(lease=5)}, "lease= has no effect"),
        ({"policy": Policy(remember=(ValueError,))}, "remember= has no effect"),
        ({"dead_letter": "kafka://h?topic=x"}, "remove dead_letter="),
        ({"connect": print}, "remove receiver=, inbox= and connect="),
    ],
)
def test_settings_without_an_effect_are_refused(given: dict[str, Any], problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        Consumer.open(URL, **given)


def test_a_receiver_is_refused():
    record = pytest.raises(ConfigurationError, match="the Kafka transaction is the record")
    with Receiver.open("memory://") as receiver, record:
        Consumer.open(URL, receiver=receiver)


def test_the_handler_takes_the_transaction():
    shape = pytest.raises(UsageError, match=r"handle\(transaction, message\)")
    with Consumer.open(URL) as consumer, shape:
        consumer.drain(lambda message: None)
