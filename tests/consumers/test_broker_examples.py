"""The examples of `examples/brokers`, on real servers: send, work, kill -9, work again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.house.repository import ROOT
from tests.polling import until
from tests.servers.kafka import broker

EXAMPLES = ROOT / "examples" / "brokers"


class Example:
    """One example, in its own folder."""

    def __init__(self, name: str, folder: Path, server: str) -> None:
        self._command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
        self._folder = folder
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        self._environment = {**os.environ, **keys, "BROKER": server}

    def run(self, word: str) -> str:
        done = subprocess.run(
            [*self._command, word],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def worker(self) -> Iterator[Any]:
        """A process, and a function that returns the lines that it has printed so far."""
        printed = self._folder / f"printed-{len(list(self._folder.iterdir()))}"
        with printed.open("w") as file:
            process = subprocess.Popen(
                [*self._command, "work"], cwd=self._folder, env=self._environment, stdout=file
            )
        try:
            yield process, lambda: printed.read_text().splitlines()
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "name, engine, address",
    [
        ("kafka_orders.py", "kafka", lambda server: server.bootstrap),
        ("rabbitmq_orders.py", "rabbitmq", lambda server: server.url),
        ("nats_orders.py", "nats", lambda server: server.url),
        ("redis_orders.py", "valkey", lambda server: f"redis://127.0.0.1:{server.port}/9"),
        ("sqs_orders.py", "ministack", lambda server: f"http://127.0.0.1:{server.port}"),
    ],
)
def test_a_killed_worker_s_order_is_charged_again_and_no_other(
    name: str, engine: str, address: Any, tmp_path: Path, request: pytest.FixtureRequest
):
    server = request.getfixturevalue(engine)
    example = Example(name, tmp_path, address(server))
    assert example.run("send") == "sent o-1 o-2 o-3 o-1\n"
    with example.worker() as (killed, printed):
        until(lambda: "charging o-2, attempt 1" in printed(), 100)
        killed.kill()
        killed.wait()
        assert printed() == ["charging o-1, attempt 1", "charging o-2, attempt 1"]
    with example.worker() as (worker, printed):
        until(lambda: len(printed()) == 2, 100)
        assert sorted(printed()) == ["charging o-2, attempt 2", "charging o-3, attempt 1"]
        worker.terminate()
        assert worker.wait(60) == 0
        assert len(printed()) == 2


@pytest.mark.skipif(broker() == "mock", reason="needs a real Kafka broker: make kafka")
def test_each_order_has_one_invoice(kafka: Any, tmp_path: Path):
    example = Example("kafka_invoices.py", tmp_path, kafka.bootstrap)
    example.run("send")
    with example.worker() as (killed, printed):
        until(lambda: "billing o-2" in printed(), 100)
        killed.kill()
        killed.wait()
    with example.worker() as (worker, printed):
        until(lambda: "billing o-3" in printed(), 100)
        worker.terminate()
        assert worker.wait(60) == 0
    shown = example.run("show").splitlines()
    assert shown == [f'{{"order":"o-{n}","cents":500}}' for n in (1, 2, 3)]


def test_every_example_is_tested():
    tests = (Path(__file__), ROOT / "tests" / "integrations" / "test_rq.py")
    tested = "".join(path.read_text("utf-8") for path in tests)
    assert all(path.name in tested for path in EXAMPLES.glob("*.py"))
