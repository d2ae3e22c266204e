"""The outbox: messages written in your transaction, and the relay that publishes them.

outbox       `Outbox` and `AsyncOutbox`: add messages, inspect lanes, retry or skip
message      checks a message before it is written
relay        `OutboxRelay` and `AsyncOutboxRelay`: publish added messages, in order per key; `relay_base`
publishers   where a relay publishes to: webhooks, Kafka, RabbitMQ, NATS, Redis Streams, SQS, a function
"""

from ._outbox import AsyncOutbox, Outbox
from ._relay import AsyncOutboxRelay, OutboxRelay

__all__ = ["AsyncOutbox", "AsyncOutboxRelay", "Outbox", "OutboxRelay"]
