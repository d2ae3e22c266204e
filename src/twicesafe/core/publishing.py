"""What a publisher is: whoever takes messages from a relay to where they should go.

A publisher is an object with `publish`, plain or ``async``; the relay of either colour runs both.

- `publish` gets messages in order and answers for each: None (it is durable over there) or the
  exception that says why not. Behind a message that failed, the later ones of the same key must not
  have been published: their answer is `NOT_TRIED`.
- `BrokerUnavailableError` raised means: nobody's message is to blame. Nothing is counted, and all are
  tried again later. What was taken in spite of it goes out again, under the same id. A cancellation
  that it lets out means the same.
- It must not say None before the message is safe: the row is deleted then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from .outbox import Message

__all__ = ["NOT_TRIED", "Answer", "Publisher", "lanes_of"]


class _NotTried(Exception):  # noqa: N818 - an answer, not an error
    """It stands behind a message of the same key that failed."""


NOT_TRIED: Final = _NotTried("it stands behind a message of the same key that failed")

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
