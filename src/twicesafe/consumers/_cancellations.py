"""A cancellation that comes from inside a handler is that handler's failure, and no reason to end the consumer.

The handler awaited something that was cancelled, cancelled its own task, or ran such code by
`asyncio.run`. The functions that publish dead letters are treated the same.

If a handler forks and the child returns from the handler, the child exits: the claim, the transaction and the
connections belong to its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from .._forking import WithoutChildren
from .._runtime.flow_run import time_limit
from ._django import close_old_connections_async, close_old_connections_if_used, uses_django

__all__ = ["contained", "contained_async"]

CANCELLED: Final = "the handler, or what it awaited, was cancelled"


def contained(handler: Callable[..., Any], in_transaction: bool = False) -> Callable[..., Any]:
    """Turn a cancellation inside a blocking handler into an ordinary error.

    ``in_transaction``: the handler starts in a transaction, whose connection Django must not close.
    """

    @functools.wraps(handler)
    def handle(*given: Any) -> Any:
        with WithoutChildren():
            try:
                if not in_transaction:
                    close_old_connections_if_used()
                return handler(*given)
            except asyncio.CancelledError as error:
                raise RuntimeError(CANCELLED) from error

    return handle


def contained_async(
    handler: Callable[..., Awaitable[Any]], is_ending: Callable[[], bool]
) -> Callable[..., Awaitable[Any]]:
    """Async version of `contained`. While the consumer ends, its own cancellation passes."""

    @functools.wraps(handler)
    async def handle(*given: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        try:
            with WithoutChildren():
                if uses_django():
                    await close_old_connections_async()
                result = await handler(*given)
        except asyncio.CancelledError as error:
            if is_ending():
                raise
            limit = time_limit.get()()
            if limit is not None and limit.expired():
                _uncancel(task, but=1)  # the time-out takes back its own, and raises TimeoutError
                raise
            _uncancel(task)
            raise RuntimeError(CANCELLED) from error
        if task.cancelling() and not is_ending():  # it cancelled itself, and had nothing to await
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            _uncancel(task)
        return result

    return handle


def _uncancel(task: asyncio.Task[Any], but: int = 0) -> None:
    while task.cancelling() > but:
        task.uncancel()
