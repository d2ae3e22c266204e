"""The body of a streaming response, recorded while the server takes it.

After a disconnect the server takes no more. Under WSGI the rest is then taken here, while it can be kept
and within `linger`. Under ASGI an async stream that the server has begun is cut; one that the server
never began is taken here. So the key ends in every case.

A blocking stream stays blocking and an async one async, because outer middleware treats them differently:
Django's GZip makes one gzip member of a blocking stream, and one for each part of an async stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from ..._values.settings import seconds
from ._exchange import DjangoExchange

if TYPE_CHECKING:
    from ._middleware import IdempotencyMiddleware

__all__ = ["AsyncStream", "BlockingStream", "Stream"]

_log = logging.getLogger("twicesafe")


class Stream:
    """A blocking stream under WSGI."""

    def __init__(
        self, layer: IdempotencyMiddleware, exchange: DjangoExchange, parts: Iterator[bytes]
    ) -> None:
        self._layer, self._exchange, self._parts = layer, exchange, parts
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            part = next(self._parts)
        except StopIteration:
            self._exchange.passed()
            self._end()
            raise
        except BaseException as error:
            self._exchange.noticed(error)
            self._end()
            raise
        if self._exchange.feed(part):
            self._settle()
        return part

    def _settle(self) -> None:
        self._layer.settle(self._exchange)

    def close(self) -> None:
        """The server takes no more. Take the rest, while it can be kept and within `linger`."""
        until = time.monotonic() + seconds(self._layer.policy.linger)
        exchange = self._exchange
        exchange.has_lingered = lambda: time.monotonic() > until
        while not (self._ended or exchange.settled or exchange.is_not_kept):
            next(self, None)
        self._end()

    def __del__(self) -> None:
        self._end()  # nothing can take its parts any more

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._end_exchange()

    def _end_exchange(self) -> None:
        self._layer.end(self._exchange)


class BlockingStream(Stream):
    """A blocking stream under ASGI: Django takes it in a thread; the store is on the event loop."""

    def __init__(
        self, layer: IdempotencyMiddleware, exchange: DjangoExchange, parts: Iterator[bytes]
    ) -> None:
        super().__init__(layer, exchange, parts)
        self._loop = asyncio.get_running_loop()

    def _settle(self) -> None:
        if not self._is_on_the_loop():  # there it would wait for itself; `_end_exchange` comes soon
            self._wait_for(self._layer.settle_async)

    def _end_exchange(self) -> None:
        if self._is_on_the_loop():
            self._layer.start(self._layer.end_async(self._exchange))
        else:
            self._wait_for(self._layer.end_async)

    def _wait_for(self, act: Callable[[DjangoExchange], Coroutine[Any, Any, Any]]) -> None:
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(act(self._exchange), self._loop).result()

    def _is_on_the_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def close(self) -> None:
        """Django drops the response if the client has already disconnected.

        Then the request has ended, and with it its thread: the loop may be waiting for the end of
        that thread, and a close in it would wait for the loop.
        """
        if self._is_on_the_loop():
            self._layer.start(sync_to_async(self._close_in_thread, thread_sensitive=False)())
        else:
            super().close()

    def _close_in_thread(self) -> None:
        try:
            super().close()
        finally:
            close_old_connections()  # of this thread, which serves no request

    def __del__(self) -> None:
        if not self._ended and not self._loop.is_closed():  # its parts are lost
            layer, exchange = self._layer, self._exchange
            self._loop.call_soon_threadsafe(lambda: layer.start(layer.end_async(exchange)))


class AsyncStream:
    """An async stream under ASGI."""

    def __init__(
        self, layer: IdempotencyMiddleware, exchange: DjangoExchange, response: Any
    ) -> None:
        self._layer, self._exchange = layer, exchange
        self._loop = asyncio.get_running_loop()
        self._passing = _passing(layer, exchange, response.streaming_content)
        self._is_taken = self._is_closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._is_taken = True
        return await anext(self._passing)

    def close(self) -> None:
        """The server takes no more. Called from any thread."""
        layer, exchange, passing = self._layer, self._exchange, self._passing
        if self._is_taken:
            self._end(passing.aclose)
        else:
            self._end(lambda: _rest(layer, exchange, passing))

    def __del__(self) -> None:
        if not self._is_taken:  # its parts may be collected too, so they are lost
            layer, exchange = self._layer, self._exchange
            self._end(lambda: layer.end_async(exchange))

    def _end(self, how: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        if self._is_closed or self._exchange.settled or self._loop.is_closed():
            return
        self._is_closed = True
        layer = self._layer
        self._loop.call_soon_threadsafe(lambda: layer.start(how()))


async def _passing(
    layer: IdempotencyMiddleware, exchange: DjangoExchange, parts: AsyncIterator[bytes]
) -> AsyncGenerator[bytes]:
    before = _cancellations()
    try:
        async for part in parts:
            if exchange.feed(part):
                await layer.settle_async(exchange)
            yield part
        if _cancellations() > before:
            raise asyncio.CancelledError  # the view swallowed it and ended its stream early
        exchange.passed()
    except BaseException as error:
        exchange.noticed(error)
        raise
    finally:
        await layer.end_async(exchange)


def _cancellations() -> int:
    """How often this task was cancelled. A view that swallows one, or its task group, leaves the count raised."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _rest(
    layer: IdempotencyMiddleware, exchange: DjangoExchange, passing: AsyncGenerator[bytes]
) -> None:
    """Take all of a stream, while it can be kept and within `linger`."""
    try:
        async with (
            asyncio.timeout(seconds(layer.policy.linger)) as linger,
            contextlib.aclosing(passing),
        ):
            exchange.has_lingered = linger.expired
            async for _ in passing:
                if exchange.is_not_kept:
                    break
    except Exception as error:
        _log.error("a stream failed after its client had disconnected", exc_info=error)
