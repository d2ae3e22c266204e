"""Django middleware: at most one effect per Idempotency-Key.

    MIDDLEWARE = [
        ...,
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "twicesafe.integrations.django.IdempotencyMiddleware",      # after authentication
    ]
    TWICESAFE = {"store": "postgresql:///shop", "policy": {"wait": 10}}

It gives the same guarantees as `twicesafe.wsgi` and `twicesafe.asgi`. In Django:

- A key's scope is the host and the logged-in user. If no user is logged in, it is the host, the
  Authorization header and the session cookie. Set `scope` in the policy to change this.
- Django turns exceptions into responses before a middleware sees them. The signal
  `got_request_exception` reports the unexpected ones: their outcome is unknown, and the key is held.
  A 404, 403 or 400 that a view raises is an ordinary response.
- The record is written after the transaction of the view (ATOMIC_REQUESTS) has ended.
- Under ASGI, Django cancels a view when its client disconnects. A view with a key runs to its end, and
  its response is recorded. Only a stream that is cut leaves the outcome unknown.

With "twicesafe.integrations.django" in INSTALLED_APPS, ``manage.py twicesafe …`` runs every command on the
project's store, and ``manage.py check`` checks the settings.

    settings     reads TWICESAFE; the scope of Django users
    messages     converts Django requests and responses
    exchange     one running request, and how its key ends
    streams      streaming responses
    middleware   performs the flow of a keyed request, blocking and async
    checks       the system checks; `apps`: the app for INSTALLED_APPS
"""

from __future__ import annotations

from ._middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
