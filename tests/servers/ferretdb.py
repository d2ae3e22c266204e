"""A server that speaks MongoDB's protocol: FerretDB 1.24, which `make mongodb` builds (it takes Go; no mongod is free to fetch).

It keeps documents in SQLite files, and has no TTL indexes, no `$$NOW`, no transactions and no change streams. By itself it
reads and writes a document in two steps; the build lets it do one command at a time, as if each were atomic.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.process import NoOptionalServerError, Server

BUILT = Path(__file__).resolve().parents[2] / ".dev" / "ferretdb" / "ferretdb"


class FerretDB(Server):
    """Settings are its flags: ``FerretDB(repl_set_name="rs0")``."""

    name = "mongodb"

    def __init__(self, **settings: str) -> None:
        if not BUILT.exists():
            raise NoOptionalServerError(
                "no server that speaks MongoDB's protocol; make mongodb builds one, with Go"
            )
        super().__init__()
        self._settings = settings
        self._numbers = itertools.count(1)
        self._client: Any = None
        self.url = self.database_url("twicesafe")

    def database_url(self, database: str) -> str:
        """The URL of a store in this database."""
        return f"mongodb://127.0.0.1:{self.port}/{database}?timeout=120"

    def command(self) -> Sequence[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        flags = {
            "handler": "sqlite",
            "sqlite-url": f"file:{data}/",
            "state-dir": "-",
            "listen-addr": f"127.0.0.1:{self.port}",
            "debug-addr": "-",
            "telemetry": "disable",
            "log-level": "ERROR",
            **{name.replace("_", "-"): value for name, value in self._settings.items()},
        }
        return [str(BUILT), *(f"--{name}={value}" for name, value in flags.items())]

    def answers(self) -> bool:
        return bool(self.client().admin.command("ping")["ok"])

    def client(self) -> Any:
        from pymongo import MongoClient

        if self._client is None:
            self._client = MongoClient(
                f"mongodb://127.0.0.1:{self.port}/?directConnection=true", timeoutMS=20_000
            )
        return self._client

    def collection(self, url: str) -> Any:
        """The documents of the store at this URL, for a test that looks at them."""
        from twicesafe._engines.mongodb.settings import Settings

        settings = Settings.of(url)
        return self.client()[settings.database][settings.collection]

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A URL with a collection that no other test uses; it is removed afterwards."""
        name = f"t{next(self._numbers)}_{uuid.uuid4().hex[:6]}"
        yield f"{self.url}&collection={name}"
        if self.running:
            self.client()["twicesafe"].drop_collection(name)

    def remove(self) -> None:
        if self._client is not None:
            self._client.close()
        super().remove()
