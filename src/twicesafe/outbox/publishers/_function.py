"""A function as a publisher: called once per message.

The function returns once the message is durable at its destination. What it raises is that
message's failure, except for two errors. `BrokerUnavailableError`: the destination is down and no
message is to blame; messages sent before stay sent. `NotNow`: this message cannot be sent yet,
while others can.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..._core.handler_call import expect_shape
from ..._core.handler_kind import expect_done, problem_of
from ..._core.outbox.publisher import NOT_TRIED, Answer
from ..._core.outbox.requests import Message
from ...errors import BrokerUnavailableError, ConfigurationError, UsageError

__all__ = ["CallablePublisher", "publisher_of"]


class CallablePublisher:
    """Calls ``send(message)`` for one message after the other, and stops where one fails.

    So it keeps the order of a key, and an outage costs one failed call, not one per message.
    """

    keeps_order = True

    def __init__(
        self, send: Callable[[Message], object], *, batch: int = 100, concurrency: int = 1
    ) -> None:
        self._send = send
        self.batch = batch
        self.concurrency = concurrency

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        answers: list[Answer] = [NOT_TRIED] * len(messages)
        for place, message in enumerate(messages):
            try:
                _expect_sent(self._send(message))
            except Exception as error:
                answers[place] = error
                break
            answers[place] = None
        return answers

    def close(self) -> None:
        """Nothing to close."""


class AsyncCallablePublisher:
    """Awaits ``send(message)`` for all messages of a call at once."""

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

        ends = await asyncio.gather(*map(self._send, messages), return_exceptions=True)
        return [_answer_of(end) for end in ends]

    async def close(self) -> None:
        """Nothing to close."""


def _expect_sent(returned: object) -> None:
    """Refuse what a plain function returned if its work has not run: a coroutine or a generator.

    No message is to blame, so none is counted as refused.
    """
    try:
        expect_done(returned, "the function that publishes")
    except UsageError as error:
        raise BrokerUnavailableError(f"nothing was sent: {error}", blames="none") from None


def _answer_of(end: object) -> Answer:
    """What a call of ``send`` returned or raised. A cancelled one may have been sent or not."""
    if not isinstance(end, BaseException) or isinstance(end, Exception):
        return end if isinstance(end, Exception) else None
    return BrokerUnavailableError(f"the publisher was interrupted by {type(end).__name__}")


def publisher_of(given: Any) -> Any:
    """The publisher for a relay's argument: itself, or a wrapper for a function of one message."""
    if callable(getattr(given, "publish", None)):
        return given
    if callable(given):
        expect_shape(given, "the function that publishes", "message")
        is_async = problem_of(given) == "async"
        return AsyncCallablePublisher(given) if is_async else CallablePublisher(given)
    raise ConfigurationError(
        f"a relay needs a publisher, a URL or a function of one message, not {type(given).__name__}"
    )
