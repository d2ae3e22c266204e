"""WSGI: at most one effect per Idempotency-Key, in front of any WSGI application.

    app = IdempotencyMiddleware(app, receiver=Receiver.open("sqlite:///keys.db"))

The same promises as `twicesafe.asgi`, on the server's own thread: requests without a key pass
untouched; the key is claimed when the whole body has arrived; the response streams through while it
is recorded, and the record is written before the end of the response is sent; an exception or a
short response leave the outcome unknown, and the key is held.

A client that goes away ends the server's interest, not the handler's: `close()` takes the rest of
the response from the application and records it, until it is too long to be kept or lingers on.
`start_response` with `exc_info`, `write()`, `close()` and file wrappers work as they did.

    middleware    which requests are keyed, claimed, replayed or refused
    exchange      one keyed request, between the server, the application and its claim
    environ       WSGI's environ as a request, and a response through start_response
"""

from __future__ import annotations

from ._middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
