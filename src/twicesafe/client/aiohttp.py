"""aiohttp: a client middleware that retries safely.

    aiohttp.ClientSession(middlewares=[RetryMiddleware()])

POST and PATCH requests get a key (a key in the request's headers is kept) and are retried under it.
All other requests pass unchanged. A redirect that the session follows gets a key derived from the first
one (`redirects`). `response.twicesafe`, or `sent_of`, says how the call went. The session's total
time-out covers the call with all its retries, as does the policy's deadline. An answer without a
Content-Length is returned unread: if it is cut, the caller sees that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from .._core.driving import drive_async
from .._values.drivers import driver
from ._budget import Budget, budget_of
from ._final_answers import ResponseSummary, Unanswered, blames_certificate, read_ahead
from ._policy import RetryPolicy, policy_of
from ._redirects import Root, is_redirect, start
from ._sending import RetryPause, SendAttempt, send
from ._sent import mark

with driver("aiohttp"):
    import aiohttp
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.helpers import BaseTimerContext, TimerNoop
    from aiohttp.multipart import BodyPartReaderPayload
    from aiohttp.payload import AsyncIterablePayload

__all__ = ["RetryMiddleware"]

_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_CUT = (
    aiohttp.ClientConnectionError,
    aiohttp.ClientPayloadError,
    aiohttp.ClientResponseError,  # from below a middleware: what came is no HTTP
    TimeoutError,
)
_ONCE = (AsyncIterablePayload, BodyPartReaderPayload)
"""Bodies that can be read once."""


class RetryMiddleware:
    """A middleware for `aiohttp.ClientSession`."""

    def __init__(
        self,
        *,
        policy: RetryPolicy | None = None,
        budget: Budget | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.policy = policy_of(policy)
        self.budget = budget_of(budget)
        self._sleep = sleep

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        address = str(request.url.with_fragment(None))
        path, headers = request.url.path, request.headers
        call, root = start(self.policy, request.method, address, path, headers, _root_of(request))
        if call is None:
            return await handler(request)

        timer = _timer_of(request)

        async def perform(command: SendAttempt | RetryPause) -> ResponseSummary | Unanswered | None:
            try:
                with timer:
                    if isinstance(command, SendAttempt):
                        return await self._attempt(request, handler, command.seconds)
                    if command.answer is not None:
                        command.answer.native.close()
                    await self._sleep(command.seconds)
            except TimeoutError as error:
                return Unanswered(error, sent=True, final=True)
            return None

        flow = send(call, self.policy, self.budget, lambda: not _is_used_up(request.body))
        ended = await drive_async(flow, perform)
        if isinstance(ended.reply, Unanswered):
            mark(ended.reply.error, ended.sent)
            raise ended.reply.error
        mark(ended.reply.native, ended.sent)
        if is_redirect(ended.reply) and root is not None:
            _redirected.set((timer, root))
        response: ClientResponse = ended.reply.native
        return response

    async def _attempt(
        self, request: ClientRequest, handler: ClientHandlerType, left: float
    ) -> ResponseSummary | Unanswered:
        try:
            async with asyncio.timeout(left):
                response = await handler(request)
                headers = {name.lower(): value for name, value in response.headers.items()}
                body = b""
                # A body that was read cannot be put back: read only errors and bodies of known length.
                known = "content-length" in headers or response.status >= 400
                if known and read_ahead(response.status, headers, self.policy):
                    body = await response.read()  # closes it if that fails
                    response.content = _as_stream(body)
        except _CUT as error:
            _timer_of(request).assert_timeout()
            sent = not isinstance(error, _NOT_SENT)
            return Unanswered(error, sent, blames_certificate(error))
        return ResponseSummary(response.status, headers, body, response)


_redirected: ContextVar[tuple[object, Root] | None] = ContextVar("_redirected", default=None)
"""The call of this task whose last answer was a redirect."""


def _timer_of(request: ClientRequest) -> BaseTimerContext:
    """The total time-out of a call of the session.

    It is the same object for all requests of one call, and only for them. aiohttp does not tell a middleware
    about redirects: each request looks like the first one.
    """
    return getattr(request, "_timer", None) or TimerNoop()


def _root_of(request: ClientRequest) -> Root | None:
    """The call that this request belongs to, if it follows a redirect."""
    held = _redirected.get()
    if held is None:
        return None
    timer, root = held
    if timer is not _timer_of(request):
        _redirected.set(None)
        return None
    return root


def _is_used_up(body: object) -> bool:
    """Whether this body, which has been sent, cannot be read again.

    Not every aiohttp calls a stream `consumed` when its upload broke off in the middle.
    """
    if isinstance(body, aiohttp.MultipartWriter) and any(_is_used_up(part) for part, *_ in body):
        return True
    if isinstance(body, _ONCE) and getattr(body, "_cached_chunks", None) is None:
        return True
    return bool(getattr(body, "consumed", False))


def _as_stream(body: bytes) -> aiohttp.StreamReader:
    """The body that was read, for a caller who reads `response.content`, not `response.read()`."""
    loop = asyncio.get_running_loop()
    stream = aiohttp.StreamReader(BaseProtocol(loop), limit=len(body) + 1, loop=loop)
    stream.feed_data(body)
    stream.feed_eof()
    return stream
