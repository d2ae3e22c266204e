"""The server: uvicorn's HTTP/1.1, with a guard before its parser, and time-outs for slow clients.

The `RequestGuard` of a connection checks every byte before the parser sees it. The parser gets whole
lines only, and nothing after the last request. An ambiguous request is answered with 400 and the
connection is closed. If an earlier request is still being answered, that answer is finished first. A
client that does not finish its head, or stops within its body, is disconnected after a time-out.

Every request starts in an empty context, so it never sees the key of an earlier request on the same
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Generator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .._core.http.policy import HttpPolicy
from .._core.http.problems import Problem, problem_response
from .._core.http.wire import Ambiguous, RequestGuard

__all__ = ["server"]

_log = logging.getLogger("twicesafe._proxy")

_LAST_CALL = 1.0
"""How long a connection without a request is kept when the server stops."""
_LAST_WORD = 2.0
"""How long input is read and ignored after a 400: closing at once could lose the response."""


def server(
    app: Any,
    *,
    client_timeout: float = 30,
    keep_alive: float = 75,
    max_head: int = 65536,
    grace: float = 30,
    problem_base: str = HttpPolicy().problem_base,
) -> uvicorn.Server:
    """A server for this application; it neither trusts nor adds any header field."""

    settings = {"client_timeout": client_timeout, "most": max_head, "base": problem_base}
    config = uvicorn.Config(
        app,
        loop="asyncio",  # as a worker runs it, also where uvloop is installed
        http=type("Listening", (_Listening,), settings),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=grace,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=max_head + 1024,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """A server without signal handlers: the worker sets `should_exit`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Listening(H11Protocol):
    client_timeout = 30.0
    most = 65536
    base = ""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.access_log = False
        self._guard = RequestGuard(self.most)
        self._alarm: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._refused = self._leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        if self._writing is not None:
            self._writing.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        guard = self._guard
        was_in_head = guard.in_head and not guard.rests
        try:
            judged = guard.feed(data)
        except Ambiguous as finding:
            self._refuse(finding)
            return
        if guard.rests:
            self._relax()
        elif not (was_in_head and guard.in_head):  # a head has one time for all of it
            self._watch()
        if judged:  # an empty result would mean the end of the connection
            super().data_received(judged)
        cycle: Any = self.cycle
        if self._leaving and cycle is not None:
            cycle.keep_alive = False

    def handle_events(self) -> None:
        contextvars.Context().run(super().handle_events)

    def on_response_complete(self) -> None:
        contextvars.Context().run(super().on_response_complete)
        self._watch_writing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_writing()

    def send_400_response(self, msg: str) -> None:
        """The parser rejected what the guard accepted. That is a bug, so it is logged."""
        _log.error("the parser rejected a request that the guard accepted: %s", msg)
        self._refuse(Ambiguous("it cannot be parsed"))

    def shutdown(self) -> None:
        """The server stops. A client that has just connected may still send one request."""
        cycle: Any = self.cycle
        if cycle is not None:
            super().shutdown()
        else:
            self._leaving = True
            self.loop.call_later(min(_LAST_CALL, self.client_timeout), self._leave)

    def _leave(self) -> None:
        cycle: Any = self.cycle
        if cycle is None:
            self.transport.close()

    def _refuse(self, finding: Ambiguous) -> None:
        self._refused = True
        self._relax()
        _log.warning("a request of %s was refused: %s", self._named(), finding)
        cycle: Any = self.cycle  # None before the first request
        if self.conn.their_state in (h11.SEND_BODY, h11.ERROR) and cycle is not None:
            self.transport.close()  # a request is under way that can never become whole
            return
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            return
        detail = f"{str(finding).capitalize()}."
        response = problem_response(
            Problem("request-malformed", detail=detail),
            statuses={},
            base=self.base,
            documentation="",
            exposes=False,
        )
        lines = [b"HTTP/1.1 400 Bad Request", b"connection: close"]
        lines += [name + b": " + value for name, value in response.headers]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + response.body)
        self.transport.write_eof()
        self._alarm = self.loop.call_later(
            min(_LAST_WORD, self.client_timeout), self.transport.close
        )

    def _named(self) -> str:
        """The peer and, once its head is complete, the current request."""
        peer = self.client[0] if self.client else "unknown"
        line = self._guard.line.partition(b"?")[0] if self._guard.in_body else b""
        return f"{peer} ({line[:200].decode('ascii')})" if line else peer

    # -- time limits -----------------------------------------------------------------------------

    def _watch(self) -> None:
        self._relax()
        self._alarm = self.loop.call_later(self.client_timeout, self._timed_out)

    def _relax(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _timed_out(self) -> None:
        self._alarm = None
        if self._guard.rests and self.cycle is not None:
            return
        cycle: Any = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if (self._guard.in_body and self.flow.read_paused) or (
            self._guard.in_head and is_answering
        ):
            self._watch()  # we stopped reading, or have not answered yet
            return
        if not self._guard.rests:
            _log.warning(
                "%s did not finish its request in %g s", self._named(), self.client_timeout
            )
        self.transport.close()

    def _watch_writing(self) -> None:
        """A written response may still wait in memory for the client, even after the close."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        left = self.transport.get_write_buffer_size()
        if left:
            self._writing = self.loop.call_later(
                self.client_timeout, self._not_taken, left, context=contextvars.Context()
            )

    def _not_taken(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            return self._watch_writing()
        peer = self.client[0] if self.client else "unknown"
        _log.warning(
            "%s read nothing of its response for %g s and was disconnected",
            peer,
            self.client_timeout,
        )
        return self.transport.abort()
