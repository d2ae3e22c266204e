"""The upstream: one HTTP/1.1 exchange per request, on a connection that is known to be sound.

It is an ASGI application, so that the middleware stands in front of it as in front of any other.
What it promises to the middleware is the line between "nothing happened" and "nobody knows":

- `Refused`: no octet of the request has left. No connection could be had. The key is given back.
- `UpstreamLost`, `UpstreamTimedOut`: octets have left, and no whole response came back. It may have
  had its effect, so it is never sent again: not on another connection, not to another address. A key
  is held.

A connection rests for a moment only and is looked at before it is used again: what the server has
closed, or has written to without being asked, is thrown away. After an error, or a response that did
not end, none is used again. Redirects are answers. 1xx are not. A response without a length ends at
a clean close; a reset is no end.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any, Final, TypeAlias

import h11

from ..core.http.forwarding import Forwarding
from ..core.http.problems import Problem, Refused
from .addresses import Origin

__all__ = ["Upstream", "UpstreamLost", "UpstreamTimedOut"]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_MOST_UNREAD: Final = 262_144
"""How much of a response may wait for a client that reads slowly."""
_UNAVAILABLE: Final = Problem("upstream-unavailable", retry_after=1)


class UpstreamLost(Exception):  # noqa: N818 - the name that is kept as the failure's
    """The request was sent, and its response did not come, or not whole."""


class UpstreamTimedOut(UpstreamLost):
    """Nothing came for too long."""


class Upstream:
    def __init__(
        self,
        url: str,
        forwarding: Forwarding,
        *,
        connect_timeout: float = 5,
        timeout: float = 60,
        idle: float = 1,
        connections: int = 256,
        context: ssl.SSLContext | None = None,
    ) -> None:
        origin = Origin.of(url)
        self._address = (origin.host, origin.port)
        self._host, self._prefix = origin.named, origin.prefix
        self._context = (context or ssl.create_default_context()) if origin.secure else None
        self._forwarding = forwarding
        self._connect_timeout, self._timeout, self._idle = connect_timeout, timeout, idle
        self._room = asyncio.Semaphore(connections)
        self._resting: deque[_Connection] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        peer = scope["client"][0] if scope.get("client") else "unknown"
        version = scope["http_version"]
        fields = self._forwarding.outbound(
            scope["headers"], peer, scope["scheme"], version, self._host
        )
        target = self._prefix + scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        head = h11.Request(method=scope["method"], target=target, headers=list(fields))
        try:
            connection = await self._taken()
        except asyncio.CancelledError:
            raise Refused(_UNAVAILABLE) from None  # this process ends, and nothing was sent
        try:
            try:
                await _Passage(connection, self._timeout, self._forwarding, receive, send).run(head)
            except BaseException:
                connection.drop()
                raise
            self._rest(connection)
        finally:
            self._room.release()

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        while self._resting:
            self._resting.pop().drop()

    # -- connections --------------------------------------------------------------------------

    async def _taken(self) -> _Connection:
        """A place among the connections, and a connection in it. Both in time, or `Refused`."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._room.acquire()
        except TimeoutError:
            raise Refused(_UNAVAILABLE) from None
        try:
            return await self._connection()
        except BaseException:
            self._room.release()
            raise

    async def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        while self._resting:
            found = self._resting.pop()
            if found.wake_up() and loop.time() - found.since < self._idle:
                return found
            found.drop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, made = await loop.create_connection(
                    _Connection, *self._address, ssl=self._context
                )
        except (OSError, TimeoutError) as error:  # refused, no route, no such name, no TLS
            raise Refused(_UNAVAILABLE) from error
        return made

    def _rest(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        if self._idle and connection.rest():
            connection.since = loop.time()
            self._resting.append(connection)
        else:
            return connection.drop()
        if self._alarm is None:
            self._alarm = loop.call_later(self._idle, self._drop_rested)
        return None

    def _drop_rested(self) -> None:
        """None rests for longer than it may, also when no request comes."""
        loop = asyncio.get_running_loop()
        self._alarm = None
        while self._resting and loop.time() - self._resting[0].since >= self._idle:
            self._resting.popleft().drop()
        if self._resting:
            left = self._resting[0].since + self._idle - loop.time()
            self._alarm = loop.call_later(left, self._drop_rested)


class _Connection(asyncio.Protocol):
    """A connection and what its parser knows. While it rests, whatever comes breaks it."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT)
        self.since = 0.0
        self._resting = self._broken = False
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
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
        """Wait until something came; `UpstreamLost` if nothing can come any more."""
        if self._broken:
            raise UpstreamLost("the connection broke")
        if self._unread > _MOST_UNREAD:
            self.transport.resume_reading()
        self._unread = 0
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        alarm = loop.call_later(
            patience, self._wake, UpstreamTimedOut(f"silent for {patience:g} s")
        )
        try:
            await self._waiter
        finally:
            alarm.cancel()
            self._waiter = None

    async def write(self, data: bytes) -> None:
        self.transport.write(data)
        await self._writable.wait()

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


class _Passage:
    """One request out, one response back."""

    __slots__ = ("_connection", "_forwarding", "_gone", "_receive", "_send", "_timeout")

    def __init__(
        self,
        connection: _Connection,
        timeout: float,
        forwarding: Forwarding,
        receive: Receive,
        send: Send,
    ) -> None:
        self._connection, self._timeout = connection, timeout
        self._forwarding, self._receive, self._send = forwarding, receive, send
        self._gone = False

    async def run(self, head: h11.Request) -> None:
        has_body = any(n in (b"content-length", b"transfer-encoding") for n, _ in head.headers)
        first = await self._receive() if has_body else _NO_BODY
        if first["type"] == "http.disconnect":
            return  # it went away before anything was sent
        # From here on, nobody can say that nothing happened.
        http = self._connection.http
        out = http.send(head) or b""
        body, more = first.get("body", b""), first.get("more_body", False)
        self._connection.transport.write(out + self._encoded(body, more))
        watch = asyncio.ensure_future(self._upload() if more else self._until_gone())
        try:
            await self._response()
        except UpstreamLost:
            if not self._gone:
                raise
        finally:
            watch.cancel()

    # -- the request --------------------------------------------------------------------------

    async def _upload(self) -> None:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return self._client_left()
            body, more = message.get("body", b""), message.get("more_body", False)
            await self._connection.write(self._encoded(body, more))
        return await self._until_gone()

    def _encoded(self, body: bytes, more: bool) -> bytes:
        http = self._connection.http
        out = (http.send(h11.Data(data=body)) or b"") if body else b""
        return out if more else out + (http.send(h11.EndOfMessage()) or b"")

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._client_left()

    def _client_left(self) -> None:
        self._gone = True
        self._connection.drop()

    # -- the response -------------------------------------------------------------------------

    async def _response(self) -> None:
        response = await self._event()
        while isinstance(response, h11.InformationalResponse):
            if response.status_code == 101:
                raise UpstreamLost("it changes to a protocol that nobody asked for")
            response = await self._event()
        if not isinstance(response, h11.Response) or not 200 <= response.status_code <= 599:
            raise UpstreamLost("it answered no response")
        date = formatdate(usegmt=True).encode()
        lines = self._forwarding.back(response.status_code, response.headers.raw_items(), date)
        await self._send(
            {"type": "http.response.start", "status": response.status_code, "headers": lines}
        )
        piece = b""
        while True:
            event = self._connection.event()
            if event is h11.NEED_DATA:
                if piece:
                    await self._pass(piece, more=True)
                    piece = b""
                event = await self._event()
            if isinstance(event, h11.Data):
                if piece:
                    await self._pass(piece, more=True)
                piece = bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return await self._pass(piece, more=False)
            else:
                raise UpstreamLost("its response did not end")

    async def _pass(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _event(self) -> Any:
        connection = self._connection
        while (event := connection.event()) is h11.NEED_DATA:
            await connection.more(self._timeout)
        return event


_NO_BODY: Final[Message] = {"type": "http.request", "body": b"", "more_body": False}
