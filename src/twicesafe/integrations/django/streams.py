"""The body of a streaming response, recorded while the server takes it.

A client that goes away ends the server's interest. Under WSGI the rest is taken all the same, as long
as it can be kept and comes in time. Under ASGI a stream that was begun is cut with its client; one that
nobody began to take is taken here. So the key ends in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ...policy import seconds
from .exchange import Exchange

if TYPE_CHECKING:
    from .middleware import IdempotencyMiddleware

__all__ = ["AsyncStream", "Stream"]

_log = logging.getLogger("twicesafe")


class Stream:
    """Under WSGI."""

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
            self._layer.tell(self._exchange)
        return part

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
            self._layer.end(self._exchange)


class AsyncStream:
    """Under ASGI. Django loses the response of a view whose client left before it was sent."""

    def __init__(self, layer: IdempotencyMiddleware, exchange: Exchange, response: Any) -> None:
        self._layer, self._exchange = layer, exchange
        self._loop = asyncio.get_running_loop()
        self._passing = _passing(layer, exchange, _parts(response))
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
        exchange.passed()
    except BaseException as error:
        exchange.noticed(error)
        raise
    finally:
        await layer.end_async(exchange)


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


def _parts(response: Any) -> AsyncIterator[bytes]:
    """The parts of a stream. A blocking one is read beside the loop, as Django does."""
    if response.is_async:
        return response.streaming_content  # type: ignore[no-any-return]
    return _beside(response.streaming_content)


async def _beside(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    def taken() -> list[bytes]:
        return list(parts)

    for part in await sync_to_async(taken)():
        yield part
