"""Publishers: where a relay takes messages. One file per kind; `open` imports its driver.

    callable_   a function of yours, plain or async
    webhook     http(s)://…     signed POST, Idempotency-Key set
    redis       redis://…       Redis Streams
    nats        nats://…        JetStream, Nats-Msg-Id set
    rabbitmq    amqp://…        publisher confirms
    kafka       kafka://…       idempotent producer

`open_publisher` opens one by its URL, as ``twicesafe relay --to URL`` does.
"""

from ..._core.outbox_requests import Message
from ..._core.publisher import NOT_TRIED, Answer, Answers, NotNow, Publisher
from ._function import AsyncCallablePublisher, CallablePublisher
from ._urls import open_publisher

__all__ = [
    "NOT_TRIED",
    "Answer",
    "Answers",
    "AsyncCallablePublisher",
    "CallablePublisher",
    "Message",
    "NotNow",
    "Publisher",
    "open_publisher",
]
