"""The floor on MariaDB: one statement per phase, on PyMySQL and on asyncmy, with the server's clock.

The claim inserts, takes over what ran out, or returns the present record, by
``INSERT … ON DUPLICATE KEY UPDATE … RETURNING``; assignments run from left to right, so the end of the
lease comes last.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import Sequence
from typing import Any

from .floors import BusyError, LostError

CONNECTIONS = 10

TABLE = (
    "CREATE TABLE IF NOT EXISTS floor (id VARBINARY(64) PRIMARY KEY, state TINYINT NOT NULL,"
    " owner BINARY(16) NOT NULL, fence BIGINT NOT NULL, til BIGINT NOT NULL, result LONGBLOB)"
    " ENGINE=InnoDB"
)
NOW = "(UNIX_TIMESTAMP(NOW(6)) * 1000 DIV 1)"
INTO = "INSERT INTO floor (id, state, owner, fence, til) VALUES "
FRESH = f"(%s, 0, %s, 1, {NOW} + 30000)"
OVER = f"floor.til <= {NOW}"
OR_LOOK = (
    f" ON DUPLICATE KEY UPDATE state = IF({OVER}, 0, state), fence = IF({OVER}, fence + 1, fence),"
    f" owner = IF({OVER}, VALUE(owner), owner), result = IF({OVER}, NULL, result),"
    f" til = IF({OVER}, {NOW} + 30000, til) RETURNING id, owner, fence, state, result"
)
CLAIM = INTO + FRESH + OR_LOOK
COMPLETE = (
    f"UPDATE floor SET state = 1, result = %s, til = {NOW} + 86400000"
    " WHERE id = %s AND owner = %s AND fence = %s AND state = 0"
)
_owners = itertools.count(1)


def new_owner() -> bytes:
    return b"0123456789" + next(_owners).to_bytes(6, "big")


def verdict(row: Any, owner: bytes) -> tuple[bytes, int, bytes | None]:
    _, present, fence, state, result = row
    if present == owner:
        return owner, fence, None
    if state:
        return b"", 0, result
    raise BusyError


class PyMySqlFloor:
    def __init__(self, url: str) -> None:
        self._port, self._database = (
            int(url.rpartition(":")[2].split("/")[0]),
            url.rsplit("/", maxsplit=1)[-1],
        )
        self._made: list[Any] = []
        self._free: queue.LifoQueue[Any] = queue.LifoQueue()
        for _ in range(CONNECTIONS):
            self._free.put(None)
        self._ask(TABLE, ())

    def _ask(self, sql: str, args: tuple[Any, ...]) -> tuple[int, Any]:
        connection = self._free.get()
        try:
            if connection is None:
                connection = self._connect()
            cursor = connection.cursor()
            return cursor.execute(sql, args or None), cursor.fetchall()
        finally:
            self._free.put(connection)

    def _connect(self) -> Any:
        import pymysql

        connection = pymysql.connect(
            host="127.0.0.1", port=self._port, user="root", database=self._database, autocommit=True
        )
        connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._made.append(connection)
        return connection

    def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        owner = new_owner()
        return verdict(self._ask(CLAIM, (key.encode(), owner))[1][0], owner)

    def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        if not self._ask(COMPLETE, (payload, key.encode(), owner, fence))[0]:
            raise LostError

    def batch(self, keys: Sequence[str], payloads: Sequence[bytes]) -> None:
        """All of them new: claimed in one round trip, completed in another (by a join of values)."""
        asked = [(key.encode(), new_owner()) for key in sorted(keys)]
        values = ", ".join([FRESH] * len(asked))
        flat = tuple(item for pair in asked for item in pair)
        rows = self._ask(INTO + values + OR_LOOK, flat)[1]
        fences = {row[0]: row[2] for row in rows}
        table = "SELECT %s AS id, %s AS owner, %s AS fence, %s AS result" + (
            " UNION ALL SELECT %s, %s, %s, %s" * (len(asked) - 1)
        )
        done = tuple(
            item
            for (id_, owner), payload in zip(asked, payloads, strict=True)
            for item in (id_, owner, fences[id_], payload)
        )
        changed, _ = self._ask(
            f"UPDATE floor JOIN ({table}) AS a ON floor.id = a.id AND floor.owner = a.owner"
            " AND floor.fence = a.fence SET floor.state = 1, floor.result = a.result,"
            f" til = {NOW} + 86400000 WHERE floor.state = 0",
            done,
        )
        if changed != len(asked):
            raise LostError

    def close(self) -> None:
        for connection in self._made:
            connection.close()


class AsyncmyFloor:
    def __init__(self, url: str) -> None:
        self._port, self._database = (
            int(url.rpartition(":")[2].split("/")[0]),
            url.rsplit("/", maxsplit=1)[-1],
        )
        self._made: list[Any] = []
        self._free: asyncio.LifoQueue[Any] | None = None

    async def _ask(self, sql: str, args: tuple[Any, ...]) -> tuple[int, Any]:
        if self._free is None:
            self._free = asyncio.LifoQueue()
            for _ in range(CONNECTIONS):
                self._free.put_nowait(None)
            await self._ask(TABLE, ())
        connection = await self._free.get()
        try:
            if connection is None:
                connection = await self._connect()
            async with connection.cursor() as cursor:
                return await cursor.execute(sql, args or None), await cursor.fetchall()
        finally:
            self._free.put_nowait(connection)

    async def _connect(self) -> Any:
        import asyncmy

        connection = await asyncmy.connect(
            host="127.0.0.1", port=self._port, user="root", database=self._database, autocommit=True
        )
        async with connection.cursor() as cursor:
            await cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            await cursor.execute("SET SESSION sql_notes = 0")  # it would print them
        self._made.append(connection)
        return connection

    async def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        owner = new_owner()
        return verdict((await self._ask(CLAIM, (key.encode(), owner)))[1][0], owner)

    async def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        if not (await self._ask(COMPLETE, (payload, key.encode(), owner, fence)))[0]:
            raise LostError

    async def close(self) -> None:
        for connection in self._made:
            connection.close()
