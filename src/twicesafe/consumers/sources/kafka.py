"""Kafka: a member of a consumer group that commits what is done, and nothing else.

    kafka://host:9092,host2:9092?topics=orders,refunds&group=billing

``topics=`` are names, or patterns that begin with ``^``. Other query parameters are passed to
librdkafka (``security.protocol``, ``sasl.username``, ``group.protocol=consumer`` …). A new group starts
at the earliest message.

With ``transactional_id=`` commits are Kafka transactions that also publish what handlers send
(`_kafka_transactions`). With ``processed=`` the ids of processed messages are logged in that topic, in
the same transaction (`_kafka_processed`).

A message's id is its header ``id``. Its ordering key is the record's key. A record without a value
(a tombstone) has an empty body.

**Commits.** Only the contiguous prefix of a partition is committed (`prefix`). If Kafka does not accept a
commit because the group is rebalancing, it stays due. A later acknowledgement, the member's thread, the
revocation or `close` sends it, or the messages come again.

**Rebalances.** When Kafka takes partitions away, the source tells the flow and waits until none of their
messages runs, but not longer than Kafka allows (0.8 of ``max.poll.interval.ms``). Then it commits what is
done. When the partitions are already lost (Kafka has excluded this member), it tells the flow and
commits nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self
from urllib.parse import urlencode

from ..._core.consuming.message import Message, Received
from ..._core.consuming.source import (
    ConsumerSettings,
    Publication,
    Revoke,
    SourceProblem,
    SourceStatus,
)
from ..._values.drivers import require
from ..._values.settings import expect
from ...outbox.publishers._urls import check_kafka, kafka_url, refused_by_kafka
from ._kafka_member import KafkaMember, Receipt
from ._kafka_processed import ProcessedIds
from ._kafka_settings import (
    CONNECTION,
    OURS,
    check_log,
    check_settings,
    check_topics,
    complete,
    create_topics,
    longest_wait,
    producer_settings,
)
from ._kafka_status import group_status
from ._kafka_transactions import TransactionalMember

__all__ = ["KafkaSource"]

OPTIONS: Final = {"topics": "", "group": "", "transactional_id": "", "processed": ""}

ADMIN: Final = 10.0
"""Seconds for a question to the cluster."""


class KafkaSource:
    """Blocking, by confluent-kafka."""

    broker = "Kafka"
    ack_wait = 0.0
    can_delay = False
    most_held = 100_000

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        transactional_id: str = "",
        processed: str = "",
    ) -> None:
        for name in OURS:
            expect(name not in config, name, config.get(name), "twicesafe sets it; remove it")
        self._config = complete(config)
        self._topics = list(topics)
        self._transactional_id = transactional_id
        self.publishes = bool(transactional_id)
        self._processed: ProcessedIds | None = None
        if processed:
            expect(self.publishes, "option processed", processed, "it needs transactional_id=, too")
            patterns = [name for name in topics if name[0] == "^"]
            expect(not patterns, "option topics", patterns, "with processed=, name each topic")
            self._processed = ProcessedIds(processed, self._connection())
        self._member: KafkaMember | None = None
        self._revoke: Revoke | None = None
        self._is_closed = False
        self._joining = threading.Lock()
        self.name: str = config["group.id"]
        theirs = {name: value for name, value in config.items() if name.startswith(CONNECTION)}
        query = f"?{urlencode(theirs)}" if theirs else ""
        self.dead_url = f"kafka://{config['bootstrap.servers']}{query}"

    @classmethod
    def open(cls, url: str) -> Self:
        require("confluent_kafka")
        from confluent_kafka import Consumer

        config, options = kafka_url(url, OPTIONS, "topics=…&group=")
        check_kafka(Consumer, {"group.id": "none", **complete(config)}, OPTIONS)
        topics = [name for name in options["topics"].split(",") if name]
        expect(topics, "option topics", options["topics"], "name at least one topic")
        expect(options["group"], "option group", options["group"], "name the consumer group")
        config["group.id"] = options["group"]
        return cls(config, topics, options["transactional_id"], options["processed"])

    def fetch(self, most: int, seconds: float) -> list[Received]:
        if self._member is not None and self._member.is_dead:
            self._member = None
        member = self._member or self._join()
        return [] if member is None else member.take(most, seconds)

    @property
    def joined(self) -> bool:
        return self._member is not None and self._member.joined

    def acknowledge(self, receipts: Sequence[Receipt]) -> None:
        if self._member is not None:
            self._member.settle(receipts)

    def give_back(self, receipts: Sequence[Receipt], seconds: float) -> None:
        """The next `fetch` returns them again. If this process ends instead, they are not committed."""
        if self._member is not None:
            self._member.give_back(receipts)

    def extend(self, receipts: Sequence[Receipt]) -> None:
        """Kafka redelivers nothing while this member is in the group."""

    def listen(self, revoke: Revoke | None) -> None:
        self._revoke = revoke
        if self._member is not None:
            self._member.listen(revoke)

    def release(self, partitions: frozenset[str]) -> None:
        if self._member is not None:
            self._member.release(partitions)

    def begin(self, message: Message, identity: bytes) -> bytes | None:
        return self._transactional().begin(message, identity)

    def fail(self, message: Message, identity: bytes) -> None:
        self._transactional().fail(message, identity)

    def keep(self, publication: Publication) -> None:
        self._transactional().keep(publication)

    def check(self, consumer: ConsumerSettings) -> list[SourceProblem]:
        found = [
            *check_settings(self._config, consumer),
            *check_topics(self._connection(), self._dead_topics(), consumer, ADMIN),
        ]
        if self._processed is not None:
            self._processed.retention = consumer.retention
            self._processed.prepare(self._topics)
            found += check_log(self._connection(), self._processed.topic, consumer, ADMIN)
        return found

    def status(self) -> SourceStatus:
        return group_status(self._connection(), self.name, self._topics, ADMIN)

    def scope(self, topic: str) -> tuple[str, ...]:
        return (self.name, topic)

    def origin(self, topic: str) -> str:
        return topic

    place = ""

    def replay_url(self, place: str) -> str:
        return self.dead_url

    def dead_topic(self, topic: str) -> str:
        return f"{topic}.dead"

    def prepare_dead_letters(self) -> None:
        create_topics(self._connection(), self._dead_topics(), ADMIN)

    def close(self) -> None:
        with self._joining:
            self._is_closed = True
        if self._member is not None:
            self._member.close()

    def _join(self) -> KafkaMember | None:
        from confluent_kafka import KafkaException

        with self._joining:
            if self._member is None and not self._is_closed:
                wait = longest_wait(self._config)
                try:
                    self._member = self._new_member(wait)
                except KafkaException as error:
                    raise refused_by_kafka(error, OPTIONS) from error
            return self._member

    def _new_member(self, wait: float) -> KafkaMember:
        if not self.publishes:
            return KafkaMember(self._config, self._topics, wait, self._revoke)
        producing = producer_settings(self._connection(), self._transactional_id)
        return TransactionalMember(
            self._config, self._topics, wait, self._revoke, producing, self._processed
        )

    def _transactional(self) -> TransactionalMember:
        assert isinstance(self._member, TransactionalMember)  # it brought the message
        return self._member

    def _dead_topics(self) -> dict[str, str]:
        """Those of topics that are named; a pattern's are known when a message comes."""
        return {topic: self.dead_topic(topic) for topic in self._topics if topic[0] != "^"}

    def _connection(self) -> dict[str, Any]:
        """The settings with which any client reaches this cluster."""
        names = ("bootstrap.servers", "log_level")
        return {
            name: value
            for name, value in self._config.items()
            if name in names or name.startswith(CONNECTION)
        }
