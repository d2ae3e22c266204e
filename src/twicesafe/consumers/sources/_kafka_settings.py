"""Settings of a Kafka source: what we set, what we check, and the topics of dead letters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..._core.consuming.source import ConsumerSettings, SourceProblem
from ...errors import BrokerUnavailableError
from ...outbox.publishers._urls import CHECK_BROKER
from ...outbox.publishers.kafka import LARGEST

__all__ = [
    "CONNECTION",
    "OURS",
    "check_log",
    "check_settings",
    "check_topics",
    "complete",
    "create_topics",
    "longest_wait",
    "producer_settings",
]

OURS: Final = {
    "enable.auto.commit": False, "enable.auto.offset.store": False,  # only what is done is committed
    "enable.partition.eof": True,  # `drain` learns that there is nothing
}  # fmt: skip
"""Settings that users cannot change."""

CONNECTION: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "client.", "socket.", "broker.")
"""How the names of settings begin that say how to reach the cluster; a producer has them too."""

MARGIN: Final = 0.8
"""Part of max.poll.interval.ms for which a revocation waits; the rest is for the commit."""

_DEFAULTS: Final = {
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "max.poll.interval.ms": "300000",
    "queued.max.messages.kbytes": "16384",
    "log_level": "0",  # `fetch` raises it
}


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the consumer; those of `OURS` cannot be changed."""
    whole = {**_DEFAULTS, **config, **OURS}
    if whole.get("group.protocol", "classic").lower() == "classic":
        whole.setdefault("partition.assignment.strategy", "cooperative-sticky")
    return whole


def longest_wait(config: Mapping[str, Any]) -> float:
    """Seconds that a revocation may wait: then Kafka would exclude this member."""
    return float(config["max.poll.interval.ms"]) / 1000 * MARGIN


def producer_settings(connection: Mapping[str, Any], transactional_id: str) -> dict[str, Any]:
    """The settings of the producer whose transactions commit what the consumer has done."""
    return {
        "linger.ms": 5,
        "compression.type": "lz4",
        "message.max.bytes": LARGEST,
        **connection,
        "transactional.id": transactional_id,
    }


def check_settings(
    config: Mapping[str, Any], consumer: ConsumerSettings
) -> Iterator[SourceProblem]:
    """What goes wrong with these settings, without a question to the cluster."""
    longest = consumer.lease if consumer.timeout is None else consumer.timeout
    if longest > longest_wait(config):
        yield SourceProblem(
            f"a rebalance waits {longest_wait(config):g} s for a running handler, which may run for "
            f"{longest:g} s: then another member gets its message while it still runs",
            f"set max.poll.interval.ms to {longest / MARGIN * 1000:.0f} or more, or a shorter timeout",
        )
    if config["auto.offset.reset"] not in ("earliest", "smallest", "beginning", "error"):
        yield SourceProblem(
            "a new group, or one whose offsets have expired, skips all messages that are there",
            "use auto.offset.reset=earliest; or =error, to decide it yourself",
        )
    if config["isolation.level"] != "read_committed":
        yield SourceProblem(
            "messages of aborted transactions are handled", "use isolation.level=read_committed"
        )
    strategy = config.get("partition.assignment.strategy", "cooperative-sticky")
    if "cooperative" not in strategy:
        yield SourceProblem(
            f"with {strategy}, every rebalance takes all partitions from all members, and all wait "
            "for the slowest handler",
            "use partition.assignment.strategy=cooperative-sticky, or group.protocol=consumer",
        )


def check_topics(
    connection: Mapping[str, Any],
    dead: Mapping[str, str],
    consumer: ConsumerSettings,
    seconds: float,
) -> Iterator[SourceProblem]:
    """What goes wrong with the topics (`dead`: topic → its dead-letter topic), where visible."""
    admin = _admin(connection)
    copies = {name: _copies(topic) for name, topic in _topics(admin, seconds).items()}
    kept = (consumer.max_attempts - 1) * consumer.longest_backoff
    for topic, dead_topic in dead.items():
        if topic not in copies:
            yield SourceProblem(f"Kafka has no topic {topic}", "create it")
            continue
        settings = _settings(admin, topic, seconds)
        retention = float(settings.get("retention.ms", -1)) / 1000
        if 0 <= retention < kept:
            yield SourceProblem(
                f"{topic} keeps messages for {retention:g} s, and their retries take up to {kept:g} s: "
                "after a restart a message that is being retried may be gone",
                f"set retention.ms of {topic} to {kept * 1000:.0f} or more",
            )
        if dead_topic not in copies:
            continue  # `prepare_dead_letters` creates it, or the publisher names it
        if copies[dead_topic] < copies[topic]:
            yield SourceProblem(
                f"{dead_topic} has {copies[dead_topic]} replicas, {topic} has {copies[topic]}: a dead "
                "letter is lost more easily than a message",
                f"give {dead_topic} {copies[topic]} replicas",
            )
        if copies[dead_topic] > 1 and _least(admin, dead_topic, seconds) == "1":
            yield SourceProblem(
                f"{dead_topic} has min.insync.replicas=1: a dead letter is confirmed when one broker "
                "has it, and is lost with that broker",
                f"set min.insync.replicas of {dead_topic} to 2",
            )


def check_log(
    connection: Mapping[str, Any], topic: str, consumer: ConsumerSettings, seconds: float
) -> Iterator[SourceProblem]:
    """What goes wrong with a log of processed ids, where its settings are visible."""
    settings = _settings(_admin(connection), topic, seconds)
    kept = float(settings.get("retention.ms", -1)) / 1000
    if "delete" in settings.get("cleanup.policy", "") and 0 <= kept < consumer.retention:
        yield SourceProblem(
            f"{topic} keeps ids for {kept:g} s, and the policy's retention is {consumer.retention:g} s: "
            "a repeat that comes later than that runs again",
            f"set retention.ms of {topic} to {consumer.retention * 1000:.0f} or more",
        )
    if settings.get("cleanup.policy") == "compact":
        yield SourceProblem(
            f"{topic} keeps every id for ever, and all of them are read at the start",
            f"set cleanup.policy of {topic} to compact,delete",
        )


def create_topics(connection: Mapping[str, Any], dead: Mapping[str, str], seconds: float) -> None:
    """Create the missing dead-letter topics, with as many partitions, if this user may do it.

    If not, the publisher of dead letters says which topic is missing, and its messages wait.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    admin = _admin(connection)
    topics = _topics(admin, seconds)
    missing = [
        NewTopic(dead_topic, num_partitions=len(topics[topic].partitions))
        for topic, dead_topic in dead.items()
        if topic in topics and dead_topic not in topics
    ]
    if missing:
        for done in admin.create_topics(missing, request_timeout=seconds).values():
            with contextlib.suppress(KafkaException, TimeoutError):  # not allowed, or it is there
                done.result(seconds)


def _admin(connection: Mapping[str, Any]) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient(dict(connection))


def _topics(admin: Any, seconds: float) -> Any:
    from confluent_kafka import KafkaException

    try:
        return admin.list_topics(timeout=seconds).topics
    except KafkaException as error:
        raise BrokerUnavailableError(
            f"Kafka cannot be reached; {CHECK_BROKER}", blames="none"
        ) from error


def _copies(topic: Any) -> int:
    return min((len(place.replicas) for place in topic.partitions.values()), default=0)


def _least(admin: Any, topic: str, seconds: float) -> str | None:
    return _settings(admin, topic, seconds).get("min.insync.replicas")


def _settings(admin: Any, topic: str, seconds: float) -> dict[str, str]:
    """The topic's settings; none if this user may not see them."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    asked = ConfigResource(ResourceType.TOPIC, topic)
    answer = admin.describe_configs([asked], request_timeout=seconds)[asked]
    with contextlib.suppress(KafkaException, TimeoutError):
        return {name: entry.value for name, entry in answer.result(seconds).items()}
    return {}
