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

from .._values.drivers import driver
from ._transports import AsyncLongBody, AsyncRetrying, LongBody, Retrying

with driver("httpx"):
    import httpx

__all__ = ["AsyncRetryTransport", "RetryTransport"]


class _LongBody(LongBody, httpx.SyncByteStream): ...


class _AsyncLongBody(AsyncLongBody, httpx.AsyncByteStream): ...


class RetryTransport(
    Retrying[httpx.BaseTransport, httpx.Request, httpx.Response], httpx.BaseTransport
):
    """A transport for `httpx.Client`, around another one."""

    _library = httpx
    _long_body = _LongBody


class AsyncRetryTransport(
    AsyncRetrying[httpx.AsyncBaseTransport, httpx.Request, httpx.Response],
    httpx.AsyncBaseTransport,
):
    """A transport for `httpx.AsyncClient`, around another one."""

    _library = httpx
    _long_body = _AsyncLongBody
