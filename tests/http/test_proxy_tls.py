"""An upstream behind TLS: checked by the certificates that `upstream_ca` names, and by its name."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.scripted import OK, Scripted
from tests.http.stage import Play
from twicesafe import State

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")


@pytest.fixture
def edge() -> str:
    return "proxy"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own authority, for 127.0.0.1, with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=stage",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def service(certificate: Path) -> Iterator[Scripted]:
    made = Scripted(context=server_side(certificate))
    yield made
    made.close()


@pytest.mark.item("A8")
def test_an_upstream_that_can_prove_its_name_is_asked(
    play: Play, service: Scripted, certificate: Path
):
    context = ssl.create_default_context(cafile=certificate)
    stage = play(upstream={"url": service.url, "context": context})
    replies = [stage.send(key) for key in ("a", "b", "a")]
    assert [(r.status, r.body, r.replayed) for r in replies] == [
        (201, b"ok", False), (201, b"ok", False), (201, b"ok", True),
    ]  # fmt: skip
    assert len(service.requests) == 2
    assert OK.endswith(replies[0].body)


def end(connection: ssl.SSLSocket) -> None:
    connection.unwrap()


def cut(connection: socket.socket) -> None:
    os.close(connection.detach())  # a FIN, without the closing alert


@pytest.mark.item("H4", "E7")
@pytest.mark.parametrize("framing, leave, is_whole", [
    (b"", end, True), (b"", cut, False), (b"Content-Length: 9\r\n", cut, True),
], ids=["closed", "cut", "cut-with-length"])  # fmt: skip
def test_a_response_without_a_length_is_whole_only_after_the_closing_alert(
    play: Play, certificate: Path, framing: bytes, leave: Any, is_whole: bool
):
    def answer(connection: Any) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\nall of it")
        leave(connection)

    service = Scripted([answer], context=server_side(certificate))
    context = ssl.create_default_context(cafile=certificate)
    stage = play(upstream={"url": service.url, "context": context})
    first, again = stage.send("k"), stage.send("k")
    service.close()
    assert (first.body, first.cut, again.replayed) == (b"all of it", not is_whole, is_whole)
    assert again.problem == ("" if is_whole else "outcome-unknown")
    assert len(service.requests) == 1


@pytest.mark.item("E10")
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_one_that_cannot_is_sent_nothing(
    play: Play,
    service: Scripted,
    certificate: Path,
    name: str,
    caplog: pytest.LogCaptureFixture,
):
    trusts = ssl.create_default_context(cafile=certificate) if name == "localhost" else None
    url = service.url.replace("127.0.0.1", name)
    stage = play(upstream={"url": url, "context": trusts})
    assert stage.send("k").problem == "upstream-unavailable"
    assert [record.state for record in stage.records.records()] == [State.RELEASED]
    assert service.requests == []
    told = [r.getMessage() for r in caplog.records if r.name == "twicesafe._proxy"]
    assert len(told) == 1
    assert told[0].startswith("POST /charges (key ")
    assert "nothing was sent" in told[0]
    assert "certificate verify failed" in told[0]
