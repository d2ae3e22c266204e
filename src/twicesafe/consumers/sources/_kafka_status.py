"""How far a consumer group is behind, asked by a client that does not join it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..._core.consuming.source import Member, SourceStatus
from ...errors import BrokerUnavailableError
from ...outbox.publishers._urls import CHECK_BROKER

__all__ = ["group_status"]

LONGEST_WAIT: Final = 3.0
"""Seconds that the names of members are worth: a cluster that does not know the question never answers."""


def group_status(
    connection: Mapping[str, Any], group: str, topics: Sequence[str], seconds: float
) -> SourceStatus:
    from confluent_kafka import Consumer, KafkaException

    asking = Consumer({**connection, "group.id": group, "enable.auto.commit": False})
    try:
        places = list(_places(asking.list_topics(timeout=seconds).topics, topics))
        waiting = 0
        for place in asking.committed(places, timeout=seconds) if places else ():
            first, end = asking.get_watermark_offsets(place, timeout=seconds)
            waiting += max(0, end - max(first, place.offset))  # nothing committed: below zero
    except KafkaException as error:
        raise BrokerUnavailableError(
            f"Kafka could not be asked: {error}; {CHECK_BROKER}", blames="none"
        ) from error
    finally:
        asking.close()
    members = _members(connection, group, seconds)
    return SourceStatus(
        waiting, count=None if members is None else len(members), members=members or ()
    )


def _places(known: Mapping[str, Any], topics: Sequence[str]) -> Iterator[Any]:
    """The partitions of these topics; a name that begins with ``^`` is a pattern."""
    from confluent_kafka import TopicPartition

    for name, topic in known.items():
        if any(re.match(one, name) if one[0] == "^" else one == name for one in topics):
            for partition in topic.partitions:
                yield TopicPartition(name, partition)


def _members(
    connection: Mapping[str, Any], group: str, seconds: float
) -> tuple[Member, ...] | None:
    """None: this cluster, or its rules for users, does not tell."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    seconds = min(seconds, LONGEST_WAIT)
    asked = AdminClient(dict(connection)).describe_consumer_groups([group], request_timeout=seconds)
    try:
        found = asked[group].result(seconds)
    except (KafkaException, TimeoutError):
        return None
    return tuple(Member(f"{one.client_id} at {one.host}") for one in found.members)
