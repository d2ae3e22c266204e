"""Calls the functions of a server in the server's own context, never in that of a claim.

A handler runs in a context in which `current_key()` is its key. The server's `send`, `receive` or
`start_response` may start the next request of the connection, or register the callback that reads it. What
they start inherits the context of the call. In the context of the claim, unrelated requests would get
its key.

    own = copy_context()                          before the claim is made
    own.run(start_response, status, headers)      blocking
    await call_in(own, send, message)             async
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any, TypeVar

__all__ = ["call_in"]

T = TypeVar("T")


def call_in(context: Context, function: Callable[..., Awaitable[T]], *words: Any) -> Awaitable[T]:
    """Call and await a function of the server in this context, in the task of the caller."""
    return _stepped(context, _called(function, words))


async def _called(function: Callable[..., Awaitable[T]], words: tuple[Any, ...]) -> T:
    return await function(*words)


@coroutine
def _stepped(context: Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run every step of the coroutine in the context; the caller's task does the waiting."""
    run: Callable[..., Any] = context.run
    act: Callable[[Any], Any] = work.send
    given: Any = None
    while True:
        try:
            awaited = run(act, given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            act, given = work.send, (yield awaited)
        except GeneratorExit:
            run(work.close)
            raise
        except BaseException as error:  # above all a cancellation, which the server must see
            act, given = work.throw, error
