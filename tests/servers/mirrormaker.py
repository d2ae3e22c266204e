"""MirrorMaker 2 between two real brokers, if `make kafka` and `make mirrormaker` have fetched both.

Topics keep their names and partitions. Readers of committed entries only: without that, an entry of a
transaction that was aborted would arrive as a valid one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.servers.kafka import broker
from tests.servers.process import NoOptionalServerError, Server, find_program

FETCHED = Path(__file__).resolve().parents[2] / ".dev" / "mirrormaker"


class MirrorMaker(Server):
    """``MirrorMaker(source="127.0.0.1:1", target="127.0.0.1:2")``: copies everything that there is."""

    name = "mirrormaker"

    def __init__(self, source: str, target: str) -> None:
        if broker() != "real" or not (FETCHED / "stamp").exists():
            raise NoOptionalServerError("make kafka and make mirrormaker fetch it, with Maven")
        self._java = find_program("java", remedy="it takes 17 or newer")
        super().__init__()
        self._settings = {
            "clusters": "eu,us",
            "eu.bootstrap.servers": source,
            "us.bootstrap.servers": target,
            "eu->us.enabled": "true",
            "us->eu.enabled": "false",
            "eu->us.topics": ".*",
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            "eu.consumer.isolation.level": "read_committed",
            "eu.consumer.auto.offset.reset": "earliest",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "emit.checkpoints.interval.seconds": "1",
            "refresh.topics.interval.seconds": "1",
            "refresh.groups.interval.seconds": "1",
            "offset.lag.max": "0",
            **{
                f"{each}.replication.factor": "1"
                for each in (
                    "checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage",
                    "status.storage", "config.storage",
                )
            },
            "replication.factor": "1",
        }  # fmt: skip

    def prepare(self) -> None:
        lines = (f"{name} = {value}\n" for name, value in self._settings.items())
        (self.folder / "settings").write_text("".join(lines))

    def command(self) -> Sequence[str]:
        machine = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        place = ["-cp", f"{FETCHED / 'jars'}/*", main, str(self.folder / "settings")]
        return [self._java, *machine, *logging, *place]

    def answers(self) -> bool:
        """It listens nowhere: a test waits for what it copies."""
        return True
