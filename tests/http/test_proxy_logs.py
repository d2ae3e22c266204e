"""What an operator reads: each failure names its request and its reason, and no secret."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.http.scripted import OK, Step, reset
from tests.http.stage import Before, Play, ProxyServer, Stage, read
from tests.logged import logged
from tests.polling import until
from tests.servers import free_port

SECRETS = ("SECRET-KEY", "SECRET-TOKEN", "SECRET-QUERY", "SECRET-BODY")
SENT: tuple[Any, ...] = (
    b'{"card":"SECRET-BODY"}', "POST", "/charges/7?token=SECRET-QUERY", ("Authorization", "SECRET-TOKEN"),
)  # fmt: skip


@pytest.fixture
def edge() -> str:
    return "proxy"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The lines of the proxy's log, each searched for secrets."""

    def found() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "twicesafe._proxy"]

    with caplog.at_level(logging.INFO, "twicesafe"):
        yield found
    assert [word for word in SECRETS if word.encode() in logged(caplog, "twicesafe._proxy")] == []


def short(stage: Stage) -> str:
    return next(stage.records.records()).id[:4].hex()


def nowhere() -> str:
    """A URL at which no one listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.attack("D17")
@pytest.mark.item("E10", "O3")
def test_an_upstream_that_cannot_be_reached_is_logged(play: Play, lines: Callable[[], list[str]]):
    stage = play(upstream={"url": nowhere()})
    for key in ("SECRET-KEY", None):
        assert stage.send(key, *SENT).problem == "upstream-unavailable"
    keyed, plain = lines()
    assert keyed.startswith(f"POST /charges/7 (key {short(stage)}): the upstream cannot be reached")
    assert plain.startswith("POST /charges/7: the upstream cannot be reached, nothing was sent")
    assert all("Connect call failed" in line for line in (keyed, plain))


@pytest.mark.item("E10", "O3")
@pytest.mark.parametrize("host, reason", [
    ("http://absent.invalid", ""), (f"http://{'a' * 64}.invalid", "label"),
])  # fmt: skip
def test_an_unknown_host_name_is_logged(
    play: Play, lines: Callable[[], list[str]], host: str, reason: str
):
    stage = play(upstream={"url": host})
    assert stage.send("SECRET-KEY", *SENT).problem == "upstream-unavailable"
    (line,) = lines()
    assert f"(key {short(stage)}): the upstream cannot be reached" in line
    assert reason in line


@pytest.mark.item("E10", "O3")
def test_that_all_connections_are_in_use_is_logged(before: Before, lines: Callable[[], list[str]]):
    stage, _ = before(connections=0, connect_timeout=0.05)
    assert stage.send(None, *SENT).problem == "upstream-unavailable"
    (line,) = lines()
    assert line.startswith("POST /charges/7: the upstream cannot be reached, nothing was sent: ")
    assert line.endswith("all 0 connections were in use for 0.05 s")


@pytest.mark.attack("D17")
@pytest.mark.item("E4", "O3")
@pytest.mark.parametrize("step, reason", [
    (reset, "broke"), (b"HTTP/1.1 200 OK\n\n", "not plain HTTP: a line has a control character"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "was incomplete"),
])  # fmt: skip
def test_an_answer_that_is_not_whole_is_logged(
    before: Before, lines: Callable[[], list[str]], step: Step, reason: str
):
    stage, _ = before([step], [step])
    for key in ("SECRET-KEY", None):
        stage.send(key, *SENT)
    keyed, plain = lines()
    assert keyed.startswith(
        f"POST /charges/7 (key {short(stage)}): the upstream gave no complete answer"
    )
    assert plain.startswith(
        "POST /charges/7: the upstream gave no complete answer, the outcome is unknown"
    )
    assert reason in keyed
    assert reason in plain


def test_a_cut_response_is_logged_once(
    before: Before, lines: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
):
    """uvicorn reports it too, as an error without a request."""
    stage, _ = before([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"])
    assert stage.send("k").cut
    assert len(lines()) == 1
    until(lambda: [record for record in caplog.records if record.name == "uvicorn.error"])
    (error,) = [record for record in caplog.records if record.name == "uvicorn.error"]
    program = f"""
import logging
from twicesafe._proxy.log_lines import set_up
set_up("info", "text")
for text in ({error.msg!r}, "another"):
    logging.getLogger("uvicorn.error").error(text)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stderr
    assert said.count(b"ERROR") == said.count(b"another") == 1


@pytest.mark.attack("D17")
def test_a_long_path_is_cut(play: Play, lines: Callable[[], list[str]]):
    stage = play(upstream={"url": nowhere()})
    stage.send(None, b"", "GET", "/" + "a" * 5000)
    assert len(lines()[0]) < 400


@pytest.mark.item("D15", "O3")
def test_a_refused_request_is_logged(stage: Stage, lines: Callable[[], list[str]]):
    with stage.connect() as connection:
        connection.sendall(b"GET /a?SECRET-QUERY HTTP/1.1\nHost: a\n\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert lines()[0].startswith("a request of 127.0.0.1 was refused: a line has")
    fields = ("Connection", "Idempotency-Key"), ("Upgrade", "websocket")
    assert stage.send("SECRET-KEY", b"{}", "POST", "/b?SECRET-QUERY", fields[0]).status == 400
    assert stage.send(None, b"", "GET", "/c", fields[1]).status == 501
    stage.send("SECRET-KEY")  # its record has the same short key
    assert lines()[1:] == [
        f"POST /b (key {short(stage)}) was refused: request-malformed",
        "GET /c was refused: upgrade-refused",
    ]


@pytest.mark.item("D11", "O3")
def test_a_client_that_is_disconnected_is_logged(stage: Stage, lines: Callable[[], list[str]]):
    stage.server = ProxyServer(time_limit=0.2)
    stage.server.app = stage.middleware
    head = b"POST /a?SECRET-QUERY HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
    logged = {
        b"": "",
        b"POST / HT": "127.0.0.1 did not finish its request in 0.2 s",
        head: "127.0.0.1 (POST /a) did not finish its request in 0.2 s",
    }

    def is_logged(sent: bytes) -> bool:
        """On a slow machine the client may be disconnected before it has sent anything."""
        with stage.connect() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            assert connection.recv(1000) == b""
        return logged[sent] in ("", *lines())

    for sent in logged:
        until(functools.partial(is_logged, sent))
    assert set(lines()) == set(logged.values()) - {""}


@pytest.mark.item("E4", "P6")
def test_a_request_without_a_key_is_not_called_safe_to_repeat(before: Before):
    """Behind one with a key, on the same connection, waiting already when the first one ends."""
    stage, _ = before([OK, reset], http={"retry": ("POST /charges",)})
    keyed = stage.request("k").replace(b"Connection: close\r\n", b"")
    with stage.connect() as connection:
        connection.sendall(keyed + stage.request(None))
        assert read(connection).status == 201
        reply = read(connection)
    assert (reply.status, reply.problem) == (502, "upstream-failed")
    assert json.loads(reply.body)["retryable"] is False
