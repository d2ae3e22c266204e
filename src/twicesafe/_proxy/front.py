"""The outermost ASGI application of the proxy. It rejects invalid requests and ends failed responses.

    Front( IdempotencyMiddleware( Upstream ) )          with [mcp.tools]: `McpTools` around the middleware

If the upstream gives no complete answer, a client without a key, or on a route that may re-run, gets a
502. A response that has begun is cut. Every rejection and disconnection is logged with the method, the
path and the short form of the key. The proxy's own answers get a Date and a Server field. A client
that reads nothing of its response for too long is disconnected; if it had a key, its response is still
recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from .._core.http.forwarding import Forwarding
from .._core.http.message import HttpRequest
from .._core.http.policy import HttpPolicy
from .._core.http.problems import Problem, RequestRefused
from .._core.http.rules import HttpRules, Looked
from .._values.keys import Key
from ..asgi import IdempotencyMiddleware
from ..asgi._messages import App, Message, Receive, Send, answer, request_of
from ..errors import TwicesafeError
from ..receiver import AsyncReceiver
from .connections import Unreachable, UpstreamLost, UpstreamTimedOut
from .mcp_settings import McpSettings
from .mcp_tools import McpTools
from .metrics import Metrics
from .upstream import Upstream, named, route

__all__ = ["Front"]

_log = logging.getLogger("twicesafe._proxy")


class Front:
    def __init__(
        self,
        upstream: Upstream,
        receiver: AsyncReceiver,
        policy: HttpPolicy,
        forwarding: Forwarding,
        metrics: Metrics,
        client_timeout: float = 30,
        mcp: McpSettings | None = None,
    ) -> None:
        self._client_timeout = client_timeout
        layer = IdempotencyMiddleware(upstream, receiver=receiver, policy=policy)
        self._app: App = layer
        if mcp is not None and mcp.tools:
            self._app = McpTools(layer, upstream, receiver, mcp, policy)
        self._rules = HttpRules(policy, receiver.scope, receiver.store.hidden_keys)
        self._forwarding, self._metrics = forwarding, metrics
        self.finish = layer.finish

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        peer = scope["client"][0] if scope.get("client") else "unknown"
        out = _Out(send, self._client_timeout, lambda: self._named(scope))
        out.is_awaited = any(name == b"expect" for name, _ in scope["headers"])

        async def read() -> Message:
            out.is_awaited = False
            return await receive()

        serving = self._metrics.begin(scope["method"], route(scope))
        try:
            fields = self._forwarding.inbound(scope["headers"], peer)
            _refuse_websockets(fields)
            await self._app({**scope, "headers": fields}, read, out)
        except Unreachable as refusal:  # and logged
            await self._answer(scope, out, refusal.problem)
        except RequestRefused as refusal:
            _log.warning("%s was refused: %s", self._named(scope), refusal.problem.case)
            await self._answer(scope, out, refusal.problem)
        except UpstreamLost as lost:  # and logged
            if out.status == 0:
                await self._answer(scope, out, _failed(lost))
            # What has begun is cut: the server closes a connection whose response did not end.
        except ClientStalled:
            pass  # the client needs nothing more
        finally:
            self._metrics.end(serving, out.status)

    def _named(self, scope: Message) -> str:
        """The request for the log. The key is parsed again: here no claim is current."""
        key: Key | None = None
        if self._rules.concerns(scope["method"], scope["headers"]):
            request = request_of(scope)
            with contextlib.suppress(RequestRefused, TwicesafeError):
                looked = self._rules.look(request)
                if looked is not None and looked.key is not None:
                    admission = self._rules.admit(request, Looked(looked.key))  # no body is here
                    key = None if admission is None else admission.key
        return named(scope, key)

    async def _answer(self, scope: Message, out: _Out, problem: Problem) -> None:
        request = HttpRequest(scope["method"], scope["path"], b"", b"", scope["headers"])
        await answer(out, self._rules.refuse(request, problem))


class ClientStalled(ConnectionError):  # noqa: N818 - for the layer, a client that went away
    """The client read nothing of its response for too long."""


class _Out:
    """Sends to the client: knows whether a response has begun, and completes our own answers."""

    __slots__ = ("_client_timeout", "_named", "_send", "is_awaited", "status")

    def __init__(self, send: Send, client_timeout: float, named: Callable[[], str]) -> None:
        self._send, self._client_timeout, self._named = send, client_timeout, named
        self.status = 0
        """0: no response has begun."""
        self.is_awaited = False
        """The client waits for a 100 before it sends the body."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if not any(name == b"date" for name, _ in message["headers"]):
                date = formatdate(usegmt=True).encode()
                own = [(b"date", date), (b"server", b"twicesafe")]
                message = {**message, "headers": [*message["headers"], *own]}
            if self.is_awaited:  # it may continue with its body, or with another request
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        try:
            async with asyncio.timeout(self._client_timeout):
                await self._send(message)
        except TimeoutError:
            _log.warning(
                "%s: the client read nothing of its response for %g s and was disconnected",
                self._named(), self._client_timeout,
            )  # fmt: skip
            raise ClientStalled from None


def _failed(lost: UpstreamLost) -> Problem:
    """A key reaches this point only on a `retry` route: elsewhere it is held and was answered."""
    status = 504 if isinstance(lost, UpstreamTimedOut) else 502
    if lost.key is not None:
        return Problem("attempt-failed", status, retry_after=1)
    return Problem("upstream-failed", status)


def _refuse_websockets(fields: Any) -> None:
    for name, value in fields:
        if name == b"upgrade" and b"websocket" in value.lower():
            raise RequestRefused(Problem("upgrade-refused"))
