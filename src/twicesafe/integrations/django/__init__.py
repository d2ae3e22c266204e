"""Django: at most one effect per Idempotency-Key, as a line in MIDDLEWARE.

    MIDDLEWARE = [
        ...,
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "twicesafe.integrations.django.IdempotencyMiddleware",      # after what says who it is
    ]
    TWICESAFE = {"store": "postgresql:///shop", "policy": {"wait": 10}}

The promises of `twicesafe.wsgi` and `twicesafe.asgi`, with what only Django knows:

- A key belongs to the user who is logged in; without one, to whoever sends the same Authorization
  and session cookie; and to the host that was asked. Another `scope` in the policy takes its place.
- Django turns exceptions into responses before a middleware sees them. This one is told of those
  that nobody expected (`got_request_exception`): their outcome is unknown, and the key is held.
  404, 403 and 400 that a view raises are answers.
- The record is written after the view's transaction (ATOMIC_REQUESTS) has ended.
- Under ASGI, Django cancels a view whose client went away. Here a keyed view runs on, and its
  response is recorded; only a stream that is cut in the middle leaves its outcome unknown.

    settings     TWICESAFE read, the scope of Django's users
    messages     between Django's messages and ours
    exchange     one keyed request, and how its key ends
    streams      a response that comes in parts
    middleware   in both colours, on one page
"""

from __future__ import annotations

from ._middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
