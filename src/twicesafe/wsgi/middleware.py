"""The middleware: which requests are keyed, claimed, replayed or refused."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable
from contextvars import copy_context
from wsgiref.util import FileWrapper

from .. import events
from ..core.http.message import HttpRequest, StoredResponse
from ..core.http.policy import HttpPolicy
from ..core.http.problems import Refused
from ..core.http.rules import Admission, Rules
from ..errors import ConfigurationError, CorruptRecordError, StoreUnavailableError, TwicesafeError
from ..receiver import Receiver
from .environ import (
    App,
    Environ,
    StartResponse,
    answer,
    fields_of,
    request_of,
    variable_of,
    whole_body,
)
from .exchange import Exchange

__all__ = ["IdempotencyMiddleware"]

_log = logging.getLogger("twicesafe")


class IdempotencyMiddleware:
    """Put it around an application, with a receiver and, if need be, an `HttpPolicy`."""

    def __init__(self, app: App, *, receiver: Receiver, policy: HttpPolicy | None = None) -> None:
        if not isinstance(receiver, Receiver):
            raise ConfigurationError(
                f"receiver={receiver!r} makes no sense: twicesafe.wsgi needs a Receiver "
                "(twicesafe.asgi an AsyncReceiver)"
            )
        if policy is not None and not isinstance(policy, HttpPolicy):
            raise ConfigurationError(f"policy={policy!r} makes no sense: use an HttpPolicy(…)")
        self.app = app
        self.policy = policy or HttpPolicy()
        self._rules = Rules(self.policy, receiver.scope)
        self._names = tuple(variable_of(name) for name in self._rules.names)
        self._holding, self._rerunning = (
            receiver.options(policy=self.policy.receiver_policy(rerun=rerun), fingerprint=None)
            for rerun in (False, True)
        )
        if not receiver.store.capabilities.shared:
            _log.warning("%s knows the keys of this one process only", receiver.store.url)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        rules = self._rules
        method = environ["REQUEST_METHOD"]
        if method not in rules.methods:
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
        receiver = self._rerunning if admission.reruns else self._holding
        claim = receiver.claim(
            admission.key, fingerprint=admission.fingerprint, returns=StoredResponse
        )
        if claim._is_held_around:  # by another layer on this store
            return self.app(environ, start_response)
        # The claim's own context: a server may take the response, or close it, in another one.
        context = copy_context()
        try:
            context.run(claim.__enter__)
        except TwicesafeError as error:
            if isinstance(error, StoreUnavailableError) and self.policy.fail_open:
                receiver._notify(events.Unprotected(admission.key))
                return self.app(environ, start_response)
            if isinstance(error, CorruptRecordError):
                _log.error("%s", error)
            return answer(start_response, rules.refuse_error(request, error))
        if not claim.is_new:
            stored: StoredResponse = claim.result
            context.run(claim.__exit__, None, None, None)
            return answer(start_response, rules.replay(request, stored))
        exchange = Exchange(rules, admission.reruns, request, claim, context, start_response)
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
