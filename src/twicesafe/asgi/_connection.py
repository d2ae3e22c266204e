"""The client of one keyed request: sends to it, and notices when it disconnects.

The server's `send` and `receive` are called in the server's own context, never in that of the claim. A
handler runs in a context in which `current_key()` is its key. `send` and `receive` may start the next
request of the connection, or register the callback that reads it, and what they start inherits the
context of the call. In the context of the claim, unrelated requests would get its key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from types import CoroutineType, coroutine
from typing import Any, TypeVar

from ._messages import Message, Receive, Send

__all__ = ["Client", "call_in"]

T = TypeVar("T")

_log = logging.getLogger("twicesafe")

_RESPONSE = ("http.response.start", "http.response.body")


class Client:
    __slots__ = (
        "_context",
        "_on_left",
        "_receive",
        "_send",
        "_watch",
        "is_gone",
        "send_error",
    )

    def __init__(
        self, receive: Receive, send: Send, context: Context, on_left: Callable[[], None]
    ) -> None:
        self._receive, self._send, self._context = receive, send, context
        self._on_left = on_left
        self._watch: asyncio.Task[None] | None = None
        self.is_gone = False
        self.send_error: Exception | None = None
        """What the server's `send` raised. The server gets it back when the key is settled."""

    async def send(self, message: Message) -> None:
        """Send a message. After a disconnect this does nothing and raises nothing."""
        if self.is_gone:
            return
        try:
            await call_in(self._context, self._send, message)
        except OSError:
            self.left()
        except Exception as error:
            if message["type"] not in _RESPONSE:
                raise  # the server does not know it, and the application may do without
            self.send_error = self.send_error or error
            self.left()

    def watch(self) -> None:
        """Notice a disconnect even while nothing is sent."""
        if self._watch is None and not self.is_gone:
            self._watch = asyncio.ensure_future(self._until_gone())

    async def _until_gone(self) -> None:
        try:
            while True:
                message = await call_in(self._context, self._receive)
                if message["type"] == "http.disconnect":
                    break
                await asyncio.sleep(0)  # a `receive` that never waits must not stop the loop
        except Exception as error:
            _log.debug("a server's receive() failed: %r", error)
        self.left()

    def left(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._on_left()

    def close(self) -> None:
        """The application has ended: a disconnect no longer matters to it."""
        if self._watch is not None:
            self._watch.cancel()
        self._on_left = _ignored  # else each request leaves a reference cycle of 40 objects


def _ignored() -> None: ...


@coroutine
def call_in(
    context: Context, function: Callable[..., Awaitable[T]], *words: Any
) -> Generator[Any, Any, T]:
    """Call and await a function of the server in this context; the caller's task does the waiting."""
    run: Callable[..., Any] = context.run
    work = run(function, *words)
    if type(work) is not CoroutineType:
        work = _awaited(work)
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


async def _awaited(work: Awaitable[T]) -> T:
    return await work
