"""Connection pool to the upstream. A connection is never reused after an error.

An idle connection is kept for a short time and checked before it is reused. It is closed if the server
closed it or sent data without a request. `Unreachable` means that there was no connection, so nothing was
sent. `UpstreamLost` means that the request was sent, but no complete response came back. The
`ResponseGuard` checks every line of a response before the parser sees it.

A connection belongs to no request. It is opened outside the context of the request that needed it first,
so that its callbacks and timers neither run under that request's claim nor keep it in memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import select
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import h11

from .._core.http.problems import Problem, RequestRefused
from .._core.http.wire import Ambiguous, ResponseGuard
from .._values.keys import Key
from .addresses import UpstreamAddress

__all__ = ["Connection", "Connections", "Unreachable", "UpstreamLost", "UpstreamTimedOut"]

_MOST_UNREAD: Final = 262_144
"""Bytes of a response that may wait in memory for a slow client."""
_MOST_HEAD: Final = 65536
"""The longest response head in bytes, as for requests; h11's own limit is a quarter of it."""


class Unreachable(RequestRefused):
    """There was no connection: nothing of the request was sent."""

    def __init__(self, why: str) -> None:
        super().__init__(Problem("upstream-unavailable", retry_after=1))
        self.why = why
        """For the log."""


class UpstreamLost(Exception):  # noqa: N818 - the name that is kept as the failure's
    """The request was sent, but no complete response came back."""

    key: Key | None = None
    """The key that the request was claimed under; None: a repeat would run again."""


class UpstreamTimedOut(UpstreamLost):
    """The upstream was silent for too long."""


class Connections:
    """The pool of one worker for one upstream."""

    def __init__(
        self,
        origin: UpstreamAddress,
        *,
        connect_timeout: float,
        idle: float,
        most: int,
        context: ssl.SSLContext | None,
    ) -> None:
        self._address = (origin.host, origin.port)
        self._context = (context or ssl.create_default_context()) if origin.secure else None
        self._connect_timeout, self._idle = connect_timeout, idle
        self._most, self._room = most, asyncio.Semaphore(most)
        self._resting: deque[Connection] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    async def take(self) -> Connection:
        """A connection, idle or new. Raises `Unreachable` if the pool is full for too long."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._room.acquire()
        except TimeoutError:
            why = f"all {self._most} connections were in use for {self._connect_timeout:g} s"
            raise Unreachable(why) from None
        try:
            return await self._connection()
        except BaseException:
            self._room.release()
            raise

    async def _connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        while self._resting:
            found = self._resting.pop()
            if found.wake_up() and loop.time() - found.since < self._idle:
                return found
            found.drop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                made = await self._open()
        except TimeoutError as error:
            raise Unreachable(f"no connection within {self._connect_timeout:g} s") from error
        except (OSError, UnicodeError) as error:  # refused, no route, no such name, no TLS
            raise Unreachable(str(error) or type(error).__name__) from error
        if not made.is_sound:
            made.drop()
            raise Unreachable("it closed the new connection, or sent data before any request")
        return made

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        opening = loop.create_task(
            loop.create_connection(Connection, *self._address, ssl=self._context),
            context=contextvars.Context(),
        )
        try:
            return (await opening)[1]
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result()[1].drop()  # opened too late
            raise

    def give_back(self, connection: Connection) -> None:
        """Return a connection to the pool; it is kept only if it can be reused."""
        self._room.release()
        loop = asyncio.get_running_loop()
        if not self._idle or not connection.rest():
            return connection.drop()
        connection.since = loop.time()
        self._resting.append(connection)
        if self._alarm is None:
            self._alarm = _call_later(self._idle, self._drop_rested)
        return None

    def throw_away(self, connection: Connection) -> None:
        """Close a connection after an error: it is never reused."""
        self._room.release()
        connection.drop()

    def _drop_rested(self) -> None:
        """Close connections that were idle for too long, even when no request comes."""
        loop = asyncio.get_running_loop()
        self._alarm = None
        while self._resting and loop.time() - self._resting[0].since >= self._idle:
            self._resting.popleft().drop()
        if self._resting:
            left = self._resting[0].since + self._idle - loop.time()
            self._alarm = _call_later(left, self._drop_rested)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        while self._resting:
            self._resting.pop().drop()


def _call_later(delay: float, act: Callable[[], None]) -> asyncio.TimerHandle:
    """A timer outside the context of the request that happens to set it."""
    loop = asyncio.get_running_loop()
    return loop.call_later(delay, act, context=contextvars.Context())


class Connection(asyncio.Protocol):
    """A connection and its parser. Any data while it is idle makes it unusable."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD)
        self.since = 0.0
        self._guard = ResponseGuard(_MOST_HEAD)
        self._finding: Ambiguous | None = None
        self._resting = self._broken = False
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._timeout = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # -- what the loop calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._resting:
            return self.drop()
        try:
            judged = self._guard.feed(data)
        except Ambiguous as finding:
            self._finding = finding
            self.drop()
            return self._wake()
        if judged:  # an empty result would mean the end of the connection
            self.http.receive_data(judged)
            self._unread += len(judged)
            if self._unread > _MOST_UNREAD:
                self.transport.pause_reading()
        return self._wake()

    def eof_received(self) -> bool:
        tls = self.transport.get_extra_info("ssl_object")
        if not self._resting and (tls is None or _has_closed(tls)):
            self.http.receive_data(b"")
        else:
            self.drop()
        self._wake()
        return tls is None  # then the rest of the request may still go out

    def connection_lost(self, exc: Exception | None) -> None:
        self._broken = True
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- what a passage calls -----------------------------------------------------------------

    @property
    def is_sound(self) -> bool:
        """Open, and no data came without a request."""
        return self._guard.is_clean and not (self._broken or self.transport.is_closing())

    def begin(self, request: h11.Request) -> bytes:
        """The encoded head of a request. From now on its response may come."""
        self._guard.expect(request.method)
        return self.http.send(request) or b""

    def event(self) -> Any:
        """The next event, or NEED_DATA."""
        try:
            return self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise UpstreamLost("its response was incomplete, or is not HTTP") from error

    async def more(self, seconds: float) -> None:
        """Wait for data; raises `UpstreamLost` if no more can come.

        The time-out starts at the last byte written: while the request is still being sent, the
        upstream is not silent.
        """
        if self._finding is not None:
            raise UpstreamLost(f"its response is not plain HTTP: {self._finding}")
        if self._broken:
            raise UpstreamLost("the connection broke")
        if self._unread > _MOST_UNREAD:
            self.transport.resume_reading()
        self._unread = 0
        self._waiter, self._timeout = asyncio.get_running_loop().create_future(), seconds
        self._watch()
        try:
            await self._waiter
        finally:
            self._relax()
            self._waiter = None

    async def write(self, data: bytes) -> None:
        self.transport.write(data)
        if self._waiter is not None:
            self._watch()
        await self._writable.wait()

    def _watch(self) -> None:
        self._relax()
        silent = UpstreamTimedOut(f"silent for {self._timeout:g} s")
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(self._timeout, self._wake, silent)

    def _relax(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _wake(self, failure: UpstreamLost | None = None) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None) if failure is None else waiter.set_exception(failure)

    # -- its life -----------------------------------------------------------------------------

    def rest(self) -> bool:
        """True: it can be reused. No exchange is running, and no data came without a request."""
        http = self.http
        if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
            return False
        if http.trailing_data != (b"", False) or not (self._guard.rests and self.is_sound):
            return False
        http.start_next_cycle()
        self._resting = True
        return True

    def wake_up(self) -> bool:
        """True: it is still usable after its idle time."""
        self._resting = False
        return self.is_sound and not self._is_readable()

    def _is_readable(self) -> bool:
        """The peer has closed it, but the event loop has not reported that yet."""
        look = select.poll()
        look.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(look.poll(0))

    def drop(self) -> None:
        self._broken = True
        self.transport.abort()


def _has_closed(tls: ssl.SSLObject) -> bool:
    """Whether TLS ended with its closing alert. Without it, anyone on the way may have cut the connection,
    and a response without a length only looks complete (RFC 9112, 9.8)."""
    try:
        return tls.read(1) == b""
    except ssl.SSLError:
        return False
