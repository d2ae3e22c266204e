"""One running request. The server sees it as the body of the response."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import Context
from typing import Any

from .._core.driving import drive
from .._core.http.flow import Exchange
from .._edges.http_guard import perform
from .._values.settings import seconds
from ._environ import App, Environ, StartResponse, Write, answer

__all__ = ["WsgiExchange"]

_log = logging.getLogger("twicesafe")


class WsgiExchange:
    """Connects the server, the application and the flow that ends the key."""

    def __init__(
        self, exchange: Exchange, context: Context, own: Context, start_response: StartResponse
    ) -> None:
        """The application runs in `context`, which holds the claim; `own` is the server's context."""
        self._exchange, self._recording = exchange, exchange.recording
        self._context, self._own, self._respond = context, own, start_response
        self._over = self._closed = False
        self._has_begun = self._has_sent = False
        """The server has got a head; it has got a part of the body, and has sent both."""
        self._body: Iterable[bytes] = ()
        self._chunks: Iterator[bytes] = iter(())

    def begin(self, app: App, environ: Environ) -> Iterable[bytes]:
        try:
            self._body = self._context.run(app, environ, self.start_response)
            if isinstance(self._body, (list, tuple)):
                return self._whole(self._body)
            if self._recording.has_no_body:
                # Granian sends the head before it takes the first chunk
                return self._whole(self._context.run(list, self._body))
            self._chunks = iter(self._body)
        except BaseException as error:
            return self._failed(error)
        return self

    def _whole(self, body: Sequence[bytes]) -> Iterable[bytes]:
        """Record a body that is already complete, and let the server see its length."""
        for chunk in body:
            self._recording.feed(chunk)
        self._over = True
        self._settle()
        self.close()
        return body

    # -- what the application calls -----------------------------------------------------------

    def start_response(
        self, status: str, headers: Iterable[tuple[str, str]], exc_info: Any = None
    ) -> Write:
        headers = headers if isinstance(headers, list) else list(headers)  # read twice
        more = () if exc_info is None else (exc_info,)
        server_write = self._own.run(self._respond, status, headers, *more)
        self._has_begun = True
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._recording.start(int(status[:3]), lines)

        def write(data: bytes) -> object:
            if self._recording.feed(data):
                self._settle()
            self._has_sent = True
            return self._own.run(server_write, data)

        return write

    # -- what the server calls ----------------------------------------------------------------

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._over:
            raise StopIteration
        try:
            return self._take()
        except StopIteration:
            self._over = True
            self._settle()
            raise
        except BaseException as error:
            return self._failed(error)[0]

    def close(self) -> None:
        """The server takes no more. If the response has not ended, take the rest of it."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._exchange.settled and not self._over:
                self._drain()
        finally:
            close = getattr(self._body, "close", None)
            try:
                if close is not None:
                    self._context.run(close)
            finally:
                self._exchange.claim.leave()

    def __del__(self) -> None:
        if not self._closed:  # some servers do not close it after a disconnect
            self.close()

    # -- the response -------------------------------------------------------------------------

    def _take(self) -> bytes:
        chunk: bytes = self._context.run(next, self._chunks)
        if self._recording.feed(chunk):
            self._settle()
        self._has_sent = True
        return chunk

    def _settle(self) -> None:
        if not self._exchange.settled:
            drive(self._exchange.settle(), perform)

    def _drain(self) -> None:
        """After a disconnect: take the rest while it can be kept and within `linger`."""
        until = time.monotonic() + seconds(self._exchange.rules.policy.linger)
        try:
            while not self._exchange.settled:
                lingered = time.monotonic() > until
                if self._exchange.is_not_kept(lingered=lingered):
                    drive(self._exchange.client_left(lingered=lingered), perform)
                else:
                    self._take()
        except StopIteration:
            self._settle()
        except BaseException as error:
            drive(self._exchange.ended(error, started=True), perform)
            raise

    def _failed(self, error: BaseException) -> list[bytes]:
        """The application raised. After a part of the body, the server must see the error and cut
        the response: not every server refuses a second head then (Granian does not). Before that, a
        head can be replaced."""
        self._over = True
        ended = drive(self._exchange.ended(error, started=self._has_sent), perform)
        self.close()
        if ended.response is None or not isinstance(error, Exception):
            raise error
        if ended.error is not None:
            _log.error("the handler of a keyed request failed", exc_info=error)
        # uWSGI fails if it gets an error with a first head
        return answer(self._respond, ended.response, error if self._has_begun else None)
