"""ASGI: at most one effect per Idempotency-Key, in front of any ASGI application.

    app.add_middleware(IdempotencyMiddleware, receiver=AsyncReceiver.open("sqlite:///keys.db"))

What it promises, and how:

- Requests without a key, other methods, websockets and lifespan events pass through untouched.
- The key is claimed when the whole body has arrived: a broken upload leaves no trace.
- The handler runs in a task of its own: a client that goes away neither cancels it nor loses its
  result. So it is not told of the disconnect while its result can still be recorded; a stream that
  is too long to be kept, or that lingers on, is told, as its server would have told it.
- A response streams through while it is recorded, and the record is written before its last chunk
  is sent: a retry that is sent on seeing the end finds it.
- An exception, a cut or a short response leave the outcome unknown: the key is held, and the client
  is told so (`on_unknown`).

Everything that is decided is decided in `core.http`. Compression and CORS belong outside of this
layer, authentication and rate limits too where possible.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from . import events
from .claims import AsyncClaim
from .core.http.message import HttpRequest, StoredResponse
from .core.http.policy import HttpPolicy
from .core.http.problems import Problem, Refused
from .core.http.recording import Ending
from .core.http.rules import Admission, Rules
from .core.http.stored import NOT_KEPT
from .errors import (
    ConfigurationError,
    CorruptRecordError,
    ResultError,
    StoreUnavailableError,
    TwicesafeError,
)
from .policy import seconds
from .receiver import AsyncReceiver

__all__ = ["IdempotencyMiddleware"]

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger("twicesafe")

_BY_FILE = ("http.response.pathsend", "http.response.zerocopysend")
"""Ways to send a body that never passes by, and so cannot be recorded."""


class IdempotencyMiddleware:
    """Put it around an application, with a receiver and, if need be, an `HttpPolicy`."""

    def __init__(
        self, app: App, *, receiver: AsyncReceiver, policy: HttpPolicy | None = None
    ) -> None:
        if not isinstance(receiver, AsyncReceiver):
            raise ConfigurationError(
                f"receiver={receiver!r} makes no sense: twicesafe.asgi needs an AsyncReceiver "
                "(twicesafe.wsgi a Receiver)"
            )
        if policy is not None and not isinstance(policy, HttpPolicy):
            raise ConfigurationError(f"policy={policy!r} makes no sense: use an HttpPolicy(…)")
        self.app = app
        self.policy = policy or HttpPolicy()
        self._rules = Rules(self.policy, receiver.scope)
        self._holding, self._rerunning = (
            receiver.options(policy=self.policy.receiver_policy(rerun=rerun), fingerprint=None)
            for rerun in (False, True)
        )
        self._running: set[asyncio.Task[None]] = set()
        if not receiver.store.capabilities.shared:
            _log.warning("%s knows the keys of this one process only", receiver.store.url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._rules.concerns(scope["method"], scope["headers"]):
            return await self.app(scope, receive, send)
        return await self._keyed(scope, receive, send)

    async def _keyed(self, scope: Scope, receive: Receive, send: Send) -> None:
        rules, request = self._rules, _request_of(scope)
        try:
            looked = rules.look(request)
            if looked is None:
                return await self.app(scope, receive, send)
            body = await _body(receive, rules)
            if body is None:
                return None  # the client went away in mid-upload: nothing was claimed
            request = _request_of(scope, body)
            admission = rules.admit(request, looked)
        except Refused as refusal:
            return await _answer(send, rules.refuse(request, refusal.problem))
        if admission is None:
            return await self.app(scope, _again(body, receive), send)
        scope = _forwarded(scope, rules)
        receiver = self._rerunning if admission.reruns else self._holding
        claim = receiver.claim(
            admission.key, fingerprint=admission.fingerprint, returns=StoredResponse
        )
        if claim._is_held_around:  # by another layer on this store
            return await self.app(scope, _again(body, receive), send)
        try:
            await claim.__aenter__()
        except TwicesafeError as error:
            if isinstance(error, StoreUnavailableError) and self.policy.fail_open:
                receiver._notify(events.Unprotected(admission.key))
                return await self.app(scope, _again(body, receive), send)
            if isinstance(error, CorruptRecordError):
                _log.error("%s", error)
            return await _answer(send, rules.refuse_error(request, error))
        if not claim.is_new:
            stored: StoredResponse = claim.result
            await claim.__aexit__(None, None, None)
            return await _answer(send, rules.replay(request, stored))
        return await self._work(_Exchange(rules, admission, request, claim, receive, send), scope)

    async def _work(self, exchange: _Exchange, scope: Scope) -> None:
        task = asyncio.ensure_future(exchange.run(self.app, scope))
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


class _Exchange:
    """One keyed request: between the server, the application and the claim."""

    __slots__ = (
        "_admission",
        "_delivered",
        "_disconnected",
        "_dismissed",
        "_gone",
        "_impatient",
        "_receive",
        "_recording",
        "_request",
        "_rules",
        "_send",
        "_settled",
        "_started",
        "_tells_by_send",
        "_trouble",
        "_watch",
        "claim",
        "over",
    )

    def __init__(
        self,
        rules: Rules,
        admission: Admission,
        request: HttpRequest,
        claim: AsyncClaim,
        receive: Receive,
        send: Send,
    ) -> None:
        self._rules, self._admission, self._request = rules, admission, request
        self.claim = claim
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receive, self._send = receive, send
        self._recording = rules.recording()
        self._delivered = self._gone = self._settled = self._started = False
        self._impatient = self._dismissed = self._tells_by_send = False
        self._disconnected = asyncio.Event()
        """The application may know that nobody listens any more."""
        self._watch: asyncio.Task[None] | None = None
        self._trouble: Exception | None = None

    async def run(self, app: App, scope: Scope) -> None:
        """All of it, in a task of its own; how it ended is told through `over`."""
        self._tells_by_send = _version(scope) >= (2, 4)
        trouble: BaseException | None = None
        try:
            await self._work(app, scope)
        except BaseException as error:
            trouble = error
        self._disconnected.set()
        if self._watch is not None:
            self._watch.cancel()
        try:
            await self.claim.__aexit__(None, trouble, None)
        except BaseException as error:
            trouble = trouble or error
        trouble = trouble or self._trouble
        if not self.over.done():
            self.over.set_result(None) if trouble is None else self.over.set_exception(trouble)
        elif trouble is not None:
            _log.error("a handler failed after its client was gone", exc_info=trouble)

    async def _work(self, app: App, scope: Scope) -> None:
        trouble: BaseException | None = None
        try:
            await app(scope, self.receive, self.send)
        except Refused as refusal:  # it says itself that it did nothing
            if self._started:
                trouble = refusal
            else:
                await self._told(self.claim.release())
                await self._pass_all(self._rules.refuse(self._request, refusal.problem))
                return
        except BaseException as error:
            trouble = error
        if not self._settled:
            await self._unfinished(trouble)
        if trouble is not None:
            raise trouble

    async def _unfinished(self, trouble: BaseException | None) -> None:
        """The application ended, and its response did not."""
        if self._dismissed and isinstance(trouble, Exception | None):
            await self._record(NOT_KEPT)  # it was told to stop: it is done, and nobody has it all
        elif self._admission.reruns:
            if trouble is None:
                raise _Cut("the application returned in the middle of its response")
        else:
            await self._hold(trouble)
            if not self._started:
                problem = Problem("outcome-unknown")
                await self._pass_all(self._rules.refuse(self._request, problem))

    # -- what the application calls -------------------------------------------------------------

    async def receive(self) -> Message:
        if not self._delivered:
            self._delivered = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._until_gone())
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._recording.start(message["status"], message.get("headers", ()))
            await self._pass(message)
        elif kind != "http.response.body":
            await self._pass(message)  # trailers and early hints are no part of the record
        else:
            last = not message.get("more_body", False)
            whole = self._recording.feed(message.get("body", b""))
            if (last or whole) and not self._settled:
                await self._settle()
            await self._pass(message)
            if last:
                self._disconnected.set()
                return
            self._dismiss()
            if self._dismissed and self._tells_by_send:
                raise OSError("the client is gone")

    # -- how the key ends -----------------------------------------------------------------------

    async def _settle(self) -> None:
        ending = self._recording.end()
        if ending is Ending.KEEP:
            await self._record(self._recording.result())
            if self._recording.trouble is not None:
                _log.error("redact failed, so nothing was kept", exc_info=self._recording.trouble)
        elif ending is Ending.RELEASE:
            await self._told(self.claim.release())
        elif not self._admission.reruns:
            await self._hold(None)

    async def _record(self, result: object) -> None:
        await self._told(self.claim.complete(result))

    async def _hold(self, trouble: BaseException | None) -> None:
        why = "response cut" if trouble is None else type(trouble).__qualname__
        await self._told(self.claim.hold(why))

    async def _told(self, telling: Awaitable[None]) -> None:
        """The response is the client's, whether or not its record could be written."""
        self._settled = True
        try:
            await telling
        except ResultError:
            return  # recorded as done without its result, and an event said so
        except TwicesafeError as error:
            _log.warning("a response was delivered that is not on record: %s", error)

    # -- the client -----------------------------------------------------------------------------

    async def _pass(self, message: Message) -> None:
        if self._gone:
            return
        try:
            await self._send(message)
            self._started = True
        except OSError:
            self.client_left()
        except Exception as error:  # the server's own; it shall see it, once this is recorded
            self._trouble = self._trouble or error
            self.client_left()

    async def _pass_all(self, response: StoredResponse) -> None:
        for message in _messages(response):
            await self._pass(message)

    async def _until_gone(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except Exception as error:
            _log.debug("a server's receive() failed: %r", error)
        self.client_left()

    def client_left(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._dismiss()
        linger = seconds(self._rules.policy.linger)
        asyncio.get_running_loop().call_later(linger, self._lingered)

    def _lingered(self) -> None:
        self._impatient = True
        self._dismiss()

    def _dismiss(self) -> None:
        """Nobody listens, and nothing is lost: the stream may know. One that still computes is left
        to its end."""
        recording = self._recording
        if self._gone and (recording.overflowed or (self._impatient and recording.size)):
            self._dismissed = True
            self._disconnected.set()


class _Cut(Exception):  # noqa: N818 - the name that is kept as the failure's
    """A response that did not end."""


def _request_of(scope: Scope, body: bytes = b"") -> HttpRequest:
    path: str = scope["path"]
    target = scope.get("raw_path") or path.encode("utf-8", "surrogateescape")
    query = scope.get("query_string", b"")
    return HttpRequest(scope["method"], path, target, query, scope["headers"], body, scope)


def _version(scope: Scope) -> tuple[int, ...]:
    """Of the protocol: since 2.4 a `send` to nobody raises OSError, and frameworks wait for that."""
    text: str = scope.get("asgi", {}).get("spec_version", "2.0")
    return tuple(map(int, text.split(".")))


def _forwarded(scope: Scope, rules: Rules) -> Scope:
    """The scope that the handler gets: everything it had, but no way around the recording."""
    changed = dict(scope)
    changed["headers"] = rules.forwarded(scope["headers"])
    extensions = scope.get("extensions")
    if extensions and any(name in extensions for name in _BY_FILE):
        changed["extensions"] = {n: e for n, e in extensions.items() if n not in _BY_FILE}
    return changed


async def _body(receive: Receive, rules: Rules) -> bytes | None:
    """The whole body; None: the client went away before it was whole."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        rules.require_size(size)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read already, then goes on."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _messages(response: StoredResponse) -> tuple[Message, Message]:
    return (
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": list(response.headers),
        },
        {"type": "http.response.body", "body": response.body, "more_body": False},
    )


async def _answer(send: Send, response: StoredResponse) -> None:
    for message in _messages(response):
        await send(message)
