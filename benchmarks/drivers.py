"""The ways into each server: which driver, its floor, and which peers go the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import engines, peers
from .floors_dynamodb import AsyncDynamodbFloor, DynamodbFloor
from .floors_etcd import AsyncEtcdFloor, EtcdFloor
from .floors_mariadb import AsyncmyFloor, PyMySqlFloor
from .floors_mongodb import AsyncMongodbFloor, MongodbFloor
from .floors_postgresql import AsyncpgFloor, AsyncPsycopgFloor, PsycopgFloor
from .floors_redis import AsyncRedisFloor, RedisFloor
from .workload import (
    Absent,
    Contestant,
    async_handler,
    handler,
    slow_async_handler,
    slow_handler,
)

Handler = Callable[[str], Any]
Neighbours = Callable[[Handler, str, Path, bool], list[Contestant | Absent]]


@dataclass(frozen=True)
class Driver:
    """One way into one engine: its driver, its floor, and who else goes that way."""

    id: str
    shown: str
    mode: str
    floor: Callable[[str], Any]
    neighbours: Neighbours
    suffix: str = ""
    """Stands behind the scheme of our URL."""

    delayed: bool = False
    """Through a network that delays what it carries."""

    @property
    def engine(self) -> str:
        return self.id.partition("/")[0]

    @property
    def is_async(self) -> bool:
        return self.mode == "async"

    @property
    def callers(self) -> str:
        return "tasks" if self.is_async else "threads"

    @property
    def handler(self) -> Handler:
        return async_handler if self.is_async else handler

    @property
    def slow_handler(self) -> Handler:
        return slow_async_handler if self.is_async else slow_handler

    def url(self) -> str:
        return engines.delayed_url(self.engine) if self.delayed else engines.url(self.engine)

    def ours(self) -> str:
        scheme, _, rest = self.url().partition("://")
        return f"{scheme}{self.suffix}://{rest}"


def _on_postgresql(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    return [
        peers.exactly_once(work, url=url, waits=waits),
        Absent(peers.IDEMKIT, "its PostgreSQL store uses asyncpg: see that table")
        if work in (async_handler, slow_async_handler)
        else peers.idemkit(work, is_async=False, url=url),
        peers.justonce(work, url, waits),
        peers.dbos(work, folder, url),
    ]


def _on_asyncpg(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    return [peers.idemkit(work, is_async=True, url=url)]


def _on_valkey(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    is_async = work in (async_handler, slow_async_handler)
    found = [
        peers.exactly_once(work, url=url, waits=waits),
        peers.idemkit(work, is_async=is_async, url=url),
    ]
    if is_async:
        return [*found, Absent(peers.POWERTOOLS, "has no async form")]
    if waits:
        return [*found, Absent(peers.POWERTOOLS, "answers a duplicate in flight with an error")]
    return [*found, peers.powertools(work, url)]


def _on_dynamodb(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    if work in (async_handler, slow_async_handler):
        return [Absent(peers.POWERTOOLS, "has no async form")]
    return [peers.powertools_on_dynamodb(work, url)]


def _no_peers(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    return []


DRIVERS = (
    Driver("postgresql/psycopg", "PostgreSQL: psycopg", "blocking", PsycopgFloor, _on_postgresql),
    Driver(
        "postgresql/psycopg-async",
        "PostgreSQL: psycopg, asyncio",
        "async",
        AsyncPsycopgFloor,
        _on_postgresql,
    ),
    Driver(
        "postgresql/asyncpg",
        "PostgreSQL: asyncpg",
        "async",
        AsyncpgFloor,
        _on_asyncpg,
        suffix="+asyncpg",
    ),
    Driver("valkey/blocking", "Valkey: redis-py", "blocking", RedisFloor, _on_valkey),
    Driver("valkey/async", "Valkey: redis-py, asyncio", "async", AsyncRedisFloor, _on_valkey),
    Driver("mariadb/blocking", "MariaDB: PyMySQL", "blocking", PyMySqlFloor, _no_peers),
    Driver("mariadb/async", "MariaDB: asyncio (floor: asyncmy)", "async", AsyncmyFloor, _no_peers),
    Driver("etcd/blocking", "etcd: grpcio", "blocking", EtcdFloor, _no_peers),
    Driver("etcd/async", "etcd: grpcio, asyncio", "async", AsyncEtcdFloor, _no_peers),
)

EMULATED = (
    Driver(
        "dynamodb/blocking", "DynamoDB (emulator): boto3", "blocking", DynamodbFloor, _on_dynamodb
    ),
    Driver(
        "dynamodb/async",
        "DynamoDB (emulator): aiobotocore",
        "async",
        AsyncDynamodbFloor,
        _on_dynamodb,
    ),
    Driver("mongodb/blocking", "MongoDB (FerretDB): PyMongo", "blocking", MongodbFloor, _no_peers),
    Driver(
        "mongodb/async",
        "MongoDB (FerretDB): PyMongo, asyncio",
        "async",
        AsyncMongodbFloor,
        _no_peers,
    ),
)
"""Alone only: a crowd would measure the emulator, which does one thing at a time."""
