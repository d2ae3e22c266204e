"""The stores of this package, as the suite wants them: the hooks and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from twicesafe._core.protocol import Request
from twicesafe._engines.sql.migrations import first_steps
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
    store: ClassVar[type[SqliteStore]] = SqliteStore
    table: ClassVar[str] = "twicesafe_keys"
    width: ClassVar[int] = 16

    def open_store(self, place: Place) -> SqliteStore:
        return self.store(place.folder / "keys.db", synchronous="normal", now=place.clock)

    def open_async_store(self, place: Place) -> AsyncSqliteStore:
        return AsyncSqliteStore(lambda: self.open_store(place), "sqlite:///keys.db")

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        connection = sqlite3.connect(place.folder / "keys.db")
        with connection:
            wrong = f"UPDATE {self.table} SET state = 99 WHERE id = ?"
            connection.execute(wrong, (id[: self.width],))
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


class WideSqlite(Sqlite):
    """The schema of the first versions, on which this one works too."""

    table = "twicesafe_records"
    width = 32

    def open_store(self, place: Place) -> SqliteStore:
        at_schema(place.folder / "keys.db", 1)
        return super().open_store(place)


class MovingSqlite(Sqlite):
    """A migration that was interrupted: every request finds its record in the wide table."""

    def open_store(self, place: Place) -> SqliteStore:
        at_schema(place.folder / "keys.db", 2)
        return PushedBack(place.folder / "keys.db", synchronous="normal", now=place.clock)

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        super().corrupt(place, id)
        connection = sqlite3.connect(place.folder / "keys.db")
        with connection:
            connection.execute("UPDATE twicesafe_wide SET state = 99 WHERE id = ?", (id,))
        connection.close()


def at_schema(path: Path, version: int) -> None:
    """Make the tables of this version, if there are none."""
    connection = sqlite3.connect(path)
    with connection:
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            for part in range(version):
                for statement in first_steps("sqlite", "twicesafe", part + 1, part):
                    connection.execute(statement)
    connection.close()


class PushedBack(SqliteStore):
    """Before each request all records go back to the wide table, except the newest (its number counts).

    Nothing is swept while records are moved: a sweep ends the migration first.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._ids: dict[bytes, bytes] = {}
        super().__init__(*args, **settings)

    def perform(self, request: Request) -> Any:
        self._push_back([request])
        return super().perform(request)

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        self._push_back(requests)
        return super().perform_many(requests)

    def _push_back(self, requests: Sequence[Any]) -> None:
        if any(request.op == "sweep" for request in requests):
            self.migrate()
        whole = (request.id for request in requests if hasattr(request, "id"))
        self._ids.update((id_[:16], id_) for id_ in whole)
        connection = sqlite3.connect(self.path, isolation_level=None)
        if not connection.execute(
            "SELECT 1 FROM sqlite_master WHERE name = 'twicesafe_wide'"
        ).fetchall():
            connection.close()
            return
        connection.create_function("whole", 1, lambda id_: self._ids.get(id_, id_))
        most = "n < (SELECT max(n) FROM twicesafe_keys) AND length(whole(id)) = 32"
        columns = (
            "state, fence, attempt, owner, lease_until, created_at, changed_at, expires_at, hold,"
        )
        columns += " cause, scope, value, error, fingerprint, apart, result"
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            f"INSERT INTO twicesafe_wide (n, id, {columns}) SELECT n, whole(id), {columns}"
            f" FROM twicesafe_keys WHERE {most}"
        )
        connection.execute(
            "UPDATE twicesafe_audit SET id = whole(id) WHERE whole(id) IN (SELECT id FROM twicesafe_wide)"
        )
        connection.execute(f"DELETE FROM twicesafe_keys WHERE {most}")
        connection.execute("COMMIT")
        connection.close()
