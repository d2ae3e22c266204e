"""RabbitMQ from apt (`rabbitmq-server`), by the package's own script: the wrapper changes the user."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.process import NoServerError, Server, find_program, free_port

REMEDY = "apt install rabbitmq-server"


LARGEST = 2_000_000
"""Bytes of a message: the broker closes the channel of a client that sends a larger one."""

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMQ(Server):
    """Its Erlang port mapper is a child of the run as well, and ends with it."""

    name = "rabbitmq"

    def __init__(self) -> None:
        if not SCRIPT.exists():
            raise NoServerError(f"no rabbitmq-server on this machine; {REMEDY}")
        self._epmd = find_program("epmd", remedy=REMEDY)
        super().__init__()
        self._ports = free_port(), free_port()
        self._mapper: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def command(self) -> Sequence[str]:
        _, dist = self._ports
        folder = self.folder
        settings = {
            **self._node(),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": dist,
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_LOG_BASE": folder / "logs",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq.conf",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none"
            ),
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), str(SCRIPT)]

    def _node(self) -> dict[str, str]:
        """Where Erlang finds the broker, and its cookie."""
        return {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._ports[0]),
            "RABBITMQ_NODENAME": f"ts{self.port}@localhost",
        }

    def reader(self) -> str:
        """A new user who may only read, with the password, as a URL has them."""
        name = f"reader{next(self._numbers)}"
        for command in (["add_user", name, "secret"], ["set_permissions", name, "", "", ".*"]):
            node = self._node()
            subprocess.run(
                [SCRIPT.with_name("rabbitmqctl"), "-n", node["RABBITMQ_NODENAME"], *command],
                env=os.environ | node,
                check=True,
                capture_output=True,
            )
        return f"{name}:secret"

    def start(self) -> None:
        # The default is 128 MiB, which a test would have to send to be refused.
        (self.folder / "rabbitmq.conf").write_text(f"max_message_size = {LARGEST}\n")
        environment = os.environ | {"ERL_EPMD_ADDRESS": "127.0.0.1"}
        self._mapper = subprocess.Popen(
            [self._epmd, "-port", str(self._ports[0])],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        super().start()

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return probe.recv(1) == b"\x01"

    def _end(self, kind: int) -> None:
        pid_file = self.folder / "pid"
        if self.running and pid_file.exists():
            try:
                os.kill(int(pid_file.read_text()), kind)
            except (ProcessLookupError, ValueError):
                pass
            else:
                assert self._process is not None
                try:
                    self._process.wait(20)
                except subprocess.TimeoutExpired:
                    os.kill(int(pid_file.read_text()), signal.SIGKILL)
        super()._end(kind)
        mapper: Any = self._mapper
        if mapper is not None:
            self._mapper = None
            mapper.kill()
            mapper.wait()

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A URL with the name of an exchange that no other test uses; it is there, and of type topic."""
        name = f"t{next(self._numbers)}_{uuid.uuid4().hex[:6]}"
        asyncio.run(self._declare(name))
        yield f"{self.url}?exchange={name}"

    async def _declare(self, exchange: str) -> None:
        import aio_pika

        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)
