"""One async connection: redis-py opens it (TLS, user, database), then hiredis parses the replies.

redis-py reads replies one by one, each with a timer. For hundreds of them it is faster to parse replies
as they arrive. So after connecting, the transport gets our own protocol. Replies come in the order of
their commands; each goes to the first in the queue. One timer watches over all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, Protocol

from .servers import WHO_ARE_YOU, Line, Servers, by_line, count_of
from .settings import Address, Settings
from .store import packed, packer

__all__ = ["AsyncLink"]

_NOTHING = object()

WRITE: Final = 200
"""So many commands are written at once, although more may follow: the server can begin with them."""


class ReplyHandler(Protocol):
    """Where replies of the short way go (`loop_connections`)."""

    def is_home(self, address: Address) -> bool:
        """Whether a reply from this server counts as it is."""

    def answer(self, request: Any, reply: Any) -> Any:
        """What the reply means: the answer, or an exception."""

    def take_long_way(self, request: Any, answer: asyncio.Future[Any], why: Any) -> None:
        """Its reply does not count, or none came."""


class AsyncLink(asyncio.Protocol):
    """Sends commands and hands out their replies. If it was lost, its next use reconnects."""

    def __init__(
        self, settings: Settings, address: Address, servers: Servers, handler: ReplyHandler | None
    ) -> None:
        from redis.asyncio.connection import Connection, SSLConnection
        from redis.exceptions import ResponseError

        self.up = False
        self._timeout = settings.timeout_for(address)
        self._error = ResponseError
        self.address = address
        self._servers = servers if servers.checks_new_connections and not address.sentinel else None
        kind = SSLConnection if settings.tls else Connection
        self._connection: Any = kind(**settings.connection(address))
        self._opening: asyncio.Task[None] | None = None
        self._pack = packer(self._connection)
        self._transport: Any = None
        self._reader: Any = None
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._waiting: deque[tuple[Any, Any]] = deque()
        """Whose replies are to come: a request and the future of its answer, or None and a `_Batch`."""
        self._since = 0.0
        """When the first of them was sent, or the last reply came."""
        self._unsent: list[bytes] = []
        self._crowded = False
        """Whether the last write carried several requests: then more than one caller is at work."""
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self) -> None:
        await self._open()
        self._check_open()
        if self._servers is not None:  # check which server this is before sending any request
            try:
                (info,) = await self.send([WHO_ARE_YOU])
                if isinstance(info, Exception):
                    raise info
                self._servers.check_server(self.address, info)
                self._check_open()
            except BaseException:
                await self.close()
                raise
        self.up = True

    def _check_open(self) -> None:
        """After each wait: the connection may have ended meanwhile, when nothing was to be answered."""
        if self._transport.is_closing():
            raise ConnectionError(f"{self.address} closed the connection")

    async def _open(self) -> None:
        """Let redis-py connect, in a task apart from the caller's.

        On Python 3.11, `asyncio.wait_for`, which redis-py uses here, can lose a cancellation. A caller
        whose time is over would then continue, and wait without a limit.
        """
        await self._end_opening()
        await self._connection.disconnect(nowait=True)
        self._opening = self._loop.create_task(self._take_over())
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            self._opening.cancel()
            raise

    async def _take_over(self) -> None:
        """Connect, and be the protocol in the same step: the end of a connection must not go to another."""
        from hiredis import Reader

        await self._connection.connect()
        self._reader = Reader(replyError=self._error, notEnoughData=_NOTHING)
        self._transport = self._connection._writer.transport
        self._transport.set_protocol(self)

    async def _end_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])

    def ask(self, line: tuple[Any, ...], request: Any, answer: asyncio.Future[Any]) -> None:
        """Send this request the short way.

        Now if its caller seems to be alone; else with those that follow in this turn of the loop.
        """
        command, unsent = self._pack(line), self._unsent
        if not self._waiting:
            self._watch()
        if not self._waiting and not self._crowded:
            self._transport.write(command)
        else:
            unsent.append(command)
            if len(unsent) == 1:
                self._loop.call_soon(self._flush)
            elif len(unsent) == WRITE:
                self._flush()
        self._waiting.append((request, answer))

    def send(self, lines: list[Line]) -> asyncio.Future[list[Any]]:
        """Send now; the future gets the replies, including errors of the server."""
        commands = packed(lines, self._pack)
        self._flush()
        self._transport.write(commands)
        if not self._waiting:
            self._watch()
        replies = self._loop.create_future()
        self._waiting.append((None, _Batch(lines, replies)))
        return replies

    def _watch(self) -> None:
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._timeout, self._check_time)

    def _flush(self) -> None:
        if self._unsent:
            self._crowded = len(self._unsent) > 1
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    async def close(self) -> None:
        self._end(ConnectionError("closed"))
        await self._end_opening()
        await self._connection.disconnect(nowait=True)

    # -- the protocol ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        gets, waiting, handler = self._reader.gets, self._waiting, self._handler
        is_home = handler is not None and handler.is_home(self.address)
        self._reader.feed(data)
        self._since = self._loop.time()
        while (reply := gets(False)) is not _NOTHING:
            request, answer = waiting[0]
            if request is None:
                if answer.is_complete_with(reply):
                    waiting.popleft()
                continue
            waiting.popleft()
            if answer.done():
                continue  # its caller was cancelled and will release the claim
            assert handler is not None
            if not is_home or isinstance(reply, Exception):
                handler.take_long_way(request, answer, reply)
                continue
            found = handler.answer(request, reply)
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError(f"{self.address} closed the connection"))

    def _check_time(self) -> None:
        """The server's time starts again after each reply, and after each pause that we make."""
        self._timer = None
        if not self._waiting:
            return
        until = self._since + self._timeout
        if until > self._loop.time():
            self._timer = self._loop.call_at(until, self._check_time)
        else:
            self._end(TimeoutError(f"{self.address} did not answer within {self._timeout:g} s"))

    def _end(self, why: Exception) -> None:
        self.up = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, deque()
        self._unsent.clear()
        if self._transport is not None:
            self._transport.abort()
        for request, answer in waiting:
            if answer.done():
                continue
            if request is None:
                answer.fail(why)
            else:
                assert self._handler is not None
                self._handler.take_long_way(request, answer, why)


class _Batch:
    """Several commands: their replies are needed together."""

    __slots__ = ("_expected", "_future", "_lines", "_replies")

    def __init__(self, lines: list[Line], future: asyncio.Future[list[Any]]) -> None:
        self._lines = lines
        self._expected = count_of(lines)
        self._future = future
        self._replies: list[Any] = []

    def is_complete_with(self, reply: Any) -> bool:
        self._replies.append(reply)
        if len(self._replies) < self._expected:
            return False
        if not self._future.done():
            self._future.set_result(by_line(self._lines, self._replies))
        return True

    def done(self) -> bool:
        return self._future.done()

    def fail(self, why: Exception) -> None:
        self._future.set_exception(why)
