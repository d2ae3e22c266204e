"""The ASGI middleware: performs the flow of a keyed request (`_core.http.flow`)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any, Final

from .._core.http.flow import Respond, RunHandler
from .._core.http.policy import HttpPolicy
from .._edges.http_guard import HttpGuard, admit_fast
from ..receiver import AsyncReceiver
from ..receiver._base import check_receiver
from ._exchange import AsgiExchange
from ._messages import (
    App,
    InnerScope,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    request_of,
    whole_body,
    with_body,
)

__all__ = ["IdempotencyMiddleware"]


class IdempotencyMiddleware:
    """Wraps an application. Needs a receiver; `policy` is optional."""

    def __init__(
        self, app: App, *, receiver: AsyncReceiver, policy: HttpPolicy | None = None
    ) -> None:
        check_receiver(receiver, AsyncReceiver, "twicesafe.asgi")
        self.app = app
        self._guard = HttpGuard(receiver, policy)
        self.policy, self._rules = self._guard.policy, self._guard.rules
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._rules.concerns(scope["method"], scope["headers"]):
            return await self.app(scope, receive, send)
        own = copy_context()  # the server's context, without the claim
        step = await admit_fast(self._guard, request_of(scope), whole_body, receive, self._rules)
        if isinstance(step, RunHandler):
            inner = InnerScope(scope, self._rules)
            running = AsgiExchange(step.exchange, inner, receive, send, own)
            inside = copy_context()  # the claim lives on in the context of the task
            step.exchange.claim.leave_context()
            task = _started(running.run(self.app), inside)
            self._running.add(task)  # the event loop holds only a weak reference
            try:
                return await running.over  # a cancellation here must not cancel the task
            except asyncio.CancelledError:
                running.client_left()
                raise
            finally:
                if task.done():
                    self._running.discard(task)
                    del running.over  # its error refers to this frame: a reference cycle
                else:
                    task.add_done_callback(self._running.discard)
        if isinstance(step, Respond):
            return await answer(send, step.response)
        if step is None:
            return None
        if step.request is None:
            return await self.app(scope, receive, send)
        return await self._run_unrecorded(scope, with_body(step.request.body, receive), send)

    async def _run_unrecorded(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = InnerScope(scope, self._rules, records=False)

        async def copying_send(message: Message) -> None:
            inner.copy_to_outer()
            await send(message)

        try:
            await self.app(inner.scope, receive, copying_send)
        finally:
            inner.copy_to_outer()

    async def finish(self, grace: float) -> None:
        """Wait `grace` seconds for running handlers, then cancel them.

        Call it before the event loop ends. A cancelled handler is recorded as outcome unknown.
        """
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _started(work: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]:
    """A task that runs in this context. It starts at once, if Python and its event loop can: a task that
    first waits for its turn costs the loop another round."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        return asyncio.Task(work, loop=loop, context=context, **_AT_ONCE)
    return context.run(loop.create_task, work)


_AT_ONCE: Final[Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
