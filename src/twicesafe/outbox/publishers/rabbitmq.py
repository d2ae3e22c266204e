"""RabbitMQ: publisher confirms, persistent messages, and unroutable messages are refused.

    amqp://user:password@host/vhost?exchange=shop

The routing key is the topic; without ``exchange=`` the default exchange routes it to the queue of
that name. ``message_id`` is the id; the ordering key is sent as the header ``twicesafe-key``. A
message that no queue takes is returned and counts as refused (``mandatory=false`` discards it).

After any other error the connection and the channel are replaced: the broker may have closed them,
and after a timeout it is unknown whether they still work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, Self

from ..._core.outbox_requests import Message
from ..._core.publisher import Answer
from ..._values.drivers import require
from ...errors import BrokerUnavailableError
from ._function import AsyncCallablePublisher
from ._urls import driver_url

__all__ = ["RabbitPublisher"]

OPTIONS: Final = {"exchange": "", "mandatory": True, "batch": 200, "timeout": 5.0}

SHORT_TEXT: Final = 255
"""Limit of a short string in AMQP, in bytes; aiormq truncates longer ones or fails."""


class RabbitPublisher(AsyncCallablePublisher):
    """Async, with aio-pika. Publishes keys concurrently, each key in order."""

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "",
        mandatory: bool = True,
        batch: int = 200,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(self._publish_one, batch=batch)
        self._url, self._named = url, exchange
        self._mandatory, self._timeout = mandatory, timeout
        self._connection: Any = None
        self._channel: Any = None
        self._exchange: Any = None

    @classmethod
    def open(cls, url: str) -> Self:
        require("aio_pika")
        theirs, options = driver_url(url, OPTIONS)
        return cls(theirs, **options)

    async def publish(self, messages: Sequence[Message]) -> list[Answer]:
        await self._connected()
        try:
            answers = await super().publish(messages)
        except BrokerUnavailableError:
            await self._drop()
            raise
        if any(isinstance(answer, BrokerUnavailableError) for answer in answers):
            await self._drop()
        return answers

    async def check(self) -> None:
        await self._drop()
        await self._connected()

    async def _connected(self) -> None:
        import aio_pika
        from aio_pika.exceptions import AMQPError

        if self._channel is not None:
            if not self._connection.is_closed and not self._channel.is_closed:
                return
            await self._drop()
        try:
            async with asyncio.timeout(self._timeout):
                self._connection = await aio_pika.connect(self._url, timeout=self._timeout)
                self._channel = await self._connection.channel(
                    publisher_confirms=True, on_return_raises=True
                )
                self._exchange = (
                    await self._channel.get_exchange(self._named, ensure=True)
                    if self._named
                    else self._channel.default_exchange
                )
        except (AMQPError, OSError, TimeoutError, RuntimeError) as error:
            await self._drop()
            raise BrokerUnavailableError(
                f"RabbitMQ cannot be used: {type(error).__name__}", blames="none"
            ) from error

    async def _publish_one(self, message: Message) -> None:
        import aio_pika
        from aio_pika.exceptions import AMQPError, DeliveryError

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
        try:
            async with asyncio.timeout(self._timeout):
                await self._exchange.publish(
                    sent, message.topic, mandatory=self._mandatory, timeout=None
                )
        except DeliveryError:
            raise  # returned or refused: this message is to blame
        except TimeoutError as error:
            raise BrokerUnavailableError("RabbitMQ did not confirm in time") from error
        except (AMQPError, OSError, RuntimeError) as error:
            raise BrokerUnavailableError(
                f"RabbitMQ did not confirm: {type(error).__name__}", blames="alone"
            ) from error

    async def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # the connection may already be gone
                async with asyncio.timeout(self._timeout):
                    await connection.close()

    async def close(self) -> None:
        await self._drop()


def _short(text: str | None, what: str) -> str | None:
    if text is not None and len(text.encode()) > SHORT_TEXT:
        raise ValueError(f"the header {what} is longer than AMQP allows ({SHORT_TEXT} bytes)")
    return text
