"""Transactions that we begin and commit on a connection that ``connect=`` opens for one message.

    connect=pool.connection            psycopg's pool: a context manager of a connection
    connect=engine.begin               SQLAlchemy: a context manager of a transaction
    connect=sessions.begin             …of a session in a transaction
    connect=lambda: sqlite3.connect(…) a connection or a session: it is closed afterwards
    connect=pool.acquire               asyncpg, aiomysql: an async context manager
    connect=lambda: aiosqlite.connect(…)

If the connection has no open transaction when it is handed over, one is begun in the driver's own
way. It is committed if the block ends, and rolled back if it raises. A transaction that is open
already belongs to the context manager that opened it, which commits it. On a connection without one
it is committed here.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from ..errors import UsageError
from . import async_class_of, class_of
from .base import Ends
from .idle_connection import awaited

__all__ = ["async_transaction", "transaction"]


@contextlib.contextmanager
def transaction(connect: Callable[[], Any]) -> Iterator[Any]:
    """A connection with an open transaction."""
    opened = connect()
    with _closing(opened) as connection, _ended(connection, _is_connection(opened)):
        yield connection


@contextlib.asynccontextmanager
async def async_transaction(connect: Callable[[], Any]) -> AsyncIterator[Any]:
    """Async version of `transaction`; ``connect`` may also be a coroutine function."""
    opened = connect()
    if inspect.iscoroutine(opened):
        opened = await opened
    is_ours = _is_connection(opened)
    async with _async_closing(opened) as connection, _async_ended(connection, is_ours):
        yield connection


def _is_connection(opened: Any) -> bool:
    """A connection that we own, not a context manager that gives one and takes it back."""
    ends = hasattr(opened, "commit") and hasattr(opened, "rollback")
    return hasattr(opened, "close") and (ends or hasattr(opened, "is_in_transaction"))  # asyncpg


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


@contextlib.contextmanager
def _ended(connection: Any, is_ours: bool) -> Iterator[None]:
    """Commit or roll back, unless another does; begin first if nothing is open."""
    ends = class_of(connection).ends(connection)
    if ends.is_idle():
        ends.begin()
    elif is_ours:
        ends = _left_open(connection, ends)
    else:
        yield
        return
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # report the first error
            ends.rollback()
        raise
    ends.commit()


@contextlib.asynccontextmanager
async def _async_ended(connection: Any, is_ours: bool) -> AsyncIterator[None]:
    ends = async_class_of(connection).ends(connection)
    if await awaited(ends.is_idle()):
        await awaited(ends.begin())
    elif is_ours:
        ends = _left_open(connection, ends)
    else:
        yield
        return
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            await awaited(ends.rollback())
        raise
    await awaited(ends.commit())


def _left_open(connection: Any, ends: Ends) -> Ends:
    """How to end a transaction that ``connect`` has begun."""
    if not hasattr(connection, "commit"):
        raise UsageError(
            "connect= returned an asyncpg connection with an open transaction; commit it there"
        )
    return ends._replace(commit=connection.commit, rollback=connection.rollback)
