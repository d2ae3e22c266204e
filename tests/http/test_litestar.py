"""Litestar: its exceptions, after-response tasks and streams, around and under the layer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from litestar import Litestar, Response, Router, post
from litestar.background_tasks import BackgroundTask
from litestar.exceptions import ClientException
from litestar.response import Stream

from tests.http.stage import Stage
from tests.polling import until
from twicesafe import AsyncReceiver, current_key
from twicesafe.asgi import IdempotencyMiddleware
from twicesafe.stores.memory import AsyncMemoryStore

runs: list[str] = []


@post("/echo")
async def echo() -> dict[str, Any]:
    key = current_key()
    runs.append("echo")
    return {"key": None if key is None else key.value}


@post("/refused")
async def refused() -> None:
    runs.append("refused")
    raise ClientException("no")


@post("/broken")
async def broken() -> None:
    runs.append("broken")
    raise ValueError("bug")


@post("/stream")
async def stream() -> Stream:
    runs.append("stream")

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    return Stream(pieces())


@post("/later")
async def later() -> Response[str]:
    runs.append("later")
    return Response("x", background=BackgroundTask(runs.append, "afterwards"))


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage("asgi")
    runs.clear()
    yield stage
    stage.close()


def serve(stage: Stage, on: str, **settings: Any) -> None:
    receiver = AsyncReceiver(AsyncMemoryStore(stage.memory))

    def around(
        app: Any,
    ) -> IdempotencyMiddleware:  # a function: Litestar copies what routers are given
        return IdempotencyMiddleware(app, receiver=receiver)

    layer: list[Any] = [around]
    router = Router(
        "/v1",
        route_handlers=[echo, refused, broken, stream, later],
        middleware=layer if on == "router" else [],
    )
    stage.server.app = Litestar(
        [router], middleware=layer if on == "application" else [], logging_config=None, **settings
    )


@pytest.mark.item("R1", "E2", "T1", "T2")
@pytest.mark.parametrize("on", ["application", "router"])
def test_answers_of_every_kind_are_replayed(stage: Stage, on: str):
    serve(stage, on)
    for name, status, body in (
        ("echo", 201, b'{"key":"echo"}'),
        ("refused", 400, None),
        ("stream", 201, b"012"),
        ("later", 201, b"x"),
    ):
        first, again = (stage.send(name, b"{}", "POST", f"/v1/{name}") for _ in range(2))
        assert (first.status, again.status, again.replayed) == (status, status, True)
        assert first.body == again.body
        assert body in (None, first.body)
    until(lambda: "afterwards" in runs)  # which the answer does not wait for
    assert sorted(runs) == ["afterwards", "echo", "later", "refused", "stream"]


@pytest.mark.item("E3", "E4")
@pytest.mark.parametrize("on", ["application", "router"])
def test_an_exception_is_never_run_again(stage: Stage, on: str):
    serve(stage, on)
    first, again = (stage.send("b", b"{}", "POST", "/v1/broken") for _ in range(2))
    assert (first.status, again.status) == (500, 500)
    assert again.replayed or again.problem == "outcome-unknown"
    assert runs == ["broken"]
