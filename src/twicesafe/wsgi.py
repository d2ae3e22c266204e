"""WSGI: at most one effect per Idempotency-Key, in front of any WSGI application.

    app = IdempotencyMiddleware(app, receiver=Receiver.open("sqlite:///keys.db"))

The same promises as `twicesafe.asgi`, on the server's own thread: requests without a key pass
untouched; the key is claimed when the whole body has arrived; the response streams through while it
is recorded, and the record is written before the end of the response is sent; an exception or a
short response leave the outcome unknown, and the key is held.

A client that goes away ends the server's interest, not the handler's: `close()` takes the rest of
the response from the application and records it, until it is too long to be kept or lingers on.
`start_response` with `exc_info`, `write()`, `close()` and file wrappers work as they did.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from wsgiref.util import FileWrapper

from . import events
from .claims import Claim
from .core.http.message import Fields, HttpRequest, StoredResponse
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
from .receiver import Receiver

__all__ = ["IdempotencyMiddleware"]

Environ: TypeAlias = dict[str, Any]
Write: TypeAlias = Callable[[bytes], object]
StartResponse: TypeAlias = Callable[..., Write]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

_log = logging.getLogger("twicesafe")

_PIECE: Final = 65536


class IdempotencyMiddleware:
    """Put it around an application, with a receiver and, if need be, an `HttpPolicy`."""

    def __init__(self, app: App, *, receiver: Receiver, policy: HttpPolicy | None = None) -> None:
        if not isinstance(receiver, Receiver):
            raise ConfigurationError(
                f"receiver={receiver!r} makes no sense: twicesafe.wsgi needs a Receiver "
                "(twicesafe.asgi an AsyncReceiver)"
            )
        if policy is not None and not isinstance(policy, HttpPolicy):
            raise ConfigurationError(f"policy={policy!r} makes no sense: use an HttpPolicy(…)")
        self.app = app
        self.policy = policy or HttpPolicy()
        self._rules = Rules(self.policy, receiver.scope)
        self._names = tuple(_variable(name) for name in self._rules.names)
        self._holding, self._rerunning = (
            receiver.options(policy=self.policy.receiver_policy(rerun=rerun), fingerprint=None)
            for rerun in (False, True)
        )
        if not receiver.store.capabilities.shared:
            _log.warning("%s knows the keys of this one process only", receiver.store.url)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        rules = self._rules
        method = environ["REQUEST_METHOD"]
        if method not in rules.methods:
            return self.app(environ, start_response)
        if rules.by_name and not any(name in environ for name in self._names):
            return self.app(environ, start_response)
        fields = _fields(environ)
        request = _request_of(environ, fields)
        try:
            looked = rules.look(request)
            if looked is None:
                return self.app(environ, start_response)
            request = _request_of(environ, fields, _body(environ, rules))
            admission = rules.admit(request, looked)
        except Refused as refusal:
            return _answer(start_response, rules.refuse(request, refusal.problem))
        environ = self._forwarded(environ, request.body)
        if admission is None:
            return self.app(environ, start_response)
        return self._keyed(request, admission, environ, start_response)

    def _keyed(
        self,
        request: HttpRequest,
        admission: Admission,
        environ: Environ,
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        rules = self._rules
        receiver = self._rerunning if admission.reruns else self._holding
        claim = receiver.claim(
            admission.key, fingerprint=admission.fingerprint, returns=StoredResponse
        )
        if claim._is_held_around:  # by another layer on this store
            return self.app(environ, start_response)
        # The claim's own context: a server may take the response, or close it, in another one.
        context = copy_context()
        try:
            context.run(claim.__enter__)
        except TwicesafeError as error:
            if isinstance(error, StoreUnavailableError) and self.policy.fail_open:
                receiver._notify(events.Unprotected(admission.key))
                return self.app(environ, start_response)
            if isinstance(error, CorruptRecordError):
                _log.error("%s", error)
            return _answer(start_response, rules.refuse_error(request, error))
        if not claim.is_new:
            stored: StoredResponse = claim.result
            context.run(claim.__exit__, None, None, None)
            return _answer(start_response, rules.replay(request, stored))
        exchange = _Exchange(rules, admission.reruns, request, claim, context, start_response)
        return exchange.begin(self.app, environ)

    def _forwarded(self, environ: Environ, body: bytes) -> Environ:
        """The environ that the handler gets: the body again, and no way around the recording."""
        changed = {**environ, "wsgi.input": io.BytesIO(body)}
        if "wsgi.file_wrapper" in changed:
            changed["wsgi.file_wrapper"] = FileWrapper  # the server's own may not be iterable
        if not self.policy.forward_key:
            for name in self._names:
                changed.pop(name, None)
        return changed


class _Exchange:
    """One keyed request under way; for the server, the body of its response."""

    def __init__(
        self,
        rules: Rules,
        reruns: bool,
        request: HttpRequest,
        claim: Claim,
        context: Context,
        start_response: StartResponse,
    ) -> None:
        self._rules, self._reruns, self._request = rules, reruns, request
        self._claim, self._context, self._respond = claim, context, start_response
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
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Write:
        server_write = (
            self._respond(status, headers)
            if exc_info is None
            else self._respond(status, headers, exc_info)
        )
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._recording.start(int(status[:3]), lines)

        def write(data: bytes) -> object:
            if self._recording.feed(data) and not self._settled:
                self._settle()
            return server_write(data)

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
                return _answer(self._respond, problem, error)
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


# --- between environ and request -------------------------------------------------------------


def _variable(name: bytes) -> str:
    return "HTTP_" + name.decode("latin-1").upper().replace("-", "_")


def _fields(environ: Environ) -> Fields:
    """The request's fields, as far as CGI names can tell."""
    lines = [
        (_name(key[5:]), value.encode("latin-1"))
        for key, value in environ.items()
        if key.startswith("HTTP_")
    ]
    lines += [
        (_name(key), environ[key].encode("latin-1"))
        for key in ("CONTENT_TYPE", "CONTENT_LENGTH")
        if environ.get(key)
    ]
    return lines


@lru_cache(maxsize=1024)
def _name(variable: str) -> bytes:
    return variable.lower().replace("_", "-").encode("latin-1")


def _request_of(environ: Environ, fields: Fields, body: bytes = b"") -> HttpRequest:
    octets = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1")
    return HttpRequest(
        environ["REQUEST_METHOD"],
        octets.decode("utf-8", "replace"),
        octets,
        environ.get("QUERY_STRING", "").encode("latin-1"),
        fields,
        body,
        environ,
    )


def _body(environ: Environ, rules: Rules) -> bytes:
    """The whole body; `Refused` if it is too large, shorter than announced, or has no end."""
    stream = environ["wsgi.input"]
    announced = environ.get("CONTENT_LENGTH") or ""
    if not announced.isdigit():
        if environ.get("wsgi.input_terminated"):
            return _to_the_end(stream, rules)
        if environ.get("HTTP_TRANSFER_ENCODING"):
            raise Refused(Problem("length-required"))
        return b""
    left = int(announced)
    rules.require_size(left)
    pieces: list[bytes] = []
    while left:
        piece = stream.read(left)
        if not piece:
            raise Refused(Problem("request-incomplete"))
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _to_the_end(stream: Any, rules: Rules) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := stream.read(_PIECE):
        size += len(piece)
        rules.require_size(size)
        pieces.append(piece)
    return b"".join(pieces)


def _answer(
    start_response: StartResponse, response: StoredResponse, error: BaseException | None = None
) -> list[bytes]:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in response.headers]
    status = f"{response.status} {phrase}"
    if error is None:
        start_response(status, lines)
    else:
        start_response(status, lines, (type(error), error, error.__traceback__))
    return [response.body]
