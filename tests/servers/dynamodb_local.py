"""DynamoDB of AWS for one machine, which `make dynamodb` fetches: Java, and the only one here that deletes by time to live.

It has no setting for the address: it listens on every one, for as long as the tests run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.servers.ministack import Dynamodb
from tests.servers.process import NoOptionalServerError, find_program

FETCHED = Path(__file__).resolve().parents[2] / ".dev" / "dynamodb"


class DynamodbLocal(Dynamodb):
    name = "dynamodb_local"

    def __init__(self) -> None:
        if not (FETCHED / "stamp").exists():
            raise NoOptionalServerError("make dynamodb fetches it, with Java and Maven")
        self._java = find_program("java", remedy="it takes 17 or newer (or remove .dev/dynamodb)")
        super().__init__()

    def command(self) -> Sequence[str]:
        # Small and quick to start; it serves a few tests.
        machine = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        jars = FETCHED / "jars"  # the library that it loads is there too, under another name
        library = next(jars.glob("libsqlite4java-linux-amd64-*.so"))
        loaded = self.folder / "native"
        loaded.mkdir(exist_ok=True)
        link = loaded / library.name
        if not link.exists():
            link.symlink_to(library)
        main = "software.amazon.dynamodb.services.local.main.ServerRunner"
        words = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self.port)]
        place = [f"-Djava.library.path={loaded}", "-cp", f"{jars}/*"]
        return [self._java, *machine, *place, main, *words]

    def answers(self) -> bool:
        return "TableNames" in self.client().list_tables()
