"""NATS JetStream: each message is acknowledged by the stream, under its id (``Nats-Msg-Id``).

    nats://host:4222?prefix=shop.

The subject is the topic, prefixed with ``prefix=``; a stream must listen to it. While none does,
the message waits: its lane backs off, and no attempt is counted. JetStream drops a duplicate id
within the stream's window (two minutes by default): helpful, but do not rely on it. The key is sent
as the header ``Twicesafe-Key``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, Self

from ..._core.outbox_requests import Message
from ..._core.publisher import Answer, NotNow
from ..._values.drivers import require
from ...errors import BrokerUnavailableError
from ._function import AsyncCallablePublisher
from ._header_lines import line_of
from ._urls import driver_url

__all__ = ["JetStreamPublisher"]

OPTIONS: Final = {"prefix": "", "batch": 200, "timeout": 5.0}

_SUBJECT: Final = re.compile(r"[^\s.*>\x00-\x20\x7f]+(\.[^\s.*>\x00-\x20\x7f]+)*")
"""A valid subject. The server closes the connection on others, or treats them as wildcards."""


class JetStreamPublisher(AsyncCallablePublisher):
    """Async, with nats-py. Publishes keys concurrently, each key in order."""

    def __init__(
        self, url: str, *, prefix: str = "", batch: int = 200, timeout: float = 5.0
    ) -> None:
        super().__init__(self._publish_one, batch=batch)
        self._url, self._prefix, self._timeout = url, prefix, timeout
        self._connection: Any = None
        self._stream: Any = None

    @classmethod
    def open(cls, url: str) -> Self:
        require("nats")
        theirs, options = driver_url(url, OPTIONS, "tls" if url.startswith("tls") else "nats")
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
        import nats.errors
        from nats.aio.client import Client

        if self._connection is not None and self._connection.is_connected:
            return
        await self._drop()
        self._connection = (
            Client()
        )  # stored before it connects: a failed attempt leaves a socket open
        try:
            async with asyncio.timeout(self._timeout):
                await self._connection.connect(
                    self._url,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    error_cb=_quiet,
                )
        except (OSError, nats.errors.Error, TimeoutError) as error:
            await self._drop()
            raise BrokerUnavailableError(
                f"NATS cannot be reached: {type(error).__name__}", blames="none"
            ) from error
        self._stream = self._connection.jetstream(timeout=self._timeout)

    async def _publish_one(self, message: Message) -> None:
        import nats.errors
        import nats.js.errors

        subject = self._prefix + message.topic
        if _SUBJECT.fullmatch(subject) is None:
            raise ValueError(
                "NATS cannot use this topic: a subject has no spaces, no * or >, no empty parts"
            )
        headers = {name: line_of(value) for name, value in message.headers.items()}
        headers["Nats-Msg-Id"] = message.id
        if message.key is not None:
            headers["Twicesafe-Key"] = line_of(message.key)
        size = len(message.body) + _size_of(headers)
        if size > self._connection.max_payload:  # nats-py counts the body alone
            raise nats.errors.MaxPayloadError
        try:
            await self._stream.publish(subject, message.body, headers=headers)
        except nats.js.errors.NoStreamResponseError as error:
            raise NotNow(f"no JetStream stream listens to {subject}: create it") from error
        except nats.js.errors.APIError as error:
            if error.code is not None and error.code >= 500:
                raise BrokerUnavailableError(
                    f"JetStream answered {error.code}", blames="none"
                ) from error
            raise
        except nats.errors.MaxPayloadError:
            raise
        except TimeoutError as error:
            hung_up = not self._connection.is_connected  # nats-py does not wake its waiters
            raise BrokerUnavailableError(
                "JetStream did not confirm in time", blames="alone" if hung_up else "compared"
            ) from error
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnavailableError(
                f"JetStream did not confirm: {type(error).__name__}", blames="alone"
            ) from error

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            async with asyncio.timeout(self._timeout):
                await connection.close()
        except Exception:  # the connection may already be gone
            return

    async def close(self) -> None:
        await self._drop()


def _size_of(headers: dict[str, str]) -> int:
    """Size of the header block, as the server counts it."""
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in headers.items())
    return len("NATS/1.0\r\n") + lines + len("\r\n")


async def _quiet(_: Exception) -> None:
    """Ignored: the failing publish reports the error."""
