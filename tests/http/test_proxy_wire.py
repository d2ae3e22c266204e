"""D15 on real sockets: what one reader could take for a second request does not reach the upstream.

The guard of `_core.http.wire` reads first, and the server's parser gets only what the guard has judged.
Each case comes in pieces too, because a parser that sees octets before they are judged is how a bare LF
once carried a whole second request past the guard.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from unittest.mock import Mock

import pytest

from tests.http.scripted import OK
from tests.http.stage import Answer, Before, Play, Seen, Stage, read, spoken
from tests.http.test_wire import BAD_RESPONSES, GOOD_RESPONSES
from twicesafe import State
from twicesafe._core.http.wire import RequestGuard
from twicesafe._proxy.addresses import UpstreamAddress
from twicesafe._proxy.connections import Connection, Connections, Unreachable


@pytest.fixture
def edge() -> str:
    return "proxy"


FORGED = (
    b"POST /admin HTTP/1.1\r\nHost: a\r\nAuthorization: forged\r\nX-Forwarded-For: 10.0.0.1\r\n"
    b"Content-Length: 0\r\n\r\n"
)
SMUGGLED = {
    "head of LF alone": b"GET /a HTTP/1.1\nHost: a\n\n",
    "LF at the very end": b"GET /a HTTP/1.1\r\nHost: a\r\n\n",
    "LF, then CRLF": b"GET /a HTTP/1.1\r\nHost: a\n\r\n",
    "absolute": b"GET http://other/ HTTP/1.1\nHost: a\n\n",
    "folded": b"GET /a HTTP/1.1\nHost: a\nX-Odd: b\n Content-Length: 100\n\n",
    "length and coding": b"POST /a HTTP/1.1\nHost: a\nContent-Length: 200\nTransfer-Encoding: chunked\n\n"
    b"0\r\n\r\n",
    "two hosts": b"GET /a HTTP/1.1\nHost: a\nHost: b\n\n",
    "trailers of LF alone": b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\nX-Sum: 1\n\n",
    "trailers that end with LF": b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\n\n",
    "CR in a value": b"GET /a HTTP/1.1\r\nHost: a\r\nX-Odd: b\rX-Tenant: c\r\n\r\n",
}  # fmt: skip


@pytest.mark.item("D15")
@pytest.mark.parametrize("rest", [b"", FORGED], ids=["alone", "with a second request"])
@pytest.mark.parametrize("name", SMUGGLED)
def test_a_line_that_ends_in_lf_alone_hides_no_second_request(
    before: Before, name: str, rest: bytes
):
    stage, service = before()
    first = SMUGGLED[name]
    for pieces in ([first, rest], [first + rest], [first[:-1], first[-1:], rest]):
        got = spoken(stage, *pieces, b"\r\n\r\n")
        assert got == b"" or got.startswith(b"HTTP/1.1 400 "), pieces
        assert got.count(b"HTTP/1.1 ") <= 1, pieces
    stage.send("k")  # what had been passed on before it would be there by now
    assert [request.partition(b" HTTP/")[0] for request in service.requests] == [b"POST /charges"]


@pytest.mark.item("D15")
def test_what_follows_the_last_request_of_a_connection_is_not_read(before: Before):
    """Connection: close, and HTTP/1.0, which knows no other way here."""
    inside, go = threading.Event(), threading.Event()

    def slow(connection: socket.socket) -> None:
        inside.set()
        assert go.wait(60)
        connection.sendall(OK)

    for request in (
        b"POST /a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nConnection: x, Close\r\n\r\n",
        b"POST /a HTTP/1.0\r\nIdempotency-Key: k\r\n\r\n",
    ):
        stage, service = before([slow])
        with stage.connect() as connection:
            connection.sendall(request)
            assert inside.wait(60)
            connection.sendall(FORGED + b"nonsense\n\n")
            go.set()
            got = b""
            while data := connection.recv(65536):
                got += data
        assert got.startswith(b"HTTP/1.1 201 ")  # not 400: it ran
        assert got.count(b"HTTP/1.1 ") == 1
        assert len(service.requests) == 1
        inside.clear()
        go.clear()


@pytest.mark.item("D15", "H3")
def test_a_client_that_was_refused_instead_of_100_is_not_read_on(play: Play):
    """It may go on with its body or with another request: the proxy cannot tell which."""
    stage = play(max_body=10)
    waits = ("Expect", "100-continue"), ("Content-Length", "200")
    request = stage.request("k", b"", "POST", "/", *waits).replace(b"Connection: close\r\n", b"")
    with stage.connect() as connection:
        connection.sendall(request)
        reply = read(connection)
        assert (reply.status, reply["connection"]) == (413, "close")
    assert spoken(stage, request + FORGED).count(b"HTTP/1.1 ") == 1
    assert stage.seen == []


@pytest.mark.item("D15")
def test_an_answer_that_has_begun_is_not_followed_by_a_refusal(stage: Stage):
    """The body of the request breaks after the answer: 400 would be the answer to the next one."""
    head = b"POST /a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: \r\nTransfer-Encoding: chunked\r\n\r\n"
    with stage.connect() as connection:
        connection.sendall(head + b"1\r\nx\r\n")
        got = b""
        while b"key-invalid" not in got:
            got += connection.recv(1000)
        connection.sendall(b"+1\r\n")
        while data := connection.recv(1000):
            got += data
    assert got.count(b"HTTP/1.1 ") == 1


@pytest.mark.item("D15")
def test_a_good_request_before_a_bad_body_is_answered(stage: Stage):
    inside, go = threading.Event(), threading.Event()

    def slow(_: Seen) -> Answer:
        inside.set()
        assert go.wait(60)
        return Answer(body=[b"done"])

    stage.handler = slow
    chunked = b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with stage.connect() as connection:
        connection.sendall(stage.request("k").replace(b"Connection: close\r\n", b"") + chunked)
        assert inside.wait(60)
        connection.sendall(b"0x1\r\n")
        go.set()
        got = b""
        while data := connection.recv(1000):
            got += data
    assert (got.count(b"HTTP/1.1 "), b"done" in got, len(stage.seen)) == (1, True, 1)


@pytest.mark.item("D15")
def test_a_parser_that_reads_otherwise_than_the_guard_is_reported_and_ends_the_connection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(RequestGuard, "feed", lambda self, data: data)
    with caplog.at_level(logging.ERROR, "twicesafe._proxy"):
        got = spoken(stage, b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + FORGED)
    assert got == b"" or got.startswith(b"HTTP/1.1 400 ")
    assert got.count(b"HTTP/1.1 ") <= 1
    assert any("guard accepted" in record.message for record in caplog.records)
    assert stage.seen == []


# --- the upstream's side -----------------------------------------------------------------------


@pytest.mark.item("D15", "E4")
@pytest.mark.parametrize("name", BAD_RESPONSES)
def test_a_response_that_is_not_plain_http_is_an_unknown_outcome(before: Before, name: str):
    stage, service = before([BAD_RESPONSES[name]], [BAD_RESPONSES[name]], [OK])
    first, plain = stage.send("k"), stage.send(None)
    for reply, problem in ((first, "outcome-unknown"), (plain, "upstream-failed")):
        assert reply.cut or (reply.status, reply.problem) == (502, problem)
    assert stage.send("k").problem == "outcome-unknown"
    assert [record.state for record in stage.records.records()] == [State.HELD]
    assert stage.send("other").body == b"ok"
    assert service.connections == 3  # none was used again


@pytest.mark.item("A8")
@pytest.mark.parametrize("name", GOOD_RESPONSES)
def test_a_plain_response_passes(before: Before, name: str):
    octets, status, body = GOOD_RESPONSES[name]
    stage, _ = before([octets])
    reply = stage.send("k")
    assert (reply.status, reply.body, reply.cut) == (status, body, False)
    assert stage.send("k").replayed


@pytest.mark.item("D15", "A9")
def test_a_length_beside_a_coding_ends_the_connection(before: Before):
    both = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\n"
    )
    stage, service = before([both, OK], [OK])
    assert [stage.send(key).body for key in "ab"] == [b"abc", b"ok"]
    assert service.connections == 2


@pytest.mark.item("A9", "E10", "D15")
async def test_an_upstream_that_speaks_first_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    """What it says answers no request, and nothing was sent."""
    made: list[Connection] = []
    greetings: list[bytes] = []

    async def greeted(_: Connections) -> Connection:
        made.append(Connection())
        made[-1].connection_made(Mock(asyncio.Transport, **{"is_closing.return_value": False}))
        if greetings:
            made[-1].data_received(greetings.pop())
        return made[-1]

    monkeypatch.setattr(Connections, "_open", greeted)
    origin = UpstreamAddress.of("http://127.0.0.1:9")
    connections = Connections(origin, connect_timeout=60, idle=1, most=1, context=None)
    assert await connections.take() is made[0]
    connections.throw_away(made[0])
    greetings += [b"H", OK, b"HTTP/1.1 408 Too late\r\nConnection: close\r\n\r\n"]
    while greetings:
        with pytest.raises(Unreachable, match="upstream-unavailable"):
            await connections.take()
        assert not made[-1].is_sound
