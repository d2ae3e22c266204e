"""A key ends with its request: the next one on the same connection, or thread, starts without it.

Servers start requests from strange places: from the `send` of the response before, from a callback that
`receive` registered, on a thread that lives on. So every server that people run is asked, each in a
its own process, on reused connections and on pipelined ones.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clean_start import NONE, Start, require_clean
from tests.http.test_servers import Running
from twicesafe import AsyncReceiver, Receiver, asgi, current_key, wsgi
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

ROOT = Path(__file__).parents[2]
SITE = "tests.http.context_site"  # not imported here: it makes Django's settings
KINDS = ("plain", "pieces", "listens")
UVICORN = "uvicorn {app} --port {port} --log-level warning --lifespan off --http "
HYPERCORN = "hypercorn {app} --bind 127.0.0.1:{port} --log-level warning"
GRANIAN = "granian --port {port} --log-level warning {app} --interface "
GUNICORN = "gunicorn {app} --bind 127.0.0.1:{port} --workers 1 --log-level warning "

SERVERS: dict[str, tuple[str, str]] = {
    "uvicorn-h11": (UVICORN + "h11 --loop asyncio", "asgi"),
    "uvicorn-httptools": (UVICORN + "httptools --loop uvloop", "asgi"),
    "hypercorn": (HYPERCORN, "asgi"),
    "granian-asgi": (GRANIAN + "asgi", "asgi"),
    "granian-wsgi": (GRANIAN + "wsgi", "wsgi"),
    "gunicorn-sync": (GUNICORN + "--worker-class sync", "wsgi"),
    "gunicorn-gthread": (GUNICORN + "--worker-class gthread --threads 1", "wsgi"),
    "wsgiref": (f"{SITE} wsgiref {{port}}", "wsgi"),
    "django-runserver": (f"{SITE} runserver --noreload --nothreading {{port}}", "django_wsgi"),
    "django-uvicorn-h11": (UVICORN + "h11 --loop asyncio", "django_asgi"),
    "django-uvicorn-httptools": (UVICORN + "httptools --loop uvloop", "django_asgi"),
    "django-gunicorn": (GUNICORN + "--worker-class gthread --threads 1", "django_wsgi"),
}
ONE_BY_ONE = {"gunicorn-sync", "wsgiref", "django-runserver"}
"""They close after each answer: what they reuse is the thread."""
NOT_PIPELINED = {"gunicorn-gthread", "django-gunicorn"}
"""They keep connections, and lose what comes on them before the answer."""


class AsyncConnection:
    """One connection; answers are read one after the other, as they come."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._file = _Open(self._socket.makefile("rb", 0))  # type: ignore[arg-type]
        self.sendall = self._socket.sendall

    def makefile(self, *_: Any) -> Any:
        return self._file

    def answer(self, sent: str) -> Start:
        response = http.client.HTTPResponse(self)  # type: ignore[arg-type]
        response.begin()
        assert response.status == 200
        return Start(sent, response.headers["x-outside"], response.read().decode())

    def close(self) -> None:
        io.BufferedReader.close(self._file)
        self._socket.close()


class _Open(io.BufferedReader):
    """What follows an answer stays in it."""

    def close(self) -> None: ...


_numbers = itertools.count()


def some(kind: str) -> list[tuple[str, bytes]]:
    """Requests with and without keys in turn, as (key, octets)."""
    keys = [f"k{next(_numbers)}", NONE, f"k{next(_numbers)}", NONE, NONE]
    return [(key, _request(kind, key)) for key in keys]


def _request(kind: str, key: str) -> bytes:
    line = "" if key == NONE else f"Idempotency-Key: {key}\r\n"
    head = f"POST /{kind} HTTP/1.1\r\nHost: site\r\n{line}Content-Length: 2\r\n\r\n"
    return head.encode() + b"{}"


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    words, app = SERVERS[request.param]
    running = Running(words, f"{SITE}:{app}", tmp_path, ROOT)
    running.name = request.param
    yield running
    running.stop()


def test_every_request_of_a_connection_starts_without_a_key(server: Any):
    starts: list[Start] = []
    for kind in KINDS:
        if server.name in ONE_BY_ONE:
            starts += [each for key, octets in some(kind) for each in talk(server, [(key, octets)])]
        else:
            pipelined = [] if server.name in NOT_PIPELINED else some(kind)
            starts += talk(server, pipelined, some(kind))
    require_clean(starts)


def talk(server: Any, pipelined: Any, reused: Any = ()) -> list[Start]:
    """All of the first in one write, then one by one, on one connection."""
    wire = AsyncConnection(server.port)
    try:
        wire.sendall(b"".join(octets for _, octets in pipelined))
        starts = [wire.answer(key) for key, _ in pipelined]
        for key, octets in reused:
            wire.sendall(octets)
            starts.append(wire.answer(key))
    finally:
        wire.close()
    return starts


async def test_what_belongs_to_the_server_is_called_without_the_key():
    """Not only where a server of today would notice it: every call of `send` and `receive`."""
    found: list[Any] = []
    gone = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert current_key() is not None
        await receive()
        listening = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        assert current_key() is not None
        await send({"type": "http.response.body", "body": b"2"})
        await listening

    uploads = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        found.append(current_key())
        for message in uploads:
            return message
        await gone.wait()
        found.append(current_key())
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        found.append(current_key())
        await asyncio.sleep(0)
        found.append(current_key())

    layer = asgi.IdempotencyMiddleware(app, receiver=AsyncReceiver(AsyncMemoryStore()))
    fields = [(b"idempotency-key", b"k")]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": fields}
    await layer(scope, receive, send)
    assert found == [None] * 8
    assert current_key() is None


def test_a_wsgi_server_is_called_without_the_key_and_gets_every_field():
    found: list[Any] = []
    lines: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        assert current_key() is not None
        try:
            raise ValueError
        except ValueError as error:
            replaced = (type(error), error, None)
        start_response("500 No", [])
        write = start_response("200 OK", (line for line in [("Location", "/1")]), replaced)
        write(b"1")
        return iter([b"2"])

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        found.append(current_key())
        lines.append(list(headers))
        return lambda data: found.append(current_key())

    layer = wsgi.IdempotencyMiddleware(app, receiver=Receiver(MemoryStore()))
    for _ in range(2):
        environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k", "CONTENT_LENGTH": "0"}
        assert b"2" in b"".join(layer({**environ, "wsgi.input": io.BytesIO()}, start_response))
    assert found == [None] * 4
    assert lines[1] == [("Location", "/1")]
    assert ("location", "/1") in lines[2]
