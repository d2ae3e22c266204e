"""With a real framework: what Starlette does around and under the layer keeps working."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tests.http.stage import Stage
from tests.http.test_outcomes import Heard
from tests.receiver.faults import AsyncFaultyStore, Outage
from twicesafe import AsyncReceiver, current_key, events
from twicesafe.asgi import IdempotencyMiddleware
from twicesafe.http import HttpPolicy
from twicesafe.stores.memory import AsyncMemoryStore


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage("asgi")
    yield stage
    stage.close()


class Shop:
    def __init__(self, stage: Stage, *outer: Any, observers: Any = ()) -> None:
        self.effects: list[str] = []
        self.background = threading.Event()
        self.go = asyncio.Event()
        self.file = ""
        routes = [
            Route(f"/{name}", getattr(self, name), methods=["POST"])
            for name in ("echo", "stream", "busy", "missing", "later", "broken", "file_")
        ]
        app = Starlette(routes=routes)
        receiver = AsyncReceiver(AsyncMemoryStore(stage.memory), observers=observers)
        app.add_middleware(IdempotencyMiddleware, receiver=receiver)
        for layer in outer:
            app.add_middleware(layer)
        stage.server.app = app

    async def echo(self, request: Request) -> JSONResponse:
        key = current_key()
        self.effects.append("" if key is None else key.value)
        return JSONResponse(await request.json(), 201)

    async def stream(self, request: Request) -> StreamingResponse:
        self.effects.append("stream")

        async def pieces() -> AsyncIterator[bytes]:
            yield b"1"
            await self.go.wait()
            yield b"2"

        return StreamingResponse(pieces())

    async def busy(self, request: Request) -> StreamingResponse:
        self.effects.append("busy")
        return StreamingResponse(iter([b"try ", b"later"]), 429)

    async def missing(self, request: Request) -> None:
        self.effects.append("missing")
        raise HTTPException(404, "no such thing")

    async def later(self, request: Request) -> PlainTextResponse:
        self.effects.append("later")
        return PlainTextResponse("x", background=BackgroundTask(self.background.set))

    async def broken(self, request: Request) -> None:
        self.effects.append("broken")
        raise RuntimeError("bug")

    async def file_(self, request: Request) -> FileResponse:
        self.effects.append("file")
        return FileResponse(self.file)


class Outer(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


@pytest.mark.item("R1", "E4", "A8")
def test_an_ordinary_application(stage: Stage):
    shop = Shop(stage)
    assert stage.send("k", b'{"a":1}', "POST", "/echo").body == b'{"a":1}'
    assert stage.send("k", b'{"a":1}', "POST", "/echo").replayed
    assert stage.send(None, b'{"a":2}', "POST", "/echo").body == b'{"a":2}'
    assert shop.effects == ["k", ""]  # the handler knows the key that it runs under
    assert [stage.send("m", b"", "POST", "/missing").status for _ in range(2)] == [404, 404]
    assert [stage.send("b", b"", "POST", "/broken").problem for _ in range(2)] == [
        "outcome-unknown"
    ] * 2
    assert shop.effects[2:] == ["missing", "broken"]


@pytest.mark.item("R7", "F4")
@pytest.mark.parametrize(
    "settings, slashes, statuses",
    [({}, True, [307, 422]), ({}, False, [404]), ({"per_operation": True}, True, [307, 201])],
)
async def test_a_redirect_uses_up_the_key_unless_each_path_has_its_own(
    settings: dict[str, Any], slashes: bool, statuses: list[int]
):
    ran: list[str] = []

    async def charge(request: Request) -> PlainTextResponse:
        ran.append(request.url.path)
        return PlainTextResponse("charged", 201)

    app = Starlette(routes=[Route("/charges/", charge, methods=["POST"])])
    app.router.redirect_slashes = slashes
    receiver = AsyncReceiver(AsyncMemoryStore())
    app.add_middleware(IdempotencyMiddleware, receiver=receiver, policy=HttpPolicy(**settings))
    # Not one of our own clients: those derive a key for the new address.
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://shop", follow_redirects=True
    ) as client:
        for _ in range(2):
            answer = await client.post("/charges", headers={"Idempotency-Key": "k"})
            assert [each.status_code for each in (*answer.history, answer)] == statuses
    assert ran == ["/charges/"] * (statuses[-1] == 201)


@pytest.mark.item("E2", "T1")
def test_a_streamed_refusal_is_released(stage: Stage):
    shop = Shop(stage)
    assert [stage.send("k", b"", "POST", "/busy").body for _ in range(2)] == [b"try later"] * 2
    assert shop.effects == ["busy", "busy"]


@pytest.mark.item("E5")
@pytest.mark.parametrize("outer", [(), (Outer,), (GZipMiddleware,)])
def test_a_stream_whose_client_went_away_is_recorded(stage: Stage, outer: Any):
    heard = Heard()
    shop = Shop(stage, *outer, observers=[heard])
    with stage.connect() as connection:
        connection.sendall(stage.request("k", b"", "POST", "/stream"))
        got = b""
        while b"1" not in got.partition(b"\r\n\r\n")[2]:
            got += connection.recv(1000)
    stage.server.loop.call_soon_threadsafe(shop.go.set)
    heard.wait()
    reply = stage.send("k", b"", "POST", "/stream")
    assert (reply.replayed, reply.body) == (True, b"12")
    assert shop.effects == ["stream"]


@pytest.mark.item("T2")
def test_background_tasks_and_files(stage: Stage, tmp_path: Any):
    shop = Shop(stage)
    assert [stage.send("k", b"", "POST", "/later").body for _ in range(2)] == [b"x", b"x"]
    assert shop.background.wait(60)
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * 1000)
    shop.file = str(large)
    replies = [stage.send("f", b"", "POST", "/file_") for _ in range(2)]
    assert {reply.body for reply in replies} == {large.read_bytes()}
    assert shop.effects == ["later", "file"]


@pytest.mark.item("E7", "T1")
def test_rows_that_a_middleware_inside_cut_off_are_not_replayed_as_all_of_them(stage: Stage):
    """`BaseHTTPMiddleware` ends a stream politely when its client is gone: 14 rows of 40, and an end."""
    told = Heard(events.ResultNotKept)
    stop = asyncio.Event()

    async def export(request: Request) -> StreamingResponse:
        async def rows() -> AsyncIterator[bytes]:
            for number in range(40):
                if number == 14:
                    await stop.wait()
                yield b"row %d\n" % number

        return StreamingResponse(rows())

    routes = [Route("/export", export, methods=["POST"])]
    app = Starlette(routes=routes, middleware=[Middleware(Outer)])
    receiver = AsyncReceiver(AsyncMemoryStore(stage.memory), observers=[told])
    policy = HttpPolicy(linger=0.05)
    stage.server.app = IdempotencyMiddleware(app, receiver=receiver, policy=policy)
    with stage.connect() as connection:
        connection.sendall(stage.request("k", b"", "POST", "/export"))
        got = b""
        while b"row 13" not in got:
            got += connection.recv(1000)
    told.wait()
    reply = stage.send("k", b"", "POST", "/export")
    assert (reply.status, reply.problem) == (410, "result-not-kept")


@pytest.mark.item("T1")
@pytest.mark.parametrize("place", ["outside", "inside"])
async def test_a_layer_that_hides_the_end_of_a_stream_belongs_outside(place: str):
    """`BaseHTTPMiddleware` ends a stream that raises as if it were complete, so inside it cannot be noticed."""

    async def export(request: Request) -> StreamingResponse:
        async def rows() -> AsyncIterator[bytes]:
            yield b"row 1\n"
            raise ValueError("the database is gone")

        return StreamingResponse(rows())

    ours = Middleware(IdempotencyMiddleware, receiver=AsyncReceiver(AsyncMemoryStore()))
    layers = [Middleware(Outer), ours] if place == "outside" else [ours, Middleware(Outer)]
    app = Starlette(routes=[Route("/export", export, methods=["POST"])], middleware=layers)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        first, again = [
            await client.post("/export", headers={"Idempotency-Key": "k"}) for _ in range(2)
        ]
    assert (first.status_code, first.content) == (200, b"row 1\n")
    if place == "outside":
        assert again.json()["type"].endswith("outcome-unknown")
    else:
        assert (again.status_code, again.content) == (200, b"row 1\n")


class Looks:
    """A layer outside that reports routes, as those for metrics and traces do."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.seen: list[Any] = []
        self.done = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def looks(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._look(scope)
            await send(message)

        await self.app(scope, receive, looks)
        self._look(scope)
        self.done.set()

    def _look(self, scope: Any) -> None:
        keys = [value for name, value in scope["headers"] if name == b"idempotency-key"]
        self.seen.append((scope["endpoint"].__name__, scope["path_params"], len(keys)))


@pytest.mark.item("A8", "A10")
@pytest.mark.parametrize("forward_key", [True, False])
@pytest.mark.parametrize("is_away", [True, False])
def test_layers_outside_see_the_route_of_a_request(stage: Stage, forward_key: bool, is_away: bool):
    async def charge(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str("idempotency-key" in request.headers))

    store = AsyncFaultyStore(AsyncMemoryStore(stage.memory))
    if is_away:
        store.before = Outage("claim")
    app = Starlette(routes=[Route("/charges/{number}", charge, methods=["POST"])])
    policy = HttpPolicy(forward_key=forward_key, outage="run", lease=1)
    receiver = AsyncReceiver(store)
    looks = Looks(IdempotencyMiddleware(app, receiver=receiver, policy=policy))
    stage.server.app = looks
    reply = stage.send("k", b"", "POST", "/charges/7")
    assert reply.body == str(forward_key).encode()
    assert looks.done.wait(60)
    assert looks.seen == [("charge", {"number": "7"}, 1)] * 2
