"""One keyed request under way; for the server, the body of its response."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context
from typing import Any

from .._core.http.message import HttpRequest
from .._core.http.problems import Problem
from .._core.http.recording import Ending
from .._core.http.rules import Rules
from .._core.http.stored import NOT_KEPT
from .._values.settings import seconds
from ..errors import ResultError, TwicesafeError
from ..receiver._claim import Claim
from ._environ import App, Environ, StartResponse, Write, answer

__all__ = ["Exchange"]

_log = logging.getLogger("twicesafe")


class Exchange:
    """One keyed request under way; for the server, the body of its response."""

    def __init__(
        self,
        rules: Rules,
        reruns: bool,
        request: HttpRequest,
        claim: Claim[Any],
        context: Context,
        own: Context,
        start_response: StartResponse,
    ) -> None:
        """`context`: the claim's, in which the application runs; `own`: the server's."""
        self._rules, self._reruns, self._request = rules, reruns, request
        self._claim, self._context = claim, context
        self._own, self._respond = own, start_response
        self._recording = rules.recording()
        self._settled = self._over = self._closed = self._is_left = False
        self._body: Iterable[bytes] = ()
        self._chunks: Iterator[bytes] = iter(())

    def begin(self, app: App, environ: Environ) -> Iterable[bytes]:
        try:
            self._body = self._context.run(app, environ, self.start_response)
            if isinstance(self._body, (list, tuple)):
                return self._whole(self._body)
            self._chunks = iter(self._body)
        except BaseException as error:
            return self._failed(error)
        return self

    def _whole(self, body: Sequence[bytes]) -> Iterable[bytes]:
        """All of it is there: record it, and let the server see how long it is."""
        for chunk in body:
            self._recording.feed(chunk)
        self._over = True
        if not self._settled:
            self._settle()
        self.close()
        return body

    # -- what the application calls -----------------------------------------------------------

    def start_response(
        self, status: str, headers: Iterable[tuple[str, str]], exc_info: Any = None
    ) -> Write:
        headers = headers if isinstance(headers, list) else list(headers)  # it is read twice
        more = () if exc_info is None else (exc_info,)
        server_write = self._own.run(self._respond, status, headers, *more)
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._recording.start(int(status[:3]), lines)

        def write(data: bytes) -> object:
            if self._recording.feed(data) and not self._settled:
                self._settle()
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
            if not self._settled:
                self._settle()
            raise
        except BaseException as error:
            return self._failed(error)[0]

    def close(self) -> None:
        """The server is done with the response. Was the response done, too?"""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._settled and not self._over:
                self._drain()
        finally:
            close = getattr(self._body, "close", None)
            try:
                if close is not None:
                    self._context.run(close)
            finally:
                self._leave(None)

    def __del__(self) -> None:
        self.close()  # some servers forget it when a client goes away

    # -- the response -------------------------------------------------------------------------

    def _take(self) -> bytes:
        chunk: bytes = self._context.run(next, self._chunks)
        if self._recording.feed(chunk) and not self._settled:
            self._settle()
        return chunk

    def _drain(self) -> None:
        """The client went away: take the rest, as long as it can be kept and comes in time."""
        patience = time.monotonic() + seconds(self._rules.policy.linger)
        try:
            while not self._settled:
                if self._recording.overflowed or time.monotonic() > patience:
                    self._tell(lambda: self._claim.complete(NOT_KEPT))
                else:
                    self._take()
        except StopIteration:
            self._settle()
        except BaseException as error:
            self._unknown(error)
            raise

    def _failed(self, error: BaseException) -> list[bytes]:
        """The application raised. The server knows whether there is still a head to change."""
        self._over = True
        if not self._settled:
            self._unknown(error)
            if not self._reruns and isinstance(error, Exception):
                _log.error("the handler of a keyed request failed", exc_info=error)
                problem = self._rules.refuse(self._request, Problem("outcome-unknown"))
                self.close()
                return answer(self._respond, problem, error)
        self.close()
        raise error

    # -- how the key ends ---------------------------------------------------------------------

    def _settle(self) -> None:
        ending = self._recording.end()
        if ending is Ending.KEEP:
            result = self._recording.result()
            self._tell(lambda: self._claim.complete(result))
            if self._recording.trouble is not None:
                _log.error("redact failed, so nothing was kept", exc_info=self._recording.trouble)
        elif ending is Ending.RELEASE:
            self._tell(self._claim.release)
        else:
            self._unknown(None)

    def _unknown(self, error: BaseException | None) -> None:
        trouble = error or _Cut("the application ended in the middle of its response")
        name = type(trouble).__qualname__
        if self._reruns:
            self._tell(lambda: self._leave(trouble))
        else:
            self._tell(lambda: self._claim.hold(name))

    def _leave(self, error: BaseException | None) -> None:
        if not self._is_left:
            self._is_left = True
            self._claim.__exit__(None, error, None)

    def _tell(self, act: Callable[[], None]) -> None:
        """The response is the client's, whether or not its record could be written."""
        self._settled = True
        try:
            act()
        except ResultError:
            return  # recorded as done without its result, and an event said so
        except TwicesafeError as error:
            _log.warning("a response was delivered that is not on record: %s", error)


class _Cut(Exception):  # noqa: N818 - the name that is kept as the failure's
    """A response that did not end."""
