"""The log of processed ids: a compacted topic that remembers which ids a group has handled.

An entry is written in the transaction that commits its message, to the partition with the message's
own number. So each partition of the log has one writer at a time, the member that has that partition
of the topic, and an entry exists if, and only if, the message is done.

Before the first message of a partition is handed out, its part of the log is read *to the end*: by
`assign`, from the beginning, never by a group, whose offsets could skip entries. The end is the one
that a reader of uncommitted entries sees. If a transaction is still open before it, the read waits
until Kafka has ended that transaction. A log that cannot be read keeps its partition waiting.

A lookup asks for ids of the same partition only: a producer that sends one id to two partitions gets
two runs. An id is forgotten after ``retention``, by this process and by the topic's own
``retention.ms``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ...errors import BrokerUnavailableError, ConfigurationError
from ...outbox.publishers._urls import CHECK_BROKER

__all__ = ["ProcessedIds"]

PAGE: Final = 5000
STALLED: Final = 10.0
"""Seconds without an entry after which a read is given up, and tried again later."""

ANSWER: Final = 10.0
"""Seconds for a question to the cluster."""


class ProcessedEntry(msgspec.Struct, frozen=True, gc=False):
    """The value of a record of the log; its key is the id, hashed, in hex digits."""

    position: str
    fingerprint: str


class ProcessedIds:
    """The ids of the partitions that are ours, by partition. Not thread-safe: its member locks."""

    def __init__(self, topic: str, connection: Mapping[str, Any]) -> None:
        self.topic = topic
        self.retention = 86400.0
        self._connection = dict(connection)
        self._is_there = False
        self._ids: dict[str, dict[bytes, bytes]] = {}
        """Partition → id → the fingerprint's first 8 bytes and the time in seconds, oldest first."""

    # -- what is known ------------------------------------------------------------------------------

    def find(self, partition: str, identity: bytes) -> bytes | None:
        """The first bytes of the fingerprint under which this id was processed."""
        found = self._ids.get(partition, {}).get(identity)
        if found is None or _time_of(found) < time.time() - self.retention:
            return None
        return found[:8]

    def add(self, partition: str, identity: bytes, fingerprint: bytes) -> None:
        if (ids := self._ids.get(partition)) is not None:
            ids.pop(identity, None)
            ids[identity] = _packed(fingerprint, time.time())
            _drop_old(ids, time.time() - self.retention)

    def remove(self, partition: str, identity: bytes) -> None:
        self._ids.get(partition, {}).pop(identity, None)

    def forget(self, partitions: Iterable[str]) -> None:
        """This consumer no longer has these partitions."""
        for partition in partitions:
            self._ids.pop(partition, None)

    # -- the topic ------------------------------------------------------------------------------------

    def record(self, partition: str, position: str, identity: bytes, fingerprint: bytes) -> Any:
        """The arguments of `produce` for an entry."""
        entry = ProcessedEntry(position, fingerprint[:8].hex())
        return {
            "topic": self.topic,
            "key": identity.hex(),
            "value": msgspec.json.encode(entry),
            "partition": _number(partition),
        }

    def prepare(self, topics: Iterable[str]) -> None:
        """Create the log if it is missing; refuse one that has too few partitions."""
        if self._is_there:
            return
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin: Any = AdminClient(self._connection)
        refusal = ""
        try:
            known = admin.list_topics(timeout=ANSWER).topics
            wanted = max(
                (len(known[name].partitions) for name in topics if name in known), default=0
            )
            if self.topic not in known:
                settings = {
                    "cleanup.policy": "compact,delete",
                    "retention.ms": str(round(self.retention * 1000)),
                }
                new = NewTopic(self.topic, num_partitions=wanted or 1, config=settings)
                for done in admin.create_topics([new], request_timeout=ANSWER).values():
                    # Also if another member was quicker: the topic list tells.
                    try:
                        done.result(ANSWER)
                    except KafkaException as error:
                        refusal = error.args[0].name()
                    except TimeoutError:
                        refusal = "no answer"
            found = len(admin.list_topics(self.topic, timeout=ANSWER).topics[self.topic].partitions)
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"Kafka cannot be reached; {CHECK_BROKER}", blames="none"
            ) from error
        if found == 0:
            why = (
                f"Kafka does not create the topic {self.topic} ({refusal}): create it with "
                f"cleanup.policy=compact,delete and {wanted} partitions"
            )
            if refusal in ("", "TOPIC_ALREADY_EXISTS"):
                why = f"Kafka is still creating the topic {self.topic}"
            raise BrokerUnavailableError(why, blames="none")
        if found < wanted:
            raise ConfigurationError(
                f"the log of processed ids {self.topic} has {found} partitions and needs {wanted}, as "
                "many as the topic: an id is logged in the partition that its message is in"
            )
        self._is_there = True

    def load(self, partition: str) -> None:
        """Read this partition's log to its end. Raises `BrokerUnavailableError` if that fails."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        ids: dict[bytes, bytes] = {}
        place = TopicPartition(self.topic, _number(partition), OFFSET_BEGINNING)
        try:
            end = self._end(TopicPartition(self.topic, _number(partition)))
            reader: Any = Consumer(
                {
                    **self._connection,
                    "group.id": "twicesafe-processed-ids",  # required; it joins none
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                }
            )
            try:
                reader.assign([place])
                self._read(reader, end, ids)
            finally:
                reader.close()
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"the log of processed ids {self.topic} cannot be read: {error.args[0].name()}",
                blames="none",
            ) from error
        self._ids[partition] = ids

    def _end(self, place: Any) -> int:
        """The end of the partition, behind transactions that are still open."""
        from confluent_kafka import Consumer

        asker: Any = Consumer(
            {
                **self._connection,
                "group.id": "twicesafe-processed-ids",
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            return int(asker.get_watermark_offsets(place, timeout=ANSWER)[1])
        finally:
            asker.close()

    def _read(self, reader: Any, end: int, ids: dict[bytes, bytes]) -> None:
        oldest = time.time() - self.retention
        reached, moved = 0, time.monotonic()
        while reached < end:
            for record in reader.consume(PAGE, 0.2):
                error = record.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise BrokerUnavailableError(
                        f"the log of processed ids {self.topic} cannot be read: {error.name()}",
                        blames="none",
                    )
                if error is None:
                    _take(record, ids)
                after = record.offset() + (error is None)
                if after > reached:
                    reached, moved = after, time.monotonic()
            if time.monotonic() - moved > STALLED:
                raise BrokerUnavailableError(
                    f"the log of processed ids {self.topic} cannot be read to its end: a transaction "
                    "is still open, and Kafka ends it after its transaction.timeout.ms",
                    blames="none",
                )
        _drop_old(ids, oldest)


def _take(record: Any, ids: dict[bytes, bytes]) -> None:
    """An entry, in order of time; a tombstone removes its id."""
    identity = bytes.fromhex(record.key().decode())
    ids.pop(identity, None)
    if record.value() is not None:
        entry = msgspec.json.decode(record.value(), type=ProcessedEntry)
        fingerprint = bytes.fromhex(entry.fingerprint)
        ids[identity] = _packed(fingerprint, record.timestamp()[1] / 1000)


def _drop_old(ids: dict[bytes, bytes], oldest: float) -> None:
    while ids:
        identity = next(iter(ids))
        if _time_of(ids[identity]) >= oldest:
            return
        del ids[identity]


def _packed(fingerprint: bytes, seconds: float) -> bytes:
    return fingerprint[:8] + int(seconds).to_bytes(4, "big")


def _time_of(packed: bytes) -> int:
    return int.from_bytes(packed[8:], "big")


def _number(partition: str) -> int:
    return int(partition.rpartition("/")[2])
