"""The Django middleware: performs the flow of a keyed request (`_core.http.flow`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest as DjangoRequest

from ..._core.driving import drive, drive_async
from ..._core.http.flow import ExchangeEnded, PassThrough, Respond, RunHandler
from ..._core.http.message import Fields
from ..._core.http.problems import Problem, RequestRefused
from ..._edges.http_guard import HttpGuard, perform
from ..._edges.wsgi_input import has_unsized_body
from ._exchange import DjangoExchange
from ._messages import fields_of, request_of, response_of
from ._settings import configured, is_tested
from ._streams import AsyncStream, BlockingStream, Stream

__all__ = ["IdempotencyMiddleware"]


class IdempotencyMiddleware:
    """Django makes one for each handler, from the setting TWICESAFE."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[DjangoRequest], Any]) -> None:
        self.get_response = get_response
        self._awaits = iscoroutinefunction(get_response)
        if self._awaits:
            markcoroutinefunction(self)
        self.policy, self.receiver = configured(awaits=self._awaits)
        self._guard = HttpGuard(self.receiver, self.policy, is_test=is_tested())
        self._rules = self._guard.rules
        self._running: set[asyncio.Task[Any]] = set()

    def __call__(self, request: DjangoRequest) -> Any:
        fields = fields_of(request)
        if not self._rules.concerns(request.method, fields):
            return self.get_response(request)
        return (self._keyed_async if self._awaits else self._keyed)(request, fields)

    def _whole_body(self, request: DjangoRequest) -> bytes:
        announced = request.headers.get("Content-Length") or ""
        if not announced.isdigit() and _hides_its_body(request):
            raise RequestRefused(Problem("length-required"))
        body: bytes = request.body
        if announced.isdigit() and len(body) < int(announced):
            raise RequestRefused(Problem("request-incomplete"))
        self._rules.require_size(len(body))
        return body

    def _begin(
        self, request: DjangoRequest, step: PassThrough | RunHandler | None
    ) -> DjangoExchange | None:
        """Prepare the request for the view. None: its response is not recorded."""
        if step != PassThrough() and not self.policy.forward_key:
            for name in self._rules.names:
                request.META.pop("HTTP_" + name.decode().upper().replace("-", "_"), None)
            request.__dict__.pop("headers", None)  # a cached copy of META
        return DjangoExchange(step.exchange, request) if isinstance(step, RunHandler) else None

    # -- blocking -------------------------------------------------------------------------------

    def _keyed(self, request: DjangoRequest, fields: Fields) -> Any:
        read = partial(self._whole_body, request)
        step = drive(self._guard.admit(request_of(request, fields), read), perform)
        if isinstance(step, Respond):
            return response_of(step.response)
        exchange = self._begin(request, step)
        return self._work(request, exchange) if exchange else self.get_response(request)

    def _work(self, request: DjangoRequest, exchange: DjangoExchange) -> Any:
        try:
            response = self.get_response(request)
            streams = exchange.begin(response)
            parts = iter(response) if streams else None  # takes all of an async stream
        except BaseException as error:
            exchange.noticed(error)
            self.end(exchange)
            raise
        if parts is not None:
            exchange.claim.leave_context()  # the stream may be taken or closed in another context
            return _streaming(response, Stream(self, exchange, parts))
        return _answer(self.end(exchange), response)

    def settle(self, exchange: DjangoExchange) -> ExchangeEnded:
        """Record how the key ends, before the end of the response is sent."""
        return drive(exchange.ending(), perform)

    def end(self, exchange: DjangoExchange) -> ExchangeEnded:
        try:
            return self.settle(exchange)
        finally:
            exchange.claim.leave()

    # -- async ----------------------------------------------------------------------------------

    async def _keyed_async(self, request: DjangoRequest, fields: Fields) -> Any:
        async def read() -> bytes:
            if hasattr(request, "auser"):
                request.user = await request.auser()  # a later lookup would block the loop
            return self._whole_body(request)

        step = await drive_async(self._guard.admit(request_of(request, fields), read), perform)
        if isinstance(step, Respond):
            return response_of(step.response)
        exchange = self._begin(request, step)
        if exchange is None:
            return await self.get_response(request)
        task = self.start(self._work_async(request, exchange))
        exchange.claim.leave_context()  # the claim lives on in the context of the task
        try:
            return await asyncio.shield(task)  # Django cancels this wait, not the view
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: exchange.left())
            raise

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that runs to its end even if its caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._running.add(task)  # the event loop holds only a weak reference
        task.add_done_callback(self._running.discard)
        return task

    async def _work_async(self, request: DjangoRequest, exchange: DjangoExchange) -> Any:
        try:
            response = await self.get_response(request)
            streams = exchange.begin(response)
        except BaseException as error:
            exchange.noticed(error)
            await self.end_async(exchange)
            raise
        if streams:
            if response.is_async:
                exchange.stream = response.streaming_content = AsyncStream(self, exchange, response)
                return response
            parts = response.streaming_content
            exchange.stream = BlockingStream(self, exchange, parts)
            return _streaming(response, exchange.stream)
        return _answer(await self.end_async(exchange), response)

    async def settle_async(self, exchange: DjangoExchange) -> ExchangeEnded:
        return await drive_async(exchange.ending(), perform)

    async def end_async(self, exchange: DjangoExchange) -> ExchangeEnded:
        try:
            return await self.settle_async(exchange)
        finally:
            await exchange.claim.leave()


def _answer(ended: ExchangeEnded, response: Any) -> Any:
    """The response of the view, or the problem that replaces it."""
    return response if ended.response is None else response_of(ended.response)


def _streaming(response: Any, stream: Stream) -> Any:
    response.streaming_content = stream
    closers = response._resource_closers
    closers.insert(0, closers.pop())  # ours must run before those of the view
    return response


def _hides_its_body(request: DjangoRequest) -> bool:
    """Under WSGI Django does not read a body without a length, so we would compare an empty one."""
    environ: dict[str, Any] | None = getattr(request, "environ", None)
    return environ is not None and has_unsized_body(environ)
