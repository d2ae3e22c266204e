"""H and what else is the proxy's alone: passing on, never twice, and the line between "not sent" and
"outcome unknown". The checklist as a whole runs on the proxy too, in the other files."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import socket
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import h11
import msgspec
import pytest

from tests.http.scripted import OK, Scripted, Step, reset
from tests.http.stage import Answer, Before, Play, ProxyServer, Seen, Stage, read, spoken
from tests.http.test_wire import BAD
from tests.polling import until
from tests.servers import free_port
from twicesafe import Receiver, State, wsgi
from twicesafe._core.http.forwarding import Forwarding
from twicesafe._core.http.problems import RequestRefused
from twicesafe._proxy import ProxySettings
from twicesafe._proxy.connections import Connection, UpstreamTimedOut
from twicesafe._proxy.supervisor import _Process
from twicesafe._proxy.worker import WorkerReport
from twicesafe.asgi._exchange import AsgiExchange
from twicesafe.errors import ConfigurationError
from twicesafe.http import HttpPolicy


@pytest.fixture
def edge() -> str:
    return "proxy"


def states(stage: Stage) -> list[State]:
    return [record.state for record in stage.records.records()]


# --- never twice -------------------------------------------------------------------------------


@pytest.mark.item("A9", "E4")
@pytest.mark.parametrize("step", [reset, b"", b"HTTP/1.1 20", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_an_upstream_that_goes_away_is_not_asked_again(before: Before, step: Step):
    stage, service = before([step])
    replies = [stage.send("k") for _ in range(3)]
    assert [(r.status, r.problem) for r in replies] == [(502, "outcome-unknown")] * 3
    assert len({r.body for r in replies}) == 1
    assert len(service.requests) == service.connections == 1
    assert states(stage) == [State.HELD]
    assert stage.send("other").status == 201


@pytest.mark.item("A9")
def test_a_connection_that_the_upstream_has_closed_is_not_used_again(before: Before):
    left = threading.Semaphore(0)

    def answer_and_leave(connection: socket.socket) -> None:
        """Without having said so. Who is left closes its side, too: then it knows."""
        connection.sendall(OK)
        connection.shutdown(socket.SHUT_WR)
        if not connection.recv(1):
            left.release()

    stage, service = before(*[[answer_and_leave]] * 3)
    for key in "abc":
        assert stage.send(key).status == 201
        assert left.acquire(timeout=60)
    assert service.connections == 3


@pytest.mark.item("A9", "E4")
def test_a_connection_that_breaks_when_it_is_used_again_is_unknown_and_not_tried_anew(
    before: Before,
):
    stage, service = before([OK, reset], [OK])
    assert stage.send("a").status == 201
    assert stage.send("b").problem == "outcome-unknown"
    assert [service.connections, len(service.requests)] == [1, 2]
    assert stage.send("c").status == 201  # never on that connection
    assert service.connections == 2


@pytest.mark.item("A9")
def test_an_idle_connection_is_used_again_unless_that_is_off(before: Before):
    stage, service = before()
    for key in "abc":
        stage.send(key)
    assert service.connections == 1
    stage, service = before(idle=0)
    for key in "abc":
        stage.send(key)
    assert service.connections == 3


@pytest.mark.item("A9", "D15")
def test_octets_after_a_response_belong_to_no_response(before: Before):
    smuggled = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"
    stage, service = before([OK + smuggled], [OK])
    assert [stage.send(key).body for key in "ab"] == [b"ok", b"ok"]
    assert service.connections == 2


@pytest.mark.item("A9", "R7")
def test_redirects_are_answers(before: Before):
    moved = b"HTTP/1.1 307 Moved\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"
    stage, service = before([moved])
    assert [(r.status, r["location"]) for r in (stage.send("k"), stage.send("k"))] == [
        (307, "/other")
    ] * 2
    assert len(service.requests) == 1


# --- outcome unknown, or nothing was sent ---------------------------------------------------------


@pytest.mark.item("E4")
def test_a_silent_upstream_is_unknown_with_a_key_and_504_without(before: Before):
    silent = threading.Event()
    stage, service = before(*[[lambda _: silent.wait(60)]] * 2, timeout=0.1)
    for _ in range(2):
        assert (stage.send("k").status, stage.send("k").problem) == (502, "outcome-unknown")
    reply = stage.send(None)
    assert (reply.status, reply.problem) == (504, "upstream-failed")
    silent.set()
    until(lambda: service.connections == 2)  # a request that is given up may never be read
    (record,) = stage.records.records()
    assert (record.state, record.error) == (State.HELD, "UpstreamTimedOut")


@pytest.mark.item("E4", "P6")
def test_a_failed_attempt_on_a_route_that_may_run_again_invites_the_next(before: Before):
    stage, service = before([reset], [reset], http={"retry": ("POST /charges",)})
    first, plain = stage.send("k"), stage.send(None)
    assert (first.status, first.problem, first["retry-after"]) == (502, "attempt-failed", "1")
    assert json.loads(first.body)["retryable"] is True
    assert (plain.status, plain.problem) == (502, "upstream-failed")
    assert json.loads(plain.body)["retryable"] is False
    assert [stage.send("k").replayed for _ in range(2)] == [False, True]
    assert len(service.requests) == 3


@pytest.mark.item("E10")
def test_what_was_never_sent_may_be_sent_later(before: Before, play: Play):
    url = f"http://127.0.0.1:{free_port()}"
    stage = play(HttpPolicy.stripe(), upstream={"url": url})  # it keeps every 503 of a handler
    for key in ("k", "k", None):
        reply = stage.send(key)
        assert (reply.status, reply.problem) == (503, "upstream-unavailable")
        assert reply["retry-after"] == "1"
    assert states(stage) == [State.RELEASED]
    port = int(url.rpartition(":")[2])
    service = Scripted()
    service._listening.close()
    service._listening = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=service._accept, daemon=True).start()
    assert stage.send("k").status == 201
    assert stage.send("k").replayed
    service.close()


@pytest.mark.item("E10")
@pytest.mark.parametrize("url", ["http://absent.invalid", "https://127.0.0.1:{port}"])
def test_no_name_and_no_tls_are_nothing_sent(before: Before, play: Play, url: str):
    _, service = before([reset])
    url = url.format(port=service.url.rpartition(":")[2])
    stage = play(upstream={"url": url, "connect_timeout": 0.2})
    assert stage.send("k").problem == "upstream-unavailable"
    assert states(stage) == [State.RELEASED]


@pytest.mark.item("E10")
def test_no_free_connection_in_time_is_nothing_sent(before: Before):
    go = threading.Event()

    def slow(connection: socket.socket) -> None:
        assert go.wait(60)
        connection.sendall(OK)

    stage, service = before([slow, OK], connections=1, connect_timeout=60)
    first = stage.later("a")
    assert service.arrived.acquire(timeout=60)
    stage.upstream._connections._connect_timeout = 0.05
    assert stage.send("b").problem == "upstream-unavailable"
    stage.upstream._connections._connect_timeout = 60
    go.set()
    assert first.result().status == 201
    assert stage.send("b").status == 201


@pytest.mark.item("E7")
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\nzz",
    ],
)
@pytest.mark.parametrize("key", ["k", None])
def test_a_response_that_is_cut_is_cut_for_the_client_too(
    before: Before, answer: bytes, key: str | None
):
    stage, service = before([answer])
    reply = stage.send(key)
    assert reply.cut
    assert reply.body[:3] == b"abc"
    if key is not None:
        assert stage.send("k").problem == "outcome-unknown"
        assert states(stage) == [State.HELD]
        assert len(service.requests) == 1


@pytest.mark.item("E4")
@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 999 Odd\r\n\r\n",
                                    b"HTTP/1.1 101 Other\r\nUpgrade: x\r\n\r\n"])  # fmt: skip
def test_what_is_no_response_is_an_unknown_outcome(before: Before, answer: bytes):
    stage, _ = before([answer], [answer])
    assert stage.send("k").problem == "outcome-unknown"
    assert stage.send(None).problem == "upstream-failed"


# --- passing on --------------------------------------------------------------------------------


@pytest.mark.item("H1")
def test_hop_by_hop_fields_are_stripped_both_ways(before: Before):
    answer = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Back\r\nX-Back: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Proxy-Authenticate: Basic\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n"
    )
    stage, service = before([answer], http={"keep_headers": ("X-Kept",)})
    fields = [
        ("Connection", "close, X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "1"), ("TE", "trailers"),
        ("Proxy-Authorization", "secret"), ("Proxy-Connection", "close"), ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABk"), ("X-Kept", "1"),
    ]  # fmt: skip
    reply = stage.send("k", b"{}", "POST", "/", *fields)
    request = service.requests[0].lower()
    for name in (
        b"x-hop",
        b"keep-alive",
        b"\r\nte:",
        b"proxy-",
        b"upgrade",
        b"http2",
        b"connection",
    ):
        assert name not in request
    assert b"x-kept: 1" in request
    for again in (reply, stage.send("k", b"{}", "POST", "/", *fields)):
        assert [again[n] for n in ("x-back", "keep-alive", "proxy-authenticate")] == [None] * 3
        assert again["x-kept"] == "1"


@pytest.mark.item("H1", "D15")
@pytest.mark.parametrize("name", ["Idempotency-Key", "Authorization", "Content-Length", "Host",
                                  "X-Forwarded-For", "cookie"])  # fmt: skip
def test_connection_cannot_take_away_what_the_upstream_must_see(before: Before, name: str):
    stage, service = before()
    fields = (("Connection", f"close, {name}"), ("Authorization", "a"))
    assert stage.send("k", b"{}", "POST", "/", *fields).problem == "request-malformed"
    assert service.requests == []


@pytest.mark.item("H2")
def test_via_and_who_asked(before: Before):
    stage, service = before()
    said = (("Via", "1.0 edge"), ("X-Forwarded-For", "6.6.6.6"), ("Forwarded", "for=6.6.6.6"),
            ("X_Forwarded_For", "6.6.6.6"), ("X-Real-IP", "6.6.6.6"))  # fmt: skip
    stage.send("k", b"{}", "POST", "/", *said)
    lines = service.requests[0].lower().split(b"\r\n")
    assert b"via: 1.0 edge, 1.1 twicesafe" in lines
    assert b"x-forwarded-for: 127.0.0.1" in lines  # what a stranger says of himself is dropped
    assert b"x-forwarded-proto: http" in lines
    assert b"x-forwarded-host: stage" in lines
    assert b"host: stage" in lines
    assert b"6.6.6.6" not in service.requests[0]
    stage, service = before(trusted=["127.0.0.0/8"])
    stage.send(
        "k", b"{}", "POST", "/", ("X-Forwarded-For", "9.9.9.9"), ("X-Forwarded-Proto", "https")
    )
    lines = service.requests[0].lower().split(b"\r\n")
    assert b"x-forwarded-for: 9.9.9.9, 127.0.0.1" in lines
    assert b"x-forwarded-proto: https" in lines
    stage, service = before(forwarded=False)
    stage.send("k")
    assert b"x-forwarded" not in service.requests[0].lower()


BY_PROXIES = (  # noqa: SIM905
    "Client-IP Proxy-Client-IP WL-Proxy-Client-IP X-Originating-IP X-Scheme X-Client-Verify "
    "X-Cert-Subject Forwarded X-Forwarded X-Forwarded-For X-Forwarded-Proto X-Forwarded-Host X-Forwarded-Port "
    "X-Forwarded-Server X-Forwarded-Prefix X-Forwarded-Scheme X-Forwarded-Ssl X-Forwarded-Protocol "
    "X-Forwarded-Path X-Forwarded-Uri X-Forwarded-Method X-Forwarded-User X-Forwarded-Email "
    "X-Forwarded-Groups X-Forwarded-Preferred-Username X-Forwarded-Access-Token X-Forwarded-By "
    "X-Forwarded-Client-Cert X-Forwarded-Tls-Client-Cert X-Original-URL X-Original-Host "
    "X-Original-Forwarded-For X-Rewrite-URL X-Real-IP X-Client-IP True-Client-IP CF-Connecting-IP "
    "X-Cluster-Client-IP Fastly-Client-IP X-Remote-User X-Envoy-External-Address Client-Cert "
    "Client-Cert-Chain X-Client-Cert X-Client-Certificate X-SSL-Client-Cert X-SSL-Client-Verify "
    "X-SSL-Client-S-DN SSL-Client-Cert X-ARR-ClientCert X-Amzn-Mtls-Clientcert-Subject Front-End-Https"
).split()


@pytest.mark.item("H2", "D15")
def test_what_only_a_proxy_can_say_is_dropped_unless_its_peer_is_trusted(before: Before):
    spellings = [(name, name.replace("-", "_"), name.replace("-", ".")) for name in BY_PROXIES]
    said = [(name, "forged") for names in spellings for name in dict.fromkeys(names)][:90]
    harmless = [("X-Client-Version", "1"), ("X-Forward", "1"), ("x_odd", "1"), ("Accept", "a/b")]
    stage, service = before()
    assert stage.send("k", b"{}", "POST", "/", *said, *harmless).status == 201
    assert stage.send("l", b"{}", "POST", "/", *((n, "forged") for n in BY_PROXIES)).status == 201
    assert all(b"forged" not in request for request in service.requests)
    lines = service.requests[0].lower().split(b"\r\n")
    assert all(f"{name.lower()}: {value}".encode() in lines for name, value in harmless)
    stage, service = before(trusted=["127.0.0.1"])
    assert stage.send("k", b"{}", "POST", "/", *((n, "set") for n in BY_PROXIES)).status == 201
    lines = service.requests[0].lower().split(b"\r\n")
    for name in map(str.lower, BY_PROXIES):
        told = "set, 127.0.0.1" if name == "x-forwarded-for" else "set"
        assert f"{name}: {told}".encode() in lines
    stage, service = before(trusted=["127.0.0.1"])
    assert stage.send("k", b"{}", "POST", "/", *((n.replace("-", "_"), "forged") for n in BY_PROXIES if "-" in n)).status == 201  # fmt: skip
    assert b"forged" not in service.requests[0]


@pytest.mark.item("H1", "D15")
@pytest.mark.parametrize("name", BY_PROXIES)
def test_connection_cannot_take_away_what_a_proxy_said(name: str):
    forwarding = Forwarding(HttpPolicy(), trusted=["10.0.0.0/8"])
    fields = [(b"connection", f"close, {name}".encode()), (name.lower().encode(), b"set")]
    with pytest.raises(RequestRefused):
        forwarding.inbound(fields, "10.0.0.1")


@pytest.mark.item("S1", "S4", "D15")
def test_a_tenant_header_is_accepted_from_trusted_peers_only(play: Play):
    with pytest.raises(ConfigurationError, match="any client can send"):
        Forwarding(HttpPolicy(scope=("X-Tenant",)))
    stage = play(scope=("X-Tenant",), upstream={"trusted": ["10.0.0.0/8"]})
    for tenant in ("a", "b"):  # from here no client may set it: it is ignored
        stage.send("k", b"{}", "POST", "/", ("X-Tenant", tenant), ("x_tenant", tenant))
    assert len(stage.seen) == 1
    assert not {"x-tenant", "x_tenant"} & set(stage.seen[0].headers)


@pytest.mark.item("S4", "H2")
def test_a_peer_is_the_same_on_a_listener_of_both_kinds():
    def trusts(*networks: str) -> list[bool]:
        forwarding = Forwarding(HttpPolicy(), trusted=networks)
        peers = ("10.1.2.3", "::ffff:10.1.2.3", "::ffff:11.1.2.3", "2001:db8::1", "unknown")
        return [forwarding.trusts(peer) for peer in peers]

    assert trusts("10.0.0.0/8") == [True, True, False, False, False]
    assert trusts("::ffff:10.0.0.0/104", "2001:db8::/32") == [False, True, False, True, False]
    for peer, told in (("::ffff:10.1.2.3", b"10.1.2.3"), ("2001:db8::1", b"2001:db8::1")):
        lines = Forwarding(HttpPolicy()).outbound([], peer, "http", "1.1", b"shop")
        assert dict(lines)[b"x-forwarded-for"] == told


@pytest.mark.item("A8")
@pytest.mark.parametrize("key", ["k", None])
def test_target_and_body_reach_the_upstream_as_they_were(before: Before, key: str | None):
    stage, service = before()
    body = bytes(range(256)) * 40
    stage.send(key, body, "PATCH", "/a%20b/../c%2Fd;x?b=2&&a=%31", kind="x/y")
    head, _, got = service.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"PATCH /a%20b/../c%2Fd;x?b=2&&a=%31 HTTP/1.1\r\n")
    assert got == body


@pytest.mark.item("A8")
def test_an_upstream_may_have_a_path(play: Play, before: Before):
    _, service = before()
    stage = play(upstream={"url": service.url + "/api/"})
    stage.send("k", b"{}", "POST", "/charges?a=1")
    assert service.requests[0].startswith(b"POST /api/charges?a=1 HTTP/1.1\r\n")


@pytest.mark.item("A8")
def test_an_asterisk_has_no_path_before_it(play: Play, before: Before):
    _, service = before()
    stage = play(upstream={"url": service.url + "/api"})
    stage.send(None, b"", "OPTIONS", "*")
    assert service.requests[0].startswith(b"OPTIONS * HTTP/1.1\r\n")


@pytest.mark.item("H3")
@pytest.mark.parametrize("key", ["k", None])
def test_a_client_that_waits_for_100_gets_it(before: Before, key: str | None):
    stage, service = before()
    request = stage.request(key, b"{}", "POST", "/", ("Expect", "100-continue"))
    with stage.connect() as connection:
        connection.sendall(request[:-2])
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(request[-2:])
        assert read(connection).status == 201
    assert b"expect" not in service.requests[0].lower()


@pytest.mark.item("H3", "F9")
def test_a_client_that_waits_for_100_may_be_refused_before(play: Play):
    stage = play(max_body=10)
    waits = ("Expect", "100-continue"), ("Content-Length", "11")
    with stage.connect() as connection:
        connection.sendall(stage.request("k", b"", "POST", "/", *waits))
        assert read(connection).status == 413


@pytest.mark.item("H4")
def test_1xx_are_not_the_response(before: Before):
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    stage, _ = before([early + OK])
    replies = [stage.send("k"), stage.send("k")]
    assert [(r.status, r.body, r["link"]) for r in replies] == [(201, b"ok", None)] * 2


@pytest.mark.item("H4")
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_response_without_a_length_ends_at_a_clean_close(before: Before, version: bytes):
    stage, service = before([b"HTTP/" + version + b" 200 OK\r\n\r\nall of it"])
    replies = [stage.send("k"), stage.send("k")]
    assert [(r.status, r.body) for r in replies] == [(200, b"all of it")] * 2
    assert replies[1].replayed
    assert len(service.requests) == 1


@pytest.mark.item("H4", "E7")
def test_a_response_without_a_length_that_is_reset_is_not_whole(before: Before):
    got = threading.Event()

    def half(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nall of")
        assert got.wait(60)
        reset(connection)

    stage, _ = before([half])
    with stage.connect() as connection:
        connection.sendall(stage.request("k"))
        data = b""
        while b"all of" not in data:
            data += connection.recv(1000)
        got.set()
        while piece := connection.recv(1000):
            data += piece
    assert not data.endswith(b"0\r\n\r\n")
    assert stage.send("k").problem == "outcome-unknown"


@pytest.mark.item("H5")
def test_trailers_are_dropped(before: Before):
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
    )
    stage, _ = before([answer])
    for reply in (stage.send("k"), stage.send("k")):
        assert (reply.body, reply["x-sum"], reply["trailer"]) == (b"abc", None, None)


@pytest.mark.item("R5")
def test_an_upstream_that_says_two_lengths_is_read_by_its_chunks(before: Before):
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\n"
    )
    stage, _ = before([answer])
    first, again = stage.send("k"), stage.send("k")
    assert (first.body, first["content-length"]) == (b"abc", None)
    assert (again.body, again["content-length"], again["transfer-encoding"]) == (b"abc", "3", None)


@pytest.mark.item("T1", "A8")
def test_both_ways_stream_without_a_key(before: Before):
    """The upstream answers each piece while the client still sends."""

    def echo(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nheard0\r\n")
        for number in (1, 2):
            assert connection.recv(1000) == b"1\r\nx\r\n"
            connection.sendall(b"6\r\nheard%d\r\n" % number)
        assert connection.recv(1000) == b"0\r\n\r\n"
        connection.sendall(b"0\r\n\r\n")

    stage, service = before([echo])
    service._request = lambda connection: connection.recv(65536)  # type: ignore[method-assign]
    with stage.connect() as connection:
        chunked = ("Transfer-Encoding", "chunked")
        connection.sendall(stage.request(None, b"", "POST", "/", chunked))
        got = b""
        for number in range(3):
            connection.sendall(b"1\r\nx\r\n")
            while b"heard%d" % number not in got:
                got += connection.recv(1000)
        connection.sendall(b"0\r\n\r\n")
        while not got.endswith(b"0\r\n\r\n"):
            got += connection.recv(1000)


@pytest.fixture
def asked() -> Connection:
    """A connection that goes nowhere, on which a request was begun."""
    connection = Connection()
    connection.transport = Mock()
    fields = [("Host", "a"), ("Transfer-Encoding", "chunked")]
    connection.begin(h11.Request(method="POST", target="/", headers=fields))
    return connection


@pytest.mark.item("E4")
async def test_an_upstream_is_not_silent_while_its_request_is_still_being_sent(
    asked: Connection, monkeypatch: pytest.MonkeyPatch
):
    async def later(seconds: float) -> bool:
        """So many seconds later: does it still wait?"""
        now.append(now[-1] + seconds)
        for _ in range(3):
            await asyncio.sleep(0)
        return not waiting.done()

    loop = asyncio.get_running_loop()
    now = [loop.time()]
    monkeypatch.setattr(loop, "time", lambda: now[-1])
    waiting = asyncio.ensure_future(asked.more(60))
    for _ in range(3):
        assert await later(50)
        await asked.write(b"a piece of a slow upload")
    assert await later(59)
    assert not await later(2)
    with pytest.raises(UpstreamTimedOut, match="silent for 60 s"):
        await waiting


@pytest.mark.item("A8")
async def test_a_long_head_of_a_response_may_come_in_pieces(asked: Connection):
    head = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 60_000
    asked.data_received(head)
    assert asked.event() is h11.NEED_DATA
    asked.data_received(b"\r\n\r\n")
    assert isinstance(asked.event(), h11.Response)


def test_a_client_that_leaves_ends_a_request_without_a_key(before: Before):
    ended = threading.Event()

    def watch(connection: socket.socket) -> None:
        assert connection.recv(1000) == b""
        ended.set()

    stage, service = before([watch])
    with stage.connect() as connection:
        connection.sendall(stage.request(None))
        assert service.arrived.acquire(timeout=60)
    assert ended.wait(60)


@pytest.mark.item("E5")
def test_a_client_that_closes_its_sending_side_counts_as_gone(before: Before):
    """A half-close and a close look the same to the proxy. It gives no answer, but a retry gets it."""
    go = threading.Event()

    def slow(connection: socket.socket) -> None:
        assert go.wait(60)
        connection.sendall(OK)

    stage, service = before([slow])
    with stage.connect() as connection:
        connection.sendall(stage.request("k"))
        assert service.arrived.acquire(timeout=60)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    go.set()
    until(lambda: states(stage) == [State.COMPLETED], 60)
    assert stage.send("k").replayed
    assert len(service.requests) == 1


@pytest.mark.item("D11", "E5")
def test_a_client_that_leaves_does_not_keep_its_exchange_in_memory(before: Before):
    """Not even for `linger`, once its answer is recorded."""
    go = threading.Event()

    def slow(connection: socket.socket) -> None:
        assert go.wait(60)
        connection.sendall(OK)

    def kept() -> int:
        gc.collect()
        return sum(type(each) is AsgiExchange for each in gc.get_objects())

    others = kept()
    stage, service = before([slow], http={"linger": 3600})
    with stage.connect() as connection:
        connection.sendall(stage.request("k", b"x" * 100_000))
        assert service.arrived.acquire(timeout=60)
    go.set()
    until(lambda: kept() <= others, 120)
    assert stage.send("k", b"x" * 100_000).replayed


# --- what is refused at the door ---------------------------------------------------------------


@pytest.mark.item("D15")
@pytest.mark.parametrize("name", [n for n in BAD if n != "TLS"])
def test_an_ambiguous_request_is_refused_and_the_connection_closed(stage: Stage, name: str):
    got = spoken(stage, BAD[name].replace(b"Host: a", b"Idempotency-Key: k\r\nHost: a", 1))
    assert got.startswith(b"HTTP/1.1 400 ")
    assert got.count(b"HTTP/1.1") == 1
    assert b"connection: close" in got.lower()
    assert stage.seen == []
    assert stage.records.stats().total == 0


@pytest.mark.item("D15")
def test_a_request_behind_an_ambiguous_one_is_not_read(stage: Stage):
    good = stage.request("k")
    smuggling = (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nX"
    )
    assert spoken(stage, smuggling + good).count(b"HTTP/1.1 ") == 1
    assert stage.seen == []


@pytest.mark.item("D15")
def test_an_ambiguous_request_behind_a_good_one_ends_the_connection_after_its_answer(stage: Stage):
    inside, go = threading.Event(), threading.Event()

    def slow(_: Seen) -> Answer:
        inside.set()
        assert go.wait(60)
        return Answer(body=[b"done"])

    stage.handler = slow
    request = stage.request("k").replace(b"Connection: close\r\n", b"")
    with stage.connect() as connection:
        connection.sendall(request)
        assert inside.wait(60)
        connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        go.set()
        got = b""
        while piece := connection.recv(1000):
            got += piece
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"done" in got
    assert len(stage.seen) == 1


@pytest.mark.item("D15")
def test_pipelined_requests_are_answered_in_order(stage: Stage):
    requests = b"".join(
        stage.request(key).replace(b"Connection: close\r\n", b"") for key in ("a", "b", "a")
    )
    with stage.connect() as connection:
        connection.sendall(requests + stage.request("c"))
        got = b""
        while piece := connection.recv(1000):
            got += piece
    assert got.count(b"HTTP/1.1 201 ") == 4
    assert got.count(b"idempotent-replayed") == 1
    assert len(stage.seen) == 3


@pytest.mark.item("A7")
def test_websockets_are_refused(stage: Stage):
    fields = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
    assert stage.send(None, b"", "GET", "/", *fields).problem == "upgrade-refused"
    assert stage.seen == []


@pytest.mark.item("D11")
@pytest.mark.parametrize(
    "sent", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"]
)
def test_a_client_that_stalls_is_disconnected(stage: Stage, sent: bytes):
    stage.server = ProxyServer(time_limit=0.2)
    stage.server.app = stage.middleware
    assert b" 201 " not in spoken(stage, sent)  # and it returns
    assert stage.records.stats().total == 0


@pytest.mark.item("D11", "E5")
@pytest.mark.parametrize("key", ["k", None])
def test_a_client_that_reads_nothing_is_disconnected(before: Before, key: str | None):
    size = 20_000_000  # more than sockets hold
    done, ended = threading.Event(), threading.Event()

    def large(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        try:
            connection.sendall(b"x" * size)
            done.set()
        except OSError:
            pass
        ended.set()

    stage, _ = before([large], time_limit=0.2, http={"max_result_bytes": 2 * size})
    with stage.connect() as connection:
        connection.sendall(stage.request(key))
        assert ended.wait(60)
        assert done.is_set() == (key is not None)  # for its record it was taken whole
        if key is not None:
            while (reply := stage.send("k")).problem == "in-progress":
                pass
            assert (reply.replayed, len(reply.body)) == (True, size)


@pytest.mark.item("D11")
@pytest.mark.parametrize("last", [True, False])
def test_a_replay_that_is_not_taken_does_not_stay_in_memory(play: Play, last: bool):
    """It is written in one piece: nothing waits for it any more, but the connection holds it."""
    size = 20_000_000  # more than sockets hold
    stage = play(max_result_bytes=2 * size)
    stage.handler = lambda _: Answer(body=[b"x" * size])
    assert len(stage.send("k").body) == size
    stage.server = ProxyServer(time_limit=0.2)
    stage.server.app = stage.middleware
    request = stage.request("k")
    with stage.connect() as connection:
        connection.sendall(request if last else request.replace(b"Connection: close\r\n", b""))
        assert connection.recv(10)
        until(lambda: not list(stage.server.made.server_state.connections), 120)
    assert len(stage.seen) == 1


@pytest.mark.parametrize("scope, statuses", [((), [409, 409]), (("app",), [201, 201])])
def test_a_layer_behind_the_proxy_on_its_store_needs_a_scope_of_its_own(
    stage: Stage, scope: tuple[str, ...], statuses: list[int]
):
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [])
        return [b"done"]

    def behind(seen: Seen) -> Answer:
        got: list[str] = []
        environ = {
            "REQUEST_METHOD": "POST", "PATH_INFO": seen.path, "HTTP_IDEMPOTENCY_KEY": "k",
            "CONTENT_TYPE": seen.headers["content-type"], "CONTENT_LENGTH": str(len(seen.body)),
            "wsgi.input": io.BytesIO(seen.body),
        }  # fmt: skip
        body = layer(environ, lambda status, *_: got.append(status))
        return Answer(int(got[0][:3]), [], list(body))

    layer = wsgi.IdempotencyMiddleware(app, receiver=Receiver(stage.memory, scope=scope))
    stage.handler = behind
    assert [stage.send("k").status for _ in range(2)] == statuses


def counted(stage: Stage) -> dict[tuple[str, str], float]:
    """What the proxy has counted, once it serves no one: an answer is out before it is counted.

    It is asked on the loop that counts. From another thread the numbers of two moments would mix.
    """

    async def counts() -> dict[tuple[str, str], float]:
        return {(c.name, "".join(c.values)): c.cell[0] for c in stage.metrics.counts()}

    def is_idle() -> bool:
        asked = asyncio.run_coroutine_threadsafe(counts(), stage.server.loop)
        found.update(asked.result(60))
        return not found[("proxy_in_flight", "")]

    found: dict[tuple[str, str], float] = {}
    until(is_idle, 60)
    return found


@pytest.mark.item("O3")
def test_what_it_counts(stage: Stage):
    for key in ("k", "k", None):
        stage.send(key)
    assert counted(stage)["proxy_responses_total", "201"] == 3


@pytest.mark.item("O3")
def test_failures_of_the_upstream_are_counted_with_a_key_and_without(before: Before, play: Play):
    url = f"http://127.0.0.1:{free_port()}"
    stage = play(upstream={"url": url})
    for key in ("k", None):
        stage.send(key)
    assert counted(stage)["proxy_upstream_failures_total", "Unreachable"] == 2
    stage, _ = before([b""], [b""])
    for key in ("k", "k", None):  # a held key is no failure of today
        stage.send(key)
    assert counted(stage)["proxy_upstream_failures_total", "UpstreamLost"] == 2


@pytest.mark.item("O3")
async def test_a_report_that_came_too_late_is_not_taken_for_the_next():
    """A worker that was stopped for a while would be one report behind from then on."""
    worker = _Process(ProxySettings(upstream="http://127.0.0.1:9", store="memory://"), 0)
    reports = asyncio.StreamReader()
    worker._process = SimpleNamespace(stdin=Mock(), stdout=reports)  # type: ignore[assignment]
    late = asyncio.ensure_future(worker.report())
    await asyncio.sleep(0)
    late.cancel()  # as its time limit does
    assert await asyncio.gather(late, return_exceptions=True)
    for store in (True, False):
        reports.feed_data(msgspec.json.encode(WorkerReport(store=store)) + b"\n")
    report = await worker.report()
    assert report is not None
    assert not report.store
