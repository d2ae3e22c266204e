"""PostgreSQL by psycopg 3, blocking and awaited."""

from __future__ import annotations

from typing import Any

from .._engines.sql.commands import Change, Query
from .base import AsyncTransaction, Described, Dialect, Style, Transaction
from .state import State, state_of

__all__ = ["AsyncPsycopgTransaction", "PsycopgTransaction"]


class _Looked(Described):
    dialect: Dialect = "postgresql"
    style: Style = "%s"
    remedy = "use `with connection.transaction():`, or connect without autocommit=True"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def look(self, heard: bool = False) -> State:
        return state_of(self.dialect, self._connection, heard)


class PsycopgTransaction(_Looked, Transaction):
    def execute(self, statement: Query | Change) -> Any:
        import psycopg
        from psycopg.rows import tuple_row

        # Not connection.cursor(): the caller's cursors and rows may be of another kind.
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        cursor.execute(statement.sql, statement.args or None, binary=True)
        return cursor.fetchall() if type(statement) is Query else cursor.rowcount


class AsyncPsycopgTransaction(_Looked, AsyncTransaction):
    async def execute(self, statement: Query | Change) -> Any:
        import psycopg
        from psycopg.rows import tuple_row

        cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
        await cursor.execute(statement.sql, statement.args or None, binary=True)
        return await cursor.fetchall() if type(statement) is Query else cursor.rowcount
