"""What the author of a source fills in: how to open it, and how to make its broker fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final

from ..._core.consuming.source import ConsumerSettings
from ..._core.outbox.publisher import Publisher

__all__ = ["SETTINGS", "SourceUnderTest"]

SETTINGS: Final = ConsumerSettings(
    lease=30, retention=86400, max_attempts=5, longest_backoff=1, concurrency=4, batch=10,
    ordered=False, timeout=20,
)  # fmt: skip
"""Ordinary settings of a consumer."""


class SourceUnderTest:
    """Fill in all methods. A class variable says what your broker cannot do."""

    seconds: ClassVar[float] = 60.0
    """Seconds until something that must happen counts as never happening."""

    counts: ClassVar[bool] = True
    """The broker counts deliveries."""

    ordered: ClassVar[bool] = True
    """A single consumer gets the messages of a key in the order in which they were sent."""

    breaks: ClassVar[bool] = True
    """Connections can be interrupted: `hang_up`, `fault_in_reply`, `outage`. False skips those rules,
    visibly."""

    restarts: ClassVar[bool] = True
    """The broker keeps its messages when it restarts, and the test can restart it: `own_broker`."""

    def open_source(self) -> Any:
        """A new member of the test's group; its ack-wait is about a second, if it has one."""
        raise NotImplementedError

    def publisher_url(self) -> str | Publisher:
        """A publisher of the outbox to this broker, or its URL: it sends the messages."""
        raise NotImplementedError

    def topic(self) -> str:
        """A topic whose messages the source gets."""
        raise NotImplementedError

    def dead_letters(self) -> list[str]:
        """The ids of all messages at the default destination of dead letters."""
        raise NotImplementedError

    def consumer_settings(self) -> ConsumerSettings:
        """Settings of a consumer that suit this source: its `check` finds nothing wrong with them."""
        return SETTINGS

    def unsettled(self) -> int | None:
        """How many messages the broker has for the group that are not acknowledged; None: it does not say."""
        return None

    def own_broker(self) -> Callable[[], object]:
        """From now on use a broker of this test alone; returns a function that restarts it."""
        raise NotImplementedError

    def lose(self, source: Any) -> None:
        """From now on this source does not reach the broker, and the broker knows."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """The broker drops all connections. It accepts new ones."""
        raise NotImplementedError

    def fault_in_reply(self, after: int) -> None:
        """Cut the connection after this many bytes of the next replies to a source."""
        raise NotImplementedError

    def outage(self) -> AbstractContextManager[object]:
        """A context in which the broker cannot be reached."""
        raise NotImplementedError
