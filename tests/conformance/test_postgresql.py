"""PostgreSQL keeps every rule: psycopg and asyncpg, 18 and 16."""

from __future__ import annotations

import atexit
import functools
from typing import Any, ClassVar

import psycopg
import pytest

from tests.servers import shared
from twicesafe._engines.postgresql import PostgresStore
from twicesafe._engines.postgresql.async_store import AsyncpgStore, AsyncPostgresStore
from twicesafe._engines.postgresql.settings import Settings
from twicesafe.testing import Place, StoreConformance, StoreUnderTest

NOW = "(SELECT ms FROM {clock})"
"""The server's clock, replaced by a row that the test moves."""


@functools.cache
def hand(url: str) -> psycopg.Connection[Any]:
    """Ours, beside those of the store: one for all tests of a process, for each costs a fork."""
    connection = psycopg.connect(url, autocommit=True)
    atexit.register(connection.close)
    return connection


class Postgres(StoreUnderTest):
    engine: ClassVar[str] = "postgres"
    awaited: ClassVar[Any] = AsyncPostgresStore
    parts: ClassVar[tuple[str, ...]] = ("records", "meta", "audit", "clock")
    holder: ClassVar[str] = "records"

    def _settings(self, place: Place) -> Settings:
        return Settings.of(f"{shared(self.engine).url}?table={place.name}&pool=20&timeout=60")

    @property
    def hand(self) -> psycopg.Connection[Any]:
        return hand(shared(self.engine).url)

    def _clock(self, place: Place) -> str:
        self.hand.execute(f"CREATE TABLE IF NOT EXISTS {place.name}_clock (ms bigint)")
        self.hand.execute(
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
        self.hand.execute(f"UPDATE {place.name}_clock SET ms = %s", (place.clock(),))

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        self.hand.execute(f"UPDATE {place.name}_records SET state = 99 WHERE id = %s", (id,))

    def refuse(self, place: Place) -> bytes:
        self.hand.execute(
            f"ALTER TABLE {place.name}_{self.holder} ADD CHECK (octet_length(result) < 100000)"
        )
        return b"R" * 200_000

    def tidy(self, place: Place) -> None:
        parts = ", ".join(f"{place.name}_{part}" for part in self.parts)
        self.hand.execute(f"DROP TABLE IF EXISTS {parts}")


@pytest.mark.usefixtures("postgres")
class TestPsycopg(Postgres, StoreConformance):
    pass


@pytest.mark.usefixtures("postgres")
class TestAsyncpg(Postgres, StoreConformance):
    modes = ("async",)
    awaited = AsyncpgStore


@pytest.mark.usefixtures("postgres16")
class TestPostgres16(Postgres, StoreConformance):
    modes = ("blocking",)  # the programs are the same in both
    engine = "postgres16"
