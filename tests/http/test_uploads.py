"""E6 on every server that people run: an upload that was cut runs nothing, and leaves its key unused.

``cents=1000`` that is cut to ``cents=1`` is a valid order for another sum. Servers tell a cut upload in
their own ways, or not at all; where it cannot be known that a body is whole, the request is refused.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.stage import read
from tests.http.test_contexts import GRANIAN, GUNICORN, HYPERCORN, ROOT, UVICORN
from tests.http.test_servers import Running

SITE = "tests.http.upload_site"
SERVERS: dict[str, tuple[str, str, int]] = {
    # the last: the answer to a whole upload that comes in chunks
    "uvicorn-h11": (UVICORN + "h11 --loop asyncio", "asgi", 201),
    "uvicorn-httptools": (UVICORN + "httptools --loop uvloop", "asgi", 201),
    "hypercorn": (HYPERCORN, "asgi", 201),
    "granian-asgi": (GRANIAN + "asgi", "asgi", 201),
    "granian-wsgi": (GRANIAN + "wsgi", "wsgi", 411),
    "gunicorn-sync": (GUNICORN + "--worker-class sync", "wsgi", 201),
    "gunicorn-gthread": (GUNICORN + "--worker-class gthread", "wsgi", 201),
    "werkzeug": (f"{SITE} {{port}}", "wsgi", 201),
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    words, app, _ = SERVERS[request.param]
    running = Running(words, f"{SITE}:{app}", tmp_path, ROOT)
    running.name = request.param
    yield running
    running.stop()


def send(server: Any, key: str, framing: str, octets: bytes, *, is_cut: bool) -> int:
    """The status of the answer; 0: the connection was closed without one."""
    head = f"POST / HTTP/1.1\r\nHost: site\r\nConnection: close\r\nIdempotency-Key: {key}\r\n{framing}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.sendall(head.encode() + octets)
        if is_cut:
            connection.shutdown(socket.SHUT_WR)
        try:
            return read(connection).status
        except (OSError, ValueError):
            return 0


@pytest.mark.item("E6", "K14")
def test_a_cut_upload_runs_nothing(server: Any, tmp_path: Path):
    chunked, sized = "Transfer-Encoding: chunked", "Content-Length: 10"
    for key, framing, octets in (
        ("a", chunked, b"7\r\ncents=1\r\n"),  # between two chunks
        ("b", chunked, b"a\r\ncents=1"),  # in the middle of one
        ("c", chunked, b"7\r\ncents=1\r\n0\r\n"),  # before the end of its end
        ("d", sized, b"cents=1"),
    ):
        assert send(server, key, framing, octets, is_cut=True) in (0, 400, 411, 500), key
    assert not (tmp_path / "ran").exists()
    for key in "abcd":  # none of them is used up
        assert send(server, key, sized, b"cents=1000", is_cut=False) == 201
    whole = SERVERS[server.name][2]
    assert send(server, "e", chunked, b"a\r\ncents=1000\r\n0\r\n\r\n", is_cut=False) == whole
    runs = 4 + (whole == 201)
    assert (tmp_path / "ran").read_bytes() == b"cents=1000\n" * runs
