"""Clients that retry safely: each call gets one key, and every retry sends it.

    client = httpx.Client(transport=RetryTransport())                 twicesafe.client.httpx
    client = httpx2.Client(transport=RetryTransport())                twicesafe.client.httpx2
    session.mount("https://", RetryAdapter())                         twicesafe.client.requests
    aiohttp.ClientSession(middlewares=[RetryMiddleware()])            twicesafe.client.aiohttp
    grpc.intercept_channel(channel, KeyInterceptor())                 twicesafe.client.grpc

Guarantees: one call has one key, however often it is sent. A call is retried only if it has a key, its
body can be sent again, and a retry may succeed. A replayed answer, a mismatch and an unknown outcome
are final. The server must support the key: a retry to a server that ignores it is a second request.

    policy         the settings
    final_answers  is this answer final?
    redirects      the key of a redirected request
    sending        one call with its retries, as a flow of commands: no I/O
    transports     what the transports for httpx and for httpx2 share
    budget         how many retries a client may add to a server's load
    sent           what happened to a call: for its response or its error
"""

from __future__ import annotations

from ._budget import Budget
from ._policy import RetryPolicy
from ._sent import Sent, sent_of

__all__ = ["Budget", "RetryPolicy", "Sent", "sent_of"]
