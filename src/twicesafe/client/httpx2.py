"""httpx2: transports that retry safely.

    client = httpx2.Client(transport=RetryTransport())
    client = httpx2.AsyncClient(transport=AsyncRetryTransport(policy=RetryPolicy(deadline=10)))

They do for httpx2 what those of `twicesafe.client.httpx` do for httpx.
"""

from __future__ import annotations

from .._values.drivers import driver
from ._transports import AsyncLongBody, AsyncRetrying, LongBody, Retrying

with driver("httpx2"):
    import httpx2

__all__ = ["AsyncRetryTransport", "RetryTransport"]


class _LongBody(LongBody, httpx2.SyncByteStream): ...


class _AsyncLongBody(AsyncLongBody, httpx2.AsyncByteStream): ...


class RetryTransport(
    Retrying[httpx2.BaseTransport, httpx2.Request, httpx2.Response], httpx2.BaseTransport
):
    """A transport for `httpx2.Client`, around another one."""

    _library = httpx2
    _long_body = _LongBody


class AsyncRetryTransport(
    AsyncRetrying[httpx2.AsyncBaseTransport, httpx2.Request, httpx2.Response],
    httpx2.AsyncBaseTransport,
):
    """A transport for `httpx2.AsyncClient`, around another one."""

    _library = httpx2
    _long_body = _AsyncLongBody
