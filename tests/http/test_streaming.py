"""T: responses that come in pieces pass through as they come, and are recorded before they end."""

from __future__ import annotations

import asyncio
import io
import threading
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from tests.http.stage import JSON, Answer, Play, Stage
from tests.http.test_outcomes import Heard
from tests.receiver.faults import AsyncFaultyStore, FaultyStore
from twicesafe import AsyncReceiver, Receiver, asgi, events, wsgi
from twicesafe.http import HttpPolicy
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

EVENTS = [(b"content-type", b"text/event-stream")]


@pytest.mark.item("T1")
@pytest.mark.parametrize("count", [1, 2, 300])
@pytest.mark.parametrize("ends_empty", [True, False])
def test_a_response_in_pieces_is_replayed_in_one(stage: Stage, count: int, ends_empty: bool):
    pieces: list[Any] = [b"%d," % n for n in range(count)]
    stage.handler = lambda _: Answer(
        200, [JSON], [*pieces, lambda: None, b"" if ends_empty else b"."]
    )
    first, again = stage.send("k"), stage.send("k")
    assert first.body == again.body == b"".join(pieces) + (b"" if ends_empty else b".")
    assert (first.replayed, again.replayed) == (False, True)
    assert again["transfer-encoding"] is None
    assert len(stage.seen) == 1


@pytest.mark.item("T3")
def test_events_are_not_held_back_and_a_retry_does_not_hang(stage: Stage):
    go = threading.Event()
    stage.handler = lambda _: Answer(
        200, EVENTS, [b"data: 1\n\n", lambda: go.wait(60), b"data: 2\n\n", b""]
    )
    with stage.connect() as connection:
        connection.sendall(stage.request("k"))
        got = b""
        while b"data: 1" not in got:  # it came although the handler still waits
            got += connection.recv(1000)
        assert stage.send("k").problem == "in-progress"
        go.set()
        while more := connection.recv(1000):
            got += more
    assert b"data: 2" in got
    again = stage.send("k")
    assert (again.replayed, again.body) == (True, b"data: 1\n\ndata: 2\n\n")
    assert len(stage.seen) == 1


@pytest.mark.item("T3", "R10")
def test_an_endless_stream_is_not_buffered_and_ends_with_its_client(play: Play):
    told = Heard(events.ResultNotKept)
    stage = play(max_result_bytes=10_000, observers=[told])
    sent = []

    def count() -> None:
        sent.append(1)
        assert len(sent) < 5000, "the stream was not notified that its client went away"

    if stage.edge == "asgi":
        stage.server.app = endless_asgi(stage, sent)
    else:
        stage.handler = lambda _: Answer(200, EVENTS, [count, b"x" * 1000] * 6000)
    with stage.connect() as connection:
        connection.sendall(stage.request("k"))
        assert connection.recv(100)
    told.wait()
    assert stage.send("k").problem == "result-not-kept"


def endless_asgi(stage: Stage, sent: list[int]) -> Any:
    """A stream that ends when it is notified of the disconnect, as frameworks' do."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            sent.append(1)
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            await asyncio.sleep(0)
        assert gone.result() == {"type": "http.disconnect"}

    receiver = AsyncReceiver(AsyncMemoryStore(stage.memory), observers=stage.observers)
    return asgi.IdempotencyMiddleware(app, receiver=receiver, policy=stage.policy)


@pytest.mark.item("E5", "T3")
def test_a_stream_that_outlasts_linger_is_not_kept(play: Play):
    told = Heard(events.ResultNotKept)
    stage = play(linger=0.05, observers=[told])
    if stage.edge == "asgi":
        stage.policy = stage.policy.replace(max_result_bytes=1 << 30)
        stage.server.app = endless_asgi(stage, [])
    else:
        tick = threading.Event()
        stage.handler = lambda _: Answer(200, EVENTS, [b"x", lambda: tick.wait(0.001)] * 10_000)
    with stage.connect() as connection:
        connection.sendall(stage.request("k"))
        assert connection.recv(100)
    told.wait()
    assert stage.send("k").problem == "result-not-kept"


# --- the order of things, without a server -----------------------------------------------------


def asgi_order(
    start: dict[str, Any], bodies: list[dict[str, Any]], policy: HttpPolicy | None = None
) -> list[str]:
    order: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", **start})
        for body in bodies:
            await send({"type": "http.response.body", **body})

    async def send(message: Any) -> None:
        order.append(message["type"] if "body" not in message else message["body"].decode())

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def run() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore())
        store.after = lambda request: order.append(request.op)
        layer = asgi.IdempotencyMiddleware(app, receiver=AsyncReceiver(store), policy=policy)
        fields = [(b"idempotency-key", b"k")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": fields}
        await layer(scope, receive, send)

    asyncio.run(run())
    return order


@pytest.mark.item("T2")
def test_the_record_is_written_before_the_last_chunk_is_sent():
    start = {"status": 200, "headers": []}
    assert asgi_order(start, [{"body": b"all"}]) == [
        "claim", "http.response.start", "complete", "all",
    ]  # fmt: skip
    pieces = [{"body": b"1", "more_body": True}, {"body": b"2", "more_body": True}, {"body": b""}]
    assert asgi_order(start, pieces) == [
        "claim", "http.response.start", "1", "2", "complete", "",
    ]  # fmt: skip
    sized = {"status": 200, "headers": [(b"Content-Length", b"2")]}
    assert asgi_order(sized, pieces) == [
        "claim", "http.response.start", "1", "complete", "2", "",
    ]  # fmt: skip
    assert asgi_order({"status": 429, "headers": []}, [{"body": b"no"}]) == [
        "claim", "http.response.start", "abandon", "no",
    ]  # fmt: skip


@pytest.mark.item("T2", "R7")
@pytest.mark.parametrize(
    "status, fields", [(204, []), (304, []), (201, [(b"content-length", b"0")])]
)
def test_the_record_of_a_response_without_a_body_is_written_before_its_head_is_sent(
    status: int, fields: Any
):
    """uvicorn sends a head at once, gunicorn with an empty chunk. Then the client has the whole response."""
    start = {"status": status, "headers": fields}
    sent = ["claim", "complete", "http.response.start", ""]
    assert asgi_order(start, [{"body": b""}]) == sent
    assert asgi_order(start, [{"body": b"", "more_body": True}, {"body": b""}]) == [*sent, ""]
    length = 0 if fields else None
    wsgi_server = WsgiServer(streaming(b"", status=f"{status} X", length=length))
    assert wsgi_server() == ["claim", str(status), "complete", ""]

    def late(environ: Any, start_response: Any) -> Any:
        yield from streaming(b"", status=f"{status} X", length=length)(environ, start_response)

    assert WsgiServer(late)() == ["claim", str(status), "complete", ""]


def test_wsgi_the_record_is_written_before_the_server_gets_a_response_without_a_body():
    """Granian sends the head before it takes the first chunk."""
    server = WsgiServer(streaming(status="204 No Content"))
    assert server(take=0) == ["claim", "204", "complete"]


@pytest.mark.item("E4", "E7", "T2")
@pytest.mark.parametrize("policy", [HttpPolicy(), HttpPolicy(takeover="retry")])
def test_a_short_response_ends_its_attempt_before_its_last_chunk_is_sent(policy: HttpPolicy):
    """Held, or failed where a retry may run: a client that retries at once finds either."""
    start = {"status": 200, "headers": [(b"content-length", b"3")]}
    pieces = [{"body": b"1", "more_body": True}, {"body": b"2"}]
    assert asgi_order(start, pieces, policy) == [
        "claim", "http.response.start", "1", "fail", "2",
    ]  # fmt: skip
    wsgi_server = WsgiServer(streaming(b"1", b"2", length=3), policy)
    assert wsgi_server() == ["claim", "200", "1", "2", "fail"]  # its end is known at the end only


class WsgiServer:
    """A WSGI server of a few lines, which records what happens in which order."""

    def __init__(self, app: Any, policy: HttpPolicy | None = None) -> None:
        self.order: list[str] = []
        store = FaultyStore(MemoryStore())
        store.after = lambda request: self.order.append(request.op)
        self.layer = wsgi.IdempotencyMiddleware(app, receiver=Receiver(store), policy=policy)

    def __call__(self, take: int | None = None, **more: Any) -> list[str]:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k", "CONTENT_LENGTH": "0", **more,
        }  # fmt: skip
        setup_testing_defaults(environ)
        body = self.layer(environ, self.start_response)
        if take == 0:
            return list(self.order)
        for count, chunk in enumerate(body, 1):
            self.order.append(chunk.decode())
            if count == take:
                break
        if hasattr(body, "close"):
            body.close()
        return self.order

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        if exc_info is not None and len(self.order) > 2:
            raise exc_info[1]
        self.order.append(status[:3])
        return lambda data: self.order.append(data.decode())


def streaming(*pieces: bytes, status: str = "200 OK", length: int | None = None) -> Any:
    def app(environ: Any, start_response: Any) -> Any:
        start_response(status, [] if length is None else [("Content-Length", str(length))])
        return iter(pieces)

    return app


@pytest.mark.item("T2")
def test_wsgi_records_before_the_end_is_sent():
    assert WsgiServer(streaming(b"1", b"2", b""))() == [
        "claim",
        "200",
        "1",
        "2",
        "",
        "complete",
    ]
    assert WsgiServer(streaming(b"1", b"2", length=2))() == [
        "claim",
        "200",
        "1",
        "complete",
        "2",
    ]
    assert WsgiServer(streaming(b"1", status="429 No"))() == ["claim", "429", "1", "abandon"]

    def whole(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"1", b"2"]

    assert WsgiServer(whole)() == ["claim", "200", "complete", "1", "2"]


@pytest.mark.item("A8", "T1")
def test_wsgi_write_close_and_file_wrappers_are_honoured():
    closed: list[str] = []

    class Body:
        def __init__(self, data: bytes) -> None:
            self.read = io.BytesIO(data).read

        def close(self) -> None:
            closed.append("closed")

    def app(environ: Any, start_response: Any) -> Any:
        write = start_response("200 OK", [])
        write(b"written")
        return environ["wsgi.file_wrapper"](Body(b"0123456789"), 4)

    server = WsgiServer(app)
    extra = {"wsgi.file_wrapper": lambda file, size: 1 / 0}  # a server's own cannot be recorded
    assert server(**extra) == ["claim", "200", "written", "0123", "4567", "89", "complete"]
    assert closed == ["closed"]
    del server.order[:]
    assert server() == ["claim", "200", "written0123456789"]


@pytest.mark.item("E4")
def test_wsgi_a_handler_may_replace_its_head_by_exc_info():
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        try:
            raise ValueError
        except ValueError as error:
            start_response("400 Bad", [], (type(error), error, None))
        return [b"bad"]

    server = WsgiServer(app)
    assert server() == ["claim", "200", "400", "complete", "bad"]
    assert server()[5:] == ["claim", "400", "bad"]


@pytest.mark.item("E5")
def test_wsgi_an_unread_response_is_recorded_all_the_same():
    server = WsgiServer(streaming(b"1", b"2", b"3"))
    assert server(take=1) == ["claim", "200", "1", "complete"]
    assert server()[4:] == ["claim", "200", "123"]


@pytest.mark.item("E7")
def test_wsgi_an_exception_after_the_head_is_the_servers_to_see():
    def pieces() -> Any:
        yield b"1"
        raise RuntimeError("cut")

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return pieces()

    server = WsgiServer(app)
    with pytest.raises(RuntimeError, match="cut"):
        server()
    assert server.order == ["claim", "200", "1", "fail"]
    assert server()[4:6] == ["claim", "500"]


@pytest.mark.item("E4", "E7")
def test_wsgi_a_problem_never_follows_a_part_of_the_response():
    """Granian takes a second head with `exc_info` and does not send it: the cut would look complete."""
    heads: list[Any] = []

    def pieces() -> Any:
        yield b"1"
        raise RuntimeError("cut")

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return pieces()

    server = WsgiServer(app)
    server.start_response = lambda status, fields, *error: heads.append(error)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="cut"):
        server()
    assert heads == [()]


@pytest.mark.item("E4")
def test_wsgi_only_a_second_head_has_exc_info():
    """On Python 3.11, uWSGI fails if a first head has it."""
    heads: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        raise RuntimeError("a bug")

    server = WsgiServer(app)
    server.start_response = lambda status, fields, *error: heads.append((status[:3], *error))  # type: ignore[method-assign]
    assert "outcome-unknown" in server()[-1]
    assert heads == [("500",)]


@pytest.mark.item("E4")
def test_wsgi_the_problem_is_sent_to_its_end_on_uwsgi_too():
    """uWSGI takes a head with `exc_info`, and yet raises: the head went out alone, without its body."""
    heads: list[str] = []

    def uwsgi(status: str, fields: Any, *error: Any) -> None:
        heads.append(status[:3])
        if error:
            raise SystemError("uwsgi_spit returned a result with an exception set")

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        raise RuntimeError("a bug")
        yield b""

    server = WsgiServer(app)
    server.start_response = uwsgi  # type: ignore[method-assign, assignment]
    assert "outcome-unknown" in server()[-1]
    assert heads == ["200", "500"]


@pytest.mark.item("E6")
def test_wsgi_a_short_body_is_refused_and_a_terminated_one_is_read_to_its_end():
    server = WsgiServer(streaming(b"1"))
    short = {"CONTENT_LENGTH": "5", "wsgi.input": io.BytesIO(b"1234")}
    assert server(**short)[0] == "400"
    del server.order[:]
    known = {"wsgi.input_terminated": True, "SERVER_SOFTWARE": "gunicorn/26"}
    chunked = {**known, "wsgi.input": io.BytesIO(b"1" * 100_000)}
    assert server(CONTENT_LENGTH="", **chunked) == ["claim", "200", "1", "complete"]
    again = {"CONTENT_LENGTH": "100000", "wsgi.input": io.BytesIO(b"1" * 100_000)}
    assert server(**again)[4:] == ["claim", "200", "1"]
    huge = {**known, "wsgi.input": io.BytesIO(b"1" * 2_000_000)}
    assert server(CONTENT_LENGTH="", HTTP_IDEMPOTENCY_KEY="j", **huge)[7] == "413"


@pytest.mark.item("E6", "F9")
def test_wsgi_a_body_whose_end_the_server_does_not_tell_is_refused():
    server = WsgiServer(streaming(b"1"))
    chunked = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}
    for body in (b"pay 1", b"pay 999"):
        assert server(**chunked, **{"wsgi.input": io.BytesIO(body)})[0] == "411"
        assert "claim" not in server.order
        del server.order[:]
    # A server that ends the body, and may do so silently where it was cut.
    ended = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True, "SERVER_SOFTWARE": "Granian"}
    assert server(**ended, **{"wsgi.input": io.BytesIO(b"pay 1")}) == ["411", server.order[1]]
    del server.order[:]
    # Over HTTP/2 a body needs no length, and there is no Transfer-Encoding. Hypercorn does not say more.
    for version in ("HTTP/2", "HTTP/2.0", "HTTP/3"):
        for body in (b"pay 1", b"pay 999"):
            streamed = {"SERVER_PROTOCOL": version, "wsgi.input": io.BytesIO(body)}
            assert server(CONTENT_LENGTH="", **streamed)[0] == "411"
            assert "claim" not in server.order
            del server.order[:]
    empty = {"SERVER_PROTOCOL": "HTTP/2", "HTTP_IDEMPOTENCY_KEY": "empty"}
    assert server(CONTENT_LENGTH="", **empty) == ["claim", "200", "1", "complete"]
    del server.order[:]
    sized = {"CONTENT_LENGTH": "5", "wsgi.input": io.BytesIO(b"pay 1")}
    assert server(**sized) == ["claim", "200", "1", "complete"]
