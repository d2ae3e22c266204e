"""One keyed request under way: its response is passed on, recorded, and decides how its key ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextvars import Context
from typing import Any

from .._core.http.message import HttpRequest, StoredResponse
from .._core.http.problems import Problem, Refused
from .._core.http.recording import Ending
from .._core.http.rules import Admission, Rules
from .._core.http.stored import NOT_KEPT
from .._values.settings import seconds
from ..errors import ResultError, TwicesafeError
from ..receiver._claim import AsyncClaim
from ._connection import Client
from ._messages import App, Inner, Message, Receive, Send, is_event_stream, messages, version_of

__all__ = ["Exchange"]

_log = logging.getLogger("twicesafe")


class Exchange:
    """One keyed request: between the server, the application and the claim."""

    __slots__ = (
        "_admission",
        "_alarm",
        "_client",
        "_delivered",
        "_disconnected",
        "_dismissed",
        "_impatient",
        "_inner",
        "_recording",
        "_request",
        "_rules",
        "_settled",
        "_streams",
        "_tells_by_send",
        "_writing_off",
        "claim",
        "over",
    )

    def __init__(
        self,
        rules: Rules,
        admission: Admission,
        request: HttpRequest,
        claim: AsyncClaim[Any],
        inner: Inner,
        receive: Receive,
        send: Send,
        context: Context,
    ) -> None:
        """`context`: the server's own, in which `receive` and `send` are called."""
        self._rules, self._admission, self._request = rules, admission, request
        self.claim = claim
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inner = inner
        self._client = Client(receive, send, context, self._client_left)
        self._recording = rules.recording()
        self._delivered = self._settled = self._streams = False
        self._impatient = self._dismissed = False
        self._tells_by_send = version_of(inner.scope) >= (2, 4)
        self._disconnected = asyncio.Event()
        """The application may know that its client is gone."""
        self._alarm: asyncio.TimerHandle | None = None
        self._writing_off: asyncio.Task[None] | None = None

    async def run(self, app: App) -> None:
        """All of it, in a task of its own; `over` tells how it ended."""
        trouble: BaseException | None = None
        try:
            await self._work(app)
        except BaseException as error:
            trouble = error
        self._disconnected.set()
        self._client.close()
        if self._alarm is not None:
            self._alarm.cancel()  # it would keep all of this in memory until it rings
        try:
            if self._writing_off is not None:
                await asyncio.wait({self._writing_off})
            await self.claim.__aexit__(None, trouble, None)
        except BaseException as error:
            trouble = trouble or error
        self._inner.tell_outer()
        trouble = trouble or self._client.trouble
        if not self.over.done():
            self.over.set_result(None) if trouble is None else self.over.set_exception(trouble)
        elif trouble is not None:
            _log.error("a handler failed after its client was gone", exc_info=trouble)

    async def _work(self, app: App) -> None:
        trouble: BaseException | None = None
        try:
            await app(self._inner.scope, self.receive, self.send)
        except Refused as refusal:  # it says itself that it did nothing
            if self._client.started or self._settled:
                trouble = refusal
            else:
                await self._told(self.claim.release())
                await self._send_all(self._rules.refuse(self._request, refusal.problem))
                return
        except BaseException as error:
            trouble = error
        if not self._settled:
            await self._unfinished(trouble)
        if trouble is not None:
            raise trouble

    async def _unfinished(self, trouble: BaseException | None) -> None:
        """The application ended, and its response did not."""
        if self._admission.reruns:
            if trouble is None:
                raise _Cut("the application returned in the middle of its response")
        else:
            await self._hold(trouble)
            if not self._client.started:
                problem = Problem("outcome-unknown")
                await self._send_all(self._rules.refuse(self._request, problem))

    # -- what the application calls -------------------------------------------------------------

    async def receive(self) -> Message:
        if not self._delivered:
            self._delivered = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        self._client.watch()
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            fields = list(message.get("headers", ()))  # any iterable, and it is read twice
            self._recording.start(message["status"], fields)
            self._inner.tell_outer()
            if is_event_stream(fields):
                self._stream()
            await self._client.send({**message, "headers": fields})
        elif kind != "http.response.body":
            await self._client.send(message)  # trailers and early hints are no part of the record
        else:
            last = not message.get("more_body", False)
            whole = self._recording.feed(message.get("body", b""))
            if (last or whole) and not self._settled:
                await self._settle()
            if not last:
                self._stream()
            await self._client.send(message)
            if last:
                self._disconnected.set()
                return
            self._dismiss()
            if self._dismissed and self._tells_by_send:
                raise OSError("the client is gone")

    def _stream(self) -> None:
        """More is to come, maybe for ever, and the application may never ask for its client."""
        self._streams = True
        if not self._settled:
            self._client.watch()

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

    async def _send_all(self, response: StoredResponse) -> None:
        for message in messages(response):
            await self._client.send(message)

    def client_left(self) -> None:
        """The server gave up its wait: it has no client any more."""
        self._client.left()

    def _client_left(self) -> None:
        self._dismiss()
        if not self.over.done():
            linger = seconds(self._rules.policy.linger)
            self._alarm = asyncio.get_running_loop().call_later(linger, self._lingered)

    def _lingered(self) -> None:
        self._impatient = True
        self._dismiss()

    def _dismiss(self) -> None:
        """The client is gone, and its stream is too long to be kept, or goes on for too long.

        Now the application may know. An application that knows may end its stream early and politely,
        so what it sends from here on says nothing about the whole: the key is done, without a result.
        It is written at once, because a stream that does not listen may never end. A handler that has
        not begun to answer still computes: it is left to its end.
        """
        gone, recording = self._client.is_gone, self._recording
        if not gone or not (recording.overflowed or (self._impatient and self._streams)):
            return
        self._dismissed = True
        if not self._settled:
            self._settled = True
            self._writing_off = asyncio.ensure_future(self._record(NOT_KEPT))
        self._disconnected.set()


class _Cut(Exception):  # noqa: N818 - the name that is kept as the failure's
    """A response that did not end."""
