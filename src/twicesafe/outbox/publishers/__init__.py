"""Publishers: where a relay sends messages. One file per kind; `open` imports its driver.

    _function   your own function, blocking or async
    webhook     http(s)://…     signed POST, Idempotency-Key set
    redis       redis://…       Redis Streams
    nats        nats://…        JetStream, Nats-Msg-Id set
    rabbitmq    amqp://…        publisher confirms
    kafka       kafka://…       idempotent producer
    sqs         sqs://…         standard and FIFO queues

`open_publisher` opens one by its URL (`_urls`), as ``twicesafe relay --to URL`` does. They share:

    _connection     an async publisher on one connection, for RabbitMQ and NATS
    _signature      the signature of a webhook
    _header_lines   text as a header value, for HTTP and NATS
    _nats_client    the client of NATS, which sends no login without TLS where the URL asks for it
    _kafka_wire     a message as a Kafka record
    _sqs_client     the client of SQS, and what its errors mean
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
