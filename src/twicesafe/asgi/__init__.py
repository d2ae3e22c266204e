"""ASGI: at most one effect per Idempotency-Key, in front of any ASGI application.

    app.add_middleware(IdempotencyMiddleware, receiver=AsyncReceiver.open("sqlite:///keys.db"))

What it promises, and how:

- Requests without a key, other methods, websockets and lifespan events pass through untouched.
- The key is claimed when the whole body has arrived: a broken upload leaves no trace.
- The handler runs in a task of its own: a client that goes away neither cancels it nor loses its
  result. It learns of the disconnect only when its stream is too long to be kept, or lingers on. From
  then on it may stop early, so the key is recorded as done without a result.
- The server's `send` and `receive` are called in the server's own context: no other request of the
  connection starts under this one's key.
- A response streams through while it is recorded, and the record is written before its last chunk
  is sent: a retry that is sent on seeing the end finds it.
- An exception, a cut or a short response leave the outcome unknown: the key is held, and the client
  is told so (`on_unknown`).

Everything that is decided is decided in `_core.http`. Compression and CORS belong outside of this
layer, authentication and rate limits too where possible.

    middleware    which requests are keyed, claimed, replayed or refused
    exchange      one keyed request, between the server, the application and its claim
    client        the client behind the server: what it is sent, and when it went away
    messages      ASGI's scopes and messages, as requests and responses
"""

from __future__ import annotations

from ._middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
