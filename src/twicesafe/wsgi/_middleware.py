"""The middleware: which requests are keyed, claimed, replayed or refused."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextvars import copy_context
from wsgiref.util import FileWrapper

from .._core.http.message import HttpRequest, StoredResponse
from .._core.http.policy import HttpPolicy
from .._core.http.problems import Refused
from .._core.http.rules import Admission
from .._edges.http_guard import Guard
from ..errors import TwicesafeError
from ..receiver import Receiver
from ..receiver._base import check_receiver
from ..receiver._claim import Claim
from ._environ import (
    App,
    Environ,
    StartResponse,
    answer,
    fields_of,
    request_of,
    variable_of,
    whole_body,
)
from ._exchange import Exchange

__all__ = ["IdempotencyMiddleware"]


class IdempotencyMiddleware:
    """Put it around an application, with a receiver and, if need be, an `HttpPolicy`."""

    def __init__(self, app: App, *, receiver: Receiver, policy: HttpPolicy | None = None) -> None:
        check_receiver(receiver, Receiver, "twicesafe.wsgi")
        self.app = app
        self._guard = Guard(receiver, policy)
        self.policy, self._rules = self._guard.policy, self._guard.rules
        self._names = tuple(variable_of(name) for name in self._rules.names)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        rules = self._rules
        if environ["REQUEST_METHOD"].upper() not in rules.methods:
            return self.app(environ, start_response)
        if rules.by_name and not any(name in environ for name in self._names):
            return self.app(environ, start_response)
        fields = fields_of(environ)
        request = request_of(environ, fields)
        try:
            looked = rules.look(request)
            if looked is None:
                return self.app(environ, start_response)
            request = request_of(environ, fields, whole_body(environ, rules))
            admission = rules.admit(request, looked)
        except Refused as refusal:
            return answer(start_response, rules.refuse(request, refusal.problem))
        environ = self._forwarded(environ, request.body)
        if admission is None:
            return self.app(environ, start_response)
        return self._keyed(request, admission, environ, start_response)

    def _keyed(
        self,
        request: HttpRequest,
        admission: Admission,
        environ: Environ,
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        rules = self._rules
        claim: Claim[StoredResponse] = self._guard.claim(admission)
        if claim._is_held_around:  # by another layer on this store
            return self.app(environ, start_response)
        # The claim has a context of its own: a server may take the response, or close it, in another
        # one. What the application calls of the server runs in the server's (`server_context`).
        context, own = copy_context(), copy_context()
        try:
            context.run(claim.__enter__)
        except TwicesafeError as error:
            refusal = self._guard.refusal(request, admission, error)
            if refusal is None:
                return self.app(environ, start_response)
            return answer(start_response, refusal)
        if not claim.is_new:
            stored: StoredResponse = claim.result
            context.run(claim.__exit__, None, None, None)
            return answer(start_response, rules.replay(request, stored))
        exchange = Exchange(rules, admission.reruns, request, claim, context, own, start_response)
        return exchange.begin(self.app, environ)

    def _forwarded(self, environ: Environ, body: bytes) -> Environ:
        """The environ that the handler gets: the body again, and no way around the recording."""
        changed = {**environ, "wsgi.input": io.BytesIO(body)}
        if "wsgi.file_wrapper" in changed:
            changed["wsgi.file_wrapper"] = FileWrapper  # the server's own may not be iterable
        if not self.policy.forward_key:
            for name in self._names:
                changed.pop(name, None)
        return changed
