"""Deliveries for consumers: one message in one transaction, which is begun and committed here.

Everywhere else the caller of an inbox begins and commits. Here the consumer does: it gets a function
that opens a connection, and each message has its own transaction. An error of the handler
rolls it back. An error of the database, in connecting or in COMMIT, says nothing about the message,
so it is `StoreUnavailableError`. The message is delivered again, and the record tells whether the
COMMIT had succeeded (P10).

    deliver     run the handler; ``spent`` attempts were counted outside, because their workers died
    look_up     only ask for the recorded outcome; without one, raise the given error
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from .._core.call import Call
from .._core.handler_profile import HandlerProfile
from .._core.inbox_flow import look_up as recorded
from .._core.inbox_flow import receive
from .._transactions.fresh_connection import async_transaction, transaction
from .._values.keys import Key
from .._values.outcomes import Outcome
from ..errors import StoreUnavailableError, UsageError
from ..receiver._base import value_or_raise
from ._inbox import AsyncInbox, Inbox

__all__ = ["ConsumerDelivery", "deliver", "deliver_async", "look_up", "look_up_async"]


class ConsumerDelivery(NamedTuple):
    """A message, and what to do with it."""

    inbox: Any
    connect: Callable[[], Any]
    key: Key
    handler: Callable[..., Any]
    profile: HandlerProfile
    message: Any
    decide: Callable[[Exception, int], Exception]

    def call(self, connection: Any, spent: int = 0) -> Call:
        args = (connection, self.message)
        run = functools.partial(self.handler, *args)
        call: Call = self.inbox._call(self.key, run, self.profile, args, {}, connection)
        call.decide, call.spent = self.decide, spent
        return call

    def outage(self, error: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the database did not begin or commit the transaction of this message "
            f"({type(error).__name__}); the message is delivered again",
            key=self.key,
        )


def deliver(given: ConsumerDelivery, spent: int = 0) -> Outcome[Any]:
    """Run ``handler(connection, message)`` in a transaction on a new connection, and commit."""
    inbox: Inbox = given.inbox

    def run(connection: Any) -> Outcome[Any]:
        flow = receive(given.call(connection, spent), inbox._must_keep, inbox._waits)
        return value_or_raise(inbox._runtime.run(connection, flow))

    return _in_transaction(given, run)


def look_up(given: ConsumerDelivery, error: Exception) -> Outcome[Any]:
    """The recorded outcome of the message, or this error."""
    inbox: Inbox = given.inbox

    def run(connection: Any) -> Outcome[Any]:
        found = inbox._runtime.run(connection, recorded(given.call(connection)))
        if found is None:
            raise error
        return found

    return _in_transaction(given, run)


def _in_transaction(given: ConsumerDelivery, run: Callable[[Any], Outcome[Any]]) -> Outcome[Any]:
    own: Exception | None = None
    try:
        with transaction(given.connect) as connection:
            try:
                return run(connection)
            except Exception as error:
                own = error
                raise
    except Exception as error:
        if error is own or isinstance(error, UsageError):
            raise
        if own is not None:
            raise own from error  # the transaction had failed, so leaving it failed, too
        raise given.outage(error) from error


async def deliver_async(given: ConsumerDelivery, spent: int = 0) -> Outcome[Any]:
    """Async version of `deliver`."""
    inbox: AsyncInbox = given.inbox

    async def run(connection: Any) -> Outcome[Any]:
        flow = receive(given.call(connection, spent), inbox._must_keep, inbox._waits)
        return value_or_raise(await inbox._runtime.run(connection, flow))

    return await _in_async_transaction(given, run)


async def look_up_async(given: ConsumerDelivery, error: Exception) -> Outcome[Any]:
    """Async version of `look_up`."""
    inbox: AsyncInbox = given.inbox

    async def run(connection: Any) -> Outcome[Any]:
        found = await inbox._runtime.run(connection, recorded(given.call(connection)))
        if found is None:
            raise error
        return found

    return await _in_async_transaction(given, run)


async def _in_async_transaction(
    given: ConsumerDelivery, run: Callable[[Any], Awaitable[Outcome[Any]]]
) -> Outcome[Any]:
    own: Exception | None = None
    try:
        async with async_transaction(given.connect) as connection:
            try:
                return await run(connection)
            except Exception as error:
                own = error
                raise
    except Exception as error:
        if error is own or isinstance(error, UsageError):
            raise
        if own is not None:
            raise own from error  # the transaction had failed, so leaving it failed, too
        raise given.outage(error) from error
