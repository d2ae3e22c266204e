"""NATS JetStream: each message is acknowledged by the stream, under its id (``Nats-Msg-Id``).

    nats://host:4222?prefix=shop.

The subject is the topic, with ``prefix=`` in front; a stream must listen to it. JetStream drops a
repeat of the same id within the stream's window (two minutes by default): a bonus, not the basis. The
key goes along as the header ``Twicesafe-Key``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Self

from ..core.outbox import Message
from ..core.publishing import Answer
from ..errors import BrokerUnavailableError
from .callable_ import AsyncCallablePublisher
from .urls import driver_url

__all__ = ["JetStreamPublisher"]

OPTIONS: Final = {"prefix": "", "batch": 200, "timeout": 5.0}


class JetStreamPublisher(AsyncCallablePublisher):
    """Awaited, by nats-py. Keys go side by side, each in order."""

    def __init__(
        self, url: str, *, prefix: str = "", batch: int = 200, timeout: float = 5.0
    ) -> None:
        super().__init__(self._publish_one, batch=batch)
        self._url, self._prefix, self._timeout = url, prefix, timeout
        self._connection: Any = None
        self._stream: Any = None

    @classmethod
    def open(cls, url: str) -> Self:
        theirs, options = driver_url(url, OPTIONS, "tls" if url.startswith("tls") else "nats")
        return cls(theirs, **options)

    async def publish(self, messages: Sequence[Message]) -> list[Answer]:
        await self._connected()
        return await super().publish(messages)

    async def _connected(self) -> None:
        import nats
        import nats.errors

        if self._connection is not None and self._connection.is_connected:
            return
        if self._connection is not None:
            await self._drop()
        try:
            async with asyncio.timeout(self._timeout):
                self._connection = await nats.connect(
                    self._url,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    error_cb=_quiet,
                )
        except (OSError, nats.errors.Error, TimeoutError) as error:
            raise BrokerUnavailableError(
                f"NATS cannot be reached: {type(error).__name__}"
            ) from error
        self._stream = self._connection.jetstream(timeout=self._timeout)

    async def _publish_one(self, message: Message) -> None:
        import nats.errors
        import nats.js.errors

        headers = {name: _ascii(value) for name, value in message.headers.items()}
        headers["Nats-Msg-Id"] = message.id
        if message.key is not None:
            headers["Twicesafe-Key"] = _ascii(message.key)
        try:
            await self._stream.publish(self._prefix + message.topic, message.body, headers=headers)
        except nats.js.errors.NoStreamResponseError:
            raise  # nobody listens to this topic: the topic is to blame
        except nats.js.errors.APIError as error:
            if error.code is not None and error.code >= 500:
                raise BrokerUnavailableError(f"JetStream answers {error.code}") from error
            raise
        except nats.errors.MaxPayloadError:
            raise
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise BrokerUnavailableError(
                f"JetStream did not confirm: {type(error).__name__}"
            ) from error

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        try:
            async with asyncio.timeout(self._timeout):
                await connection.close()
        except Exception:  # it is gone: that is why we drop it
            return

    async def close(self) -> None:
        if self._connection is not None:
            await self._drop()


def _ascii(text: str) -> str:
    """NATS headers are ASCII: what is not goes as %XX."""
    from urllib.parse import quote

    return text if text.isascii() else quote(text, safe=" !#$&'()*+,/:;=?@[]<>{}|^`\"")


async def _quiet(_: Exception) -> None:
    """What fails is told by the publish that it fails."""
