"""RabbitMQ: publisher confirms, persistent messages, and no message that finds no queue.

    amqp://user:password@host/vhost?exchange=shop

The routing key is the topic; without ``exchange=`` the default exchange takes it to the queue of that
name. ``message_id`` is the id, the ordering key goes along as the header ``twicesafe-key``. A message
that no queue wants comes back and counts as refused (``mandatory=false`` lets it vanish).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

from ..core.outbox import Message
from ..core.publishing import Answer
from ..errors import BrokerUnavailableError
from .callable_ import AsyncCallablePublisher
from .urls import driver_url

__all__ = ["RabbitPublisher"]

OPTIONS: Final = {"exchange": "", "mandatory": True, "batch": 200, "timeout": 5.0}


class RabbitPublisher(AsyncCallablePublisher):
    """Awaited, by aio-pika. Keys go side by side, each in order."""

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
        self._exchange: Any = None

    @classmethod
    def open(cls, url: str) -> Self:
        theirs, options = driver_url(url, OPTIONS)
        return cls(theirs, **options)

    async def publish(self, messages: Sequence[Message]) -> list[Answer]:
        await self._connected()
        return await super().publish(messages)

    async def _connected(self) -> None:
        import aio_pika
        from aio_pika.exceptions import AMQPError

        if self._connection is not None and not self._connection.is_closed:
            return
        try:
            self._connection = await aio_pika.connect(self._url, timeout=self._timeout)
            channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            self._exchange = (
                await channel.get_exchange(self._named, ensure=True)
                if self._named
                else channel.default_exchange
            )
        except (AMQPError, OSError, TimeoutError) as error:
            await self.close()
            raise BrokerUnavailableError(
                f"RabbitMQ cannot be used: {type(error).__name__}"
            ) from error

    async def _publish_one(self, message: Message) -> None:
        import aio_pika
        from aio_pika.exceptions import AMQPError, DeliveryError

        headers: dict[str, Any] = dict(message.headers)
        if message.key is not None:
            headers["twicesafe-key"] = message.key
        carried = aio_pika.Message(
            message.body,
            message_id=message.id,
            content_type=message.headers.get("content-type"),
            type=message.headers.get("type"),
            headers=headers,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        try:
            await self._exchange.publish(
                carried, message.topic, mandatory=self._mandatory, timeout=self._timeout
            )
        except DeliveryError:
            raise  # it came back, or was refused: this message
        except (AMQPError, OSError, TimeoutError, RuntimeError) as error:
            raise BrokerUnavailableError(
                f"RabbitMQ did not confirm: {type(error).__name__}"
            ) from error

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
