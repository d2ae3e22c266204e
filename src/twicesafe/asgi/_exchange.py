"""One running request: its response goes to the client and into the recording.

The server's `send` and `receive` are called in the server's own context, never in that of the claim. A
handler runs in a context in which `current_key()` is its key. `send` and `receive` may start the next
request of the connection, or register the callback that reads it, and what they start inherits the
context of the call. In the context of the claim, unrelated requests would get its key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from functools import partial
from types import CoroutineType, coroutine
from typing import Any, TypeVar

from .._core.driving import drive_async
from .._core.http.flow import Exchange, HttpFlow
from .._edges.http_guard import perform, settle_fast
from .._values.settings import seconds
from ._messages import App, InnerScope, Message, Receive, Send, answer, version_of

__all__ = ["AsgiExchange", "call_in"]

T = TypeVar("T")

_log = logging.getLogger("twicesafe")

_RESPONSE = ("http.response.start", "http.response.body")


class AsgiExchange:
    """Connects the server, the application and the flow that ends the key."""

    __slots__ = (
        "_alarm",
        "_context",
        "_delivered",
        "_disconnect_reported",
        "_ears",
        "_ending",
        "_exchange",
        "_has_ended",
        "_head",
        "_inner",
        "_is_gone",
        "_is_told",
        "_linger_is_over",
        "_receive",
        "_recording",
        "_send",
        "_send_error",
        "_send_waits",
        "_streams",
        "_watch",
        "over",
    )

    def __init__(
        self, exchange: Exchange, inner: InnerScope, receive: Receive, send: Send, context: Context
    ) -> None:
        """`receive` and `send` are called in `context`, which is the server's."""
        self._exchange, self._recording = exchange, exchange.recording
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inner = inner
        self._receive, self._send, self._context = receive, send, context
        self._send_error: Exception | None = None
        """What the server's `send` raised. The server gets it back when the key is settled."""
        self._send_waits: dict[object, asyncio.Future[Any] | None] = {}
        """What each running call of the server's `send` waits for: tasks of an application may send at once."""
        self._is_gone = False
        """The client has disconnected."""
        self._watch: asyncio.Task[None] | None = None
        """Waits for that, even while nothing is sent."""
        self._has_ended = False
        """The application has ended: a disconnect no longer matters to it."""
        self._delivered = self._streams = False
        self._head: Message | None = None
        """The head of a response without a body. Some servers send a head at once, and then the
        client has the whole response. So it is kept back until the record is written."""
        self._linger_is_over = self._disconnect_reported = False
        self._is_told = False
        """The application may learn that its client has disconnected."""
        self._ears: asyncio.Event | None = None
        """Set by then, if the application waits for it."""
        self._alarm: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    async def run(self, app: App) -> None:
        """Run the application in a separate task. `over` gets the result."""
        failure: BaseException | None = None
        try:
            await app(self._inner.scope, self.receive, self.send)
        except BaseException as error:
            failure = error
        try:
            if not self._exchange.settled:
                failure = await self._end_unfinished(failure)
        except BaseException as error:
            failure = error
        self._has_ended = True
        if not self._is_told:
            self._tell()
        if self._watch is not None:
            self._watch.cancel()
        if self._alarm is not None:
            self._alarm.cancel()  # it would keep this object alive until it fires
        try:
            if self._ending is not None:
                await asyncio.wait({self._ending})
            await self._exchange.claim.leave(failure)
        except BaseException as error:
            failure = failure or error
        self._inner.copy_to_outer()
        failure = failure or self._send_error
        if not self.over.done():
            self.over.set_result(None) if failure is None else self.over.set_exception(failure)
        elif failure is not None:
            _log.error("a handler failed after its client had disconnected", exc_info=failure)
        failure = None  # its traceback holds this frame, and `over` below holds it

    async def _end_unfinished(self, failure: BaseException | None) -> BaseException | None:
        """The application has ended before its response was complete."""
        started = self._recording.status != 0 and self._head is None
        ended = await drive_async(self._exchange.ended(failure, started=started), perform)
        if ended.response is not None:
            await answer(self._send_to_client, ended.response)
        return ended.error

    # -- what the application calls -------------------------------------------------------------

    async def receive(self) -> Message:
        if not self._delivered:
            self._delivered = True
            body = self._exchange.request.body
            return {"type": "http.request", "body": body, "more_body": False}
        self._watch_client()
        if not self._is_told:
            if self._ears is None:
                self._ears = asyncio.Event()
            await self._ears.wait()
        return {"type": "http.disconnect"}

    def _tell(self) -> None:
        self._is_told = True
        if self._ears is not None:
            self._ears.set()

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            fields = list(message.get("headers", ()))  # it may be an iterator, and is read twice
            self._recording.start(message["status"], fields)
            self._inner.copy_to_outer()
            if self._recording.is_event_stream:
                self._stream()
            head = {**message, "headers": fields}
            if self._recording.has_no_body:
                self._head = head
            else:
                await self._send_to_client(head)
        elif kind != "http.response.body":
            await self._send_to_client(message)  # trailers and early hints are not recorded
        else:
            last = not message.get("more_body", False)
            whole = self._recording.feed(message.get("body", b""))
            if (last or whole) and not self._exchange.settled:
                await settle_fast(self._exchange)
            if not last:
                self._stream()
            if self._head is not None:
                kept, self._head = self._head, None
                await self._send_to_client(kept)
            await self._send_to_client(message)
            if last:
                self._tell()
                return
            self._report_disconnect()
            if self._disconnect_reported and version_of(self._inner.scope) >= (2, 4):
                raise OSError("the client has disconnected")

    def _stream(self) -> None:
        """The response may never end, and the application may never call `receive`."""
        self._streams = True
        if not self._exchange.settled:
            self._watch_client()

    # -- the client -----------------------------------------------------------------------------

    async def _send_to_client(self, message: Message) -> None:
        """After a disconnect this does nothing and raises nothing."""
        if self._is_gone:
            return
        call = object()
        try:
            waits = partial(self._send_waits.__setitem__, call)
            await call_in(self._context, self._send, message, waits=waits)
        except OSError:
            self.client_left()
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            self.client_left()  # only the send is cancelled: see there
        except Exception as error:
            if message["type"] not in _RESPONSE:
                raise  # the server does not know it, and the application may do without
            self._send_error = self._send_error or error
            self.client_left()
        finally:
            self._send_waits.pop(call, None)

    def _watch_client(self) -> None:
        if self._watch is None and not self._is_gone:
            self._watch = asyncio.ensure_future(self._until_gone())

    async def _until_gone(self) -> None:
        try:
            while True:
                message = await call_in(self._context, self._receive)
                if message["type"] == "http.disconnect":
                    break
                await asyncio.sleep(0)  # a `receive` that never waits must not stop the loop
        except Exception as error:
            _log.debug("a server's receive() failed: %r", error)
        self.client_left()

    def client_left(self) -> None:
        """The client has disconnected, or the server has cancelled its task."""
        if self._is_gone:
            return
        self._is_gone = True
        if self._has_ended:
            return
        for what in self._send_waits.values():
            if what is not None:  # a send to a queue that nothing reads would never end
                what.cancel()
        self._report_disconnect()
        if not self.over.done():
            linger = seconds(self._exchange.rules.policy.linger)
            self._alarm = asyncio.get_running_loop().call_later(linger, self._end_linger)

    def _end_linger(self) -> None:
        self._linger_is_over = True
        self._report_disconnect()

    def _report_disconnect(self) -> None:
        """Tell the application that its client has disconnected, if its response cannot be kept.

        The application may then end its stream early, as if it were complete. So the key is first
        recorded as done without a result. That happens at once, because a stream that never looks
        for its client may never end. A handler that has not begun its response runs to its end.
        """
        lingered = self._linger_is_over and self._streams
        if not self._is_gone or not self._exchange.is_not_kept(lingered=lingered):
            return
        self._disconnect_reported = True
        if not self._exchange.settled:
            flow = self._exchange.client_left(lingered=lingered)
            self._ending = asyncio.ensure_future(_driven(flow))
        self._tell()


async def _driven(flow: HttpFlow[None]) -> None:
    await drive_async(flow, perform)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@coroutine
def call_in(
    context: Context,
    function: Callable[..., Awaitable[T]],
    *words: Any,
    waits: Callable[[Any], object] | None = None,
) -> Generator[Any, Any, T]:
    """Call and await a function of the server in this context; the caller's task does the waiting.

    `waits` gets what the function waits for: a future, or None.
    """
    run: Callable[..., Any] = context.run
    work = run(function, *words)
    if type(work) is not CoroutineType:
        work = _awaited(work)
    act: Callable[[Any], Any] = work.send
    given: Any = None
    while True:
        try:
            awaited = run(act, given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if waits is not None:
            waits(awaited)
        try:
            act, given = work.send, (yield awaited)
        except GeneratorExit:
            run(work.close)
            raise
        except BaseException as error:  # above all a cancellation, which the server must see
            act, given = work.throw, error


async def _awaited(work: Awaitable[T]) -> T:
    return await work
