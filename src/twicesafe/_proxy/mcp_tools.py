"""MCP behind the proxy: a `tools/call` of a protected tool goes through the flow of tool calls.

    Front( McpTools( IdempotencyMiddleware( Upstream ) ) )

Every other message passes unchanged. A protected call is sent to the server once. What the server streams
before its answer (progress, requests to the client) reaches the client at once; the answer itself is
recorded first. A client that disconnects does not stop the call: MCP says that this is not a cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from typing import Any, Final

from .._core.http.key_field import ANONYMOUS, credentials
from .._core.http.message import HttpRequest, StoredResponse
from .._core.http.policy import HttpPolicy
from .._core.http.rules import HttpRules
from .._core.tool_calls.answers import ToolAnswer, answer_to, key_in, run_in
from .._core.tool_calls.json_rpc import (
    EventSplitter,
    RpcCall,
    UnreadableError,
    answer_message,
    event_of,
    how_it_ended,
    read_call,
    refusal_message,
    response_in,
)
from .._edges.tool_guard import Invocation, ToolGuard
from ..asgi._messages import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    request_of,
    whole_body,
    with_body,
)
from ..errors import MissingKeyError, UsageError
from ..receiver import AsyncReceiver
from .connections import Unreachable, UpstreamLost
from .mcp_settings import McpSettings

__all__ = ["McpTools"]

CLOSING: Final = 1.0
"""Seconds for which a server may keep its stream open after the answer."""


class McpTools:
    """Wraps `app`; sends protected calls to `upstream`."""

    def __init__(
        self,
        app: App,
        upstream: App,
        receiver: AsyncReceiver,
        settings: McpSettings,
        policy: HttpPolicy,
    ) -> None:
        self._app, self._upstream = app, upstream
        self._path, self._by_session = _folded(settings.path), settings.run == "session"
        self._tools = settings.each_tool()
        self._policy, self._rules = policy, HttpRules(policy, receiver.scope)
        own = policy.receiver_policy(takeover="hold").replace(
            codec=None, encryption=receiver.policy.encryption
        )
        self._guard = ToolGuard(
            receiver.options(policy=own),
            {name: each.rule() for name, each in self._tools.items()},
            keep=lambda sent: sent.response["result"],
            is_final=lambda sent: sent.ended == "done",
            states_not_done=lambda error: isinstance(error, Unreachable),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"].upper() != "POST" or _folded(scope["path"]) != self._path:
            return await self._app(scope, receive, send)
        body = await whole_body(receive, self._rules)
        if body is None:
            return None
        try:
            call = read_call(body)
        except UnreadableError as error:
            return await _respond(send, 400, refusal_message(str(error)))
        if call is None or call.tool not in self._tools:
            return await self._app(scope, with_body(body, receive), send)
        return await self._called(scope, body, call, send)

    async def _called(self, scope: Scope, body: bytes, call: RpcCall, send: Send) -> None:
        sent = _Sent(self._upstream, scope, body, call.id, send)
        sent.trusts_errors = self._tools[call.tool].errors == "not_done"
        try:
            try:
                answer = await self._guard.call_async(sent.run, self._invocation(scope, call))
            except UsageError as error:
                answer = answer_to(error, call.tool)
            except _NotFinishedError:  # takeover="retry": the client gets what the server said
                answer = ToolAnswer(state="done", tool=call.tool)
            if answer.state == "done":
                await sent.pass_on()
            else:
                await sent.say(answer_message(call.id, answer))
        finally:
            await sent.close()

    def _invocation(self, scope: Scope, call: RpcCall) -> Invocation:
        request, key = request_of(scope), key_in(call.meta)
        if key is None:
            _require_identity(call, self._tools[call.tool].identity)
        who = credentials(request, self._policy.scope, self._policy.scope_secret)  # type: ignore[arg-type]
        return Invocation(
            tool=call.tool,
            arguments=call.arguments,
            schema={},
            key=key,
            principal=None if who == ANONYMOUS else who,
            run=_session(request) if self._by_session else run_in(call.meta),
        )


class _NotFinishedError(Exception):
    """The server's answer does not say that the call is done, or that nothing was."""


class _Sent:
    """One call on its way: to the server, and its answer back to the client."""

    def __init__(self, app: App, scope: Scope, body: bytes, id_: Any, send: Send) -> None:
        # The answer must be readable here.
        fields = [line for line in scope["headers"] if line[0] != b"accept-encoding"]
        self._app, self._scope, self._send = app, {**scope, "headers": fields}, send
        self._body, self._id = body, id_
        self.trusts_errors = False
        """A result with isError says that nothing was done."""
        self.ended: str = "unknown"
        self.response: dict[str, Any] | None = None
        self._start: Message = {}
        self._held: list[bytes] = []
        """The last part of the answer, which is sent after it is recorded."""
        self._events: EventSplitter | None = None
        self._begun = self._gone = False
        self._found = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> _Sent:
        """Send the call, until its answer is here."""
        self._task = asyncio.ensure_future(self._app(self._scope, self._receive, self._take))
        found = asyncio.ensure_future(self._found.wait())
        try:
            await asyncio.wait({self._task, found}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            found.cancel()
        if not self._found.is_set():
            try:
                self._task.result()
            except Unreachable as refusal:
                raise refusal from None  # whatever led to it, nothing was sent
        status = self._start.get("status", 0)
        if self.response is None and self._events is None:
            self.response = response_in(b"".join(self._held), self._id)
        ended = how_it_ended(status, self.response)
        if ended == "failed":
            ended = "not_done" if self.trusts_errors else "unknown"
        self.ended = ended
        if ended == "unknown":
            raise _NotFinishedError(f"the server answered {status} without a usable result")
        return self

    async def close(self) -> None:
        """The server may end its stream; then the connection can be used again."""
        task = self._task
        if task is None:
            return
        await asyncio.wait({task}, timeout=CLOSING)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, UpstreamLost, Unreachable):
            await task

    async def _receive(self) -> Message:
        body, self._body = self._body, b""
        if body:
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()  # the upstream must not learn that the client has left
        raise AssertionError

    async def _take(self, message: Message) -> None:
        """One message of the server's response."""
        if message["type"] == "http.response.start":
            self._start = message
            kind = dict(message["headers"]).get(b"content-type", b"").lower()
            if message["status"] == 200 and kind.startswith(b"text/event-stream"):
                self._events = EventSplitter()
            return
        data = message.get("body", b"")
        if self._events is None:
            self._held.append(data)
            return
        for event in self._events.feed(data):
            if self.response is None:
                self.response = response_in(event, self._id)
                if self.response is None:
                    await self._stream(event)
                else:
                    self._held.append(event)
                    self._found.set()

    # -- to the client ------------------------------------------------------------------------

    async def _stream(self, data: bytes, *, more: bool = True) -> None:
        if not self._begun:
            self._begun = True
            await self._put(self._start)
        await self._put({"type": "http.response.body", "body": data, "more_body": more})

    async def _put(self, message: Message) -> None:
        if self._gone:
            return
        try:
            await self._send(message)
        except OSError:
            self._gone = True

    async def pass_on(self) -> None:
        """What the server said, as it said it."""
        await self._stream(b"".join(self._held), more=False)

    async def say(self, message: bytes) -> None:
        """Our own answer in its place."""
        if self._begun:
            await self._stream(event_of(message), more=False)
        else:
            await _respond(self._put, 200, message)


async def _respond(send: Send, status: int, message: bytes) -> None:
    fields = (
        (b"content-type", b"application/json"),
        (b"content-length", str(len(message)).encode()),
        (b"cache-control", b"no-store"),
    )
    await answer(send, StoredResponse(status, fields, message))


def _require_identity(call: RpcCall, identity: tuple[str, ...]) -> None:
    """Without the tool's schema, a wrong name in the settings shows only here: it would make all calls one."""
    for name in identity:
        found: Any = call.arguments
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found is None:
            raise MissingKeyError(
                f"the call of {call.tool} has no argument {name!r}, which the proxy's settings name as "
                "identity"
            )


def _session(request: HttpRequest) -> str | None:
    return request.header("mcp-session-id")


def _folded(path: str) -> str:
    """Paths that a router may take for one: reading too many messages does no harm."""
    return posixpath.normpath("/" + path.strip("/")).casefold()
