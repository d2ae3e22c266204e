"""Several worker processes on one store: storms of one key, and workers killed in mid-request.

``TWICESAFE_KILLS=200`` kills that many, ``TWICESAFE_STORMS=50`` has that many storms; by default a few.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.http.stage import Reply, Stage, read
from tests.http.storms import storm
from twicesafe import Receiver, State

KILLS = int(os.environ.get("TWICESAFE_KILLS", "4"))
STORMY = {"wait": 30, "max_waiters": 1000}


@pytest.fixture(params=("asgi", "wsgi"))
def edge(request: pytest.FixtureRequest) -> str:
    return str(request.param)  # the proxy's own processes: test_proxy_processes.py


class Workers:
    """Processes that accept from one socket. What was killed is started again."""

    def __init__(self, edge: str, folder: Path, count: int, url: str = "", **settings: Any) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.socket.setblocking(False)
        self.url, self.ledger = url or f"sqlite:///{folder / 'keys.db'}", folder / "ledger"
        self.ledger.touch()
        fd = self.socket.fileno()
        script = Path(__file__).with_name("worker.py")
        self._words = [
            sys.executable, str(script), edge, str(fd), self.url, str(self.ledger),
            json.dumps(settings),
        ]  # fmt: skip
        self.processes: dict[int, subprocess.Popen[str]] = {}
        for process in [self._start() for _ in range(count)]:
            self._await(process)

    def _start(self) -> subprocess.Popen[str]:
        fds = [self.socket.fileno()]
        process = subprocess.Popen(self._words, pass_fds=fds, stdout=subprocess.PIPE, text=True)
        self.processes[process.pid] = process
        return process

    def _await(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def kill(self, pid: int) -> None:
        """kill -9, and another one in its place."""
        process = self.processes.pop(pid)
        os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        self._await(self._start())

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        self.socket.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.socket.getsockname(), 120)

    def send(self, key: str, *fields: tuple[str, str]) -> Reply:
        with self.connect() as connection:
            connection.sendall(self.request(key, *fields))
            return read(connection)

    def request(self, key: str, *fields: tuple[str, str]) -> bytes:
        return Stage.request(None, key, b"{}", "POST", "/charges", *fields)  # type: ignore[arg-type]

    def effects(self) -> Counter[str]:
        lines = self.ledger.read_text().splitlines()
        return Counter(line.split()[0] for line in lines if not line.endswith("begins"))


@pytest.fixture
def workers(edge: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workers]:
    count, settings = request.param
    made = Workers(edge, tmp_path, count, **settings)
    yield made
    made.close()


@pytest.mark.item("C1", "O2", "E8")
@pytest.mark.parametrize("workers", [(4, STORMY)], indirect=True)
def test_a_storm_over_four_processes_has_one_effect_and_one_answer(workers: Workers):
    storm(workers, workers.effects)
    before = workers.send("storm-0")
    for pid in list(workers.processes):  # E8: the records are not the workers'
        workers.kill(pid)
    after = workers.send("storm-0")
    assert after.replayed
    assert after.body == before.body


@pytest.mark.item("C1", "O2")
def test_a_storm_on_postgresql(edge: str, tmp_path: Path, postgres_url: str):
    with closing(Workers(edge, tmp_path, 4, postgres_url, **STORMY)) as workers:
        storm(workers, workers.effects)


@pytest.mark.item("C1", "O2")
def test_a_storm_on_valkey(edge: str, tmp_path: Path, valkey_url: str):
    with closing(Workers(edge, tmp_path, 4, valkey_url, **STORMY)) as workers:
        storm(workers, workers.effects)


@pytest.mark.item("E8", "E4")
@pytest.mark.parametrize("workers", [(2, {"lease": 0.3})], indirect=True)
def test_a_killed_worker_leaves_no_second_effect(workers: Workers):
    for number in range(KILLS):
        key, hang = f"k{number}", ("before", "after")[number % 2]
        with workers.connect() as connection:
            connection.sendall(workers.request(key, ("X-Hang", hang)))
            pid = 0
            while not pid:
                pid = pid_of(workers, key)
            workers.kill(pid)
            assert connection.recv(1000) == b""
        problems = []
        while not problems or problems[-1] == "in-progress":  # until the dead one's lease is over
            problems.append(workers.send(key).problem)
        assert problems[-1] == "outcome-unknown"
        assert workers.send(key).problem == "outcome-unknown"
    assert workers.effects() == {f"k{number}": 1 for number in range(1, KILLS, 2)}
    with Receiver.open(workers.url) as operator:
        held = list(operator.records(state=State.HELD, limit=1000))
    assert {record.value for record in held} == {f"k{number}" for number in range(KILLS)}


def pid_of(workers: Workers, key: str) -> int:
    lines = [line.split() for line in workers.ledger.read_text().splitlines()]
    return next((int(line[1]) for line in lines if line[0] == key), 0)
