"""The examples of every framework under the servers that people run them with, each a real process.

One conversation for all of them: the first answer, its replay, a mismatch, a bad key.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.stage import Reply, Stage, read
from tests.servers import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"

ASGI = {
    "uvicorn": "uvicorn {app} --port {port} --log-level warning",
    "granian": "granian --interface asgi --port {port} --log-level warning {app}",
    "hypercorn": "hypercorn {app} --bind 127.0.0.1:{port} --log-level warning",
}
APPLICATIONS = {
    "fastapi_shop:app": "/charges",
    "starlette_shop:app": "/v1/charges",
    "litestar_shop:app": "/charges",
    "django_shop:asgi": "/charges",
}
GUNICORN = "gunicorn {app} --bind 127.0.0.1:{port} --workers 2 --log-level warning"
MATRIX = [
    *((words, app, path) for words in ASGI.values() for app, path in APPLICATIONS.items()),
    (GUNICORN, "flask_shop:app", "/charges"),
    (GUNICORN, "django_shop:wsgi", "/charges"),
    (GUNICORN, "drf_shop:wsgi", "/charges"),
    ("flask --app {app} run --port {port}", "flask_shop:app", "/charges"),
    ("{app} runserver --noreload {port}", "django_shop", "/charges"),
    ("{app} runserver --noreload {port}", "drf_shop", "/charges"),
]


class Running:
    """A server of an application, with its files in its own folder."""

    name = ""

    def __init__(self, words: str, app: str, folder: Path, where: Path = EXAMPLES) -> None:
        self._words, self._app, self._folder, self._where = words, app, folder, where
        self.start()

    def start(self) -> None:
        self.port = free_port()
        words = self._words.format(app=self._app, port=self.port).split()
        self._log = open(self._folder / "log", "w+b")  # noqa: SIM115 - closed by stop()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._where)},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        time_limit = time.monotonic() + 120
        while True:
            assert self._process.poll() is None, self.log()
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < time_limit, self.log()
                time.sleep(0.02)  # a process that starts

    def log(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # its own session: the server and its workers
        self._process.wait()
        self._log.close()

    def send(self, key: str, body: bytes, path: str) -> Reply:
        login = ("Authorization", "Token a" if self._app.startswith("drf") else "Bearer a")
        request = Stage.request(None, key, body, "POST", path, login)  # type: ignore[arg-type]
        with socket.create_connection(("127.0.0.1", self.port), 120) as connection:
            connection.sendall(request)
            return read(connection)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    words, app, _ = request.param
    running = Running(words, app, tmp_path)
    yield running
    running.stop()


def named(entry: tuple[str, str, str]) -> str:
    words, app, _ = entry
    return app.partition("_")[0] + "-" + words.replace("{app} ", "").partition(" ")[0]


@pytest.mark.item("R1", "F2", "K6")
@pytest.mark.parametrize("server, path", [(e, e[2]) for e in MATRIX], indirect=["server"], ids=map(named, MATRIX))  # fmt: skip
def test_a_framework_under_a_real_server(server: Running, path: str):
    first = server.send("order-7", b'{"cents":500}', path)
    assert (first.status, first.replayed) == (201, False), server.log()
    again = server.send('"order-7"', b'{ "cents": 500 }', path)
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert again["content-type"] == first["content-type"]
    assert server.send("order-7", b'{"cents":900}', path).problem == "key-reused"
    assert server.send('""', b'{"cents":500}', path).problem == "key-invalid"
