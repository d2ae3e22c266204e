"""A Kafka topic with messages, a member of its group that works in several threads, and its commits."""

from __future__ import annotations

import random
import struct
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.polling import until
from twicesafe import BrokerUnavailableError
from twicesafe._core.consuming.message import Received
from twicesafe.consumers import Consumer, Report
from twicesafe.consumers.sources.kafka import KafkaSource

__all__ = ["Done", "Member", "Topic", "group_offsets", "handle_all", "read_topic"]


class Topic:
    """A topic that no other test uses, with a group of the same name."""

    def __init__(self, bootstrap: str, partitions: int = 4, name: str = "") -> None:
        from confluent_kafka import Consumer as Reader
        from confluent_kafka import Producer

        self.bootstrap, self.partitions = bootstrap, partitions
        self.name = name or f"orders-{uuid.uuid4().hex[:8]}"
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._asker = Reader(
            {"bootstrap.servers": bootstrap, "group.id": self.name, "log_level": 0}
        )
        until(self._exists)

    def _exists(self) -> bool:
        found = self._producer.list_topics(self.name, timeout=120).topics[self.name]
        return len(found.partitions) == self.partitions

    def url(self, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"kafka://{self.bootstrap}?topics={self.name}&group={self.name}{more}"

    def source(self, **options: str) -> KafkaSource:
        return KafkaSource.open(self.url(**options))

    def put(self, *bodies: str, partition: int = 0, key: Any = None, headers: Any = None) -> None:
        for body in bodies:
            self._producer.produce(
                self.name, body.encode(), key, partition=partition, headers=headers
            )
        assert self._producer.flush(20) == 0

    def put_large(self, room: int) -> bytes:
        """A message that leaves so many bytes until Kafka's default limit, and that nothing makes smaller."""
        from confluent_kafka import Producer

        body = random.randbytes(1_048_588 - room)
        large = Producer({"bootstrap.servers": self.bootstrap, "message.max.bytes": 2_000_000})
        large.produce(self.name, body, "ann", partition=0, headers={"id": "large"})
        assert large.flush(20) == 0
        return body

    def committed(self) -> dict[str, int]:
        """Partition → the group's offset, without those that have none."""
        from confluent_kafka import TopicPartition

        places = [TopicPartition(self.name, number) for number in range(self.partitions)]
        found = self._asker.committed(places, timeout=120)
        return {f"{p.topic}/{p.partition}": p.offset for p in found if p.offset >= 0}

    def close(self) -> None:
        self._asker.close()


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """All records of a topic, partition by partition, up to the end of each."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition
    from confluent_kafka import Consumer as Reader

    reader = Reader(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-all",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    places: set[int] = set()

    def exists() -> bool:
        places.update(reader.list_topics(topic, timeout=120).topics[topic].partitions)
        return bool(places)

    until(exists)
    reader.assign([TopicPartition(topic, place, OFFSET_BEGINNING) for place in places])
    found: list[Any] = []

    def is_read() -> bool:
        for record in reader.consume(1000, 0.1):
            if record.error() is None:
                found.append(record)
            else:
                assert record.error().name() == "_PARTITION_EOF", record.error()
                places.discard(record.partition())
        return not places

    until(is_read, 60)
    reader.close()
    return sorted(found, key=lambda record: (record.partition(), record.offset()))


def group_offsets(bootstrap: str, group: str) -> list[tuple[str, int]]:
    """Every offset that a group has committed, in order: the partition's name and the offset."""
    found = []
    for record in read_topic(bootstrap, "__consumer_offsets"):
        version, key = _number(">h", record.key())
        if version > 1 or record.value() is None:  # of a member, or a removal
            continue
        name, key = _text(key)
        topic, key = _text(key)
        partition, _ = _number(">i", key)
        if name == group:
            found.append((f"{topic}/{partition}", _number(">q", record.value()[2:])[0]))
    return found


def _number(form: str, data: bytes) -> tuple[int, bytes]:
    return struct.unpack_from(form, data)[0], data[struct.calcsize(form) :]


def _text(data: bytes) -> tuple[str, bytes]:
    length, rest = _number(">h", data)
    return rest[:length].decode(), rest[length:]


def handle_all(
    consumer: Consumer, handler: Any, done: int | Callable[[], bool], seconds: float = 100
) -> Report:
    """Run until so many messages are settled, or until this is true. (`drain` could end before the
    group is formed.)"""

    def settled() -> bool:
        report = consumer.report
        return report.ran + report.replayed + report.dead >= done  # type: ignore[operator]

    def watch() -> None:
        try:
            until(done if callable(done) else settled, seconds)
        finally:
            consumer.stop()

    watcher = threading.Thread(target=watch)
    watcher.start()
    report = consumer.run(handler)
    watcher.join()
    return report


class Done:
    """What all members of a group have handled: the partition's name → how often each offset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.offsets: dict[str, Counter[int]] = {}

    def add(self, received: Received) -> None:
        offset = int(received.message.position.rpartition("/")[2].partition("@")[0])
        with self._lock:
            self.offsets.setdefault(received.partition, Counter())[offset] += 1

    def holds_all_before(self, commits: dict[str, int]) -> bool:
        with self._lock:
            return all(
                set(self.offsets.get(name, ())) >= set(range(offset))
                for name, offset in commits.items()
            )

    def count(self) -> int:
        with self._lock:
            return sum(len(offsets) for offsets in self.offsets.values())

    def repeats(self) -> int:
        with self._lock:
            return sum(sum(offsets.values()) - len(offsets) for offsets in self.offsets.values())


class Member:
    """Fetches in one thread; handles and acknowledges in another, in random order.

    It is what a flow is for a source: from `revoke` on it starts nothing of these partitions, and it
    releases them when nothing of them runs.
    """

    def __init__(self, source: KafkaSource, done: Done, seed: int = 0) -> None:
        self.source, self.done = source, done
        self._chance = random.Random(seed)
        self._lock = threading.Condition()
        self._held: list[Received] = []
        self._running: frozenset[str] = frozenset()
        self._going: list[frozenset[str]] = []
        self._over = False
        self.revocations = 0
        self.errors: list[BaseException] = []
        source.listen(self._revoke)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._fetch, self._handle)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def _fetch(self) -> None:
        while not self._over:
            with self._lock:
                room = max(0, 40 - len(self._held))
            try:
                found = self.source.fetch(room, 0.05)
            except BrokerUnavailableError:
                continue
            with self._lock:
                self._held += found
                self._lock.notify_all()

    def _revoke(self, names: frozenset[str]) -> None:
        with self._lock:
            self.revocations += 1
            self._held = [one for one in self._held if one.partition not in names]
            self._going.append(names)
            self._lock.notify_all()

    def _handle(self) -> None:
        while not self._over:
            with self._lock:
                going, self._going = self._going, []
                self._chance.shuffle(self._held)
                some, self._held = self._held[:5], self._held[5:]
            for names in going:
                self.source.release(names)
            for received in some:
                self.done.add(received)
            try:
                if some:
                    self.source.acknowledge([received.receipt for received in some])
            except BrokerUnavailableError:
                continue
            with self._lock:
                if not self._held and not self._going and not self._over:
                    self._lock.wait(0.2)

    def stop(self) -> None:
        """As a flow does: what is not done is not committed."""
        with self._lock:
            self._over = True
            self._lock.notify_all()
        for thread in self._threads:
            thread.join()
        self.source.close()
        assert self.errors == []
