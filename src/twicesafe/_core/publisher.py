"""The publisher interface: a publisher sends a relay's messages to their destination.

A publisher is an object with `publish`, blocking or async; both relays accept both.

- `publish` gets messages and returns an answer for each: None (durable at the destination) or an
  exception. It must not return None before the message is durable, because its row is then deleted.
- Messages of one key are in order and have one topic. After a failed message, later ones of its key
  must not be published: their answer is `NOT_TRIED`. `Answers` implements this rule.
- An exception as an answer is that message's failure: it is counted, and after too many its lane is
  parked. The next two errors are different.
- `NotNow` as an answer: this message cannot be sent now and is not to blame (its stream does not
  exist). Its lane backs off, no attempt is counted, other lanes continue.
- `BrokerUnavailableError`, raised or as an answer: the broker is unavailable. No attempt is
  counted, and all messages are retried later. Messages that the broker accepted anyway are sent
  again under the same id. A cancellation that escapes means the same. If it repeats, the relay
  sends messages one by one: a message that fails while others are accepted is to blame. The error's
  `blames` says what such a failure may mean.
- `check`, optional, raises `BrokerUnavailableError` unless the broker is usable now. It sends no
  message. The relay calls it when it cannot distinguish an outage from a message on which the
  broker closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from ..errors import BrokerUnavailableError
from .outbox_requests import Message

__all__ = ["NOT_TRIED", "Answer", "Answers", "NotNow", "Publisher", "lanes_of"]


class _NotTried(Exception):  # noqa: N818 - an answer, not an error
    """Not sent, because an earlier message of the same key failed."""


NOT_TRIED: Final = _NotTried("not sent, because an earlier message of the same key failed")


class NotNow(Exception):  # noqa: N818 - an answer, not an error
    """This message cannot be sent now and is not to blame: its lane backs off, uncounted."""


Answer: TypeAlias = Exception | None

T = TypeVar("T")


class Publisher(Protocol):
    """Sends messages to a broker, a webhook or a function."""

    batch: int
    """Most messages in one call."""
    concurrency: int
    """Most concurrent calls."""

    def publish(
        self, messages: Sequence[Message]
    ) -> Sequence[Answer] | Awaitable[Sequence[Answer]]: ...

    def close(self) -> Awaitable[None] | None: ...


class Answers:
    """One answer per message. After a failed message, the later ones of its key are not sent."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self._stopped: set[str] = set()
        self.all: list[Answer] = [NOT_TRIED] * len(messages)

    def may_go(self, place: int) -> bool:
        """True if no earlier message of its key has failed."""
        key = self.messages[place].key
        return key is None or key not in self._stopped

    def took(self, place: int) -> None:
        self.all[place] = None

    def failed(self, place: int, error: Exception) -> None:
        self.all[place] = error
        key = self.messages[place].key
        if key is not None:
            self._stopped.add(key)

    def ended(self) -> list[Answer]:
        """All answers; raises `BrokerUnavailableError` if every message failed with it."""
        outages = [one for one in self.all if isinstance(one, BrokerUnavailableError)]
        if outages and all(one is NOT_TRIED or one in outages for one in self.all):
            raise outages[0]
        return self.all


def lanes_of(messages: Iterable[Message]) -> list[list[int]]:
    """The positions of the messages by key: each list in order, the lists in any order."""
    lanes: dict[str, list[int]] = {}
    alone: list[list[int]] = []
    for place, message in enumerate(messages):
        if message.key is None:
            alone.append([place])
        else:
            lanes.setdefault(message.key, []).append(place)
    return [*lanes.values(), *alone]
