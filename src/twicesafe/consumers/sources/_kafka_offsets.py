"""The group's offsets, and where a partition continues: librdkafka's choice is compared with them.

While a transaction is open, Kafka does not tell the offsets that it changes, and librdkafka asks
again. If the group rebalances meanwhile, librdkafka (2.16) takes the missing answer for a group
without offsets. It starts at ``auto.offset.reset``, which is the earliest message, and everything
in the partition would be handled again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ._kafka_records import name_of, place_of

__all__ = ["committed_offsets", "skip_what_is_done"]

ANSWER: Final = 2.0
"""Seconds for one request. Other partitions wait meanwhile, and it is repeated."""


def committed_offsets(consumer: Any, partitions: Iterable[str], seconds: float) -> dict[str, int]:
    """By partition; below zero: the group has none. Raises `KafkaException` if Kafka does not tell all of them."""
    from confluent_kafka import KafkaException, TopicPartition

    found = {}
    places = [TopicPartition(*place_of(partition)) for partition in partitions]
    for place in consumer.committed(places, timeout=seconds):
        if place.error is not None:
            raise KafkaException(place.error)
        found[name_of(place.topic, place.partition)] = place.offset
    return found


def skip_what_is_done(consumer: Any, partition: str, first: int) -> bool:
    """`first`: the offset that librdkafka fetched first. True: the group's offset is higher, and
    `consumer` continues there.

    If the log ends before the group's offset, it was cut, and its offsets are those of other
    messages: none is skipped.
    """
    from confluent_kafka import TopicPartition

    done = committed_offsets(consumer, [partition], ANSWER)[partition]
    if done <= first:
        return False
    place = TopicPartition(*place_of(partition), done)
    _, end = consumer.get_watermark_offsets(place, timeout=ANSWER)
    if end < done:
        return False
    consumer.seek(place)
    return True
