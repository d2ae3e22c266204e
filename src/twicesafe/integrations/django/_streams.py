"""The body of a streaming response, recorded while the server takes it.

A client that goes away ends the server's interest. Under WSGI the rest is taken all the same, as long
as it can be kept and comes in time. Under ASGI an async stream that was begun is cut with its client; one
that nobody began to take is taken here. So the key ends in any case.

A stream stays what it was, blocking or async: layers outside treat the two differently (Django's GZip makes
one member of a blocking stream, and one for each part of an async one).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ..._values.settings import seconds
from ._exchange import Exchange

if TYPE_CHECKING:
    from ._middleware import IdempotencyMiddleware

__all__ = ["AsyncStream", "BlockingStream", "Stream"]

_log = logging.getLogger("twicesafe")


class Stream:
    """A blocking one, under WSGI."""

    def __init__(
        self, layer: IdempotencyMiddleware, exchange: Exchange, parts: Iterator[bytes]
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
            self._tell()
        return part

    def _tell(self) -> None:
        self._layer.tell(self._exchange)

    def close(self) -> None:
        """The server is done with it. A client that went away loses nothing: take the rest, as
        long as it can be kept and comes in time."""
        patience = time.monotonic() + seconds(self._layer.policy.linger)
        while not self._ended and not self._exchange.settled:
            if self._exchange.recording.overflowed or time.monotonic() > patience:
                break
            next(self, None)
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._end_exchange()

    def _end_exchange(self) -> None:
        self._layer.end(self._exchange)


class BlockingStream(Stream):
    """A blocking one, under ASGI: Django takes all of it in a thread, and the store is on the loop."""

    def __init__(
        self, layer: IdempotencyMiddleware, exchange: Exchange, parts: Iterator[bytes]
    ) -> None:
        super().__init__(layer, exchange, parts)
        self._loop = asyncio.get_running_loop()

    def _tell(self) -> None:
        if not self._is_on_the_loop():  # there it would wait for itself; the end comes soon
            self._wait_for(self._layer.tell_async)

    def _end_exchange(self) -> None:
        if self._is_on_the_loop():
            self._layer.start(self._layer.end_async(self._exchange))
        else:
            self._wait_for(self._layer.end_async)

    def _wait_for(self, act: Callable[[Exchange], Coroutine[Any, Any, None]]) -> None:
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(act(self._exchange), self._loop).result()

    def _is_on_the_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def close(self) -> None:
        if self._is_on_the_loop():  # Django loses the response of a view whose client left before
            self._layer.start(sync_to_async(super().close)())
        else:
            super().close()

    def __del__(self) -> None:
        if not self._ended and not self._loop.is_closed():  # what its parts were is not known
            layer, exchange = self._layer, self._exchange
            self._loop.call_soon_threadsafe(lambda: layer.start(layer.end_async(exchange)))


class AsyncStream:
    """An async one, under ASGI."""

    def __init__(self, layer: IdempotencyMiddleware, exchange: Exchange, response: Any) -> None:
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
        """Nobody takes more of it; called in any thread."""
        layer, exchange, passing = self._layer, self._exchange, self._passing
        if self._is_taken:
            self._end(passing.aclose)
        else:
            self._end(lambda: _rest(layer, exchange, passing))

    def __del__(self) -> None:
        if not self._is_taken:  # its parts may be collected, too: what they were is not known
            layer, exchange = self._layer, self._exchange
            self._end(lambda: layer.end_async(exchange))

    def _end(self, how: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._is_closed or self._exchange.settled or self._loop.is_closed():
            return
        self._is_closed = True
        layer = self._layer
        self._loop.call_soon_threadsafe(lambda: layer.start(how()))


async def _passing(
    layer: IdempotencyMiddleware, exchange: Exchange, parts: AsyncIterator[bytes]
) -> AsyncGenerator[bytes]:
    try:
        async for part in parts:
            if exchange.feed(part):
                await layer.tell_async(exchange)
            yield part
        if _was_cancelled():
            raise asyncio.CancelledError  # the view took it, and ended its stream before the end
        exchange.passed()
    except BaseException as error:
        exchange.noticed(error)
        raise
    finally:
        await layer.end_async(exchange)


def _was_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _rest(
    layer: IdempotencyMiddleware, exchange: Exchange, passing: AsyncGenerator[bytes]
) -> None:
    """All of a stream, as long as it can be kept and comes in time."""
    try:
        async with asyncio.timeout(seconds(layer.policy.linger)), contextlib.aclosing(passing):
            async for _ in passing:
                if exchange.recording.overflowed:
                    break
    except Exception as error:
        _log.error("a stream failed after its client was gone", exc_info=error)
