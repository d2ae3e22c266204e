"""The stage: one application behind both middlewares and the proxy, over real sockets.

A test is written once. `Stage` plays it on ASGI (uvicorn), on WSGI (wsgiref with threads) or behind the
proxy (in front of a service of the standard library); the servers live as long as the test process, and
each test puts its own application on. What the application answers is data: an `Answer`, whose body may
be bytes to send, a callable to run in between (to wait for the test), or an exception to raise; behind
the proxy an exception cuts the connection. `Stage.seen` is the list of effects.
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, TypeAlias
from wsgiref import simple_server

import uvicorn

from twicesafe import AsyncReceiver, Receiver, asgi, wsgi
from twicesafe._core.http.forwarding import Forwarding
from twicesafe._proxy import server as proxy_server
from twicesafe._proxy.front import Front
from twicesafe._proxy.metrics import Metrics
from twicesafe._proxy.upstream import Upstream
from twicesafe.http import HttpPolicy
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

if TYPE_CHECKING:
    from tests.http.scripted import Scripted

Play: TypeAlias = "Callable[..., Stage]"
"""The fixture `play`: stages with settings."""
Before: TypeAlias = "Callable[..., tuple[Stage, Scripted]]"
"""The fixture `before`: a proxy, and the upstream behind it."""

JSON = (b"content-type", b"application/json")
EDGES = ("asgi", "wsgi", "proxy")
UNKNOWN = {"asgi": 500, "wsgi": 500, "proxy": 502}
"""What an edge answers when the outcome is unknown."""


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
        if edge == "proxy":
            self.policy = self.policy.replace(unknown_status=UNKNOWN[edge])
        self.seen: list[Seen] = []
        self.handler: Callable[[Seen], Answer] = self._count
        self.pool = ThreadPoolExecutor(64)
        self.memory = kinds.get("memory") or MemoryStore(now=kinds.get("now"))
        self.records = Receiver(self.memory, policy=self.policy.receiver_policy())
        """An operator's view on the same store."""
        self.server = SERVERS[edge]()
        observers = self.observers = kinds.get("observers", ())
        own: dict[str, Any] = {"observers": observers, "policy": kinds.get("receiver_policy")}
        receiver: Any
        if edge == "asgi":
            store = kinds.get("store") or AsyncMemoryStore(self.memory)
            receiver = AsyncReceiver(store, **own)
            middleware: Any = asgi.IdempotencyMiddleware(
                self.asgi, receiver=receiver, policy=self.policy
            )
        elif edge == "proxy":
            store = kinds.get("store") or AsyncMemoryStore(self.memory)
            receiver = AsyncReceiver(store, **own)
            middleware = self._front(receiver, **kinds.get("upstream", {}))
        else:
            receiver = Receiver(kinds.get("store") or self.memory, **own)
            middleware = wsgi.IdempotencyMiddleware(
                self.wsgi, receiver=receiver, policy=self.policy
            )
        self._closing: Callable[[], Any] | None = receiver.close if "store" in kinds else None
        self.middleware = kinds.get("around", lambda app: app)(middleware)
        self.server.app = self.middleware

    def _front(self, receiver: AsyncReceiver, **settings: Any) -> Front:
        self.server.behind.answer = self.answer
        url = settings.pop("url", f"http://127.0.0.1:{self.server.behind.port}")
        ways = {name: settings.pop(name) for name in ("trusted", "forwarded") if name in settings}
        forwarding = Forwarding(self.policy, **ways)
        self.metrics = Metrics()
        time_limit = settings.pop("time_limit", 30)
        upstream = self.upstream = Upstream(url, forwarding, metrics=self.metrics, **settings)
        return Front(upstream, receiver, self.policy, forwarding, self.metrics, time_limit)

    def close(self) -> None:
        """A store of the test's own is closed too, on the loop that its connections belong to."""
        self.pool.shutdown()
        closing = self._closing() if self._closing is not None else None
        if closing is not None:
            asyncio.run_coroutine_threadsafe(closing, self.server.loop).result(120)

    def _count(self, seen: Seen) -> Answer:
        return Answer(body=[b'{"n":%d}' % len(self.seen)])

    # -- the application, three times -----------------------------------------------------------

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

    def answer(self, seen: Seen) -> Answer:
        """Behind the proxy."""
        self.seen.append(seen)
        return self.handler(seen)

    # -- the client -----------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.server.port), 60)
        connection.settimeout(60)
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
        host = "" if "host" in names else "Host: stage\r\n"
        head = f"{method} {target} HTTP/1.1\r\n{host}Connection: close\r\n".encode()
        text = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in lines)
        return head + text + b"\r\n" + body

    def send(self, *request: Any, **more: Any) -> Reply:
        with self.connect() as connection:
            connection.sendall(self.request(*request, **more))
            return read(connection, request[2] if len(request) > 2 else more.get("method", "POST"))

    def later(self, *request: Any, **more: Any) -> Future[Reply]:
        return self.pool.submit(self.send, *request, **more)


def spoken(stage: Stage, *pieces: bytes) -> bytes:
    """All that comes back until the server ends the connection; each piece is its own packet."""
    with stage.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        got = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
            while data := connection.recv(65536):
                got += data
        except ConnectionError:
            pass  # the server closed it before it read everything
        return got


class _NoReadAhead:
    """A socket whose file takes no octet of the next response, which may be there already."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def makefile(self, mode: Any) -> Any:
        return self._connection.makefile(mode, buffering=1)


def read(connection: socket.socket, method: str = "POST") -> Reply:
    response = http.client.HTTPResponse(_NoReadAhead(connection), method=method)  # type: ignore[arg-type]
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
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self.socket.getsockname()[1]
        self.made = self._made()
        run = self.made.run
        threading.Thread(target=run, args=([self.socket],), daemon=True).start()

    def _made(self) -> uvicorn.Server:
        config = uvicorn.Config(
            self._call,
            loop="asyncio",  # the matrices of real servers have uvloop too
            http="h11",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
        )
        return uvicorn.Server(config)

    async def _call(self, scope: Any, receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        await self.app(scope, receive, send)


class ProxyServer(AsgiServer):
    def __init__(self, time_limit: float = 30) -> None:
        self.behind, self._time_limit = Service(), time_limit
        super().__init__()

    def _made(self) -> uvicorn.Server:
        return proxy_server.server(self._call, client_timeout=self._time_limit)


class Service:
    """What the proxy protects: HTTP/1.1 of the standard library, a thread for each connection."""

    def __init__(self) -> None:
        self.answer: Callable[[Seen], Answer] = lambda _: Answer()
        self.connections = 0
        outer = self

        class Handler(_Handler):
            service = outer

        server = _Service(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()


class _Service(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None: ...


class _Handler(BaseHTTPRequestHandler):
    service: Service
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        self.service.connections += 1
        super().setup()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.do
        raise AttributeError(name)

    def do(self) -> None:
        target, _, query = self.path.partition("?")
        headers = {n.lower(): v for n, v in self.headers.items()}
        seen = Seen(self.command, target, query.encode(), headers, self._body())
        seen.raw_path = target.encode()
        try:
            self._answer(self.service.answer(seen))
        except Exception:
            self.close_connection = True  # nothing more is said: the proxy sees a cut

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, answer: Answer) -> None:
        names = {name for name, _ in answer.headers}
        bare = self.command == "HEAD" or answer.status in (204, 304)
        chunked = b"content-length" not in names and not bare
        head = f"HTTP/1.1 {answer.status} Fine\r\n".encode()
        lines = [*answer.headers, (b"server", b"stage")]
        if chunked:
            lines.append((b"transfer-encoding", b"chunked"))
        head += b"".join(name + b": " + value + b"\r\n" for name, value in lines)
        self.wfile.write(head + b"\r\n")
        size, declared = 0, dict(answer.headers).get(b"content-length")
        for piece in answer.pieces():
            if piece and not bare:
                size += len(piece)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")
        elif declared is not None and size != int(declared):
            self.close_connection = True

    def log_message(self, *_: Any) -> None: ...


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
    "proxy": lambda: _running.get("proxy") or _running.setdefault("proxy", ProxyServer()),
}
