"""The same kinds of connections, opened so that every statement commits by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tests.transactions.conftest import ENGINE_OF
from tests.transactions.kinds import (
    Aiosqlite,
    AsyncDoor,
    Asyncpg,
    Django,
    Door,
    SaAsync,
    SaConnection,
    open_door,
)


@contextlib.contextmanager
def opened(kind: str, url_of: Callable[[str], str]) -> Iterator[tuple[Door, str]]:
    """A door without a transaction, and what the refusal must recommend."""
    door = open_door(kind, url_of(ENGINE_OF[kind]))
    try:
        yield door, _switched(kind, door)
    finally:
        door.close()


def _switched(kind: str, door: Door) -> str:
    connection = door.connection
    if isinstance(door, Django):
        return "atomic"
    if isinstance(door, Asyncpg):
        return "connection.transaction"
    if isinstance(door, (SaConnection, SaAsync)):
        engine = door._engine.execution_options(isolation_level="AUTOCOMMIT")
        door.end(connection.close())
        if kind.startswith("sa-async-session"):
            from sqlalchemy.ext.asyncio import AsyncSession

            door.connection = AsyncSession(engine)
        elif kind.startswith("sa-session"):
            from sqlalchemy.orm import Session

            door.connection = Session(engine)
        else:
            door.connection = door.end(_connected(engine, door.is_async))
        return "AUTOCOMMIT"
    if kind.startswith("sqlite3"):
        connection.isolation_level = None
        return "BEGIN IMMEDIATE"
    if isinstance(door, Aiosqlite):
        return "BEGIN IMMEDIATE"
    if kind == "psycopg":
        connection.autocommit = True
        return "connection.transaction"
    if kind == "psycopg-async":
        door.end(connection.set_autocommit(True))
        return "connection.transaction"
    door.end(connection.autocommit(True))
    return "begin"


def _connected(engine: object, awaited: bool) -> object:
    if not awaited:
        return engine.connect()  # type: ignore[attr-defined]

    async def connect() -> object:
        return await engine.connect()  # type: ignore[attr-defined]

    return connect()


__all__ = ["AsyncDoor", "opened"]
