"""SQLite by the standard library, or by aiosqlite.

Without ``isolation_level=None`` (or with ``autocommit=False``) the driver begins by itself before
our first write; otherwise the caller must have said BEGIN. Say ``BEGIN IMMEDIATE`` where you read
before you write: SQLite refuses a reader whose snapshot is old as soon as it wants to write.
"""

from __future__ import annotations

from typing import Any

from ..stores.sql import Change, Query
from .base import AsyncTransaction, Dialect, Style, Transaction

__all__ = ["AiosqliteTransaction", "SqliteTransaction", "begins_by_itself"]

_REMEDY = "say BEGIN IMMEDIATE first, or connect without isolation_level=None"


def begins_by_itself(connection: Any) -> bool:
    """Is there a transaction, or will the next write begin one?"""
    if connection.in_transaction:
        return True
    autocommit = getattr(connection, "autocommit", -1)  # Python 3.12: -1 is "as ever"
    if autocommit is True or autocommit is False:
        return not autocommit
    return connection.isolation_level is not None


class SqliteTransaction(Transaction):
    dialect: Dialect = "sqlite"
    style: Style = "?"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        if not begins_by_itself(self._connection):
            raise self.refuse(_REMEDY)

    def execute(self, statement: Query | Change) -> Any:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's rows may be dicts
        cursor.execute(statement.sql, statement.args)
        return cursor.fetchall() if type(statement) is Query else cursor.rowcount


class AiosqliteTransaction(AsyncTransaction):
    dialect: Dialect = "sqlite"
    style: Style = "?"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        if not begins_by_itself(self._connection._conn):
            raise self.refuse(_REMEDY)

    async def execute(self, statement: Query | Change) -> Any:
        cursor = await self._connection.cursor()
        try:
            cursor.row_factory = None
            await cursor.execute(statement.sql, statement.args)
            return await cursor.fetchall() if type(statement) is Query else cursor.rowcount
        finally:
            await cursor.close()
