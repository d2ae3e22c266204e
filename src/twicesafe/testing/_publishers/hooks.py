"""What the author of a publisher tells the suite: how to open it, and how to mistreat its broker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from ..._core.outbox_requests import Message

__all__ = ["PublisherUnderTest"]


class PublisherUnderTest:
    """Fill in all of it, but for what your broker cannot do: that is said by a class variable."""

    patience: ClassVar[float] = 120.0
    """Seconds until something that must happen counts as never happening."""

    hangs_up: ClassVar[bool] = True
    """The broker can drop its clients' connections. False skips that rule, visibly."""

    makes_topics: ClassVar[bool] = True
    """Any topic is taken: a destination that does not exist is made, or is nothing to this broker."""

    def open_publisher(self) -> Any:
        """A new publisher for the broker, with a time-out of about a second; plain or async."""
        raise NotImplementedError

    def topic(self, name: str) -> str:
        """A topic of this test's own, beginning with `name`. What it needs over there exists."""
        raise NotImplementedError

    def taken(self, topic: str) -> list[str]:
        """The ids of all messages that the broker has taken for this topic, in its order."""
        raise NotImplementedError

    def poison(self) -> Sequence[Message]:
        """Messages that can never be taken: too large, a topic that is forbidden or no topic at all …

        One for each way in which broker or driver say no, hanging up included. Keys are chosen by
        the suite.
        """
        raise NotImplementedError

    def lone_poison(self) -> Sequence[Message]:
        """Those that can be told from an outage although nothing else is sent: all, if possible."""
        return self.poison()

    def missing_topic(self) -> str:
        """Of brokers that do not make topics: one whose stream, queue or topic does not exist."""
        raise NotImplementedError

    def outage(self) -> AbstractContextManager[object]:
        """The broker cannot be reached while this is entered; then it can again."""
        raise NotImplementedError

    def silence(self) -> AbstractContextManager[object]:
        """The broker says nothing while this is entered, whether it takes messages or not."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """The broker drops all connections, and is there for new ones."""
        raise NotImplementedError
