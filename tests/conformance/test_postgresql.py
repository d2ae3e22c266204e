"""PostgreSQL keeps every rule: psycopg and asyncpg, 18 and 16."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg
import pytest

from tests.servers import shared
from twicesafe.stores.postgresql import PostgresStore
from twicesafe.stores.postgresql.awaited import AsyncpgStore, AsyncPostgresStore
from twicesafe.stores.postgresql.settings import Settings
from twicesafe.testing import Place, StoreConformance, StoreUnderTest

NOW = "(SELECT ms FROM {clock})"
"""The server's clock, replaced by a row that the test moves."""


class Postgres(StoreUnderTest):
    engine: ClassVar[str] = "postgres"
    awaited: ClassVar[Any] = AsyncPostgresStore

    def _settings(self, place: Place) -> Settings:
        return Settings.of(f"{shared(self.engine).url}?table={place.name}&pool=20")

    def _clock(self, place: Place) -> str:
        with psycopg.connect(shared(self.engine).url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {place.name}_clock (ms bigint)")
            connection.execute(
                f"INSERT INTO {place.name}_clock SELECT %s"
                f" WHERE NOT EXISTS (SELECT FROM {place.name}_clock)",
                (place.clock(),),
            )
        return NOW.format(clock=f"{place.name}_clock")

    def open_store(self, place: Place) -> PostgresStore:
        return PostgresStore(self._settings(place), self._clock(place))

    def open_async_store(self, place: Place) -> Any:
        return self.awaited(self._settings(place), self._clock(place))

    def advance(self, place: Place, ms: int) -> None:
        super().advance(place, ms)
        with psycopg.connect(shared(self.engine).url, autocommit=True) as connection:
            connection.execute(f"UPDATE {place.name}_clock SET ms = %s", (place.clock(),))

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        with psycopg.connect(shared(self.engine).url, autocommit=True) as connection:
            connection.execute(f"UPDATE {place.name}_records SET state = 99 WHERE id = %s", (id,))

    def tidy(self, place: Place) -> None:
        with psycopg.connect(shared(self.engine).url, autocommit=True) as connection:
            for part in ("records", "meta", "audit", "clock"):
                connection.execute(f"DROP TABLE IF EXISTS {place.name}_{part}")


@pytest.mark.usefixtures("postgres")
class TestPsycopg(Postgres, StoreConformance):
    pass


@pytest.mark.usefixtures("postgres")
class TestAsyncpg(Postgres, StoreConformance):
    awaited = AsyncpgStore


@pytest.mark.usefixtures("postgres16")
class TestPostgres16(Postgres, StoreConformance):
    engine = "postgres16"
