"""Clients that retry safely: the key is made once per call, and every retry carries it.

    client = httpx.Client(transport=RetryTransport())                 twicesafe.client.httpx
    session.mount("https://", RetryAdapter())                         twicesafe.client.requests
    aiohttp.ClientSession(middlewares=[RetryMiddleware()])            twicesafe.client.aiohttp
    grpc.intercept_channel(channel, KeyInterceptor())                 twicesafe.client.grpc

What they promise: one call, however often it is sent, has one key; a call is sent again only if it
has a key, its body can be sent again, and the answer (or its absence) leaves hope; a replayed answer,
a mismatch and an unknown outcome are final. The server must honour the key: a retry against one that
ignores it is a second request.

    policy       the settings
    judging      is this answer final?
    sending      one call with its retries, as a flow of commands: no I/O
    budget       how many retries a client may add to a server's load
    sent         what the caller may ask about a response or an error
"""

from __future__ import annotations

from ._budget import Budget
from ._policy import RetryPolicy
from ._sent import Sent, sent_of

__all__ = ["Budget", "RetryPolicy", "Sent", "sent_of"]
