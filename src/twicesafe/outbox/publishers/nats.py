"""NATS JetStream: each message is acknowledged by the stream, under its id (``Nats-Msg-Id``).

    nats://host:4222?prefix=shop.

The subject is the topic, prefixed with ``prefix=``; a stream must listen to it. While none does,
the message waits: its lane backs off, and no attempt is counted. JetStream drops a duplicate id
within the stream's window (two minutes by default): helpful, but do not rely on it. The key is sent
as the header ``Twicesafe-Key``.

``deduplicate=false`` sends the id as ``Twicesafe-Id`` instead, so that JetStream keeps every message. Dead
letters need that: a second consumer that gives up on a message, and a replay, use the same id again.
"""

from __future__ import annotations

import re
from typing import Any, Final, Self

from ..._core.outbox.publisher import NotNow
from ..._core.outbox.requests import Message
from ..._values.drivers import require
from ...errors import BrokerUnavailableError
from ._connection import ConnectionPublisher
from ._header_lines import line_of
from ._nats_client import nats_client
from ._urls import server_url

__all__ = ["JetStreamPublisher"]

OPTIONS: Final = {"prefix": "", "deduplicate": True, "batch": 200, "timeout": 5.0}

_SUBJECT: Final = re.compile(r"[^\s.*>\x00-\x20\x7f]+(\.[^\s.*>\x00-\x20\x7f]+)*")
"""A valid subject. The server closes the connection on others, or treats them as wildcards."""


class JetStreamPublisher(ConnectionPublisher):
    """Async, with nats-py."""

    broker = "NATS"

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        deduplicate: bool = True,
        batch: int = 200,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(url, batch, timeout)
        self._prefix, self._id_header = prefix, "Nats-Msg-Id" if deduplicate else "Twicesafe-Id"
        self._stream: Any = None

    @classmethod
    def open(cls, url: str) -> Self:
        require("nats")
        scheme = "tls" if url.startswith("tls") else "nats"
        theirs, options = server_url(url, OPTIONS, scheme=scheme)
        return cls(theirs, **options)

    async def _connect(self) -> None:
        self._connection = nats_client()
        await self._connection.connect(
            self._url, allow_reconnect=False, max_reconnect_attempts=1, error_cb=_quiet
        )
        self._stream = self._connection.jetstream(timeout=self._timeout)

    def _is_open(self) -> bool:
        return bool(self._connection.is_connected)

    def _lost(self) -> tuple[type[Exception], ...]:
        import nats.errors

        return (nats.errors.Error,)

    async def _confirmed(self, message: Message) -> None:
        import nats.errors
        import nats.js.errors

        subject = self._prefix + message.topic
        if _SUBJECT.fullmatch(subject) is None:
            raise ValueError(
                "NATS cannot use this topic: a subject has no spaces, no * or >, no empty parts"
            )
        headers = {name: line_of(value) for name, value in message.headers.items()}
        headers[self._id_header] = message.id
        if message.key is not None:
            headers["Twicesafe-Key"] = line_of(message.key)
        size = len(message.body) + _size_of(headers)
        if size > self._connection.max_payload:  # nats-py counts the body alone
            raise nats.errors.MaxPayloadError
        try:
            await self._stream.publish(subject, message.body, headers=headers)
        except nats.js.errors.NoStreamResponseError as error:
            raise NotNow(f"no JetStream stream listens to {subject}: create it") from error

    def _refusal(self, error: Exception) -> Exception | None:
        import nats.errors
        import nats.js.errors

        if isinstance(error, nats.js.errors.APIError):
            if error.code is not None and error.code >= 500:
                return BrokerUnavailableError(f"JetStream answered {error.code}", blames="none")
            return error
        return error if isinstance(error, nats.errors.MaxPayloadError) else None


def _size_of(headers: dict[str, str]) -> int:
    """Size of the header block, as the server counts it."""
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in headers.items())
    return len("NATS/1.0\r\n") + lines + len("\r\n")


async def _quiet(_: Exception) -> None:
    """Ignored: the failing publish reports the error."""
