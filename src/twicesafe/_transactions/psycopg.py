"""PostgreSQL by psycopg 3, blocking and async."""

from __future__ import annotations

from typing import Any

from .._engines.sql.commands import Change, Query
from .base import AsyncTransaction, Described, Dialect, Style, Transaction
from .state import sync, sync_async

__all__ = ["AsyncPsycopgTransaction", "PsycopgTransaction"]


class _Looked(Described):
    dialect: Dialect = "postgresql"
    style: Style = "%s"
    remedy = "use `with connection.transaction():`, or connect without autocommit=True"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def driver(self) -> Any:
        return self._connection


class PsycopgTransaction(_Looked, Transaction):
    def execute(self, statement: Query | Change) -> Any:
        import psycopg
        from psycopg.rows import tuple_row

        # Not connection.cursor(): the caller's cursors and rows may be of another kind.
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        cursor.execute(statement.sql, statement.args or None, binary=True)
        if type(statement) is Query:
            return cursor.fetchall()
        if self._connection.pgconn.pipeline_status:  # the count comes with the answer
            sync(self._connection)
        return cursor.rowcount


class AsyncPsycopgTransaction(_Looked, AsyncTransaction):
    async def execute(self, statement: Query | Change) -> Any:
        import psycopg
        from psycopg.rows import tuple_row

        cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
        await cursor.execute(statement.sql, statement.args or None, binary=True)
        if type(statement) is Query:
            return await cursor.fetchall()
        if self._connection.pgconn.pipeline_status:  # the count comes with the answer
            await sync_async(self._connection)
        return cursor.rowcount
