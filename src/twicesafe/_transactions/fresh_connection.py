"""Transactions that we begin and commit on a connection that ``connect=`` opens for one message.

    connect=pool.connection            psycopg's pool: a context manager of a connection
    connect=engine.begin               SQLAlchemy: a context manager of a transaction
    connect=sessions.begin             …of a session in a transaction
    connect=lambda: sqlite3.connect(…) a connection: it is closed afterwards
    connect=pool.acquire               asyncpg, aiomysql: an async context manager
    connect=lambda: aiosqlite.connect(…)

If the connection has no open transaction when it is handed over, one is begun in the driver's own
way. It is committed if the block ends, and rolled back if it raises. A transaction that is open
already belongs to the context manager that opened it, which commits it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

__all__ = ["async_transaction", "transaction"]


@contextlib.contextmanager
def transaction(connect: Callable[[], Any]) -> Iterator[Any]:
    """A connection with an open transaction."""
    opened = connect()
    with _closing(opened) as connection, _begun(connection):
        yield connection


@contextlib.asynccontextmanager
async def async_transaction(connect: Callable[[], Any]) -> AsyncIterator[Any]:
    """Async version of `transaction`; ``connect`` may also be a coroutine function."""
    opened = connect()
    if inspect.iscoroutine(opened):
        opened = await opened
    async with _async_closing(opened) as connection, _async_begun(connection):
        yield connection


def _is_connection(opened: Any) -> bool:
    """A connection that we own, not a context manager that gives one and takes it back."""
    return hasattr(opened, "commit") and hasattr(opened, "rollback") and hasattr(opened, "close")


@contextlib.contextmanager
def _closing(opened: Any) -> Iterator[Any]:
    if not _is_connection(opened):
        with opened as connection:
            yield connection
        return
    try:
        yield opened
    finally:
        opened.close()


@contextlib.asynccontextmanager
async def _async_closing(opened: Any) -> AsyncIterator[Any]:
    if not _is_connection(opened) or inspect.isawaitable(opened):  # aiosqlite's opens itself
        async with opened as connection:
            yield connection
        return
    try:
        yield opened
    finally:
        closed = opened.close()
        if inspect.isawaitable(closed):
            await closed


def _root(connection: Any) -> str:
    return type(connection).__module__.partition(".")[0]


@contextlib.contextmanager
def _begun(connection: Any) -> Iterator[None]:
    match _root(connection):
        case "psycopg":
            with connection.transaction():
                yield
        case "sqlite3":
            if connection.in_transaction:
                yield
                return
            connection.execute("BEGIN IMMEDIATE")
            with _ended(connection):
                yield
        case "pymysql":
            connection.begin()
            with _ended(connection):
                yield
        case _:  # SQLAlchemy, Django: their own context manager began it
            yield


@contextlib.contextmanager
def _ended(connection: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            connection.rollback()
        raise
    connection.commit()


@contextlib.asynccontextmanager
async def _async_begun(connection: Any) -> AsyncIterator[None]:
    match _root(connection):
        case "psycopg" | "asyncpg":
            async with connection.transaction():
                yield
        case "aiosqlite":
            await connection.execute("BEGIN IMMEDIATE")
            async with _async_ended(connection):
                yield
        case "aiomysql" | "asyncmy":
            await connection.begin()
            async with _async_ended(connection):
                yield
        case _:
            yield


@contextlib.asynccontextmanager
async def _async_ended(connection: Any) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            await connection.rollback()
        raise
    await connection.commit()
