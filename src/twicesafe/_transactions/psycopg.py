"""PostgreSQL by psycopg 3, blocking and async."""

from __future__ import annotations

from typing import Any

from .._engines.sql.commands import Change, Query
from .base import AsyncTransaction, Described, Dialect, Ends, Style, Transaction, sync, sync_async

__all__ = ["AsyncPsycopgTransaction", "PsycopgTransaction"]


class _Looked(Described):
    dialect: Dialect = "postgresql"
    style: Style = "%s"
    remedy = "use `with connection.transaction():`, or connect without autocommit=True"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def driver(self) -> Any:
        return self._connection


def _is_idle(connection: Any) -> bool:
    state = connection.pgconn
    return int(state.transaction_status) == 0 and not int(state.pipeline_status)


class _RolledBack(Exception):  # noqa: N818
    """Passed to psycopg's block, which rolls back for it."""


class PsycopgTransaction(_Looked, Transaction):
    @staticmethod
    def ends(connection: Any) -> Ends:
        block = connection.transaction()
        return Ends(
            lambda: _is_idle(connection),
            block.__enter__,
            lambda: block.__exit__(None, None, None),
            lambda: block.__exit__(_RolledBack, _RolledBack(), None),
        )

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
    @staticmethod
    def ends(connection: Any) -> Ends:
        block = connection.transaction()
        return Ends(
            lambda: _is_idle(connection),
            block.__aenter__,
            lambda: block.__aexit__(None, None, None),
            lambda: block.__aexit__(_RolledBack, _RolledBack(), None),
        )

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
