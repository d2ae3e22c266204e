"""httpx: transports that retry safely.

    client = httpx.Client(transport=RetryTransport())
    client = httpx.AsyncClient(transport=AsyncRetryTransport(policy=RetryPolicy(deadline=10)))

POST and PATCH requests get a key (a key in the request's headers is kept) and are retried under it.
All other requests pass unchanged. The key is written into the request, so that an auth flow repeats it
under the same key. A redirect that the client follows gets a key derived from this one (`redirects`).
`response.extensions["twicesafe"]`, or `sent_of`, says how the call went. A client's own time-outs apply
to each attempt, the policy's deadline to all of them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from .._core.driving import drive, drive_async
from .._values.drivers import driver
from ._budget import Budget, budget_of
from ._final_answers import ResponseSummary, Unanswered, blames_certificate, read_ahead
from ._policy import RetryPolicy, policy_of
from ._redirects import ROOT, Root, is_redirect, start, take_off
from ._sending import CallEnded, KeyedRequest, RetryPause, SendAttempt, send
from ._sent import EXTENSION, mark

with driver("httpx"):
    import anyio
    import httpx

__all__ = ["AsyncRetryTransport", "RetryTransport"]

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_OURS = (httpx.LocalProtocolError, httpx.UnsupportedProtocol)
"""Errors of the client side: a retry would fail the same way."""


class _Retrying:
    """Shared by the blocking and the async transport: everything except I/O."""

    def __init__(self, policy: RetryPolicy | None, budget: Budget | None) -> None:
        self.policy = policy_of(policy)
        self.budget = budget_of(budget)

    def _call(self, request: httpx.Request) -> tuple[KeyedRequest | None, Root | None]:
        address = str(request.url.copy_with(fragment=None))
        root = request.extensions.get(ROOT)
        path, headers = request.url.path, request.headers
        return start(self.policy, request.method, address, path, headers, root)

    def _ended(self, request: httpx.Request, ended: CallEnded, root: Root | None) -> httpx.Response:
        if is_redirect(ended.reply):  # the client makes the next request from this one
            take_off(self.policy, request.headers)
            request.extensions = {**request.extensions, ROOT: root}
        return _result(ended)

    def _flow(self, call: KeyedRequest, request: httpx.Request) -> Any:
        return send(call, self.policy, self.budget, lambda: _is_replayable(request.stream))

    def _room(self, response: httpx.Response) -> int:
        return read_ahead(response.status_code, response.headers, self.policy)


class RetryTransport(_Retrying, httpx.BaseTransport):
    """A transport for `httpx.Client`, around another one."""

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        budget: Budget | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(policy, budget)
        self._inner = transport or httpx.HTTPTransport()
        self._sleep = sleep

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call, root = self._call(request)
        if call is None:
            return self._inner.handle_request(request)
        extensions = request.extensions

        def perform(command: SendAttempt | RetryPause) -> ResponseSummary | Unanswered | None:
            if isinstance(command, SendAttempt):
                request.extensions = _limited(extensions, command.seconds)
                return self._attempt(request)
            if command.answer is not None:
                command.answer.native.close()
            self._sleep(command.seconds)
            return None

        try:
            ended = drive(self._flow(call, request), perform)
        finally:
            request.extensions = extensions
        return self._ended(request, ended, root)

    def _attempt(self, request: httpx.Request) -> ResponseSummary | Unanswered:
        try:
            response = self._inner.handle_request(request)
            room = self._room(response)
            if not room:
                return _answer(response)
            stream = response.stream
            assert isinstance(stream, httpx.SyncByteStream)
            try:
                pieces, rest = [], iter(stream)
                for piece in rest:
                    pieces.append(piece)
                    room -= len(piece)
                    if room < 0:
                        return _answer(_with(response, _Longer(pieces, rest, stream)))
            except BaseException:
                response.close()
                raise
            response.close()
        except httpx.TransportError as error:
            return _unanswered(error)
        return _answer(response, b"".join(pieces))

    def close(self) -> None:
        self._inner.close()


class AsyncRetryTransport(_Retrying, httpx.AsyncBaseTransport):
    """A transport for `httpx.AsyncClient`, around another one."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        budget: Budget | None = None,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        super().__init__(policy, budget)
        self._inner = transport or httpx.AsyncHTTPTransport()
        self._sleep = sleep

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call, root = self._call(request)
        if call is None:
            return await self._inner.handle_async_request(request)
        extensions = request.extensions

        async def perform(command: SendAttempt | RetryPause) -> ResponseSummary | Unanswered | None:
            if isinstance(command, SendAttempt):
                request.extensions = _limited(extensions, command.seconds)
                return await self._attempt(request)
            if command.answer is not None:
                await command.answer.native.aclose()
            await self._sleep(command.seconds)
            return None

        try:
            ended = await drive_async(self._flow(call, request), perform)
        finally:
            request.extensions = extensions
        return self._ended(request, ended, root)

    async def _attempt(self, request: httpx.Request) -> ResponseSummary | Unanswered:
        try:
            response = await self._inner.handle_async_request(request)
            room = self._room(response)
            if not room:
                return _answer(response)
            stream = response.stream
            assert isinstance(stream, httpx.AsyncByteStream)
            try:
                pieces, rest = [], aiter(stream)
                async for piece in rest:
                    pieces.append(piece)
                    room -= len(piece)
                    if room < 0:
                        return _answer(_with(response, _AsyncLonger(pieces, rest, stream)))
            except BaseException:
                await response.aclose()
                raise
            await response.aclose()
        except httpx.TransportError as error:
            return _unanswered(error)
        return _answer(response, b"".join(pieces))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Longer(httpx.SyncByteStream):
    """A long body: the part that was read, then the rest."""

    def __init__(
        self, pieces: list[bytes], rest: Iterator[bytes], whole: httpx.SyncByteStream
    ) -> None:
        self._pieces, self._rest, self._whole = pieces, rest, whole

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        yield from self._rest

    def close(self) -> None:
        self._whole.close()


class _AsyncLonger(httpx.AsyncByteStream):
    """A long body: the part that was read, then the rest."""

    def __init__(
        self, pieces: list[bytes], rest: AsyncIterator[bytes], whole: httpx.AsyncByteStream
    ) -> None:
        self._pieces, self._rest, self._whole = pieces, rest, whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        async for piece in self._rest:
            yield piece

    async def aclose(self) -> None:
        await self._whole.aclose()


def _with(response: httpx.Response, stream: Any) -> httpx.Response:
    """The same response with another stream of raw bytes."""
    return httpx.Response(
        response.status_code,
        headers=response.headers.raw,
        stream=stream,
        extensions=response.extensions,
    )


def _answer(response: httpx.Response, body: bytes | None = None) -> ResponseSummary:
    text = b""
    if body is not None:
        response = _with(response, httpx.ByteStream(body))
        if response.status_code >= 400:
            with contextlib.suppress(httpx.DecodingError):  # then only its status decides
                text = _with(response, httpx.ByteStream(body)).read()
    headers = {name.lower(): value for name, value in response.headers.items()}
    return ResponseSummary(response.status_code, headers, text, response)


def _unanswered(error: httpx.TransportError) -> Unanswered:
    final = isinstance(error, _OURS) or blames_certificate(error)
    return Unanswered(error, not isinstance(error, _NOT_SENT), final)


def _result(ended: CallEnded) -> httpx.Response:
    if isinstance(ended.reply, Unanswered):
        mark(ended.reply.error, ended.sent)
        raise ended.reply.error
    response: httpx.Response = ended.reply.native
    response.extensions = {**response.extensions, EXTENSION: ended.sent}
    return response


def _limited(extensions: Mapping[str, Any], left: float) -> dict[str, Any]:
    """The client's time-outs, cut at the deadline."""
    limits = extensions.get("timeout") or {}
    return {
        **extensions,
        "timeout": {
            name: left if limits.get(name) is None else min(limits[name], left)
            for name in ("connect", "read", "write", "pool")
        },
    }


def _is_replayable(stream: object) -> bool:
    """True for bytes, and for forms whose files can be rewound: httpx rewinds them itself."""
    if isinstance(stream, httpx.ByteStream):
        return True
    parts = getattr(stream, "fields", None)
    return isinstance(parts, list) and all(
        isinstance(part, (str, bytes)) or _can_seek(part)
        for part in (getattr(field, "file", "") for field in parts)
    )


def _can_seek(file: Any) -> bool:
    try:
        return bool(file.seekable())
    except (AttributeError, ValueError):
        return False
