"""The stores of this package, as the suite wants them: the hooks and nothing else."""

from __future__ import annotations

import sqlite3

from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.stores.sqlite import AsyncSqliteStore, SqliteStore
from twicesafe.testing import Place, StoreUnderTest


class Memory(StoreUnderTest):
    def open_store(self, place: Place) -> MemoryStore:
        return MemoryStore(now=place.clock)

    def open_async_store(self, place: Place) -> AsyncMemoryStore:
        return AsyncMemoryStore(self.open_store(place))


class Sqlite(StoreUnderTest):
    def open_store(self, place: Place) -> SqliteStore:
        return SqliteStore(place.folder / "keys.db", synchronous="normal", now=place.clock)

    def open_async_store(self, place: Place) -> AsyncSqliteStore:
        return AsyncSqliteStore(lambda: self.open_store(place), "sqlite:///keys.db")

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        connection = sqlite3.connect(place.folder / "keys.db")
        with connection:
            connection.execute("UPDATE twicesafe_records SET state = 99 WHERE id = ?", (id,))
        connection.close()
