"""Valkey and Redis keep every rule: alone, as a Cluster, behind a Sentinel; blocking and async.

The scripts' clock is replaced by one that the test moves, so that nothing here waits.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.conformance.selections import Awaited, Failover, FirstSchema
from tests.servers import shared
from twicesafe._engines.redis import RedisStore
from twicesafe._engines.redis.async_store import AsyncRedisStore
from twicesafe._engines.redis.key_scans import PLAIN
from twicesafe._engines.redis.scripts import SCRIPTS, Script, Scripts
from twicesafe._engines.redis.servers import slot_of
from twicesafe._engines.redis.settings import Settings
from twicesafe.testing import Place, StoreConformance, StoreUnderTest


class MovedScripts(Scripts):
    """The same scripts at the place's time. Every move makes them new: NOSCRIPT is met on the way."""

    def __init__(self, publish: str, place: Place) -> None:
        self._publish, self._place = publish, place
        self._made: dict[int, Scripts] = {}

    def _at(self, name: str) -> Script:
        ms = self._place.clock()
        if ms not in self._made:
            self._made[ms] = Scripts(self._publish, f"local us = {ms} * 1000")
        return getattr(self._made[ms], name)


for _name in SCRIPTS:
    setattr(MovedScripts, _name, property(lambda self, name=_name: self._at(name)))


class Redis(StoreUnderTest):
    engine: ClassVar[str] = "valkey"

    def _settings(self, place: Place) -> Settings:
        return Settings.of(f"{shared(self.engine).url}?prefix={place.name}")

    def _scripts(self, place: Place) -> Scripts:
        return MovedScripts("SPUBLISH" if "cluster" in self.engine else "PUBLISH", place)

    def open_store(self, place: Place) -> RedisStore:
        return RedisStore(self._settings(place), self._scripts(place))

    def open_async_store(self, place: Place) -> AsyncRedisStore:
        return AsyncRedisStore(self._settings(place), self._scripts(place))

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        key = place.name.encode() + b":{." + id + b"}"
        self._client(key).setrange(key, 0, b"\x1f")  # no such state

    def refuse(self, place: Place) -> bytes:
        self._limit("1mb")
        return b"R" * 1_200_000

    def tidy(self, place: Place) -> None:
        self._limit("512mb")

    def _limit(self, most: str) -> None:
        server = shared(self.engine)
        nodes = server.nodes if self.engine == "valkey_cluster" else [self._client(b"")]
        for node in nodes:
            client = node.client() if hasattr(node, "client") else node
            client.config_set("proto-max-bulk-len", most)

    def _client(self, key: bytes) -> Any:
        server = shared(self.engine)
        if self.engine == "valkey_cluster":
            return server.nodes[slot_of(key) * 3 // 16384].client()
        return (server.primary if self.engine == "valkey_sentinel" else server).client()


@pytest.mark.usefixtures("valkey")
class TestValkey(Redis, StoreConformance):
    modes = ("blocking",)


@pytest.mark.usefixtures("valkey")
class TestValkeyAsync(Redis, Awaited):
    pass


@pytest.mark.usefixtures("valkey")
class TestFirstLayout(Redis, FirstSchema):
    """Records as nodes of the first version need them, until the store is migrated."""

    modes = ("blocking",)

    def open_store(self, place: Place) -> RedisStore:
        store = super().open_store(place)
        store.programs.how = PLAIN
        return store


@pytest.mark.usefixtures("valkey_cluster")
class TestValkeyCluster(Redis, StoreConformance):
    modes = ("blocking",)
    engine = "valkey_cluster"


@pytest.mark.usefixtures("valkey_cluster")
class TestValkeyClusterAsync(Redis, Awaited):
    engine = "valkey_cluster"


@pytest.mark.usefixtures("valkey_sentinel")
class TestValkeySentinel(Redis, Failover):
    """How the primary is found is the one thing that differs."""

    engine = "valkey_sentinel"


@pytest.mark.usefixtures("redis7")
class TestRedis7(Redis, StoreConformance):
    engine = "redis7"
    modes = ("blocking",)  # the scripts are the same in both
