"""What a publisher is: it takes messages from a relay to where they should go.

A publisher is an object with `publish`, plain or ``async``; both relays run both.

- `publish` gets messages and answers for each: None (it is durable over there) or an exception that says
  why not. It must not say None before the message is safe: the row is deleted then.
- Messages of one key stand in order, and have one topic. Behind one that failed, the later ones of its key
  must not have been published: their answer is `NOT_TRIED`. `Answers` keeps that rule for a publisher.
- Any other exception as an answer is that message's failure: it is counted, and parks its lane in the end.
- `NotNow` as an answer: this message cannot go now, and is not to blame (its stream does not exist). Its
  lane rests, nothing is counted, other lanes go on.
- `BrokerUnavailableError`, raised or as an answer, means that the broker is away. Nothing is counted, and
  all are tried again later. What was taken in spite of it goes out again, under the same id. A
  cancellation that it lets out means the same. If it repeats, the relay tries messages one by one: one that
  fails while others are taken is to blame. The error's `blames` says what such a failure may mean.
- `check`, if it has one, raises `BrokerUnavailableError` unless the broker can be used now. It sends no
  message. The relay asks it when it cannot tell an outage from a message that the broker hangs up on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from ..errors import BrokerUnavailableError
from .outbox_requests import Message

__all__ = ["NOT_TRIED", "Answer", "Answers", "NotNow", "Publisher", "lanes_of"]


class _NotTried(Exception):  # noqa: N818 - an answer, not an error
    """It stands behind a message of the same key that failed."""


NOT_TRIED: Final = _NotTried("it stands behind a message of the same key that failed")


class NotNow(Exception):  # noqa: N818 - an answer, not an error
    """This message cannot go now, and is not to blame: its lane rests, and nothing is counted."""


Answer: TypeAlias = Exception | None

T = TypeVar("T")


class Publisher(Protocol):
    """Takes messages to a broker, a web hook, a function."""

    batch: int
    """Messages in one call at most."""
    concurrency: int
    """Calls at once."""

    def publish(
        self, messages: Sequence[Message]
    ) -> Sequence[Answer] | Awaitable[Sequence[Answer]]: ...

    def close(self) -> Awaitable[None] | None: ...


class Answers:
    """One answer per message. A key stops at its first message that failed: here, for every publisher."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self._stopped: set[str] = set()
        self.all: list[Answer] = [NOT_TRIED] * len(messages)

    def may_go(self, place: int) -> bool:
        """No message of its key before it has failed."""
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
        """All answers; raises `BrokerUnavailableError` if that is all that there is to say."""
        outages = [one for one in self.all if isinstance(one, BrokerUnavailableError)]
        if outages and all(one is NOT_TRIED or one in outages for one in self.all):
            raise outages[0]
        return self.all


def lanes_of(messages: Iterable[Message]) -> list[list[int]]:
    """The places of the messages, by key: each list must go in order, the lists need not."""
    lanes: dict[str, list[int]] = {}
    alone: list[list[int]] = []
    for place, message in enumerate(messages):
        if message.key is None:
            alone.append([place])
        else:
            lanes.setdefault(message.key, []).append(place)
    return [*lanes.values(), *alone]
