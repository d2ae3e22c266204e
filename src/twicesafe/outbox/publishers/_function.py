"""A function as a publisher: called once per message, in order per key.

It returns when the message is safe where it should be; whatever it raises is that message's failure.
If no message is to blame (the other side is down), it raises `BrokerUnavailableError`; what was sent
before stays sent. `NotNow` is for one message that cannot go yet, while others can.
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
    """``send(message)`` for every message. ``batch`` of them per turn, one after the other."""

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
                break  # each further one could take as long to fail
            except Exception as error:
                answers.failed(place, error)
            else:
                answers.took(place)
        return answers.ended()

    def close(self) -> None:
        """A function has nothing to close."""


class AsyncCallablePublisher:
    """``await send(message)`` for every message: keys side by side, each in order."""

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
        """A function has nothing to close."""


def publisher_of(given: Any) -> Any:
    """What a relay was given → a publisher: it is one, or a function to be called per message."""
    if callable(getattr(given, "publish", None)):
        return given
    if inspect.iscoroutinefunction(given):
        return AsyncCallablePublisher(given)
    if callable(given):
        return CallablePublisher(given)
    raise ConfigurationError(
        f"a relay needs a publisher, a URL or a function of one message, not {type(given).__name__}"
    )
