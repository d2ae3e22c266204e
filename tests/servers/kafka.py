"""Kafka as librdkafka's mock cluster in a process of its own, or the one at TWICESAFE_KAFKA_BOOTSTRAP.

A mock over real TCP: topics make themselves, consumers and idempotent producers work; transactions are
accepted and not enforced, so nothing may be proved with them here.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.servers.process import NoServerError, Server

_MOCK = """
import sys, time
from confluent_kafka import Producer
producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 0})
metadata = producer.list_topics(timeout=20)
broker = next(iter(metadata.brokers.values()))
with open(sys.argv[1], "w") as file:
    file.write(f"{broker.host}:{broker.port}\\n")
while True:
    producer.poll(1)
"""


class Kafka(Server):
    name = "kafka"

    def __init__(self) -> None:
        self._given = os.environ.get("TWICESAFE_KAFKA_BOOTSTRAP", "")
        if not self._given and importlib.util.find_spec("confluent_kafka") is None:
            raise NoServerError("confluent-kafka is not installed")
        super().__init__()
        self._numbers = itertools.count(1)

    @property
    def bootstrap(self) -> str:
        return self._given or (self.folder / "address").read_text().strip()

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"kafka://{self.bootstrap}"

    def command(self) -> Sequence[str]:
        if self._given:
            return [sys.executable, "-c", "import signal; signal.pause()"]
        return [sys.executable, "-c", _MOCK, str(self.folder / "address")]

    def answers(self) -> bool:
        host, _, port = self.bootstrap.split(",")[0].rpartition(":")
        if not port:
            return False
        with socket.create_connection((host, int(port)), 1):
            return True

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A URL with a topic prefix that nobody else uses."""
        mark: Any = f"t{next(self._numbers)}_{uuid.uuid4().hex[:6]}."
        yield f"{self.url}?prefix={mark}"
