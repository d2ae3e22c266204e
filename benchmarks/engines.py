"""The servers of a run: started when a case first needs one, with durable settings, and removed at its end.

They are the tests' own servers (`tests.servers`), set up to keep what they acknowledge as an operator
would: PostgreSQL with fsync, Valkey with an append-only file synced every second, MariaDB with a flush
per commit, etcd with fsync (one member). Their data lies beside the code where that is possible, on the same disk as SQLite's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.servers import NoServerError, launch

from .delay import Delay
from .size import place

__all__ = [
    "EMULATED",
    "ENGINES",
    "ROUND_TRIP",
    "Engine",
    "NoServerError",
    "about",
    "database",
    "delayed_url",
    "server",
    "url",
    "use",
]


@dataclass(frozen=True)
class Engine:
    shown: str
    server: str
    settings: dict[str, str]
    version: Callable[[Any], str]
    empty: Callable[[Any, str], str]
    """The URL of an empty place on this server, by a name for it."""


def _database(server: Any, name: str) -> str:
    server.execute(f"CREATE DATABASE {name}")
    return str(server.url_of(name))


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


def _etcd_version(server: Any) -> str:
    import json
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/version", timeout=10) as reply:
        return str(json.load(reply)["etcdserver"])


def _ferretdb_version(server: Any) -> str:
    build = server.client().admin.command("buildInfo")
    return f"FerretDB {build['ferretdbVersion'].removeprefix('v')}"


ENGINES = {
    "postgresql": Engine(
        "PostgreSQL",
        "postgres",
        {"fsync": "on", "synchronous_commit": "on", "max_connections": "300"}
        | {"shared_buffers": "256MB", "max_wal_size": "4GB"},
        _postgres_version,
        _database,
    ),
    "valkey": Engine(
        "Valkey",
        "valkey",
        {"appendonly": "yes", "appendfsync": "everysec"},
        _valkey_version,
        lambda server, name: f"{server.url}?prefix={name}",
    ),
    "mariadb": Engine(
        "MariaDB",
        "mariadb",
        {"innodb_flush_log_at_trx_commit": "1", "innodb_buffer_pool_size": "512M"},
        _mariadb_version,
        _database,
    ),
    "etcd": Engine(
        "etcd",
        "etcd",
        {"unsafe_no_fsync": "false", "auto_compaction_retention": "5m"}
        | {"quota_backend_bytes": str(8 * 1024**3)},
        _etcd_version,
        lambda server, name: f"{server.url}/{name}",
    ),
}

EMULATED = {
    "dynamodb": Engine(
        "DynamoDB",
        "dynamodb",
        {},
        lambda _: f"ministack {version('ministack')}",
        lambda server, name: str(server.table_url(name)),
    ),
    "mongodb": Engine(
        "MongoDB",
        "mongodb",
        {},
        _ferretdb_version,
        lambda server, name: f"{server.url}&collection={name}",
    ),
}
"""Emulators: they tell what the library adds to a call, not how fast the service is, nor how large."""

ROUND_TRIP = 0.0005
"""Seconds that a network adds to each round trip, in the cases that have one."""

_running: dict[str, Any] = {}
_urls: dict[str, str] = {}
_delays: dict[str, Delay] = {}


def server(name: str) -> Any:
    """The run's own server of this engine. Raises `NoServerError` where there is none."""
    if name not in _running:
        folder = place()
        if folder is not None:
            os.environ.setdefault("TWICESAFE_TEST_DATA", str(folder))
        engine = (ENGINES | EMULATED)[name]
        started = launch(engine.server, **engine.settings)
        if name == "mariadb":
            started.execute("CREATE DATABASE bench")
            started.url = started.url_of("bench")
        _running[name] = started
    return _running[name]


def url(name: str) -> str:
    """Where the engine of this run is: its own server, or the one that `use` named."""
    return _urls.get(name) or str(server(name).url)


def database(name: str, number: int) -> str:
    """An empty place on the run's own server, for a version of the library."""
    return (ENGINES | EMULATED)[name].empty(server(name), f"version_{number}")


def use(urls: dict[str, str]) -> None:
    """Use these servers, which another process started."""
    _urls.update(urls)


def delayed_url(name: str) -> str:
    """The same engine behind a network that takes `ROUND_TRIP` seconds there and back."""
    parts = urlsplit(url(name))
    if name not in _delays:
        assert parts.port is not None
        _delays[name] = Delay(parts.port, ROUND_TRIP)
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{_delays[name].port}"))


def about() -> dict[str, str]:
    """The versions of the servers that were used."""
    return {
        name: (ENGINES | EMULATED)[name].version(running)
        for name, running in _running.items()
        if running.running
    }
