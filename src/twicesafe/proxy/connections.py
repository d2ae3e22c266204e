"""Connections to the upstream: few, sound, and never used again after an error.

A connection rests for a moment only, and is looked at before it is used again: what the server has
closed, or has written to without being asked, is thrown away. `Refused` says that none could be had, so
that nothing was sent; `UpstreamLost` says that something was, and that no whole response came.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections import deque
from typing import Any, Final

import h11

from ..core.http.problems import Problem, Refused
from .addresses import Origin

__all__ = ["UNAVAILABLE", "Connection", "Connections", "UpstreamLost", "UpstreamTimedOut"]

_MOST_UNREAD: Final = 262_144
"""How much of a response may wait for a client that reads slowly."""
_MOST_HEAD: Final = 65536
"""The longest head of a response, in bytes, as for requests; h11 alone would take a quarter of it."""
UNAVAILABLE: Final = Problem("upstream-unavailable", retry_after=1)


class UpstreamLost(Exception):  # noqa: N818 - the name that is kept as the failure's
    """The request was sent, and its response did not come, or not whole."""

    keyed = False
    """It had a key."""


class UpstreamTimedOut(UpstreamLost):
    """Nothing came for too long."""


class Connections:
    """Those of one worker to one upstream."""

    def __init__(
        self,
        origin: Origin,
        *,
        connect_timeout: float,
        idle: float,
        most: int,
        context: ssl.SSLContext | None,
    ) -> None:
        self._address = (origin.host, origin.port)
        self._context = (context or ssl.create_default_context()) if origin.secure else None
        self._connect_timeout, self._idle = connect_timeout, idle
        self._room = asyncio.Semaphore(most)
        self._resting: deque[Connection] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    async def take(self) -> Connection:
        """A place among the connections, and a connection in it. Both in time, or `Refused`."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._room.acquire()
        except TimeoutError:
            raise Refused(UNAVAILABLE) from None
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
                _, made = await loop.create_connection(
                    Connection, *self._address, ssl=self._context
                )
        except (OSError, TimeoutError) as error:  # refused, no route, no such name, no TLS
            raise Refused(UNAVAILABLE) from error
        return made

    def give_back(self, connection: Connection) -> None:
        """It rests, if it can carry another request; its place is free."""
        self._room.release()
        loop = asyncio.get_running_loop()
        if not self._idle or not connection.rest():
            return connection.drop()
        connection.since = loop.time()
        self._resting.append(connection)
        if self._alarm is None:
            self._alarm = loop.call_later(self._idle, self._drop_rested)
        return None

    def throw_away(self, connection: Connection) -> None:
        """After an error none is used again."""
        self._room.release()
        connection.drop()

    def _drop_rested(self) -> None:
        """None rests for longer than it may, also when no request comes."""
        loop = asyncio.get_running_loop()
        self._alarm = None
        while self._resting and loop.time() - self._resting[0].since >= self._idle:
            self._resting.popleft().drop()
        if self._resting:
            left = self._resting[0].since + self._idle - loop.time()
            self._alarm = loop.call_later(left, self._drop_rested)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        while self._resting:
            self._resting.pop().drop()


class Connection(asyncio.Protocol):
    """A connection and what its parser knows. While it rests, whatever comes breaks it."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD)
        self.since = 0.0
        self._resting = self._broken = False
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._patience = 0.0
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
        self.http.receive_data(data)
        self._unread += len(data)
        if self._unread > _MOST_UNREAD:
            self.transport.pause_reading()
        return self._wake()

    def eof_received(self) -> bool:
        if self._resting:
            self.drop()
        else:
            self.http.receive_data(b"")
            self._wake()
        return True  # the rest of the request may still go out

    def connection_lost(self, exc: Exception | None) -> None:
        self._broken = True
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- what a passage calls -----------------------------------------------------------------

    def event(self) -> Any:
        """The next event, or NEED_DATA."""
        try:
            return self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise UpstreamLost("its response did not end, or is not HTTP") from error

    async def more(self, patience: float) -> None:
        """Wait until something came; `UpstreamLost` if nothing can come any more.

        Silence is counted from the last octet that was written: who is still being told is no
        more silent than it should be.
        """
        if self._broken:
            raise UpstreamLost("the connection broke")
        if self._unread > _MOST_UNREAD:
            self.transport.resume_reading()
        self._unread = 0
        self._waiter, self._patience = asyncio.get_running_loop().create_future(), patience
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
        silent = UpstreamTimedOut(f"silent for {self._patience:g} s")
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(self._patience, self._wake, silent)

    def _relax(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _wake(self, trouble: UpstreamLost | None = None) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None) if trouble is None else waiter.set_exception(trouble)

    # -- its life -----------------------------------------------------------------------------

    def rest(self) -> bool:
        """True: it may carry another request. Nothing is under way, and nothing came unasked."""
        http = self.http
        if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
            return False
        if http.trailing_data != (b"", False) or self._broken or self.transport.is_closing():
            return False
        http.start_next_cycle()
        self._resting = True
        return True

    def wake_up(self) -> bool:
        """True: it is as sound as when it went to rest."""
        self._resting = False
        return not (self._broken or self.transport.is_closing() or self._is_readable())

    def _is_readable(self) -> bool:
        """An end that the loop has not come to tell us yet."""
        look = select.poll()
        look.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(look.poll(0))

    def drop(self) -> None:
        self._broken = True
        self.transport.abort()
