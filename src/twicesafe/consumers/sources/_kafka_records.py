"""What comes from Kafka: a record as a `Message`, names of partitions, and what an error means."""

from __future__ import annotations

from typing import Any, Final

from ..._core.consuming.message import Message
from ...errors import BrokerUnavailableError, ConfigurationError
from ...outbox.publishers._kafka_wire import texts_of

__all__ = ["IN_FLUX", "meaning_of", "message_of", "name_of", "place_of"]

IN_FLUX: Final = frozenset(
    {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH",
     "REBALANCE_IN_PROGRESS", "_ASSIGNMENT_LOST", "_NO_OFFSET"}
)  # fmt: skip
"""Why a commit is not accepted while the group changes: if the partition stays ours, it is sent again;
if not, its messages come again."""

_HARMLESS: Final = frozenset({"_MAX_POLL_EXCEEDED", "_RESOLVE", "_TRANSPORT"})
"""Reported otherwise: by a lost assignment, or when no broker at all is left."""

_REMEDIES: Final = {
    "UNKNOWN_TOPIC_OR_PART": "create the topic",
    "_UNKNOWN_TOPIC": "create the topic",
    "TOPIC_AUTHORIZATION_FAILED": "allow this user to read the topic",
    "GROUP_AUTHORIZATION_FAILED": "allow this user to read in this group",
    "INCONSISTENT_GROUP_PROTOCOL": (
        "other members of the group use another partition.assignment.strategy: give the same here"
    ),
}

_WRONG: Final = {
    "FENCED_INSTANCE_ID": "another consumer has the same group.instance.id: give each its own",
    "_AUTO_OFFSET_RESET": (
        "the group has no valid offset and auto.offset.reset is error: reset the group's offsets, "
        "or use earliest"
    ),
}
"""Errors that waiting does not cure."""


def meaning_of(error: Any) -> Exception | None:
    """The exception for an error that the driver reports; None: there is nothing to do."""
    name = error.name()
    if name in _HARMLESS:
        return None
    if name in _WRONG:
        return ConfigurationError(f"Kafka refuses this consumer ({name}): {_WRONG[name]}")
    remedy = _REMEDIES.get(name, "")
    return BrokerUnavailableError(
        f"Kafka reports {name}: {error.str()}{'; ' if remedy else ''}{remedy}", blames="none"
    )


def message_of(record: Any) -> Message:
    """Its id is the header ``id``: our outbox sends it, and so does Debezium's."""
    key, headers = texts_of(record)
    position = f"{name_of(record.topic(), record.partition())}/{record.offset()}"
    _, at = record.timestamp()
    return Message(
        id=headers.get("id") or None,
        topic=record.topic(),
        body=record.value() or b"",
        key=key,
        headers=headers,
        # The offset alone is not enough: a topic that is deleted and created again starts at 0.
        position=f"{position}@{at}",
    )


def name_of(topic: str, partition: int) -> str:
    """The partition's name: ``topic/partition``. A topic has no slash in its name."""
    return f"{topic}/{partition}"


def place_of(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)
