"""Sources: where a consumer's messages come from. One file per broker; `open` imports its driver.

    kafka       kafka://…     consumer groups; only the contiguous prefix of a partition is committed
    rabbitmq    amqp://…      quorum and classic queues, manual acknowledgements
    nats        nats://…      JetStream, a durable pull consumer
    redis       redis://…     Redis Streams, a consumer group
    sqs         sqs://…       standard and FIFO queues

What they share or are made of:

    _connection     an async source on one connection, for RabbitMQ, NATS and Redis
    _kafka_member   the thread that polls and commits; `_kafka_transactions`: it commits in transactions
    _kafka_settings, _kafka_records        the URL's settings; a record as a message
    _kafka_offsets, _kafka_processed       where a partition continues; the log of processed ids
    _kafka_status                          how far a group is behind
    _amqp, _jetstream, _redis_entries, _sqs_settings       what each broker sends or is asked

`open_source` opens one by its URL. Other packages add schemes through the entry-point group
``twicesafe.sources``.
"""

from __future__ import annotations

import importlib
from typing import Final

from ..._core.consuming.message import Message, Received
from ..._core.consuming.source import (
    ConsumerSettings,
    Member,
    Revoke,
    Source,
    SourceProblem,
    SourceStatus,
)
from ...stores._urls import target_of

__all__ = [
    "SCHEMES",
    "ConsumerSettings",
    "Member",
    "Message",
    "Received",
    "Revoke",
    "Source",
    "SourceProblem",
    "SourceStatus",
    "open_source",
]

SCHEMES: Final[dict[str, str]] = {
    "kafka": "twicesafe.consumers.sources.kafka:KafkaSource",
    "amqp": "twicesafe.consumers.sources.rabbitmq:RabbitSource",
    "amqps": "twicesafe.consumers.sources.rabbitmq:RabbitSource",
    "nats": "twicesafe.consumers.sources.nats:JetStreamSource",
    "tls+nats": "twicesafe.consumers.sources.nats:JetStreamSource",
    "redis": "twicesafe.consumers.sources.redis:RedisStreamSource",
    "rediss": "twicesafe.consumers.sources.redis:RedisStreamSource",
    "valkey": "twicesafe.consumers.sources.redis:RedisStreamSource",
    "sqs": "twicesafe.consumers.sources.sqs:SqsSource",
}


def open_source(url: str) -> Source:
    """Open the source at this URL; it connects on first use."""
    module, _, name = target_of(url, SCHEMES, "source").partition(":")
    source: Source = getattr(importlib.import_module(module), name).open(url)
    return source
