"""What JetStream sends to a pull consumer: messages and a status for a request, and confirmations."""

from __future__ import annotations

import asyncio
from email.header import decode_header
from typing import Any, Final

from ..._core.consuming.message import Message
from ...errors import BrokerUnavailableError
from ...outbox.publishers._header_lines import text_of

__all__ = ["Confirmation", "PullReplies", "message_of", "stored_message_of"]

_OURS: Final = frozenset({"nats-msg-id", "twicesafe-id", "twicesafe-key"})


class Replies:
    """What is awaited on one subscription; `done` ends with the last of it."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Confirmation(Replies):
    """The reply to an acknowledgement, on this subject."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self.subject = subject

    def take(self, message: Any) -> None:
        if message.headers and message.headers.get("Status") == "503":
            gone = "the durable no longer exists"
            self.fail(
                BrokerUnavailableError(f"JetStream took no acknowledgement: {gone}", blames="none")
            )
            return
        if message.subject == self.subject:
            self._end()


class PullReplies(Replies):
    """What came for one request."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.messages: list[Any] = []
        self._most = most

    def take(self, message: Any) -> None:
        if message.reply.startswith("$JS.ACK."):
            self.messages.append(message)
            if len(self.messages) == self._most:
                self._end()
            return
        status = (message.headers or {}).get("Status", "")
        if status in ("404", "408") or (status == "409" and self.messages):
            self._end()
        elif status != "100":  # a heartbeat
            said = message.headers.get("Description", "").strip() or status
            gone = "the durable no longer exists" if status == "503" else said
            self.fail(BrokerUnavailableError(f"JetStream refused the fetch: {gone}", blames="none"))


def message_of(message: Any) -> Message:
    """A delivered message."""
    about = message.metadata
    # The number alone is not enough: a stream that is deleted and created again starts at 1.
    position = f"{about.stream}/{about.sequence.stream}@{about.timestamp.isoformat()}"
    return _message(message, about.num_delivered, position)


def stored_message_of(stream: str, message: Any) -> Message:
    """A message that was read from the stream, and not delivered. Its time may be a microsecond
    earlier than that of a delivery, because nats-py rounds one and cuts the other."""
    return _message(message, 0, f"{stream}/{message.seq}@{message.time.isoformat()}")


def _message(message: Any, deliveries: int, position: str) -> Message:
    given = message.headers or {}
    headers = {name.lower(): text_of(_value(value)) for name, value in given.items()}
    return Message(
        headers.get("nats-msg-id") or headers.get("twicesafe-id"),
        message.subject,
        message.data or b"",
        headers.get("twicesafe-key"),
        {name: value for name, value in headers.items() if name not in _OURS},
        deliveries,
        position,
    )


def _value(value: Any) -> str:
    """The value of a header. nats-py returns it as text if the message was delivered; if it was
    read from the stream and is not ASCII, as a `Header` of its bytes."""
    if isinstance(value, str):
        return value
    return b"".join(part for part, _ in decode_header(value)).decode("utf-8", "replace")
