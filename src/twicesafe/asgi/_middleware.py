"""The middleware: which requests are keyed, claimed, replayed or refused."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

from .._core.http.message import StoredResponse
from .._core.http.policy import HttpPolicy
from .._core.http.problems import Refused
from .._edges.http_guard import Guard
from ..errors import TwicesafeError
from ..receiver import AsyncReceiver
from ..receiver._base import check_receiver
from ..receiver._claim import AsyncClaim
from ._exchange import Exchange
from ._messages import (
    App,
    Inner,
    Message,
    Receive,
    Scope,
    Send,
    again,
    answer,
    request_of,
    whole_body,
)

__all__ = ["IdempotencyMiddleware"]


class IdempotencyMiddleware:
    """Put it around an application, with a receiver and, if need be, an `HttpPolicy`."""

    def __init__(
        self, app: App, *, receiver: AsyncReceiver, policy: HttpPolicy | None = None
    ) -> None:
        check_receiver(receiver, AsyncReceiver, "twicesafe.asgi")
        self.app = app
        self._guard = Guard(receiver, policy)
        self.policy, self._rules = self._guard.policy, self._guard.rules
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._rules.concerns(scope["method"], scope["headers"]):
            return await self.app(scope, receive, send)
        return await self._keyed(scope, receive, send)

    async def _keyed(self, scope: Scope, receive: Receive, send: Send) -> None:
        rules, request = self._rules, request_of(scope)
        try:
            looked = rules.look(request)
            if looked is None:
                return await self.app(scope, receive, send)
            body = await whole_body(receive, rules)
            if body is None:
                return None  # the client went away in mid-upload: nothing was claimed
            request = request_of(scope, body)
            admission = rules.admit(request, looked)
        except Refused as refused:
            return await answer(send, rules.refuse(request, refused.problem))
        if admission is None:
            return await self.app(scope, again(body, receive), send)
        claim: AsyncClaim[StoredResponse] = self._guard.claim(admission)
        if claim._is_held_around:  # by another layer on this store
            return await self._unrecorded(scope, again(body, receive), send)
        own = copy_context()  # the server's: the claim is not in it
        try:
            await claim.__aenter__()
        except TwicesafeError as error:
            refusal = self._guard.refusal(request, admission, error)
            if refusal is None:
                return await self._unrecorded(scope, again(body, receive), send)
            return await answer(send, refusal)
        if not claim.is_new:
            stored: StoredResponse = claim.result
            await claim.__aexit__(None, None, None)
            return await answer(send, rules.replay(request, stored))
        inner = Inner(scope, rules)
        return await self._work(
            Exchange(rules, admission, request, claim, inner, receive, send, own)
        )

    async def _unrecorded(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = Inner(scope, self._rules, records=False)

        async def telling(message: Message) -> None:
            inner.tell_outer()
            await send(message)

        try:
            await self.app(inner.scope, receive, telling)
        finally:
            inner.tell_outer()

    async def _work(self, exchange: Exchange) -> None:
        task = asyncio.ensure_future(exchange.run(self.app))
        exchange.claim._step_out()  # the claim goes on in the task's own context
        self._running.add(task)  # the loop itself would let it be collected
        task.add_done_callback(self._running.discard)
        try:
            await exchange.over  # not the task: who is cancelled here would cancel it
        except asyncio.CancelledError:
            exchange.client_left()
            raise

    async def finish(self, grace: float) -> None:
        """Before the loop ends: let handlers end whose clients are gone; then stop them.

        A handler that is stopped leaves its outcome unknown, and that is recorded.
        """
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
