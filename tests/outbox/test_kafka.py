"""Kafka when things go wrong: each key in order, repeats under their id, nothing lost with the broker.

What needs a broker that remembers runs on the real one only (`make kafka`). ``TWICESAFE_KAFKA_KILLS``
(1) is how often it is killed, ``TWICESAFE_KAFKA_CUTS`` (3) how many acknowledgements are lost.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lab.field.proxy import Fault, Proxy
from twicesafe import BrokerUnavailableError
from twicesafe._core.outbox.publisher import NOT_TRIED
from twicesafe._core.outbox.requests import Message
from twicesafe.outbox.publishers import open_publisher

KILLS = int(os.environ.get("TWICESAFE_KAFKA_KILLS", "1"))
CUTS = int(os.environ.get("TWICESAFE_KAFKA_CUTS", "3"))
KEYS = [f"k{n}" for n in range(8)]
BATCH = 40


def batch_of(number: int) -> list[Message]:
    return [
        Message(str(uuid.uuid4()), "orders", f"{number}.{place}".encode(), key, {})
        for place, key in enumerate(KEYS * (BATCH // len(KEYS)))
    ]


def log_of(bootstrap: str, topic: str) -> list[Any]:
    """All that the topic holds, partition after partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    found: list[Any] = []
    for number in consumer.list_topics(topic, timeout=120).topics[topic].partitions:
        place = TopicPartition(topic, number, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=120)
        consumer.assign([place])
        while end and (
            not found or found[-1].partition() != number or found[-1].offset() < end - 1
        ):
            polled = consumer.poll(120)
            assert polled is not None, f"{topic} stopped before its end"
            assert polled.error() is None, polled.error()
            found.append(polled)
    consumer.close()
    return found


def id_of(record: Any) -> str:
    return str(dict(record.headers())["id"].decode())


def topic_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["prefix"][0] + "orders"


def assert_in_order(log: list[Any], sent: list[Message]) -> None:
    """Each key in one partition, and its ids there, at their first coming, as they were sent."""
    for key in KEYS:
        records = [record for record in log if record.key() == key.encode()]
        assert len({record.partition() for record in records}) == 1
        assert list(dict.fromkeys(map(id_of, records))) == [m.id for m in sent if m.key == key]


def test_a_key_stays_in_its_partition_and_in_order(kafka: Any, kafka_url: str):
    publisher: Any = open_publisher(kafka_url)
    sent: list[Message] = []
    for number in range(5):
        sent += batch_of(number)
        assert publisher.publish(sent[-BATCH:]) == [None] * BATCH
    publisher.close()
    log = log_of(kafka.bootstrap, topic_of(kafka_url))
    assert len(log) == len(sent)
    assert len({record.partition() for record in log}) > 1
    assert_in_order(log, sent)


def test_what_is_published_again_has_the_same_id(kafka: Any, kafka_url: str):
    sent = batch_of(0)
    for _ in range(2):  # two relays, the first of which died before it could say so
        publisher: Any = open_publisher(kafka_url)
        assert publisher.publish(sent) == [None] * BATCH
        publisher.close()
    log = log_of(kafka.bootstrap, topic_of(kafka_url))
    bodies = {m.id: m.body for m in sent}
    assert sorted(map(id_of, log)) == sorted([*bodies, *bodies])
    assert all(record.value() == bodies[id_of(record)] for record in log)
    assert_in_order(log, sent)


# --- on the real broker only -----------------------------------------------------------------------


@pytest.fixture
def needs_real(kafka_broker: str) -> None:
    if kafka_broker != "real":
        pytest.skip(f"kafka: {kafka_broker}, not our own broker to mistreat; make kafka")


@pytest.fixture
def behind_proxy(needs_real: None, own_server: Callable[..., Any]) -> Iterator[Proxy]:
    """A broker that tells its clients to come through the proxy."""
    with Proxy(0) as proxy:
        server = own_server("kafka", advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}")
        proxy.behind = server.port
        yield proxy


def test_a_lost_acknowledgement_doubles_nothing(behind_proxy: Proxy):
    publisher: Any = open_publisher(f"kafka://127.0.0.1:{behind_proxy.port}")
    sent = batch_of(0)
    assert publisher.publish(sent) == [None] * BATCH  # now it is connected
    for number in range(CUTS):
        lost = behind_proxy.arm(Fault("reply", after=0))
        sent += batch_of(number + 1)
        assert publisher.publish(sent[-BATCH:]) == [None] * BATCH
        assert lost.happened
    publisher.close()
    log = log_of(f"127.0.0.1:{behind_proxy.port}", "orders")
    assert sorted(map(id_of, log)) == sorted(m.id for m in sent)
    assert_in_order(log, sent)


def test_without_idempotence_it_would_be_doubled(behind_proxy: Proxy):
    """That the cut above falls where it hurts: behind the broker's write, before its answer."""
    from confluent_kafka import Producer

    bootstrap = f"127.0.0.1:{behind_proxy.port}"
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    producer.produce("orders", b"0", b"k")
    assert producer.flush(20) == 0
    lost = behind_proxy.arm(Fault("reply", after=0))
    producer.produce("orders", b"1", b"k")
    assert producer.flush(20) == 0
    assert lost.happened
    assert [record.value() for record in log_of(bootstrap, "orders")] == [b"0", b"1", b"1"]


class Shift:
    """A relay's part: batch after batch, each until all of it is taken."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._over = threading.Event()
        self._moved = threading.Condition()
        self.sent: list[Message] = []
        self.done = self.failures = 0
        self.refused: list[Exception] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.is_set():
            rest = batch_of(self.done)
            self.sent += rest
            while rest:
                rest = self._publish(rest)
            with self._moved:
                self.done += 1
                self._moved.notify_all()

    def _publish(self, rest: list[Message]) -> list[Message]:
        try:
            answers = self._publisher.publish(rest)
        except BrokerUnavailableError:
            self.failures += 1
            return rest
        self.refused += [a for a in answers if a is not None and a is not NOT_TRIED]
        return [m for m, answer in zip(rest, answers, strict=True) if answer is not None]

    def go_on(self, batches: int) -> None:
        with self._moved:
            goal = self.done + batches
            assert self._moved.wait_for(lambda: self.done >= goal, 60), "the shift stands still"

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._publisher.close()


@pytest.mark.usefixtures("needs_real")
@pytest.mark.parametrize("timeout", [40, 1], ids=["outlives-it", "gives-up"])
def test_a_broker_that_is_killed_in_mid_publish(kafka: Any, kafka_url: str, timeout: int):
    shift = Shift(open_publisher(f"{kafka_url}&timeout={timeout}"))
    try:
        for _ in range(KILLS):
            shift.go_on(5)
            kafka.kill()
            kafka.start()
        shift.go_on(5)
    finally:
        shift.end()
    assert shift.refused == []  # a broker that is away is no message's fault
    assert bool(shift.failures) == (timeout == 1)
    log = log_of(kafka.bootstrap, topic_of(kafka_url))
    assert {id_of(record) for record in log} == {m.id for m in shift.sent}
    assert_in_order(log, shift.sent)
    repeats = len(log) - len(shift.sent)
    assert repeats <= shift.failures * BATCH
    print(
        f"{len(shift.sent)} messages, {KILLS} kills, {shift.failures} failures, {repeats} repeats"
    )
