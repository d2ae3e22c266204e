"""Reads a request from the WSGI environ, and sends a response through `start_response`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from .._core.http.message import Fields, HttpRequest, StoredResponse
from .._core.http.problems import Problem, RequestRefused
from .._core.http.rules import HttpRules
from .._edges.wsgi_input import has_unsized_body

__all__ = [
    "App",
    "Environ",
    "StartResponse",
    "Write",
    "answer",
    "request_of",
    "variable_of",
    "whole_body",
]

Environ: TypeAlias = dict[str, Any]
Write: TypeAlias = Callable[[bytes], object]
StartResponse: TypeAlias = Callable[..., Write]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

_PIECE: Final = 65536

_TELLS_A_CUT: Final = ("gunicorn", "werkzeug")
"""Servers, by SERVER_SOFTWARE, that raise an error when a chunked upload is cut. WSGI does not require
it: Granian ends the input silently, so ``cents=1000`` can become ``cents=1``. On other servers an upload
without a length is refused if it has a key, because the application cannot know whether it is complete."""


def variable_of(name: bytes) -> str:
    return "HTTP_" + name.decode("latin-1").upper().replace("-", "_")


def _fields_of(environ: Environ) -> Fields:
    """The header fields of the request, from their CGI names."""
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


def request_of(environ: Environ) -> HttpRequest:
    mount = environ.get("SCRIPT_NAME", "").encode("latin-1")
    octets = mount + environ.get("PATH_INFO", "").encode("latin-1")
    return HttpRequest(
        environ["REQUEST_METHOD"].upper(),
        octets.decode("utf-8", "replace"),
        octets,
        environ.get("QUERY_STRING", "").encode("latin-1"),
        _fields_of(environ),
        b"",
        environ,
        mount.decode("utf-8", "replace"),
    )


def whole_body(environ: Environ, rules: HttpRules) -> bytes:
    """The whole body. Raises `RequestRefused` if it is too large, incomplete or without a known end."""
    stream = environ["wsgi.input"]
    announced = environ.get("CONTENT_LENGTH") or ""
    if not announced.isdigit():
        ends = environ.get("wsgi.input_terminated")
        if ends and environ.get("SERVER_SOFTWARE", "").lower().startswith(_TELLS_A_CUT):
            return _to_the_end(stream, rules)
        if has_unsized_body(environ):
            raise RequestRefused(Problem("length-required"))
        return b""
    left = int(announced)
    rules.require_size(left)
    pieces: list[bytes] = []
    while left:
        piece = stream.read(left)
        if not piece:
            raise RequestRefused(Problem("request-incomplete"))
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _to_the_end(stream: Any, rules: HttpRules) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := stream.read(_PIECE):
        size += len(piece)
        rules.require_size(size)
        pieces.append(piece)
    return b"".join(pieces)


def answer(
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
        with suppress(SystemError):  # uWSGI takes the head, and yet raises this
            start_response(status, lines, (type(error), error, error.__traceback__))
    return [response.body]
