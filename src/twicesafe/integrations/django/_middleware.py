"""The middleware: Django calls it, blocking under WSGI and awaited under ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest as DjangoRequest
from django.http import HttpResponse

from ..._core.http.message import Fields, HttpRequest
from ..._core.http.problems import Problem, Refused
from ..._core.http.rules import Admission, Looked
from ..._edges.http_guard import Guard
from ...errors import ResultError, TwicesafeError
from ._exchange import Exchange
from ._messages import fields_of, request_of, response_of
from ._settings import configured, is_tested
from ._streams import AsyncStream, BlockingStream, Stream

__all__ = ["IdempotencyMiddleware"]

_log = logging.getLogger("twicesafe")


class IdempotencyMiddleware:
    """Made by Django, once for each handler, from the setting TWICESAFE."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[DjangoRequest], Any]) -> None:
        self.get_response = get_response
        self._awaits = iscoroutinefunction(get_response)
        if self._awaits:
            markcoroutinefunction(self)
        self.policy, self.receiver = configured(awaits=self._awaits)
        self._guard = Guard(self.receiver, self.policy, is_test=is_tested())
        self._rules = self._guard.rules
        self._running: set[asyncio.Task[Any]] = set()

    def __call__(self, request: DjangoRequest) -> Any:
        fields = fields_of(request)
        if not self._rules.concerns(request.method, fields):
            return self.get_response(request)
        return (self._keyed_async if self._awaits else self._keyed)(request, fields)

    # -- what both colours do -------------------------------------------------------------------

    def _admit(
        self, request: DjangoRequest, asked: HttpRequest, looked: Looked
    ) -> tuple[HttpRequest, Admission | None]:
        """The request with its body, and its admission."""
        announced = asked.header("content-length") or ""
        if not announced.isdigit() and _hides_its_body(request):
            raise Refused(Problem("length-required"))
        body: bytes = request.body
        if announced.isdigit() and len(body) < int(announced):
            raise Refused(Problem("request-incomplete"))
        self._rules.require_size(len(body))
        whole = request_of(request, asked.headers, body)
        return whole, self._rules.admit(whole, looked)

    def _refusal(
        self, asked: HttpRequest, admission: Admission, error: TwicesafeError
    ) -> HttpResponse | None:
        """The answer to a claim that failed; None: run unprotected, as the policy wishes."""
        refusal = self._guard.refusal(asked, admission, error)
        return None if refusal is None else response_of(refusal)

    def _forward(self, request: DjangoRequest) -> None:
        if not self.policy.forward_key:
            for name in self._rules.names:
                request.META.pop("HTTP_" + name.decode().upper().replace("-", "_"), None)
            request.__dict__.pop("headers", None)  # what Django remembers of META

    # -- blocking -------------------------------------------------------------------------------

    def _keyed(self, request: DjangoRequest, fields: Fields) -> Any:
        asked = request_of(request, fields)
        try:
            looked = self._rules.look(asked)
            if looked is None:
                return self.get_response(request)
            asked, admission = self._admit(request, asked, looked)
        except Refused as refusal:
            return response_of(self._rules.refuse(asked, refusal.problem))
        if admission is None:
            return self.get_response(request)
        self._forward(request)
        claim = self._guard.claim(admission)
        if claim._is_held_around:  # by another layer on this store
            return self.get_response(request)
        try:
            claim.__enter__()
        except TwicesafeError as error:
            answer = self._refusal(asked, admission, error)
            return self.get_response(request) if answer is None else answer
        if not claim.is_new:
            stored = claim.result
            claim.__exit__(None, None, None)
            return response_of(self._rules.replay(asked, stored))
        return self._work(request, Exchange(self._rules, admission, asked, request, claim))

    def _work(self, request: DjangoRequest, exchange: Exchange) -> Any:
        try:
            response = self.get_response(request)
            streams = exchange.begin(response)
        except BaseException as error:
            exchange.noticed(error)
            self.end(exchange)
            raise
        if streams:
            exchange.claim._step_out()  # a stream may be taken, and closed, in another context
            return _streaming(response, Stream(self, exchange, iter(response)))
        self.end(exchange)
        return exchange.answer(response)

    def tell(self, exchange: Exchange) -> None:
        """The response is the client's, whether or not its record could be written."""
        act = None if exchange.settled else exchange.settle()
        try:
            if act is not None:
                act()
        except ResultError:
            return  # recorded as done without its result, and an event said so
        except TwicesafeError as error:
            _log.warning("a response was delivered that is not on record: %s", error)

    def end(self, exchange: Exchange) -> None:
        try:
            self.tell(exchange)
        finally:
            exchange.claim.__exit__(None, exchange.failure, None)

    # -- awaited --------------------------------------------------------------------------------

    async def _keyed_async(self, request: DjangoRequest, fields: Fields) -> Any:
        asked = request_of(request, fields)
        try:
            looked = self._rules.look(asked)
            if looked is None:
                return await self.get_response(request)
            if hasattr(request, "auser"):
                request.user = await request.auser()  # asked for later, it would block the loop
            asked, admission = self._admit(request, asked, looked)
        except Refused as refusal:
            return response_of(self._rules.refuse(asked, refusal.problem))
        if admission is None:
            return await self.get_response(request)
        self._forward(request)
        claim = self._guard.claim(admission)
        if claim._is_held_around:
            return await self.get_response(request)
        try:
            await claim.__aenter__()
        except TwicesafeError as error:
            answer = self._refusal(asked, admission, error)
            return await self.get_response(request) if answer is None else answer
        if not claim.is_new:
            stored = claim.result
            await claim.__aexit__(None, None, None)
            return response_of(self._rules.replay(asked, stored))
        exchange = Exchange(self._rules, admission, asked, request, claim)
        task = self.start(self._work_async(request, exchange))
        claim._step_out()  # the claim goes on in the task's own context
        try:
            return await asyncio.shield(task)  # Django cancels the wait, not the view
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: exchange.left())
            raise

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of its own, whoever waits for it or does not."""
        task = asyncio.ensure_future(work)
        self._running.add(task)  # the loop itself would let it be collected
        task.add_done_callback(self._running.discard)
        return task

    async def _work_async(self, request: DjangoRequest, exchange: Exchange) -> Any:
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
        await self.end_async(exchange)
        return exchange.answer(response)

    async def tell_async(self, exchange: Exchange) -> None:
        act = None if exchange.settled else exchange.settle()
        try:
            if act is not None:
                await act()
        except ResultError:
            return
        except TwicesafeError as error:
            _log.warning("a response was delivered that is not on record: %s", error)

    async def end_async(self, exchange: Exchange) -> None:
        try:
            await self.tell_async(exchange)
        finally:
            await exchange.claim.__aexit__(None, exchange.failure, None)


def _streaming(response: Any, stream: Stream) -> Any:
    response.streaming_content = stream
    closers = response._resource_closers
    closers.insert(0, closers.pop())  # the view's own would end the stream before ours
    return response


def _hides_its_body(request: DjangoRequest) -> bool:
    """Under WSGI Django reads no body without a length: it would be compared as if there were none."""
    environ: dict[str, Any] | None = getattr(request, "environ", None)
    if environ is None:
        return False
    ends = environ.get("wsgi.input_terminated")
    return bool(environ.get("HTTP_TRANSFER_ENCODING") or (ends and environ["wsgi.input"].read(1)))
