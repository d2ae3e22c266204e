"""What the author of a publisher fills in: how to open it, and how to make its broker fail."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from ..._core.outbox.requests import Message

__all__ = ["PublisherUnderTest"]


class PublisherUnderTest:
    """Fill in all methods. A class variable says what your broker cannot do."""

    time_limit: ClassVar[float] = 120.0
    """Seconds until something that must happen counts as never happening."""

    hangs_up: ClassVar[bool] = True
    """The broker can drop its clients' connections. False skips that rule, visibly."""

    makes_topics: ClassVar[bool] = True
    """The broker accepts any topic: it creates a missing destination, or needs none."""

    def open_publisher(self) -> Any:
        """A new publisher for the broker, with a time-out of about a second; plain or async."""
        raise NotImplementedError

    def topic(self, name: str) -> str:
        """A new topic that begins with `name`. Create what it needs on the broker."""
        raise NotImplementedError

    def taken(self, topic: str) -> list[str]:
        """The ids of all messages that the broker accepted for this topic, in its order."""
        raise NotImplementedError

    def poison(self) -> Sequence[Message]:
        """Messages that can never be accepted: too large, a forbidden or an invalid topic …

        One for each way in which the broker or the driver refuses, including a dropped connection.
        The suite chooses their keys.
        """
        raise NotImplementedError

    def lone_poison(self) -> Sequence[Message]:
        """Those that the publisher can tell from an outage without another message: all, if possible."""
        return self.poison()

    def missing_topic(self) -> str:
        """For brokers that do not create topics: one whose stream, queue or topic does not exist."""
        raise NotImplementedError

    def outage(self) -> AbstractContextManager[object]:
        """A context in which the broker cannot be reached."""
        raise NotImplementedError

    def silence(self) -> AbstractContextManager[object]:
        """A context in which the broker does not answer, whether it accepts messages or not."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Make the broker drop all connections. It accepts new ones."""
        raise NotImplementedError
