"""The servers of a run: started when a case first needs one, with durable settings, and removed at its end.

They are the tests' own servers (`tests.servers`), told to keep what they acknowledge as an operator
would: PostgreSQL with fsync, Valkey with an append-only file synced every second, MariaDB with a flush
per commit. Their data lies beside the code where that is possible, on the same disk as SQLite's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.servers import NoServerError, launch

from .size import place

__all__ = ["ENGINES", "Engine", "NoServerError", "about", "server"]


@dataclass(frozen=True)
class Engine:
    shown: str
    server: str
    settings: dict[str, str]
    version: Callable[[Any], str]


def _postgres_version(server: Any) -> str:
    import psycopg

    with psycopg.connect(server.url) as connection:
        return str(connection.execute("SHOW server_version").fetchone()[0])  # type: ignore[index]


def _valkey_version(server: Any) -> str:
    with server.client() as client:
        info = client.info("server")
    return str(info.get("valkey_version") or info["redis_version"])


def _mariadb_version(server: Any) -> str:
    import pymysql

    with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as connection:
        return str(connection.get_server_info()).partition("-Maria")[0].removeprefix("5.5.5-")


ENGINES = {
    "postgresql": Engine(
        "PostgreSQL",
        "postgres",
        {"fsync": "on", "synchronous_commit": "on", "max_connections": "300"}
        | {"shared_buffers": "256MB", "max_wal_size": "4GB"},
        _postgres_version,
    ),
    "valkey": Engine(
        "Valkey", "valkey", {"appendonly": "yes", "appendfsync": "everysec"}, _valkey_version
    ),
    "mariadb": Engine(
        "MariaDB",
        "mariadb",
        {"innodb_flush_log_at_trx_commit": "1", "innodb_buffer_pool_size": "512M"},
        _mariadb_version,
    ),
}

_running: dict[str, Any] = {}


def server(name: str) -> Any:
    """The run's own server of this engine. Raises `NoServerError` where there is none."""
    if name not in _running:
        folder = place()
        if folder is not None:
            os.environ.setdefault("TWICESAFE_TEST_DATA", str(folder))
        engine = ENGINES[name]
        started = launch(engine.server, **engine.settings)
        if name == "mariadb":
            started.execute("CREATE DATABASE bench")
            started.url = started.url_of("bench")
        _running[name] = started
    return _running[name]


def about() -> dict[str, str]:
    """The versions of the servers that were used."""
    return {
        name: ENGINES[name].version(running)
        for name, running in _running.items()
        if running.running
    }
