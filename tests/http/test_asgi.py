"""What only an ASGI server can do to the layer: cancel it, hide the path, offer other ways to send."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from typing import Any

import pytest

from twicesafe import AsyncReceiver, State, asgi, current_key
from twicesafe.asgi._exchange import AsgiExchange
from twicesafe.http import HttpPolicy
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore


def scope_of(**more: Any) -> dict[str, Any]:
    fields = [(b"idempotency-key", b"k")]
    return {"type": "http", "method": "POST", "path": "/", "headers": fields, **more}


class Server:
    """A server of a few lines: an upload, what it sent, and when the client went away."""

    def __init__(self, app: Any, policy: HttpPolicy | None = None) -> None:
        self.memory = MemoryStore()
        self.receiver = AsyncReceiver(AsyncMemoryStore(self.memory))
        self.layer = asgi.IdempotencyMiddleware(app, receiver=self.receiver, policy=policy)
        self.sent: list[Any] = []
        self.gone = asyncio.Event()

    async def call(self, upload: bytes = b"", **more: Any) -> list[Any]:
        uploads = iter([{"type": "http.request", "body": upload, "more_body": False}])

        async def receive() -> Any:
            for message in uploads:
                return message
            await self.gone.wait()
            return {"type": "http.disconnect"}

        self.sent = []
        await self.layer(scope_of(**more), receive, self.send)
        return self.sent

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def state(self) -> State:
        (record,) = [record async for record in self.receiver.records()]
        return record.state


def start(status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": []}


def body(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


@pytest.mark.item("E5")
async def test_a_server_that_cancels_its_task_does_not_cancel_the_handler():
    inside, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inside.set()
        await go.wait()
        await send(start())
        await send(body(b"done"))

    server = Server(app)
    task = asyncio.create_task(server.call())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await server.state() is State.IN_PROGRESS
    go.set()
    (handler,) = server.layer._running
    await handler
    assert server.sent == []  # the client had left
    assert await server.state() is State.COMPLETED
    assert (await server.call())[1]["body"] == b"done"


@pytest.mark.item("E5")
@pytest.mark.parametrize("how, taken", [("cancels", 0), ("cancels", 1), ("reports", 1), ("reports", 2)])  # fmt: skip
async def test_a_send_that_never_ends_does_not_outlast_its_client(how: str, taken: int):
    """A layer outside may pass messages on by a queue that nothing reads any more."""
    is_stuck = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in (start(), body(b"a", more=True), body(b"b", more=True), body(b"c")):
            await send(message)

    async def send(message: Any) -> None:
        if len(server.sent) == taken:
            is_stuck.set()
            await asyncio.Event().wait()
        server.sent.append(message)

    server = Server(app)
    server.send = send  # type: ignore[method-assign]
    task = asyncio.create_task(server.call())
    await is_stuck.wait()
    (handler,) = server.layer._running
    if how == "cancels":
        task.cancel()
    server.gone.set()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    await asyncio.wait_for(handler, 60)
    assert len(server.sent) == taken
    assert await server.state() is State.COMPLETED
    del server.send
    assert (await server.call())[1]["body"] == b"abc"


@pytest.mark.item("E5")
async def test_two_sends_that_never_end_do_not_outlast_their_client():
    """One task may send events, and another one keep the connection alive. Only the last send was ended."""
    both_stuck = asyncio.Barrier(3)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await asyncio.gather(send(body(b"a", more=True)), send(body(b"b", more=True)))
        await send(body(b"c"))

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await both_stuck.wait()
            await asyncio.Event().wait()

    server = Server(app)
    server.send = send  # type: ignore[method-assign]
    task = asyncio.create_task(server.call())
    await both_stuck.wait()
    (handler,) = server.layer._running
    server.gone.set()
    await asyncio.wait({task, handler}, timeout=60)
    assert await server.state() is State.COMPLETED


@pytest.mark.item("E4")
async def test_a_handler_that_is_cancelled_while_it_sends_is_cancelled():
    """Also if its client has left by then."""
    is_stuck = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(body(b"a", more=True))

    async def send(message: Any) -> None:
        is_stuck.set()
        await asyncio.Event().wait()

    server = Server(app)
    server.send = send  # type: ignore[method-assign]
    task = asyncio.create_task(server.call())
    await is_stuck.wait()
    (handler,) = server.layer._running
    handler.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait({handler})
    assert await server.state() is State.HELD


@pytest.mark.item("E6", "K14")
async def test_an_upload_that_is_shorter_than_announced_runs_nothing():
    """Whatever the server says about its end: Granian ends one that was reset over HTTP/2 as if it were whole."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start(201))
        await send(body((await receive())["body"]))

    server = Server(app)
    key, length = (b"idempotency-key", b"k"), (b"content-length", b"10")
    cut = await server.call(b"cents=1", headers=[key, length])
    assert (cut[0]["status"], b"request-incomplete" in cut[1]["body"]) == (400, True)
    whole = await server.call(b"cents=1000", headers=[key, length])
    assert (whole[0]["status"], whole[1]["body"]) == (201, b"cents=1000")
    coded = [(b"idempotency-key", b"decoded"), length, (b"content-encoding", b"gzip")]
    assert (await server.call(b"{}", headers=coded))[1]["body"] == b"{}"


@pytest.mark.item("E5")
@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("closed")])
async def test_a_send_that_fails_loses_no_result(error: Exception):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(body(b"1", more=True))
        await send(body(b"2"))

    server = Server(app)

    async def broken(message: Any) -> None:
        raise error

    server.send, works = broken, server.send  # type: ignore[method-assign]
    if isinstance(error, OSError):
        await server.call()
    else:
        with pytest.raises(RuntimeError):  # not a client's: the server shall see it
            await server.call()
    server.send = works  # type: ignore[method-assign]
    assert (await server.call())[1]["body"] == b"12"


@pytest.mark.item("E5", "R10", "T3")
@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("too_much", [True, False])
async def test_an_endless_stream_learns_of_its_client_as_its_server_reports_it(
    version: str, too_much: bool
):
    """Since 2.4 by `send`, which is all that Starlette looks at then; before, by `receive`."""
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listening = asyncio.ensure_future(receive())
        await send(start())
        try:
            while not (version == "2.3" and listening.done()):
                await send(body(b"x" * 100, more=True))
                await asyncio.sleep(0)
            told.append("2.3")
        except OSError:
            told.append("2.4")
            raise
        finally:
            listening.cancel()

    policy = HttpPolicy(max_result_bytes=500) if too_much else HttpPolicy(linger=0.01)
    server = Server(app, policy)

    async def broken(message: Any) -> None:
        server.gone.set()
        raise OSError("gone")

    server.send = broken  # type: ignore[method-assign]
    with contextlib.suppress(OSError):
        await server.call(asgi={"version": "3.0", "spec_version": version})
    assert told == [version]
    assert await server.state() is State.COMPLETED


@pytest.mark.item("A8")
async def test_a_message_that_the_server_does_not_know_is_the_applications_to_handle():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(RuntimeError):
            await send({"type": "http.response.early_hint", "links": []})
        await send(start())
        await send(body(b"done"))

    server = Server(app)
    known = server.send

    async def send(message: Any) -> None:
        if message["type"] == "http.response.early_hint":
            raise RuntimeError("expected http.response.start")  # as uvicorn does
        await known(message)

    server.send = send  # type: ignore[method-assign]
    assert [message.get("body") for message in await server.call()] == [None, b"done"]
    assert (await server.call())[1]["body"] == b"done"


@pytest.mark.item("E4")
async def test_a_handler_that_fails_after_early_hints_is_answered():
    """Hints are not the response: its head can still be sent."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.early_hint", "links": []})
        raise ValueError("a bug")

    server = Server(app)
    with pytest.raises(ValueError, match="a bug"):
        await server.call()
    assert [message["type"][14:] for message in server.sent] == ["early_hint", "start", "body"]
    assert server.sent[1]["status"] == 500


@pytest.mark.item("E4")
async def test_a_cancelled_handler_is_held():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise asyncio.CancelledError

    server = Server(app)
    with pytest.raises(asyncio.CancelledError):
        await server.call()
    assert await server.state() is State.HELD


@pytest.mark.item("E4", "E7")
@pytest.mark.parametrize("said", [[], [start()], [start(), body(b"1", more=True)]])
async def test_a_handler_that_ends_before_its_response_is_held(said: list[Any]):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in said:
            await send(message)

    server = Server(app)
    sent = await server.call()
    assert sent == said or (not said and sent[0]["status"] == 500)
    assert await server.state() is State.HELD
    rerun = Server(app, HttpPolicy(takeover="retry"))
    with pytest.raises(Exception, match="before its response was complete"):
        await rerun.call()
    assert await rerun.state() is State.RELEASED


@pytest.mark.item("E4")
async def test_a_handler_that_fails_after_a_head_without_a_body_is_answered():
    """Nothing was sent yet, so the client learns that the outcome is unknown."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start(204))
        raise ValueError("a bug")

    server = Server(app)
    with pytest.raises(ValueError, match="a bug"):
        await server.call()
    assert [message.get("status") for message in server.sent] == [500, None]
    assert await server.state() is State.HELD


async def test_after_its_response_the_application_hears_of_the_disconnect():
    heard = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start())
        await send(body(b""))
        heard.append(await receive())

    await Server(app).call()
    assert heard == [{"type": "http.disconnect"}]


@pytest.mark.item("A8")
async def test_ways_to_send_that_cannot_be_recorded_are_not_offered():
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await send(start())
        await send(body(b""))

    offered = {"http.response.pathsend": {}, "http.response.trailers": {}}
    await Server(app).call(extensions=offered, state={"a": 1})
    assert seen[0]["extensions"] == {"http.response.trailers": {}}
    assert seen[0]["state"] == {"a": 1}


@pytest.mark.item("F4")
async def test_the_path_as_sent_counts_where_the_server_tells_it():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(body(b""))

    server = Server(app)
    await server.call(path="/a/b", raw_path=b"/a/b")
    assert (await server.call(path="/a/b", raw_path=b"/a/b"))[0]["status"] == 200
    assert (await server.call(path="/a/b", raw_path=b"/a%2Fb"))[0]["status"] == 422


@pytest.mark.item("A4")
async def test_a_request_without_a_key_meets_nothing_of_the_layer():
    given: list[Any] = []

    async def app(*words: Any) -> None:
        given.extend(words)

    server = Server(app)
    words = (scope_of(headers=[(b"host", b"x")]), object(), object())
    await server.layer(*words)
    assert all(one is other for one, other in zip(given, words, strict=True))


@pytest.mark.item("A8", "R2")
async def test_the_fields_of_a_response_may_be_any_iterable():
    """They are read twice, for the client and for the record: a generator gives them once."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        fields = [(b"location", b"/charges/7")]
        await send({**start(201), "headers": (field for field in fields)})
        await send(body(b""))

    server = Server(app)
    first, again = [(await server.call())[0] for _ in range(2)]
    assert list(first["headers"]) == [(b"location", b"/charges/7")]
    assert (b"location", b"/charges/7") in again["headers"]


async def test_a_client_that_left_keeps_nothing_in_memory_once_its_handler_has_ended():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(body(b"x" * 1000))

    def exchanges() -> int:
        gc.collect()
        return sum(type(each) is AsgiExchange for each in gc.get_objects())

    server = Server(app)

    async def broken(message: Any) -> None:
        raise OSError("gone")

    server.send = broken  # type: ignore[method-assign]
    before = exchanges()
    await server.call()
    for _ in range(10):
        await asyncio.sleep(0)
    assert exchanges() <= before


@pytest.mark.item("E5", "T3")
@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("said", [[body(b"data: 1\n\n", more=True)], []], ids=["begun", "idle"])
async def test_a_stream_that_never_asks_for_its_client_frees_its_key_all_the_same(
    version: str, said: list[Any]
):
    """It never asks, so it may never end: its key does not wait for that."""
    begun, never = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**start(), "headers": [(b"Content-Type", b"text/event-stream; charset=utf-8")]})
        for message in said:
            await send(message)
        begun.set()
        await never.wait()

    server = Server(app, HttpPolicy(linger=0.01))
    task = asyncio.create_task(server.call(asgi={"version": "3.0", "spec_version": version}))
    await begun.wait()
    assert await server.state() is State.IN_PROGRESS
    server.gone.set()
    async with asyncio.timeout(60):
        while (state := await server.state()) is State.IN_PROGRESS:
            await asyncio.sleep(0.001)
            assert not task.done(), state
    assert await server.state() is State.COMPLETED
    never.set()
    await task
    assert (await server.call())[0]["status"] == 410


@pytest.mark.item("E5")
async def test_a_handler_without_a_response_yet_runs_to_its_end():
    inside, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listening = asyncio.ensure_future(receive())
        inside.set()
        await go.wait()
        assert not listening.done()
        await send(start())
        await send(body(b"done"))
        listening.cancel()

    server = Server(app, HttpPolicy(linger=0))
    task = asyncio.create_task(server.call())
    await inside.wait()
    server.gone.set()
    for _ in range(20):
        await asyncio.sleep(0)
    go.set()
    await task
    assert (await server.call())[1]["body"] == b"done"


@pytest.mark.item("E7", "T1")
@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_a_stream_that_ends_early_without_an_error_is_not_recorded_as_complete(version: str):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start())
        with contextlib.suppress(OSError):
            await send(body(b"1 of 2", more=True))
            await receive()
            await send(body(b"", more=True))
        await send(body(b""))

    server = Server(app, HttpPolicy(linger=0.01))
    server.gone.set()
    await server.call(asgi={"version": "3.0", "spec_version": version})
    assert await server.state() is State.COMPLETED
    assert (await server.call())[0]["status"] == 410  # result-not-kept


async def test_a_handler_that_never_waits_needs_no_round_of_the_loop():
    order: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        order.append(f"handler of {current_key().value}")
        await send(start())
        await send(body(b"done"))

    asyncio.get_running_loop().call_soon(order.append, "the next round of the loop")
    await Server(app).call()
    assert current_key() is None
    await asyncio.sleep(0)
    if sys.version_info < (3, 12):  # tasks cannot start at once there
        order.reverse()
    assert order == ["handler of k", "the next round of the loop"]


async def test_a_handler_runs_in_a_task_of_the_loops_own_kind():
    """An application may set a task factory, to trace its tasks for example."""
    made: list[asyncio.Task[Any]] = []

    def factory(loop: Any, work: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(asyncio.Task(work, loop=loop, **more))
        return made[-1]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert current_key().value == "k"
        assert asyncio.current_task() in made
        await send(start())
        await send(body(b"done"))

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        sent = await Server(app).call()
    finally:
        loop.set_task_factory(None)
    assert sent[1]["body"] == b"done"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_request_leaves_nothing_to_the_garbage_collector(fails: bool):
    """A reference cycle would keep the request, its body and its answer until the next collection."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if fails:
            raise ValueError
        await send(start())
        await send(body(b"done"))

    def exchanges() -> int:
        return sum(type(each) is AsgiExchange for each in gc.get_objects())

    server = Server(app)
    gc.collect()
    gc.disable()
    try:
        before = exchanges()
        with contextlib.suppress(ValueError):
            await server.call()
        await asyncio.sleep(0)  # its task ends
        assert exchanges() == before
    finally:
        gc.enable()
