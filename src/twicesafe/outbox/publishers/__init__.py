"""Publishers: where a relay sends messages. One file per kind; `open` imports its driver.

    _function   your own function, blocking or async
    webhook     http(s)://…     signed POST, Idempotency-Key set
    redis       redis://…       Redis Streams
    nats        nats://…        JetStream, Nats-Msg-Id set
    rabbitmq    amqp://…        publisher confirms
    kafka       kafka://…       idempotent producer
    sqs         sqs://…         standard and FIFO queues

`open_publisher` opens one by its URL, as ``twicesafe relay --to URL`` does.
"""

from ..._core.outbox.publisher import NOT_TRIED, Answer, NotNow, Publisher
from ..._core.outbox.requests import Message
from ._function import AsyncCallablePublisher, CallablePublisher
from ._urls import open_publisher

__all__ = [
    "NOT_TRIED",
    "Answer",
    "AsyncCallablePublisher",
    "CallablePublisher",
    "Message",
    "NotNow",
    "Publisher",
    "open_publisher",
]
