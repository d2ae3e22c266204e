"""The WSGI middleware: performs the flow of a keyed request (`_core.http.flow`)."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextvars import copy_context
from functools import partial
from wsgiref.util import FileWrapper

from .._core.driving import drive
from .._core.http.flow import Respond, RunHandler
from .._core.http.policy import HttpPolicy
from .._edges.http_guard import HttpGuard, perform
from ..receiver import Receiver
from ..receiver._base import check_receiver
from ._environ import (
    App,
    Environ,
    StartResponse,
    answer,
    request_of,
    variable_of,
    whole_body,
)
from ._exchange import WsgiExchange

__all__ = ["IdempotencyMiddleware"]


class IdempotencyMiddleware:
    """Wraps an application. Needs a receiver; `policy` is optional."""

    def __init__(self, app: App, *, receiver: Receiver, policy: HttpPolicy | None = None) -> None:
        check_receiver(receiver, Receiver, "twicesafe.wsgi")
        self.app = app
        self._guard = HttpGuard(receiver, policy)
        self.policy, self._rules = self._guard.policy, self._guard.rules
        self._names = tuple(variable_of(name) for name in self._rules.names)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        rules = self._rules
        if environ["REQUEST_METHOD"].upper() not in rules.methods:
            return self.app(environ, start_response)
        if rules.by_name and not any(name in environ for name in self._names):
            return self.app(environ, start_response)
        return self._keyed(environ, start_response)

    def _keyed(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        # The claim has its own context, because a server may take or close the response in
        # another one. The server's callables run in the server's context: what they start
        # inherits it, and must not get the key of this claim.
        context, own = copy_context(), copy_context()

        read = partial(whole_body, environ, self._rules)
        flow = self._guard.admit(request_of(environ), read)
        step = context.run(drive, flow, perform)
        if isinstance(step, RunHandler):
            exchange = WsgiExchange(step.exchange, context, own, start_response)
            return exchange.begin(self.app, self._forwarded(environ, step.exchange.request.body))
        if isinstance(step, Respond):
            return answer(start_response, step.response)
        assert step is not None  # a WSGI server has no way to say that its client disconnected
        if step.request is None:
            return self.app(environ, start_response)
        return self.app(self._forwarded(environ, step.request.body), start_response)

    def _forwarded(self, environ: Environ, body: bytes) -> Environ:
        """The environ for the application: with the body, and without a way past the recording."""
        changed = {**environ, "wsgi.input": io.BytesIO(body)}
        if "wsgi.file_wrapper" in changed:
            changed["wsgi.file_wrapper"] = FileWrapper  # the server's may not be iterable
        if not self.policy.forward_key:
            for name in self._names:
                changed.pop(name, None)
        return changed
