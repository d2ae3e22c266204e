"""What RabbitMQ says over AMQP: its messages as ours, and the settings of a queue.

AMQP has no request for the settings of a queue. But RabbitMQ refuses a declaration that differs from the
queue, and its error names one difference, with the value that the queue has. So we declare, learn, and
declare again. Each declaration has an argument that RabbitMQ never accepts: none can create a queue.
Policies are not seen. A user who may not configure the queue sees no settings.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ..._core.consuming.message import Message

__all__ = ["QueueSettings", "message_of", "queue_settings"]

DEFAULT_LIMIT: Final = 20
"""The delivery limit of a quorum queue since RabbitMQ 4, if none is set for the queue."""

MOST_QUESTIONS: Final = 20

_ASKS: Final = "twicesafe-asks"
_ANSWER: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' .* current is "
    r"(?:none|(?:the value )?'(?P<value>[^']*)'(?: of type '(?P<type>[^']*)')?)"
)
_OURS: Final = frozenset({"twicesafe-key", "x-delivery-count"})


def message_of(message: Any) -> Message:
    about, delivery = message.header.properties, message.delivery
    given = about.headers or {}
    headers = {name.lower(): _text(value) for name, value in given.items()}
    for name, value in (
        ("content-type", about.content_type),
        ("type", about.message_type),
        ("correlation-id", about.correlation_id),
    ):
        if value:
            headers.setdefault(name, value)
    count = given.get("x-delivery-count")
    if isinstance(count, int):
        deliveries: int | None = count + 1
    else:
        deliveries = None if delivery.redelivered else 1
    return Message(
        about.message_id or None,
        delivery.routing_key or "",
        message.body,
        headers.get("twicesafe-key"),
        {name: value for name, value in headers.items() if name not in _OURS},
        deliveries,
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="backslashreplace")
    return msgspec.json.encode(value, enc_hook=str).decode()


class QueueSettings(msgspec.Struct, frozen=True):
    kind: str | None
    """classic, quorum or stream; None: RabbitMQ did not say."""
    durable: bool
    delivery_limit: int | None
    """None: it has none, or RabbitMQ did not say."""
    dead_letter_exchange: bool


async def queue_settings(connection: Any, queue: str) -> QueueSettings:
    asked = _Questions(connection, queue)
    kind = await asked.value_of({"x-queue-type": _ASKS}, default="classic")
    if kind != "quorum":
        return QueueSettings(kind, asked.flags["durable"], None, False)
    asked.known["x-queue-type"] = "quorum"
    version = str(connection.transport.connection.server_properties.get("version", ""))
    default = str(DEFAULT_LIMIT) if _major(version) >= 4 else "-1"
    # RabbitMQ does not compare x-queue-version, and refuses it for a new quorum queue.
    wish = {"x-delivery-limit": _ASKS, "x-queue-version": _ASKS}
    limit = int(await asked.value_of(wish, default) or default)
    exchange = await asked.value_of({"x-dead-letter-exchange": 1}, default="")
    return QueueSettings(
        kind, asked.flags["durable"], limit if limit >= 0 else None, bool(exchange)
    )


class _Questions:
    """Declarations of one queue, and what the refusals have said so far."""

    def __init__(self, connection: Any, queue: str) -> None:
        self._connection, self._queue = connection, queue
        self.flags = {"durable": True, "auto_delete": False, "exclusive": False}
        self.known: dict[str, Any] = {}

    async def value_of(self, wish: dict[str, Any], default: str) -> str | None:
        """The queue's value of the first wish, `default` if it has none; None: RabbitMQ did not say."""
        for _ in range(MOST_QUESTIONS):
            answer = await self._declare(self.known | wish)
            if answer is None:
                return None
            name, value = answer["name"], answer["value"]
            if name == next(iter(wish)):
                self.known.pop(name, None)
                return default if value is None else str(value)
            if name in self.flags:
                self.flags[name] = value == "true"
            else:
                self.known[name] = _typed(value, answer["type"])
        return None

    async def _declare(self, arguments: dict[str, Any]) -> re.Match[str] | None:
        from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed

        try:
            async with self._connection.channel() as channel:
                await channel.declare_queue(self._queue, arguments=arguments, **self.flags)
        except ChannelPreconditionFailed as refusal:
            return _ANSWER.search(str(refusal))
        except ChannelAccessRefused:
            pass
        return None


def _typed(value: str | None, kind: str | None) -> Any:
    if value is not None and kind == "bool":
        return value == "true"
    number = value is not None and kind != "longstr" and re.fullmatch(r"-?[0-9]+", value)
    return int(value or 0) if number else value


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdigit() else 0
