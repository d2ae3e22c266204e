"""httpx, httpx2, requests and aiohttp over real sockets: one effect, however the network behaves."""

from __future__ import annotations

import asyncio
import copy
import io
import pickle
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
import requests
from aiohttp.payload import AsyncIterablePayload

from tests.client.flaky import Flaky, response
from tests.client.libraries import ERRORS, LIBRARIES, QUICK, Library, _awaited
from tests.http.stage import Answer, Stage
from tests.servers import free_port
from twicesafe import ConfigurationError
from twicesafe.client import Budget, sent_of
from twicesafe.client._final_answers import blames_certificate
from twicesafe.client.aiohttp import RetryMiddleware
from twicesafe.client.requests import RetryAdapter, _never_left
from twicesafe.http import HttpPolicy

Make = Callable[..., Flaky]


# --- against our own middleware ----------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    ["pass", "refuse pass", "lose lose pass", "drop pass", "cut pass", "refuse drop cut lose pass"],
)
def test_one_effect_and_the_whole_answer(library: Library, stage: Stage, flaky: Make, script: str):
    if library.name == "aiohttp":  # what does not say its length it cannot read ahead
        stage.handler = lambda _: Answer(headers=[(b"content-length", b"7")], body=[b'{"n":1}'])
    replayed = "drop" in script or "cut" in script  # then the first one had arrived
    deeds = script.split()
    server = flaky(*deeds, behind=stage.server.port)
    got = library.send(server.url)
    assert (got.status, got.body) == (201, b'{"n":1}')
    assert len(stage.seen) == 1
    assert got.sent is not None
    assert (got.sent.attempts, got.sent.replayed, got.sent.end) == (
        len(deeds),
        replayed,
        "answered",
    )
    assert set(server.keys) == {got.sent.key}


def test_an_answer_that_is_no_http_is_retried(library: Library, flaky: Make):
    server = flaky(b"garbage\r\n\r\n", response(201))
    got = library.send(server.url)
    assert (got.status, got.sent.attempts) == (201, 2)
    assert len(server.keys) == 2
    assert len(set(server.keys)) == 1


def test_while_the_first_is_running_the_client_waits_as_retry_after_says(
    library: Library, stage: Stage, flaky: Make
):
    go, begun = threading.Event(), threading.Event()

    def slow(_: Any) -> Answer:
        begun.set()
        assert go.wait(60)
        return Answer(body=[b"done"])

    stage.handler = slow
    server = flaky(behind=stage.server.port)
    running = stage.later("given")
    assert begun.wait(60)

    plain = library.wait

    def wait(seconds: float) -> None:
        plain(seconds)
        go.set()
        running.result(120)

    library.wait = wait  # type: ignore[method-assign]
    got = library.send(server.url, headers={"Idempotency-Key": "given"})
    assert (got.status, got.body, len(stage.seen)) == (201, b"done", 1)
    assert got.sent is not None
    assert (got.sent.replayed, got.sent.key, got.sent.attempts) == (True, "given", 2)
    assert 1 <= library.waits[0] < 31  # Retry-After, and a little


def test_another_request_under_the_key_stops_at_once(library: Library, stage: Stage):
    stage.send("given", b"other")
    got = library.send(f"http://127.0.0.1:{stage.server.port}/charges", headers={"Idempotency-Key": "given"})  # fmt: skip
    assert got.status == 422
    assert got.sent is not None
    assert (got.sent.attempts, got.sent.end) == (1, "answered")


def test_an_unknown_outcome_stops_at_once(library: Library, stage: Stage):
    def broken(_: Any) -> Answer:
        raise RuntimeError("in mid-work")

    stage.handler = broken
    got = library.send(f"http://127.0.0.1:{stage.server.port}/charges")
    assert got.status == (502 if stage.edge == "proxy" else 500)
    assert b"outcome-unknown" in got.body
    assert got.sent is not None
    assert (got.sent.attempts, len(stage.seen)) == (1, 1)


def test_a_refusal_that_did_nothing_is_tried_again(library: Library, stage: Stage):
    answers = iter([429, 503, 201])
    stage.handler = lambda _: Answer(next(answers))
    got = library.send(f"http://127.0.0.1:{stage.server.port}/charges")
    assert got.status == 201
    assert got.sent is not None
    assert (got.sent.attempts, got.sent.replayed) == (3, False)


# --- against servers of another kind -----------------------------------------------------------


def test_each_call_has_a_key_and_its_retries_the_same(library: Library, flaky: Make):
    server = flaky(response(503), response(201), response(502), response(201))
    first, second = library.send(server.url), library.send(server.url)
    a, b, c, d = server.keys
    assert a == b != c == d
    assert first.sent is not None
    assert second.sent is not None
    assert (first.sent.key, second.sent.key) == (a, c)


def test_the_same_octets_are_sent_again(library: Library, flaky: Make):
    server = flaky("lose", response(201))
    library.send(server.url, b"\x00\xff" * 500)
    first, second = server.seen
    assert first == second


def test_safe_methods_are_untouched(library: Library, flaky: Make):
    server = flaky(response(503))
    got = library.send(server.url, None, "GET")
    assert (got.status, got.sent, server.keys) == (503, None, [""])


def test_retry_after_is_honoured(library: Library, flaky: Make):
    server = flaky(response(503, b"", "Retry-After: 3"), response(201))
    assert library.send(server.url).status == 201
    assert 3 <= library.waits[0] < 3.1


def test_a_wait_beyond_the_deadline_gives_the_answer_instead(library: Library, flaky: Make):
    server = flaky(response(503, b"busy", "Retry-After: 3000"))
    got = library.send(server.url, policy=QUICK.replace(deadline=1000))
    assert (got.status, got.body) == (503, b"busy")
    assert got.sent is not None
    assert (got.sent.attempts, got.sent.end) == (1, "deadline")


def test_when_nothing_helps_the_librarys_own_error_is_raised_with_the_key(
    library: Library, flaky: Make
):
    server = flaky("lose")
    with pytest.raises(ERRORS) as caught:
        library.send(server.url, policy=QUICK.replace(attempts=3))
    sent = sent_of(caught.value)
    assert sent is not None
    assert (sent.attempts, sent.end, server.keys) == (3, "attempts", [sent.key] * 3)


def test_no_server_listens(library: Library):
    port = free_port()
    with pytest.raises(ERRORS) as caught:
        library.send(f"http://127.0.0.1:{port}/", policy=QUICK.replace(attempts=2))
    sent = sent_of(caught.value)
    assert sent is not None
    assert (sent.attempts, len(library.waits)) == (2, 1)


def test_a_server_that_says_nothing_is_asked_again_after_the_time_out(
    library: Library, stage: Stage, flaky: Make
):
    go = threading.Event()

    def slow(_: Any) -> Answer:
        assert go.wait(60)
        return Answer(body=[b"done"])

    stage.handler = slow
    server = flaky(behind=stage.server.port)
    plain = library.wait

    def wait(seconds: float) -> None:
        plain(seconds)
        if len(library.waits) == 2:  # after the time-out, and a 409
            go.set()
            for _ in range(2):  # both are answered now
                assert server.forwarded.acquire(timeout=120)

    library.wait = wait  # type: ignore[method-assign]
    got = library.send(server.url, timeout=0.2, policy=QUICK.replace(attempts=50))
    assert (got.body, len(stage.seen)) == (b"done", 1)
    assert got.sent is not None
    assert got.sent.replayed
    assert got.sent.attempts >= 3


def test_the_deadline_ends_an_attempt_too(library: Library, flaky: Make, stage: Stage):
    go = threading.Event()
    stage.handler = lambda _: Answer(body=[b"x" if go.wait(60) else b"y"])
    server = flaky(behind=stage.server.port)
    with pytest.raises(ERRORS) as caught:
        library.send(server.url, policy=QUICK.replace(deadline=0.2))
    go.set()
    sent = sent_of(caught.value)
    assert sent is not None
    assert sent.end == "deadline"


def test_a_problem_document_without_a_length_is_read(library: Library, flaky: Make):
    body = b'{"type":"urn:x:in-progress"}'
    head = b"HTTP/1.1 409 C\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    server = flaky(chunked, response(201))
    assert library.send(server.url).status == 201


CHUNKED = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


def test_an_answer_without_a_length_that_is_cut_is_asked_for_again(library: Library, flaky: Make):
    server = flaky(CHUNKED.format("application/json").encode(), response(201, b"again"))
    if library.name == "aiohttp":  # what it has read it cannot put back
        with pytest.raises(ERRORS):
            library.send(server.url)
    else:
        assert library.send(server.url).body == b"again"


def test_an_event_stream_that_is_cut_is_the_callers_to_see(library: Library, flaky: Make):
    server = flaky(CHUNKED.format("text/event-stream").encode(), response(201, b"again"))
    if library.name == "requests":  # it reads all, unless stream=True
        assert library.send(server.url).body == b"again"
    else:
        with pytest.raises(ERRORS):
            library.send(server.url)
        assert len(server.seen) == 1


# --- bodies ------------------------------------------------------------------------------------


def test_a_stream_is_sent_once_and_it_is_said(library: Library, flaky: Make):
    server = flaky("lose", response(201))
    with pytest.raises(ERRORS) as caught:
        library.send(server.url, lambda: iter([b"a", b"b"]))
    sent = sent_of(caught.value)
    assert sent is not None
    assert (sent.attempts, sent.end, len(server.seen)) == (1, "body", 1)


@pytest.mark.parametrize("is_part", [False, True])
async def test_aiohttp_an_upload_that_broke_off_is_not_taken_up_in_its_middle(
    flaky: Make, monkeypatch: pytest.MonkeyPatch, is_part: bool
):
    async def write(self: Any, writer: Any, content_length: Any) -> None:
        async for chunk in self._iter:
            await writer.write(chunk)
        self._consumed = True  # at its end only, as aiohttp 3.13 does

    async def pieces() -> Any:
        for _ in range(1000):  # more than sockets hold
            yield b"x" * 65536

    monkeypatch.setattr(AsyncIterablePayload, "write_with_length", write)
    server = flaky("half", response(201))
    middleware = RetryMiddleware(policy=QUICK)
    async with aiohttp.ClientSession(middlewares=[middleware]) as session:
        form = aiohttp.MultipartWriter()
        form.append(pieces())
        with pytest.raises(aiohttp.ClientError) as caught:
            await session.post(server.url, data=form if is_part else pieces())
    sent = sent_of(caught.value)
    assert sent is not None
    assert (sent.attempts, sent.end, server.seen) == (1, "body", [])


async def test_aiohttp_what_it_has_in_memory_is_sent_again(flaky: Make):
    stream = AsyncIterablePayload(_awaited([b"a", b"b"]))
    await stream.as_bytes()
    server = flaky("lose", response(201))
    async with aiohttp.ClientSession(middlewares=[RetryMiddleware(policy=QUICK)]) as session:
        form = aiohttp.MultipartWriter()
        form.append("text")
        form.append(stream)
        async with session.post(server.url, data=form) as answer:
            assert answer.status == 201
    assert server.seen[0] == server.seen[1]


def test_a_stream_that_gets_an_answer_is_fine(library: Library, flaky: Make):
    server = flaky(response(201))
    got = library.send(server.url, lambda: iter([b"a", b"b"]))
    assert got.status == 201
    assert b"a" in server.seen[0].partition(b"\r\n\r\n")[2]


def test_a_stream_that_never_left_is_sent_again(library: Library):
    port = free_port()
    with pytest.raises(ERRORS) as caught:
        library.send(
            f"http://127.0.0.1:{port}/", lambda: iter([b"a"]), policy=QUICK.replace(attempts=2)
        )
    sent = sent_of(caught.value)
    assert sent is not None
    assert (sent.attempts, sent.end) == (2, "attempts")


def test_requests_tells_what_never_left():
    assert _never_left(requests.ConnectTimeout())
    assert not _never_left(requests.ReadTimeout())
    assert not _never_left(requests.ConnectionError(ConnectionResetError()))


def test_files_are_rewound_where_the_library_can(flaky: Make, both: Any):
    its, ours = both
    server = flaky("lose", response(201))
    with requests.Session() as session:
        session.mount("http://", RetryAdapter(policy=QUICK))
        file = io.BytesIO(b"skipped and sent")
        file.seek(12)
        assert session.post(server.url, data=file).status_code == 201
    assert [request.rpartition(b"\r\n")[2] for request in server.seen] == [b"sent"] * 2

    server = flaky("lose", response(201), "lose", response(201))
    with its.Client(transport=ours.RetryTransport(policy=QUICK)) as client:
        assert client.post(server.url, files={"f": io.BytesIO(b"content")}).status_code == 201
        assert server.seen[0] == server.seen[1]
        assert b"content" in server.seen[1]

        class Pipe(io.BytesIO):
            def seekable(self) -> bool:
                return False

        with pytest.raises(its.ReadError) as caught:
            client.post(server.url, files={"f": Pipe(b"content")})
        sent = sent_of(caught.value)
        assert sent is not None
        assert sent.end == "body"


# --- the rest of what a library does -------------------------------------------------------------


def test_profiles_are_those_of_the_server(library: Library, flaky: Make):
    server = flaky(response(201))
    library.send(server.url, policy=QUICK.replace(http=HttpPolicy.paypal()))
    assert b"paypal-request-id: " in server.seen[0].lower()
    assert server.keys == [""]


def test_a_streamed_answer_can_be_streamed(flaky: Make, both: Any):
    its, ours = both
    large = b"x" * 300_000
    unannounced = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + large
    announced = response(200, large)
    server = flaky(*[announced] * 3, *[unannounced] * 3)
    for buffer in (0, 1000, 1_000_000) * 2:
        transport = ours.RetryTransport(policy=QUICK.replace(buffer=buffer))
        with (
            its.Client(transport=transport) as client,
            client.stream("POST", server.url) as made,
        ):
            assert b"".join(made.iter_raw()) == large


async def test_a_streamed_answer_can_be_awaited_in_pieces(flaky: Make, both: Any):
    its, ours = both
    large = b"x" * 300_000
    server = flaky(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + large)
    for buffer in (0, 1000, 1_000_000):
        transport = ours.AsyncRetryTransport(policy=QUICK.replace(buffer=buffer))
        async with (
            its.AsyncClient(transport=transport) as client,
            client.stream("POST", server.url) as made,
        ):
            assert b"".join([piece async for piece in made.aiter_raw()]) == large


def test_a_budget_may_be_shared(flaky: Make, both: Any):
    its, ours = both
    budget = Budget(ratio=0, reserve=1)
    server = flaky(response(503))
    ends = []
    for _ in range(2):
        transport = ours.RetryTransport(policy=QUICK.replace(attempts=2), budget=budget)
        with its.Client(transport=transport) as client:
            sent = sent_of(client.post(server.url))
            assert sent is not None
            ends.append(sent.end)
    assert ends == ["attempts", "budget"]


def test_urllib3_is_not_to_retry_as_well():
    with pytest.raises(ConfigurationError, match="attempts"):
        RetryAdapter(max_retries=3)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_requests_session_may_be_copied(copied: Callable[[Any], Any], flaky: Make):
    """As requests' own adapters may, into a pool of processes above all."""
    server = flaky(response(503), response(201))
    with requests.Session() as session:
        adapter = RetryAdapter(policy=QUICK, budget=Budget(ratio=0.5, reserve=3), pool_maxsize=4)
        session.mount("http://", adapter)
        other = copied(session)
    with other:
        assert other.post(server.url).status_code == 201
    assert len(set(server.keys)) == 1
    made = other.get_adapter(server.url)
    assert (made.policy.backoff, made.budget.ratio, made.budget.reserve) == (QUICK.backoff, 0.5, 3)
    assert made.budget is not adapter.budget


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unvouched(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate that it signed itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -keyout key -out cert"
    subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


@pytest.fixture
def impostor(unvouched: ssl.SSLContext) -> Iterator[str]:
    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
                unvouched.wrap_socket(connection, server_side=True).close()
            except ssl.SSLError:
                continue  # the client turned away
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}/"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_untrusted_certificate_is_not_asked_again(name: str, impostor: str):
    library = Library(name)
    with pytest.raises(ERRORS) as caught:
        library.send(impostor, tls=True)
    sent = sent_of(caught.value)
    assert sent is not None
    assert (sent.attempts, sent.end) == (1, "error")


def test_a_broken_tls_stream_is_not_the_certificates_fault():
    broken = requests.exceptions.SSLError(ssl.SSLEOFError(8, "EOF occurred"))
    assert not blames_certificate(broken)
    wrapped = ConnectionError("outer")
    wrapped.__cause__ = ValueError(ssl.SSLCertVerificationError(1, "self-signed"))
    assert blames_certificate(wrapped)


@pytest.mark.parametrize("when", ["no answer", "pause"])
async def test_aiohttp_the_total_time_out_of_a_session_ends_the_call(flaky: Make, when: str):
    async def never(_: float) -> None:
        assert when == "pause"
        await asyncio.get_running_loop().create_future()

    budget = Budget()
    middleware = RetryMiddleware(policy=QUICK, budget=budget, sleep=never)
    limits = aiohttp.ClientTimeout(total=0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/charges"
        if when == "pause":
            url = flaky(response(503)).url
        async with aiohttp.ClientSession(middlewares=[middleware], timeout=limits) as session:
            with pytest.raises(TimeoutError) as caught:
                await session.post(url, json={}, headers={"Idempotency-Key": "order-7"})
    sent = sent_of(caught.value)
    assert sent is not None
    assert (sent.key, sent.attempts, sent.end) == ("order-7", 1, "error")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert when == "pause" or budget.left == budget.reserve
