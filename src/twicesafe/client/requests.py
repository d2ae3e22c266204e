"""requests: an adapter that retries safely.

    session = requests.Session()
    session.mount("https://", RetryAdapter())

POST and PATCH requests get a key (a key in the request's headers is kept) and are retried under it.
All other requests pass unchanged. A redirect that the session follows gets a key derived from this one
(`redirects`). `response.twicesafe`, or `sent_of`, says how the call went. The session's time-outs apply
to each attempt, the policy's deadline to all of them. urllib3's own `max_retries` stays 0. It would
retry without checking whether an answer is final.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from .._core.driving import drive
from .._values.drivers import driver
from ..errors import ConfigurationError
from ._budget import Budget, budget_of
from ._final_answers import ResponseSummary, Unanswered, blames_certificate, read_ahead
from ._policy import RetryPolicy, policy_of
from ._redirects import ROOT, is_redirect, start, take_off
from ._sending import RetryPause, SendAttempt, send
from ._sent import mark

with driver("requests"):
    import requests
    from requests import exceptions
    from requests.adapters import HTTPAdapter
    from urllib3.exceptions import MaxRetryError, NewConnectionError

__all__ = ["RetryAdapter"]

_CUT = (exceptions.ConnectionError, exceptions.Timeout, exceptions.ChunkedEncodingError)


class RetryAdapter(HTTPAdapter):
    """An adapter for `requests.Session`; also takes the pool settings of `HTTPAdapter`."""

    __attrs__ = [*HTTPAdapter.__attrs__, "policy", "budget", "_sleep"]  # noqa: RUF012 - as requests has it
    """What a copy of a session keeps, in another process above all."""

    def __init__(
        self,
        *,
        policy: RetryPolicy | None = None,
        budget: Budget | None = None,
        sleep: Callable[[float], object] = time.sleep,
        **pools: Any,
    ) -> None:
        if pools.get("max_retries"):
            raise ConfigurationError(
                "max_retries is not supported here: set attempts=… of RetryPolicy instead"
            )
        super().__init__(**pools)
        self.policy = policy_of(policy)
        self.budget = budget_of(budget)
        self._sleep = sleep

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """One call, with its retries; what a session calls."""
        settings = {"stream": stream, "verify": verify, "cert": cert, "proxies": proxies}
        path = urlsplit(request.url or "").path
        address = (request.url or "").partition("#")[0]
        hooks: dict[str, Any] = request.hooks  # what a session copies to the next request
        method, headers = request.method or "", request.headers
        call, root = start(self.policy, method, address, path, headers, hooks.get(ROOT))
        if call is None:
            return super().send(request, timeout=timeout, **settings)

        def perform(command: SendAttempt | RetryPause) -> ResponseSummary | Unanswered | None:
            if isinstance(command, SendAttempt):
                limited = _limited(timeout, command.seconds)
                return self._attempt(request, {"timeout": limited, **settings})
            if command.answer is not None:
                command.answer.native.close()
            self._sleep(command.seconds)
            return None

        flow = send(call, self.policy, self.budget, lambda: _rewind(request))
        ended = drive(flow, perform)
        if isinstance(ended.reply, Unanswered):
            mark(ended.reply.error, ended.sent)
            raise ended.reply.error
        mark(ended.reply.native, ended.sent)
        if is_redirect(ended.reply):
            take_off(self.policy, request.headers)
            hooks[ROOT] = root
        response: requests.Response = ended.reply.native
        return response

    def _attempt(
        self, request: requests.PreparedRequest, settings: Mapping[str, Any]
    ) -> ResponseSummary | Unanswered:
        try:
            response = super().send(request, **settings)
            headers = {name.lower(): value for name, value in response.headers.items()}
            # Without stream=True requests reads the whole body anyway. With it, read only bodies of
            # known length: what was read cannot be put back.
            if settings["stream"] and not _is_short(response.status_code, headers, self.policy):
                return ResponseSummary(response.status_code, headers, b"", response)
            try:
                body = response.content
            except BaseException:
                response.close()
                raise
        except _CUT as error:
            return Unanswered(error, not _never_left(error), blames_certificate(error))
        return ResponseSummary(response.status_code, headers, body or b"", response)


def _is_short(status: int, headers: Mapping[str, str], policy: RetryPolicy) -> bool:
    known = "content-length" in headers or status >= 400
    return known and read_ahead(status, headers, policy) > 0


def _never_left(error: exceptions.RequestException) -> bool:
    if isinstance(error, (exceptions.ConnectTimeout, exceptions.ProxyError)):
        return True
    cause = error.args[0] if error.args else None
    return isinstance(cause, MaxRetryError) and isinstance(cause.reason, NewConnectionError)


def _rewind(request: requests.PreparedRequest) -> bool:
    if request.body is None or isinstance(request.body, (str, bytes)):
        return True
    try:
        requests.utils.rewind_body(request)
    except exceptions.UnrewindableBodyError:
        return False
    return True


def _limited(timeout: Any, left: float) -> Any:
    """The session's time-outs, cut at the deadline."""
    if timeout is None or isinstance(timeout, (int, float)):
        timeout = (timeout, timeout)
    if isinstance(timeout, tuple):
        return tuple(left if part is None else min(part, left) for part in timeout)
    return timeout  # urllib3's own object: the caller chose it
