"""The transports, for httpx and httpx2 alike: the classes of both have the same names and meaning.

`twicesafe.client.httpx` and `twicesafe.client.httpx2` name the library's own classes where a type
checker or the library itself asks for them. All others come from `_library`, the library's module:
this module imports neither, since a user may have only one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from .._core.driving import drive, drive_async
from ._budget import Budget, budget_of
from ._final_answers import ResponseSummary, Unanswered, blames_certificate, read_ahead
from ._policy import RetryPolicy, policy_of
from ._redirects import ROOT, Root, is_redirect, start, take_off
from ._sending import CallEnded, KeyedRequest, RetryPause, SendAttempt, Sending, send
from ._sent import EXTENSION, mark

__all__ = ["AsyncLongBody", "AsyncRetrying", "LongBody", "Retrying"]

Request = TypeVar("Request", bound="_Request")
Response = TypeVar("Response", bound="_Response")
Inner = TypeVar("Inner", bound="_Transport")
AsyncInner = TypeVar("AsyncInner", bound="_AsyncTransport")


class _Request(Protocol):
    """What the transports use of a library's request."""

    method: str
    extensions: dict[str, Any]

    @property
    def url(self) -> Any: ...
    @property
    def headers(self) -> MutableMapping[str, str]: ...
    @property
    def stream(self) -> object: ...


class _Response(Protocol):
    status_code: int
    extensions: dict[str, Any]

    @property
    def headers(self) -> Any: ...
    @property
    def stream(self) -> Any: ...
    def read(self) -> bytes: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...


class _Transport(Protocol):
    def handle_request(self, request: Any) -> Any: ...
    def close(self) -> None: ...


class _AsyncTransport(Protocol):
    async def handle_async_request(self, request: Any) -> Any: ...
    async def aclose(self) -> None: ...


class _Shared(Generic[Request, Response]):
    """Shared by the blocking and the async transport: everything except I/O."""

    _library: ModuleType

    def __init__(self, policy: RetryPolicy | None, budget: Budget | None) -> None:
        self.policy = policy_of(policy)
        self.budget = budget_of(budget)

    def _call(self, request: Request) -> tuple[KeyedRequest | None, Root | None]:
        address = str(request.url.copy_with(fragment=None))
        root = request.extensions.get(ROOT)
        path, headers = request.url.path, request.headers
        return start(self.policy, request.method, address, path, headers, root)

    def _ended(self, request: Request, ended: CallEnded, root: Root | None) -> Response:
        if is_redirect(ended.reply):  # the client makes the next request from this one
            take_off(self.policy, request.headers)
            request.extensions = {**request.extensions, ROOT: root}
        if isinstance(ended.reply, Unanswered):
            mark(ended.reply.error, ended.sent)
            raise ended.reply.error
        response: Response = ended.reply.native
        response.extensions = {**response.extensions, EXTENSION: ended.sent}
        return response

    def _flow(self, call: KeyedRequest, request: Request) -> Sending:
        return send(call, self.policy, self.budget, lambda: self._is_replayable(request.stream))

    def _room(self, response: Response) -> int:
        return read_ahead(response.status_code, response.headers, self.policy)

    def _with(self, response: Response, stream: object) -> Response:
        """The same response with another stream of raw bytes."""
        made: Response = self._library.Response(
            response.status_code,
            headers=response.headers.raw,
            stream=stream,
            extensions=response.extensions,
        )
        return made

    def _answer(self, response: Response, body: bytes | None = None) -> ResponseSummary:
        text = b""
        if body is not None:
            response = self._with(response, self._library.ByteStream(body))
            if response.status_code >= 400:
                copy = self._with(response, self._library.ByteStream(body))
                with contextlib.suppress(self._library.DecodingError):  # then its status decides
                    text = copy.read()
        headers = {name.lower(): value for name, value in response.headers.items()}
        return ResponseSummary(response.status_code, headers, text, response)

    def _unanswered(self, error: Exception) -> Unanswered:
        its = self._library
        not_sent = (its.ConnectError, its.ConnectTimeout, its.PoolTimeout, its.ProxyError)
        ours = (its.LocalProtocolError, its.UnsupportedProtocol)  # a retry would fail the same way
        final = isinstance(error, ours) or blames_certificate(error)
        return Unanswered(error, not isinstance(error, not_sent), final)

    def _is_replayable(self, stream: object) -> bool:
        """True for bytes, and for forms whose files can be rewound: the library rewinds them itself."""
        if isinstance(stream, self._library.ByteStream):
            return True
        parts = getattr(stream, "fields", None)
        return isinstance(parts, list) and all(
            isinstance(part, (str, bytes)) or _can_seek(part)
            for part in (getattr(field, "file", "") for field in parts)
        )


class Retrying(_Shared[Request, Response], Generic[Inner, Request, Response]):
    """The base of each library's `RetryTransport`."""

    _long_body: type[LongBody]

    def __init__(
        self,
        transport: Inner | None = None,
        *,
        policy: RetryPolicy | None = None,
        budget: Budget | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(policy, budget)
        self._inner: Inner = transport or self._library.HTTPTransport()
        self._sleep = sleep

    def handle_request(self, request: Request) -> Response:
        call, root = self._call(request)
        if call is None:
            plain: Response = self._inner.handle_request(request)
            return plain
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

    def _attempt(self, request: Request) -> ResponseSummary | Unanswered:
        try:
            response: Response = self._inner.handle_request(request)
            room = self._room(response)
            if not room:
                return self._answer(response)
            stream = response.stream
            assert isinstance(stream, self._library.SyncByteStream)
            try:
                pieces, rest = [], iter(stream)
                for piece in rest:
                    pieces.append(piece)
                    room -= len(piece)
                    if room < 0:
                        long = self._long_body(pieces, rest, stream)
                        return self._answer(self._with(response, long))
            except BaseException:
                response.close()
                raise
            response.close()
        except self._library.TransportError as error:
            return self._unanswered(error)
        return self._answer(response, b"".join(pieces))

    def close(self) -> None:
        self._inner.close()


async def _sleep(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)


class AsyncRetrying(_Shared[Request, Response], Generic[AsyncInner, Request, Response]):
    """The base of each library's `AsyncRetryTransport`."""

    _long_body: type[AsyncLongBody]

    def __init__(
        self,
        transport: AsyncInner | None = None,
        *,
        policy: RetryPolicy | None = None,
        budget: Budget | None = None,
        sleep: Callable[[float], Awaitable[object]] = _sleep,
    ) -> None:
        super().__init__(policy, budget)
        self._inner: AsyncInner = transport or self._library.AsyncHTTPTransport()
        self._sleep = sleep

    async def handle_async_request(self, request: Request) -> Response:
        call, root = self._call(request)
        if call is None:
            plain: Response = await self._inner.handle_async_request(request)
            return plain
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

    async def _attempt(self, request: Request) -> ResponseSummary | Unanswered:
        try:
            response: Response = await self._inner.handle_async_request(request)
            room = self._room(response)
            if not room:
                return self._answer(response)
            stream = response.stream
            assert isinstance(stream, self._library.AsyncByteStream)
            try:
                pieces, rest = [], aiter(stream)
                async for piece in rest:
                    pieces.append(piece)
                    room -= len(piece)
                    if room < 0:
                        long = self._long_body(pieces, rest, stream)
                        return self._answer(self._with(response, long))
            except BaseException:
                await response.aclose()
                raise
            await response.aclose()
        except self._library.TransportError as error:
            return self._unanswered(error)
        return self._answer(response, b"".join(pieces))

    async def aclose(self) -> None:
        await self._inner.aclose()


class LongBody:
    """A long body: the part that was read, then the rest."""

    def __init__(self, pieces: list[bytes], rest: Iterator[bytes], whole: Any) -> None:
        self._pieces, self._rest, self._whole = pieces, rest, whole

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        yield from self._rest

    def close(self) -> None:
        self._whole.close()


class AsyncLongBody:
    """A long body: the part that was read, then the rest."""

    def __init__(self, pieces: list[bytes], rest: AsyncIterator[bytes], whole: Any) -> None:
        self._pieces, self._rest, self._whole = pieces, rest, whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        async for piece in self._rest:
            yield piece

    async def aclose(self) -> None:
        await self._whole.aclose()


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


def _can_seek(file: Any) -> bool:
    try:
        return bool(file.seekable())
    except (AttributeError, ValueError):
        return False
