"""Kafka, one of three, and `broker()` says which:

    given   the one at TWICESAFE_KAFKA_BOOTSTRAP
    real    a single KRaft node on Java, if `make kafka` has fetched it
    mock    otherwise: librdkafka's mock cluster in its own process

The mock speaks the protocol over TCP: topics make themselves, consumers and idempotent producers work.
But it forgets everything when it ends, and accepts transactions without enforcing them: what is about
either asks for the real one.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import NoServerError, Server, find_program, free_port, run

FETCHED = Path(__file__).resolve().parents[2] / ".dev" / "kafka"


def broker() -> str:
    if os.environ.get("TWICESAFE_KAFKA_BOOTSTRAP"):
        return "given"
    return "real" if (FETCHED / "stamp").exists() else "mock"


def kafka(**settings: str) -> Kafka:
    """Settings are the real one's: a test that has any must ask for it by `broker()`."""
    kinds: dict[str, Callable[..., Kafka]]
    kinds = {"given": GivenKafka, "real": RealKafka, "mock": MockKafka}
    return kinds[broker()](**settings)


class Kafka(Server):
    name = "kafka"

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"kafka://{self.bootstrap}"

    def answers(self) -> bool:
        host, _, port = self.bootstrap.split(",")[0].rpartition(":")
        if not port:
            return False
        with socket.create_connection((host, int(port)), 1):
            return True

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A URL with a topic prefix that no other test uses."""
        yield f"{self.url}?prefix=t{next(self._numbers)}_{uuid.uuid4().hex[:6]}."


class GivenKafka(Kafka):
    """Another owner's broker: a process that only waits stands for it, so ending that ends no broker."""

    @property
    def bootstrap(self) -> str:
        return os.environ["TWICESAFE_KAFKA_BOOTSTRAP"]

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", "import signal; signal.pause()"]


_MOCK = """
import ctypes, ctypes.util, signal, sys
from importlib.metadata import files

bundled = [file for file in files("confluent-kafka") if file.name.startswith("librdkafka")]
kafka = ctypes.CDLL(str(bundled[0].locate()) if bundled else ctypes.util.find_library("rdkafka"))
kafka.rd_kafka_conf_new.restype = kafka.rd_kafka_new.restype = ctypes.c_void_p
kafka.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
kafka.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
pointer = ctypes.c_void_p
client = pointer(kafka.rd_kafka_new(0, pointer(kafka.rd_kafka_conf_new()), None, 0))
kafka.rd_kafka_set_log_level(client, 0)
cluster = pointer(kafka.rd_kafka_mock_cluster_new(client, 1))
kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 100)
with open(sys.argv[1], "w") as file:
    file.write(kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode() + "\\n")
while True:
    signal.pause()
"""
"""By its C interface: what Python can start makes every new group wait three seconds for more members."""


class MockKafka(Kafka):
    def __init__(self) -> None:
        if importlib.util.find_spec("confluent_kafka") is None:
            raise NoServerError("confluent-kafka is not installed")
        super().__init__()

    @property
    def bootstrap(self) -> str:
        return (self.folder / "address").read_text().strip()

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", _MOCK, str(self.folder / "address")]


class RealKafka(Kafka):
    """Broker and controller in one. What it acknowledged survives `kill`: it is in its log."""

    def __init__(self, **settings: str) -> None:
        self._java = find_program("java", remedy="it takes 17 or newer (or remove .dev/kafka)")
        super().__init__()
        self._controller = free_port()
        self._chosen = {name.replace("_", "."): value for name, value in settings.items()}

    def _program(self, main: str, *words: str) -> Sequence[str]:
        # Small and quick to start; it serves a few tests.
        machine = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = [
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            # It tells of transactions that it does not end.
            "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction.TransactionMarkerChannelManager=info",
        ]
        return [self._java, *machine, *logging, "-cp", f"{FETCHED / 'jars'}/*", main, *words]

    def prepare(self) -> None:
        (self.folder / "settings").write_text(
            "".join(f"{name}={value}\n" for name, value in self._settings().items())
        )
        cluster = "twicesafe-tests-000000"
        settings = str(self.folder / "settings")
        run(
            self._program("kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings),
            self.folder,
        )

    def _settings(self) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller}"
            ),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.folder / "data",
            "num.partitions": 4,
            # One node: whatever wants three copies gets one.
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            # A consumer joins at once, a broker comes back at once.
            "group.initial.rebalance.delay.ms": 0,
            "group.consumer.min.heartbeat.interval.ms": 200,
            "group.consumer.heartbeat.interval.ms": 200,
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            **self._chosen,
        }

    def command(self) -> Sequence[str]:
        return self._program("kafka.Kafka", str(self.folder / "settings"))

    def answers(self) -> bool:
        """It listens before it leads: a topic list is the first thing that needs both."""
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return bool(client.list_topics(timeout=60).brokers)
