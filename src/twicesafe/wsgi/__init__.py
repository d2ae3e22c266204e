"""WSGI middleware: at most one effect per Idempotency-Key, for any WSGI application.

    app = IdempotencyMiddleware(app, receiver=Receiver.open("sqlite:///keys.db"))

It gives the same guarantees as `twicesafe.asgi`, on the thread of the server:

- Requests without a key pass through unchanged.
- The key is claimed after the whole body has arrived.
- A response streams through while it is recorded. The record is written before the end of the
  response is sent.
- An exception or a short response leaves the outcome unknown, and the key is held.
- After a disconnect, `close()` takes the rest of the response from the application and records it,
  unless the response is too large to keep or outlasts `linger`.

`start_response` with `exc_info`, `write()`, `close()` and file wrappers work as usual.

    middleware    performs the flow of a keyed request
    exchange      one running request: connects the server, the application and the flow
    environ       the WSGI environ as a request, and a response through start_response
"""

from __future__ import annotations

from ._middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
