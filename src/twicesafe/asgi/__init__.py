"""ASGI: at most one effect per Idempotency-Key, in front of any ASGI application.

    app.add_middleware(IdempotencyMiddleware, receiver=AsyncReceiver.open("sqlite:///keys.db"))

What it promises, and how:

- Requests without a key, other methods, websockets and lifespan events pass through untouched.
- The key is claimed when the whole body has arrived: a broken upload leaves no trace.
- The handler runs in a task of its own: a client that goes away neither cancels it nor loses its
  result. So it is not told of the disconnect while its result can still be recorded; a stream that
  is too long to be kept, or that lingers on, is told, as its server would have told it.
- A response streams through while it is recorded, and the record is written before its last chunk
  is sent: a retry that is sent on seeing the end finds it.
- An exception, a cut or a short response leave the outcome unknown: the key is held, and the client
  is told so (`on_unknown`).

Everything that is decided is decided in `core.http`. Compression and CORS belong outside of this
layer, authentication and rate limits too where possible.

    middleware    which requests are keyed, claimed, replayed or refused
    exchange      one keyed request, between the server, the application and its claim
    messages      ASGI's scopes and messages, as requests and responses
"""

from __future__ import annotations

from .middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
