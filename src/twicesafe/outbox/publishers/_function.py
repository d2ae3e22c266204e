"""A function as a publisher: called once per message, in order per key.

The function returns once the message is durable at its destination. What it raises is that
message's failure, except for two errors. `BrokerUnavailableError`: the destination is down and no
message is to blame; messages sent before stay sent. `NotNow`: this message cannot be sent yet,
while others can.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..._core.outbox_requests import Message
from ..._core.publisher import Answer, Answers, lanes_of
from ...errors import BrokerUnavailableError, ConfigurationError

__all__ = ["CallablePublisher", "publisher_of"]


class CallablePublisher:
    """Calls ``send(message)`` for every message, up to ``batch`` in sequence per publish."""

    def __init__(
        self, send: Callable[[Message], object], *, batch: int = 100, concurrency: int = 1
    ) -> None:
        self._send = send
        self.batch = batch
        self.concurrency = concurrency

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        answers = Answers(messages)
        for place, message in enumerate(messages):
            if not answers.may_go(place):
                continue
            try:
                self._send(message)
            except BrokerUnavailableError as error:
                answers.failed(place, error)
                break  # each further message could take as long to fail
            except Exception as error:
                answers.failed(place, error)
            else:
                answers.took(place)
        return answers.ended()

    def close(self) -> None:
        """Nothing to close."""


class AsyncCallablePublisher:
    """Awaits ``send(message)`` for every message: keys concurrently, each key in order."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[object]],
        *,
        batch: int = 100,
        concurrency: int = 1,
    ) -> None:
        self._send = send
        self.batch = batch
        self.concurrency = concurrency

    async def publish(self, messages: Sequence[Message]) -> list[Answer]:
        import asyncio

        answers = Answers(messages)

        async def lane(places: list[int]) -> None:
            for place in places:
                try:
                    await self._send(messages[place])
                except Exception as error:
                    answers.failed(place, error)
                    return
                answers.took(place)

        ends = await asyncio.gather(*map(lane, lanes_of(messages)), return_exceptions=True)
        for end in ends:
            if end is not None and None not in answers.all:
                raise end
        return answers.ended()

    async def close(self) -> None:
        """Nothing to close."""


def publisher_of(given: Any) -> Any:
    """The publisher for a relay's argument: itself, or a wrapper for a function of one message."""
    if callable(getattr(given, "publish", None)):
        return given
    if inspect.iscoroutinefunction(given):
        return AsyncCallablePublisher(given)
    if callable(given):
        return CallablePublisher(given)
    raise ConfigurationError(
        f"a relay needs a publisher, a URL or a function of one message, not {type(given).__name__}"
    )
