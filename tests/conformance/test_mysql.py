"""MariaDB keeps every rule, and so do the statements that MySQL gets, which has no RETURNING."""

from __future__ import annotations

from contextlib import closing
from typing import Any, ClassVar

import pytest

from tests.servers import shared
from twicesafe._engines.mysql import AsyncMysqlStore, MysqlStore
from twicesafe._engines.mysql.programs import MysqlPrograms
from twicesafe._engines.mysql.settings import Settings
from twicesafe.testing import Place, StoreConformance, StoreUnderTest
from twicesafe.testing._conformance import (
    BatchRules,
    ClaimRules,
    ConcurrencyRules,
    LeaseRules,
    RetentionRules,
)


class Mariadb(StoreUnderTest):
    """Tables are used again and again, emptied in between: making them takes the server longest."""

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
            Settings.of(f"{shared('mariadb').url}?table={table}&pool=5&timeout=60"), now
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
            f"UPDATE {self._table(place)}_records SET state = 99 WHERE id = x'{id.hex()}'"
        )

    def refuse(self, place: Place) -> bytes:
        self._execute(
            f"ALTER TABLE {self._table(place)}_records"
            " ADD CONSTRAINT quota CHECK (OCTET_LENGTH(result) < 100000)"
        )
        return b"R" * 200_000

    def tidy(self, place: Place) -> None:
        table = self._taken.pop(place.name, None)
        if table is not None:
            self._execute(
                f"ALTER TABLE {table}_records DROP CONSTRAINT IF EXISTS quota",
                f"DELETE FROM {table}_records",
                f"DELETE FROM {table}_audit",
                f"UPDATE {table}_meta SET floor = 0",
            )
            self._free.append(table)

    def _execute(self, *statements: str) -> None:
        import pymysql

        server: Any = shared("mariadb")
        with closing(
            pymysql.connect(
                host="127.0.0.1",
                port=server.port,
                user="root",
                database="mysql",
                autocommit=True,
                ssl_disabled=True,
            )
        ) as connection:
            for statement in statements:
                connection.cursor().execute(statement)


@pytest.mark.usefixtures("mariadb")
class TestMariadb(Mariadb, StoreConformance):
    pass


@pytest.mark.usefixtures("mariadb")
class TestWithoutReturning(
    Mariadb, ClaimRules, LeaseRules, RetentionRules, BatchRules, ConcurrencyRules
):
    """The rules of claims: nothing else is asked of MySQL in other words."""

    returning = False
