"""The upstream: one HTTP/1.1 exchange per request, on a checked connection.

It is an ASGI application, so the middleware wraps it like any other. It tells the middleware exactly
whether anything was sent:

- `Unreachable`: there was no connection, and no byte of the request was sent. The key is released.
- `UpstreamLost`, `UpstreamTimedOut`: bytes were sent, and no complete response came back. The request
  may have had its effect, so it is never sent again, on any connection or to any address. Its key is
  held.

Both are logged, with the request and the reason. Redirects are answers; 1xx responses are not. A
response without a length ends at a clean close; after a reset, or without the closing alert of TLS, it
is incomplete.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from email.utils import formatdate
from typing import Any, Final

import h11

from .._core.http.forwarding import Forwarding
from .._values.context import current_key
from .._values.keys import Key
from ..asgi._messages import Message, Receive, Send
from .addresses import UpstreamAddress
from .connections import Connection, Connections, Unreachable, UpstreamLost
from .metrics import Metrics

__all__ = ["Upstream", "named"]

_log = logging.getLogger("twicesafe._proxy")


class Upstream:
    """Passes each request on to the upstream, once."""

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
        metrics: Metrics | None = None,
    ) -> None:
        origin = UpstreamAddress.of(url)
        self._host, self._prefix = origin.named, origin.prefix
        self._forwarding, self._timeout = forwarding, timeout
        self._metrics = metrics or Metrics()
        self._connections = Connections(
            origin, connect_timeout=connect_timeout, idle=idle, most=connections, context=context
        )
        self.close = self._connections.close

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        peer = scope["client"][0] if scope.get("client") else "unknown"
        version = scope["http_version"]
        fields = self._forwarding.outbound(
            scope["headers"], peer, scope["scheme"], version, self._host
        )
        path = scope["raw_path"]
        target = path if path == b"*" else self._prefix + path
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        head = h11.Request(method=scope["method"], target=target, headers=list(fields))
        has_body = any(n in (b"content-length", b"transfer-encoding") for n, _ in fields)
        first = await receive() if has_body else _NO_BODY
        if first["type"] == "http.disconnect":
            return  # the client left before anything was sent
        try:
            connection = await self._connections.take()
        except Unreachable as refusal:
            self._metrics.upstream_failed("Unreachable")
            _log.warning(
                "%s: the upstream cannot be reached, nothing was sent: %s",
                named(scope, current_key()), refusal.why,
            )  # fmt: skip
            raise
        except asyncio.CancelledError:
            raise Unreachable("this process stops") from None
        # From here on the request may have had its effect.
        try:
            passage = _Passage(connection, self._timeout, self._forwarding, receive, send)
            await passage.run(head, first)
        except BaseException as error:
            self._connections.throw_away(connection)
            if isinstance(error, UpstreamLost):
                error.key = current_key()
                self._metrics.upstream_failed(type(error).__name__)
                _log.warning(
                    "%s: the upstream gave no complete answer, the outcome is unknown: %s",
                    named(scope, error.key), error,
                )  # fmt: skip
            raise
        self._connections.give_back(connection)


class _Passage:
    """One request out, one response back."""

    __slots__ = ("_connection", "_forwarding", "_gone", "_receive", "_send", "_timeout")

    def __init__(
        self,
        connection: Connection,
        timeout: float,
        forwarding: Forwarding,
        receive: Receive,
        send: Send,
    ) -> None:
        self._connection, self._timeout = connection, timeout
        self._forwarding, self._receive, self._send = forwarding, receive, send
        self._gone = False

    async def run(self, head: h11.Request, first: Message) -> None:
        out = self._connection.begin(head)
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
                raise UpstreamLost("it switched protocols without a request to do so")
            response = await self._event()
        if not isinstance(response, h11.Response) or not 200 <= response.status_code <= 599:
            raise UpstreamLost("it sent no valid response")
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
                raise UpstreamLost("its response was incomplete")

    async def _pass(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _event(self) -> Any:
        connection = self._connection
        while (event := connection.event()) is h11.NEED_DATA:
            await connection.more(self._timeout)
        return event


_LONGEST: Final = 200


def named(scope: Message, key: Key | None) -> str:
    """A request for the log: method, path and the short key; never its query, headers or body."""
    return f"{scope['method']} {route(scope)}" + ("" if key is None else f" (key {key.short})")


def route(scope: Message) -> str:
    """The path for the log, cut if it is long."""
    path: str = scope["raw_path"].decode("ascii", "backslashreplace")
    return path if len(path) <= _LONGEST else path[:_LONGEST] + "…"


_NO_BODY: Final[Message] = {"type": "http.request", "body": b"", "more_body": False}
