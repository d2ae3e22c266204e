"""ASGI middleware: at most one effect per Idempotency-Key, for any ASGI application.

    app.add_middleware(IdempotencyMiddleware, receiver=AsyncReceiver.open("sqlite:///keys.db"))

- Requests without a key, other methods, websockets and lifespan events pass through unchanged.
- The key is claimed after the whole body has arrived. A broken upload leaves no record.
- The handler runs in a separate task. A disconnect neither cancels it nor loses its result. The
  handler learns of the disconnect only if its stream is too large to keep or outlasts `linger`.
  It may then stop early, so the key is recorded as done without a result.
- The server's `send` and `receive` are called in the server's own context, so no other request of
  the connection runs under this key.
- A response streams through while it is recorded. The record is written before the last chunk is
  sent, so a client that retries as soon as it sees the end gets the replay.
- An exception, a cut response or a short response leaves the outcome unknown. The key is held, and
  the client gets `outcome-unknown` (see the setting `takeover`).

`_core.http.flow` makes all decisions. Put compression and CORS outside this middleware, and
authentication and rate limits too where possible.

    middleware    performs the flow of a keyed request
    exchange      one running request: connects the server, the application and the flow
    connection    the client: sends to it and notices its disconnect
    messages      ASGI scopes and messages as requests and responses
"""

from __future__ import annotations

from ._middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
