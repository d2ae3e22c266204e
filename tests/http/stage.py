"""The stage: one application behind both middlewares, over real sockets.

A test is written once. `Stage` plays it on ASGI (uvicorn) or WSGI (wsgiref with threads); both
servers live as long as the test process, and each test puts its own application on. What the
application answers is data: an `Answer`, whose body may be bytes to send, a callable to run in
between (to wait for the test), or an exception to raise. `Stage.seen` is the list of effects.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from wsgiref import simple_server

import uvicorn

from twicesafe import AsyncReceiver, Receiver, asgi, wsgi
from twicesafe.http import HttpPolicy
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

JSON = (b"content-type", b"application/json")
EDGES = ("asgi", "wsgi")


@dataclass
class Seen:
    """A request that reached the handler: one effect."""

    method: str
    path: str
    query: bytes
    headers: dict[str, str]
    body: bytes
    raw_path: bytes = b""


@dataclass
class Answer:
    status: int = 201
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: [JSON])
    body: Sequence[Any] = (b"{}",)
    """Bytes to send, callables to run, exceptions to raise."""

    def pieces(self) -> Iterator[bytes]:
        for piece in self.body:
            if isinstance(piece, BaseException):
                raise piece
            if callable(piece):
                piece()
            else:
                yield piece


@dataclass
class Reply:
    status: int
    fields: list[tuple[str, str]]
    body: bytes
    cut: bool = False

    def __getitem__(self, name: str) -> str | None:
        found = [value for key, value in self.fields if key == name.lower()]
        assert len(found) <= 1, f"{name} is there {len(found)} times"
        return found[0] if found else None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name.lower()]

    @property
    def replayed(self) -> bool:
        return self["idempotent-replayed"] == "true"

    @property
    def problem(self) -> str:
        """The case of a problem document; empty if it is none."""
        if self["content-type"] != "application/problem+json":
            return ""
        document = json.loads(self.body)
        assert document["status"] == self.status
        return str(document["type"].rpartition(":")[2])


class Stage:
    def __init__(self, edge: str, policy: HttpPolicy | None = None, **kinds: Any) -> None:
        self.edge = edge
        self.policy = policy or HttpPolicy()
        self.seen: list[Seen] = []
        self.handler: Callable[[Seen], Answer] = self._count
        self.pool = ThreadPoolExecutor(64)
        self.memory = kinds.get("memory") or MemoryStore(now=kinds.get("now"))
        self.records = Receiver(self.memory, policy=self.policy.receiver_policy(rerun=False))
        """An operator's view on the same store."""
        self.server = SERVERS[edge]()
        observers = self.observers = kinds.get("observers", ())
        receiver: Any
        if edge == "asgi":
            store = kinds.get("store") or AsyncMemoryStore(self.memory)
            receiver = AsyncReceiver(store, observers=observers)
            middleware: Any = asgi.IdempotencyMiddleware(
                self.asgi, receiver=receiver, policy=self.policy
            )
        else:
            receiver = Receiver(kinds.get("store") or self.memory, observers=observers)
            middleware = wsgi.IdempotencyMiddleware(
                self.wsgi, receiver=receiver, policy=self.policy
            )
        self.middleware = kinds.get("around", lambda app: app)(middleware)
        self.server.app = self.middleware

    def close(self) -> None:
        self.pool.shutdown()

    def _count(self, seen: Seen) -> Answer:
        return Answer(body=[b'{"n":%d}' % len(self.seen)])

    # -- the application, twice -----------------------------------------------------------------

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body, more = body + message["body"], message["more_body"]
        headers = {n.decode(): v.decode("latin-1") for n, v in scope["headers"]}
        seen = Seen(scope["method"], scope["path"], scope["query_string"], headers, body)
        seen.raw_path = scope["raw_path"]
        self.seen.append(seen)
        answer = await asyncio.to_thread(self.handler, seen)
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        )
        for last, piece in _marked(answer.body):
            if isinstance(piece, BaseException):
                raise piece
            if callable(piece):
                await asyncio.to_thread(piece)
            else:
                await send({"type": "http.response.body", "body": piece, "more_body": not last})

    def wsgi(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        headers = {
            key[5:].lower().replace("_", "-"): value
            for key, value in environ.items()
            if key.startswith("HTTP_")
        }
        headers["content-type"] = environ.get("CONTENT_TYPE", "")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        query = environ["QUERY_STRING"].encode("latin-1")
        seen = Seen(environ["REQUEST_METHOD"], environ["PATH_INFO"], query, headers, body)
        self.seen.append(seen)
        answer = self.handler(seen)
        lines = [(n.decode(), v.decode("latin-1")) for n, v in answer.headers]
        start_response(f"{answer.status} Fine", lines)
        if all(isinstance(piece, bytes) for piece in answer.body):
            return list(answer.body)
        return answer.pieces()

    # -- the client -----------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.server.port), 20)
        connection.settimeout(20)
        return connection

    def request(
        self,
        key: str | bytes | None = None,
        body: bytes = b'{"amount":5}',
        method: str = "POST",
        target: str = "/charges",
        *fields: tuple[str, str | bytes],
        kind: str | None = "application/json",
    ) -> bytes:
        """The octets of a request."""
        lines = [(name, _octets(value)) for name, value in fields]
        if key is not None:
            lines.append(("Idempotency-Key", _octets(key)))
        if kind is not None:
            lines.append(("Content-Type", kind.encode()))
        names = {name.lower() for name, _ in lines}
        if "content-length" not in names and "transfer-encoding" not in names:
            lines.append(("Content-Length", str(len(body)).encode()))
        head = f"{method} {target} HTTP/1.1\r\nHost: stage\r\nConnection: close\r\n".encode()
        text = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in lines)
        return head + text + b"\r\n" + body

    def send(self, *request: Any, **more: Any) -> Reply:
        with self.connect() as connection:
            connection.sendall(self.request(*request, **more))
            return read(connection, request[2] if len(request) > 2 else more.get("method", "POST"))

    def later(self, *request: Any, **more: Any) -> Future[Reply]:
        return self.pool.submit(self.send, *request, **more)


def read(connection: socket.socket, method: str = "POST") -> Reply:
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    cut = False
    try:
        body = response.read()
    except http.client.IncompleteRead as error:
        body, cut = error.partial, True
    fields = [(name.lower(), value) for name, value in response.getheaders()]
    return Reply(response.status, fields, body, cut)


def _octets(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


def _marked(pieces: Sequence[Any]) -> Iterator[tuple[bool, Any]]:
    for index, piece in enumerate(pieces):
        yield index == len(pieces) - 1, piece


# --- servers ---------------------------------------------------------------------------------


class AsgiServer:
    def __init__(self) -> None:
        self.app: Any = None
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(
            self._call, log_config=None, lifespan="off", interface="asgi3", ws="none"
        )
        self._server = uvicorn.Server(config)
        run = self._server.run
        threading.Thread(target=run, args=([self.socket],), daemon=True).start()

    async def _call(self, scope: Any, receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        await self.app(scope, receive, send)


class _Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *_: Any) -> None: ...

    def get_stderr(self) -> Any:
        return _Nowhere()


class _Nowhere:
    def write(self, _: str) -> None: ...

    def flush(self) -> None: ...


class _Threads(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None: ...


class WsgiServer:
    def __init__(self) -> None:
        self.app: Any = None
        server = simple_server.make_server("127.0.0.1", 0, self._call, _Threads, _Quiet)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def _call(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        return self.app(environ, start_response)


_running: dict[str, Any] = {}

SERVERS: dict[str, Callable[[], Any]] = {
    "asgi": lambda: _running.get("asgi") or _running.setdefault("asgi", AsgiServer()),
    "wsgi": lambda: _running.get("wsgi") or _running.setdefault("wsgi", WsgiServer()),
}
