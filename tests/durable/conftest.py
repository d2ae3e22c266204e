from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance.stores import Memory, Sqlite
from tests.conformance.test_mysql import Mariadb
from tests.conformance.test_postgresql import Postgres
from tests.durable.shop import Shop
from tests.stores.test_redis_conformance import Redis
from twicesafe._engines.postgresql.async_store import AsyncpgStore
from twicesafe.testing import Place


class Asyncpg(Postgres):
    awaited = AsyncpgStore


class Cluster(Redis):
    engine = "valkey_cluster"


KINDS: Final[dict[str, tuple[Any, str]]] = {
    "memory": (Memory, ""),
    "sqlite": (Sqlite, ""),
    "postgres": (Postgres, "postgres"),
    "asyncpg": (Asyncpg, "postgres"),
    "mariadb": (Mariadb, "mariadb"),
    "valkey": (Redis, "valkey"),
    "cluster": (Cluster, "valkey_cluster"),
}
"""What is opened, and the server that it needs."""

SHOPS: Final = [
    *("memory-blocking", "memory-async", "sqlite-blocking", "sqlite-async"),
    *("postgres-blocking", "asyncpg-async", "mariadb-blocking", "valkey-blocking", "cluster-async"),
]
"""Each runtime on several stores, each store on one: what a run asks of a store in the other mode is in the
conformance tests (`StepRules`, `RunRules`, `SuspendingRules`), in both."""


@pytest.fixture(params=SHOPS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop on every store that keeps durable runs, and in both modes."""
    yield from _shop(request, tmp_path)


@pytest.fixture(params=["memory-blocking", "memory-async"])
def memory_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """For tests that replace a method of the store: both modes use the same one."""
    yield from _shop(request, tmp_path)


def _shop(request: pytest.FixtureRequest, folder: Path) -> Iterator[Shop]:
    name, _, mode = request.param.partition("-")
    kind, server = KINDS[name]
    if server:
        request.getfixturevalue(server)
    shop = Shop(mode, kind(), Place(folder))
    yield shop
    shop.close()
