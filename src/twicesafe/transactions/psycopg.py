"""PostgreSQL by psycopg 3, blocking and awaited."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from ..stores.sql import Change, Query
from .base import AsyncTransaction, Described, Dialect, Style, Transaction

__all__ = ["AsyncPsycopgTransaction", "PsycopgTransaction"]

_REMEDY = "use `with connection.transaction():`, or connect without autocommit=True"
_IDLE, _FAILED = 0, 3


class _Looked(Described):
    dialect: Dialect = "postgresql"
    style: Style = "%s"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def _problem(self) -> UsageError | None:
        connection: Any = self._connection
        status = int(connection.pgconn.transaction_status)
        if status == _FAILED:
            return self.failed()
        if status == _IDLE and connection.autocommit:
            return self.refuse(_REMEDY)
        return None


class PsycopgTransaction(_Looked, Transaction):
    def check(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise problem

    def execute(self, statement: Query | Change) -> Any:
        import psycopg
        from psycopg.rows import tuple_row

        # Not connection.cursor(): the caller's cursors and rows may be of another kind.
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        cursor.execute(statement.sql, statement.args or None, binary=True)
        return cursor.fetchall() if type(statement) is Query else cursor.rowcount


class AsyncPsycopgTransaction(_Looked, AsyncTransaction):
    async def check(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise problem

    async def execute(self, statement: Query | Change) -> Any:
        import psycopg
        from psycopg.rows import tuple_row

        cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
        await cursor.execute(statement.sql, statement.args or None, binary=True)
        return await cursor.fetchall() if type(statement) is Query else cursor.rowcount
