"""The floor on PostgreSQL: one prepared statement per phase, on psycopg 3 and on asyncpg.

The claim reads before it writes, inserts, takes over what ran out, and answers, in one round trip; the
completion is one fenced UPDATE; time is the server's. Connections are held in a plain stack: a pool
that resets them on release would double the round trips.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import Sequence
from typing import Any

from .floors import BusyError, LostError

CONNECTIONS = 10

TABLE = """
CREATE TABLE IF NOT EXISTS floor (
    fence bigint NOT NULL, until bigint NOT NULL, state smallint NOT NULL,
    key text PRIMARY KEY, owner bytea NOT NULL, result bytea) WITH (fillfactor = 100)"""

NOW = "(date_part('epoch', clock_timestamp()) * 1000)::bigint"

CLAIM = """
WITH a AS MATERIALIZED ({asks})
, seen AS MATERIALIZED (SELECT f.* FROM a JOIN floor f ON f.key = a.key)
, fresh AS (
    INSERT INTO floor (key, owner, state, fence, until)
    SELECT a.key, a.owner, 0, 1, a.now + 30000 FROM a
    WHERE NOT EXISTS (SELECT FROM seen WHERE seen.key = a.key)
    ON CONFLICT DO NOTHING RETURNING key, fence)
, taken AS (
    UPDATE floor f SET state = 0, owner = a.owner, fence = f.fence + 1, until = a.now + 30000,
        result = NULL
    FROM a JOIN seen s ON s.key = a.key
    WHERE f.key = a.key AND s.until <= a.now AND f.until <= a.now RETURNING f.key, f.fence)
SELECT a.key, coalesce(fresh.fence, taken.fence), CASE WHEN seen.state = 1 THEN seen.result END
FROM a LEFT JOIN fresh ON fresh.key = a.key LEFT JOIN taken ON taken.key = a.key
LEFT JOIN seen ON seen.key = a.key AND seen.until > a.now"""

COMPLETE = f"""
WITH a AS MATERIALIZED ({{asks}})
UPDATE floor f SET state = 1, result = a.result, until = {NOW} + 86400000
FROM a WHERE f.key = a.key AND f.owner = a.owner AND f.fence = a.fence AND f.state = 0
RETURNING f.key"""

CLAIM_ASK = (("key", "text"), ("owner", "bytea"))
COMPLETE_ASK = (("key", "text"), ("owner", "bytea"), ("fence", "bigint"), ("result", "bytea"))


def one(sql: str, ask: Sequence[tuple[str, str]], mark: str) -> str:
    marks = (mark.format(n=number) for number in itertools.count(1))
    columns = ", ".join(
        f"{m}::{kind} AS {name}" for m, (name, kind) in zip(marks, ask, strict=False)
    )
    return sql.format(asks=f"SELECT {columns}, {NOW} AS now")


def many(sql: str, ask: Sequence[tuple[str, str]], mark: str) -> str:
    marks = (mark.format(n=number) for number in itertools.count(1))
    arrays = ", ".join(f"{m}::{kind}[]" for m, (_, kind) in zip(marks, ask, strict=False))
    names = ", ".join(name for name, _ in ask)
    return sql.format(asks=f"SELECT {names}, {NOW} AS now FROM unnest({arrays}) AS u({names})")


PERCENT, DOLLAR = "%s", "${n}"
_owners = itertools.count(1)


def new_owner() -> bytes:
    return b"0123456789" + next(_owners).to_bytes(6, "big")


def verdict(rows: Sequence[Any], owner: bytes) -> tuple[bytes, int, bytes | None]:
    _, fence, payload = rows[0]
    if payload is not None:
        return b"", 0, payload
    if fence is None:
        raise BusyError
    return owner, fence, None


class PsycopgFloor:
    """Threads: as many connections as threads, ten at most."""

    claim_one = one(CLAIM, CLAIM_ASK, PERCENT)
    claim_many = many(CLAIM, CLAIM_ASK, PERCENT)
    complete_one = one(COMPLETE, COMPLETE_ASK, PERCENT)
    complete_many = many(COMPLETE, COMPLETE_ASK, PERCENT)

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: list[Any] = []
        self._free: queue.LifoQueue[Any] = queue.LifoQueue()
        for _ in range(CONNECTIONS):
            self._free.put(None)
        self._ask(TABLE, ())

    def _ask(self, sql: str, args: tuple[Any, ...]) -> Any:
        connection = self._free.get()
        try:
            if connection is None:
                connection = self._connect()
            cursor = connection.execute(sql, args or None, prepare=bool(args), binary=bool(args))
            return cursor.fetchall() if args else None
        finally:
            self._free.put(connection)

    def _connect(self) -> Any:
        import psycopg

        connection = psycopg.connect(self._url, autocommit=True)
        self._made.append(connection)
        return connection

    def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        owner = new_owner()
        return verdict(self._ask(self.claim_one, (key, owner)), owner)

    def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        if not self._ask(self.complete_one, (key, owner, fence, payload)):
            raise LostError

    def batch(self, keys: Sequence[str], payloads: Sequence[bytes]) -> None:
        """All of them new: claimed in one round trip, completed in another."""
        asked = sorted(keys)
        owners = [new_owner() for _ in asked]
        fences = {row[0]: row[1] for row in self._ask(self.claim_many, (asked, owners))}
        done = self._ask(
            self.complete_many,
            (asked, owners, [fences[key] for key in asked], list(payloads)),
        )
        if len(done) != len(asked):
            raise LostError

    def close(self) -> None:
        for connection in self._made:
            connection.close()


class _AwaitedFloor:
    """An event loop: connections in a stack, ten at most; a lone caller uses one."""

    mark = PERCENT

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: list[Any] = []
        self._free: asyncio.LifoQueue[Any] | None = None
        self.claim_one = one(CLAIM, CLAIM_ASK, self.mark)
        self.claim_many = many(CLAIM, CLAIM_ASK, self.mark)
        self.complete_one = one(COMPLETE, COMPLETE_ASK, self.mark)
        self.complete_many = many(COMPLETE, COMPLETE_ASK, self.mark)

    async def connect(self) -> Any:
        raise NotImplementedError

    async def fetch(self, connection: Any, sql: str, args: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    async def _ask(self, sql: str, args: tuple[Any, ...]) -> Any:
        if self._free is None:
            self._free = asyncio.LifoQueue()
            for _ in range(CONNECTIONS):
                self._free.put_nowait(None)
            await self._ask(TABLE, ())
        connection = await self._free.get()
        try:
            if connection is None:
                connection = await self.connect()
                self._made.append(connection)
            return await self.fetch(connection, sql, args)
        finally:
            self._free.put_nowait(connection)

    async def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        owner = new_owner()
        return verdict(await self._ask(self.claim_one, (key, owner)), owner)

    async def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        if not await self._ask(self.complete_one, (key, owner, fence, payload)):
            raise LostError

    async def batch(self, keys: Sequence[str], payloads: Sequence[bytes]) -> None:
        asked = sorted(keys)
        owners = [new_owner() for _ in asked]
        fences = {row[0]: row[1] for row in await self._ask(self.claim_many, (asked, owners))}
        done = await self._ask(
            self.complete_many,
            (asked, owners, [fences[key] for key in asked], list(payloads)),
        )
        if len(done) != len(asked):
            raise LostError

    async def close(self) -> None:
        for connection in self._made:
            await connection.close()


class AsyncPsycopgFloor(_AwaitedFloor):
    async def connect(self) -> Any:
        import psycopg

        return await psycopg.AsyncConnection.connect(self._url, autocommit=True)

    async def fetch(self, connection: Any, sql: str, args: tuple[Any, ...]) -> Any:
        cursor = connection.cursor(binary=bool(args))
        await cursor.execute(sql, args or None, prepare=bool(args))
        return await cursor.fetchall() if args else None


class AsyncpgFloor(_AwaitedFloor):
    mark = DOLLAR

    async def connect(self) -> Any:
        import asyncpg

        return await asyncpg.connect(self._url)

    async def fetch(self, connection: Any, sql: str, args: tuple[Any, ...]) -> Any:
        return await connection.fetch(sql, *args) if args else await connection.execute(sql)
