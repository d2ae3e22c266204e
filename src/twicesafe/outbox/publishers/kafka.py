"""Kafka: the idempotent producer of librdkafka, without gaps.

    kafka://host:9092,host2:9092?prefix=shop.&client.id=relay

The topic is the message's, prefixed with ``prefix=``. The record's key is the ordering key, so a
key stays in one partition. The id is sent as the header ``id``. Other query parameters are passed
to librdkafka (``security.protocol``, ``sasl.username`` …). While a topic does not exist, its
messages wait: their lanes back off, and no attempt is counted.

The producer retries by itself and keeps the order of a partition (``acks=all``, idempotence). If it
gives up on a message, it also gives up on the later ones (``enable.gapless.guarantee``). Then the
publisher replaces the producer, and the relay retries them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from ..._core.outbox.publisher import NOT_TRIED, Answer, NotNow
from ..._core.outbox.requests import Message
from ..._values.drivers import require
from ...errors import BrokerUnavailableError
from ._kafka_wire import record_of
from ._urls import check_kafka, kafka_url, refused_by_kafka

__all__ = ["LARGEST", "TO_BLAME", "KafkaPublisher"]

OPTIONS: Final = {"prefix": "", "batch": 500, "timeout": 10.0}

LARGEST: Final = 100_000_000
"""Bytes of a message. The broker knows its limit; librdkafka's own (1 MB) is smaller than Kafka's
default, so a message that Kafka has taken could not be published again as a dead letter."""

TO_BLAME: Final = frozenset(
    {"MSG_SIZE_TOO_LARGE", "INVALID_MSG", "INVALID_MSG_SIZE", "INVALID_RECORD", "POLICY_VIOLATION",
     "TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED", "RECORD_LIST_TOO_LARGE"}
)  # fmt: skip
"""Errors that are about this message or its topic, not about the cluster."""

_NO_TOPIC: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"})

_AWAY: Final = frozenset({"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_RESOLVE", "_SSL", "_TRANSPORT"})


class KafkaPublisher:
    """Blocking, by confluent-kafka."""

    concurrency = 1
    keeps_order = True

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        prefix: str = "",
        batch: int = 500,
        timeout: float = 10.0,
    ) -> None:
        self._config = {
            "linger.ms": 5,
            "compression.type": "lz4",
            "message.max.bytes": LARGEST,
            "log_level": 0,  # the failing publish reports it
            **config,
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "acks": "all",
            "delivery.timeout.ms": round(timeout * 1000),
        }
        self._prefix, self._timeout = prefix, timeout
        self.batch = batch
        self._producer: Any = None

    @classmethod
    def open(cls, url: str) -> Self:
        require("confluent_kafka")
        from confluent_kafka import Producer

        config, options = kafka_url(url, OPTIONS)
        opened = cls(config, **options)
        check_kafka(Producer, opened._config, OPTIONS)
        return opened

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        producer = self._connected()
        reports: list[Any] = [_UNREPORTED] * len(messages)

        def report_to(place: int) -> Any:
            def reported(error: Any, _: Any) -> None:
                reports[place] = error

            return reported

        answers: list[Answer] = [NOT_TRIED] * len(messages)
        produced = 0
        for place, message in enumerate(messages):
            try:
                producer.produce(
                    self._prefix + message.topic,
                    on_delivery=report_to(place),
                    **record_of(message),
                )
            except BufferError as error:
                self._renew()
                raise BrokerUnavailableError("the producer's queue is full") from error
            except Exception as error:
                answers[place] = self._blamed(error)
                break  # what is not produced cannot overtake it
            produced += 1
        self._flush(producer)
        for place in range(produced):
            report = reports[place]
            answers[place] = None if report is None else self._meaning(report, messages[place])
        if any(answers[:produced]):
            self._renew()
        return answers

    def _flush(self, producer: Any) -> None:
        """Wait for the reports. After a refusal by the broker the producer is unusable, and says so first."""
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):
            producer.flush(self._timeout + 1)
            return
        producer.flush(self._timeout + 1)

    def _meaning(self, report: Any, message: Message) -> Exception:
        """The error for a message that was not delivered."""
        if report is _UNREPORTED:
            return BrokerUnavailableError("Kafka did not confirm in time")
        name = report.name()
        if name in TO_BLAME:
            return RuntimeError(f"Kafka refused the message: {name}")
        if name in _NO_TOPIC:
            return NotNow(f"Kafka has no topic {self._prefix}{message.topic}: create it")
        return BrokerUnavailableError(
            f"Kafka did not accept it: {name}", blames="none" if name in _AWAY else "compared"
        )

    def check(self) -> None:
        from confluent_kafka import KafkaException

        try:
            self._connected().list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise BrokerUnavailableError("Kafka cannot be reached", blames="none") from error

    def _connected(self) -> Any:
        if self._producer is None:
            from confluent_kafka import KafkaException, Producer

            try:
                self._producer = Producer(self._config)
            except KafkaException as error:
                raise refused_by_kafka(error, OPTIONS) from error
        return self._producer

    def _blamed(self, error: Exception) -> Exception:
        """The error when `produce` itself fails: the message (too large, say) or the producer."""
        code: Any = error.args[0] if error.args else None
        name = code.name() if hasattr(code, "name") else ""
        if name and name not in TO_BLAME:
            self._renew()
            raise BrokerUnavailableError(f"the Kafka producer failed: {name}") from error
        return error

    def _renew(self) -> None:
        """After a gap the producer cannot be used; its queue is dropped, not sent later."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(1)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(self._timeout)
            self._producer = None


_UNREPORTED: Final = object()
