"""MariaDB keeps every rule, and so do the statements that MySQL gets, which has no RETURNING."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from tests.conformance.selections import (
    Awaited,
    FirstSchema,
    Interrupted,
    NextRelease,
    OtherStatements,
)
from tests.servers import shared
from twicesafe._core.protocol import Request
from twicesafe._engines.mysql import AsyncMysqlStore, MysqlStore
from twicesafe._engines.mysql.programs import MysqlPrograms
from twicesafe._engines.mysql.settings import Settings
from twicesafe._engines.sql.commands import COLUMNS, Change, atomically
from twicesafe._engines.sql.migrations import first_steps
from twicesafe.stores._base import Program
from twicesafe.testing import Place, StoreConformance, StoreUnderTest


class Mariadb(StoreUnderTest):
    """Tables are used again and again, emptied in between: making them takes the server longest."""

    server: ClassVar[str] = "mariadb"
    returning: ClassVar[bool] = True
    _free: ClassVar[list[str]] = []
    _taken: ClassVar[dict[str, str]] = {}

    def _table(self, place: Place) -> str:
        table = self._taken.get(place.name)
        if table is None:
            table = self._taken[place.name] = self._free.pop() if self._free else place.name
            self._execute(
                f"CREATE TABLE IF NOT EXISTS {table}_clock (one INT PRIMARY KEY, ms BIGINT)",
                f"REPLACE INTO {table}_clock VALUES (1, {place.clock():d})",
            )
        return table

    def open_store(self, place: Place) -> MysqlStore:
        table = self._table(place)
        now = f"(SELECT ms FROM {table}_clock)"  # for the server's clock: a row that a test moves
        store = MysqlStore(
            Settings.of(f"{shared(self.server).url}?table={table}&pool=5&timeout=60"), now
        )
        store.programs = MysqlPrograms(table, self.returning, now)
        return store

    def open_async_store(self, place: Place) -> AsyncMysqlStore:
        return AsyncMysqlStore(lambda: self.open_store(place), "mysql://…")

    def advance(self, place: Place, ms: int) -> None:
        super().advance(place, ms)
        self._execute(f"UPDATE {self._table(place)}_clock SET ms = {place.clock():d}")

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        self._execute(
            f"UPDATE {self._table(place)}_keys SET state = 99 WHERE id = x'{id[:16].hex()}'"
        )

    def refuse(self, place: Place) -> bytes:
        self._execute(
            f"ALTER TABLE {self._table(place)}_keys"
            " ADD CONSTRAINT quota CHECK (OCTET_LENGTH(result) < 100000)"
        )
        return b"R" * 200_000

    def tidy(self, place: Place) -> None:
        table = self._taken.pop(place.name, None)
        if table is not None:
            self._execute(
                f"ALTER TABLE {table}_keys DROP CONSTRAINT IF EXISTS quota",
                f"DELETE FROM {table}_keys",
                f"DELETE FROM {table}_audit",
                f"UPDATE {table}_meta SET floor = 0",
                *self._without_runs(table),
            )
            self._free.append(table)

    def _without_runs(self, table: str) -> list[str]:
        if not self._execute(f"SHOW TABLES LIKE '{table}\\_runs'"):
            return []
        return [f"DELETE FROM {table}_runs", f"DELETE FROM {table}_runs_steps"]

    def _execute(self, *statements: str) -> Any:
        cursor = hand(shared(self.server).port).cursor()
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()


@functools.cache
def hand(port: int) -> Any:
    """Ours, beside those of the store: one for all tests of a process."""
    import pymysql

    connection = pymysql.connect(
        host="127.0.0.1",
        port=port,
        user="root",
        database="mysql",
        autocommit=True,
        ssl_disabled=True,
    )
    atexit.register(connection.close)
    return connection


class OlderMariadb(Mariadb):
    """The schema of an older version, in tables of its own."""

    _free: ClassVar[list[str]] = []
    version: ClassVar[int] = 1
    store: ClassVar[type[MysqlStore]] = MysqlStore

    def open_store(self, place: Place) -> MysqlStore:
        table = self._table(place)
        if not self._execute(f"SHOW TABLES LIKE '{table}\\_meta'"):
            for part in range(self.version):
                self._execute(*first_steps("mysql", table, part + 1, part))
        now = f"(SELECT ms FROM {table}_clock)"
        url = f"{shared(self.server).url}?table={table}&pool=5&timeout=60"
        return self.store(Settings.of(url), now)

    def tidy(self, place: Place) -> None:
        table = self._taken.pop(place.name, None)
        if table is not None:
            parts = ("records", "keys", "wide", "audit", "meta", "clock")
            parts += ("runs", "runs_meta", "runs_steps")
            self._execute(f"DROP TABLE IF EXISTS {', '.join(f'{table}_{part}' for part in parts)}")


class PushedBack(MysqlStore):
    """Before each request all records go back to the wide table, except the newest (its number counts).

    Nothing is swept while records are moved: a sweep ends the migration first.
    """

    def __init__(self, *settings: Any) -> None:
        self._ids: dict[bytes, bytes] = {}
        super().__init__(*settings)

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
        self.refresh()
        if self.programs.moves is None:
            return
        table, names = self.settings.table, COLUMNS.partition(", ")[2]
        ids = " UNION ALL ".join(f"SELECT x'{id_.hex()}' AS whole" for id_ in self._ids.values())
        ids = ids or "SELECT x'' AS whole"
        most = (
            f"JOIN ({ids}) AS w ON k.id = LEFT(w.whole, 16)"
            f" JOIN (SELECT MAX(n) AS last FROM {table}_keys) AS m ON k.n < m.last"
        )

        def push() -> Program[None]:
            yield Change(
                f"INSERT INTO {table}_wide (n, id, {names}) SELECT k.n, w.whole, {names}"
                f" FROM {table}_keys k {most}"
            )
            yield Change(
                f"UPDATE {table}_audit a JOIN {table}_wide w ON a.id = LEFT(w.id, 16) SET a.id = w.id"
            )
            yield Change(f"DELETE k FROM {table}_keys k JOIN {table}_wide w ON w.n = k.n")

        self._run(lambda: atomically(push(), MysqlPrograms.begin))


@pytest.mark.usefixtures("mariadb")
class TestWide(OlderMariadb, FirstSchema):
    modes = ("blocking",)


@pytest.mark.usefixtures("mariadb")
class TestMoving(OlderMariadb, Interrupted):
    modes = ("blocking",)
    version = 2
    store = PushedBack

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        super().corrupt(place, id)
        self._execute(f"UPDATE {self._table(place)}_wide SET state = 99 WHERE id = x'{id.hex()}'")

    test_steps_of_parallel_branches_are_all_recorded = None


@pytest.mark.usefixtures("mariadb")
class TestMariadb(Mariadb, StoreConformance):
    modes = ("blocking",)


@pytest.mark.usefixtures("mariadb")
class TestMariadbAsync(Mariadb, Awaited):
    pass


@pytest.mark.usefixtures("mariadb")
class TestWithoutReturning(Mariadb, OtherStatements):
    modes = ("blocking",)
    returning = False


@pytest.mark.usefixtures("mariadb11")
class TestMariadb11(Mariadb, NextRelease):
    """A newer long-term release."""

    modes = ("blocking",)
    server = "mariadb11"
    _free: ClassVar[list[str]] = []
    _taken: ClassVar[dict[str, str]] = {}
