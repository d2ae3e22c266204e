"""RabbitMQ: publisher confirms, persistent messages, and unroutable messages are refused.

    amqp://user:password@host/vhost?exchange=shop

The routing key is the topic; without ``exchange=`` the default exchange routes it to the queue of
that name. ``message_id`` is the id; the ordering key is sent as the header ``twicesafe-key``. A
message that no queue takes is returned and counts as refused (``mandatory=false`` discards it).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Self

from ..._core.outbox.requests import Message
from ..._values.drivers import require
from ._connection import ConnectionPublisher
from ._urls import AMQP, server_url

__all__ = ["RabbitPublisher"]

# Without a handler, Python would print the driver's errors, which we raise ourselves, to stderr.
logging.getLogger("aiormq").addHandler(logging.NullHandler())

OPTIONS: Final = {"exchange": "", "mandatory": True, "batch": 200, "timeout": 5.0}

SHORT_TEXT: Final = 255
"""Limit of a short string in AMQP, in bytes; aiormq truncates longer ones or fails."""


class RabbitPublisher(ConnectionPublisher):
    """Async, with aio-pika."""

    broker = "RabbitMQ"

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "",
        mandatory: bool = True,
        batch: int = 200,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(url, batch, timeout)
        self._named, self._mandatory = exchange, mandatory
        self._channel: Any = None
        self._exchange: Any = None

    @classmethod
    def open(cls, url: str) -> Self:
        require("aio_pika")
        theirs, options = server_url(url, OPTIONS, AMQP)
        return cls(theirs, **options)

    async def _connect(self) -> None:
        import aio_pika

        self._connection = aio_pika.Connection(aio_pika.connection.make_url(self._url))
        await self._connection.connect(timeout=self._timeout)
        self._channel = await self._connection.channel(
            publisher_confirms=True, on_return_raises=True
        )
        self._exchange = (
            await self._channel.get_exchange(self._named, ensure=True)
            if self._named
            else self._channel.default_exchange
        )

    def _is_open(self) -> bool:
        return not self._connection.is_closed and not self._channel.is_closed

    def _lost(self) -> tuple[type[Exception], ...]:
        from aio_pika.exceptions import AMQPError

        return (AMQPError, RuntimeError)

    async def _confirmed(self, message: Message) -> None:
        import aio_pika

        headers: dict[str, Any] = dict(message.headers)
        if message.key is not None:
            headers["twicesafe-key"] = message.key
        sent = aio_pika.Message(
            message.body,
            message_id=message.id,
            content_type=_short(message.headers.get("content-type"), "content-type"),
            type=_short(message.headers.get("type"), "type"),
            headers=headers,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        async with asyncio.timeout(self._timeout):
            await self._exchange.publish(
                sent, message.topic, mandatory=self._mandatory, timeout=None
            )

    def _refusal(self, error: Exception) -> Exception | None:
        from aio_pika.exceptions import DeliveryError

        return error if isinstance(error, DeliveryError) else None  # returned or refused


def _short(text: str | None, what: str) -> str | None:
    if text is not None and len(text.encode()) > SHORT_TEXT:
        raise ValueError(f"the header {what} is longer than AMQP allows ({SHORT_TEXT} bytes)")
    return text
