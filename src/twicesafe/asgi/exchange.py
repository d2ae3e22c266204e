"""One keyed request under way: its response is passed on, recorded, and decides how its key ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from ..claims import AsyncClaim
from ..core.http.message import HttpRequest, StoredResponse
from ..core.http.problems import Problem, Refused
from ..core.http.recording import Ending
from ..core.http.rules import Admission, Rules
from ..core.http.stored import NOT_KEPT
from ..errors import ResultError, TwicesafeError
from ..policy import seconds
from .messages import App, Message, Receive, Scope, Send, messages, version_of

__all__ = ["Exchange"]

_log = logging.getLogger("twicesafe")


class Exchange:
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
        self._tells_by_send = version_of(scope) >= (2, 4)
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
        for message in messages(response):
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
