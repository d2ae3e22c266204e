"""The stores of this package, as the suite wants them: the hooks and nothing else."""

from __future__ import annotations

import sqlite3
from typing import Any, ClassVar

from twicesafe._core.protocol import Request
from twicesafe._engines.sqlite import AsyncSqliteStore, SqliteStore
from twicesafe.errors import StoreError
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing import Place, StoreUnderTest


class LimitedMemory(MemoryStore):
    """Memory with a quota, as a store of another package may have one."""

    most = 1 << 40

    def perform(self, request: Request) -> Any:
        if len(getattr(request, "result", None) or b"") > self.most:
            raise StoreError("over the quota")
        return super().perform(request)


class Memory(StoreUnderTest):
    _opened: ClassVar[dict[str, LimitedMemory]] = {}

    def open_store(self, place: Place) -> LimitedMemory:
        store = self._opened[place.name] = LimitedMemory(now=place.clock)
        return store

    def refuse(self, place: Place) -> bytes:
        self._opened[place.name].most = 1000
        return b"R" * 2000

    def tidy(self, place: Place) -> None:
        self._opened.pop(place.name, None)

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

    def refuse(self, place: Place) -> bytes:
        connection = sqlite3.connect(place.folder / "keys.db")
        with connection:
            connection.execute(
                "CREATE TRIGGER quota BEFORE INSERT ON twicesafe_results WHEN length(NEW.body) > 100000"
                " BEGIN SELECT RAISE(ABORT, 'over the quota'); END"
            )
        connection.close()
        return b"R" * 200_000
