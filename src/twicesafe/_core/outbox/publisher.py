"""The publisher interface: a publisher sends a relay's messages to their destination.

A publisher is an object with `publish`, blocking or async; both relays accept both.

- `publish` gets messages and returns an answer for each: None (durable at the destination) or an
  exception. It must not return None before the message is durable, because its row is then deleted.
- The relay keeps the order of a key, not the publisher. In one call no two messages have the same
  key, so the publisher may send them in any order or all at once. The relay passes a key's next
  message only after the broker has accepted the one before.
- `keeps_order`, optional: True says that the publisher, or its broker, keeps the order of a key even
  if a message fails. After a failed message it accepts no later one of that key in the same call.
  Then a call may contain many messages of a key, in order and all of one topic. It is faster for a
  key with many messages.
- An exception as an answer is that message's failure: it is counted, and after too many its lane is
  parked. The next three are different.
- `NOT_TRIED` as an answer: this message was not sent, because the call ended before. It is sent
  again, and nothing is counted.
- `NotNow` as an answer: this message cannot be sent now and is not to blame (its stream does not
  exist). Its lane backs off, no attempt is counted, other lanes continue.
- `BrokerUnavailableError`, raised or as an answer: the broker is unavailable. No attempt is
  counted, and all messages are retried later. Messages that the broker accepted anyway are sent
  again under the same id. A cancellation that escapes means the same. If it repeats, the relay
  sends messages one by one: a message that fails while others are accepted is to blame. The error's
  `blames` says what this failure may mean.
- `check`, optional, raises `BrokerUnavailableError` unless the broker is usable now. It sends no
  message. The relay calls it when it cannot distinguish an outage from a message on which the
  broker closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from .requests import Message

__all__ = ["NOT_TRIED", "Answer", "NotNow", "Publisher", "keeps_order"]


class _NotTried(Exception):  # noqa: N818 - an answer, not an error
    """Not sent: the call ended before."""


NOT_TRIED: Final = _NotTried("not sent: the call ended before")


class NotNow(Exception):  # noqa: N818 - an answer, not an error
    """This message cannot be sent now and is not to blame: its lane backs off, uncounted."""


Answer: TypeAlias = Exception | None


class Publisher(Protocol):
    """Sends messages to a broker, a webhook or a function."""

    batch: int
    """Most messages in one call."""
    concurrency: int
    """Most concurrent calls."""

    def publish(self, messages: list[Message]) -> Sequence[Answer] | Awaitable[Sequence[Answer]]:
        """Send these messages. Return one answer for each, in order: None if the broker has stored
        it, else the exception that says why not."""
        ...

    def close(self) -> Awaitable[None] | None:
        """Close the connection to the broker."""
        ...


def keeps_order(publisher: Any) -> bool:
    """Whether one call may contain several messages of a key."""
    return bool(getattr(publisher, "keeps_order", False))
