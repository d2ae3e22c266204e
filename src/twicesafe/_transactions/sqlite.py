"""SQLite by the standard library, or by aiosqlite.

Without ``isolation_level=None`` (or with ``autocommit=False``) the driver begins by itself before
our first write; otherwise the caller must have sent BEGIN. Use ``BEGIN IMMEDIATE`` if you read
before you write: SQLite refuses to let a reader with an old snapshot write.
"""

from __future__ import annotations

from typing import Any

from .._engines.sql.commands import Change, Query
from .base import (
    AsyncTransaction,
    Described,
    Dialect,
    Ends,
    Style,
    Transaction,
    TransactionState,
    state_of,
)
from .driver_errors import explain

__all__ = ["AiosqliteTransaction", "SqliteTransaction"]


class _Looked(Described):
    dialect: Dialect = "sqlite"
    style: Style = "?"
    remedy = "execute BEGIN IMMEDIATE first, or connect without isolation_level=None"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def driver(self) -> Any:
        return self._connection

    @staticmethod
    def ends(connection: Any) -> Ends:
        """Not by `commit()`, which does nothing with ``autocommit=True``."""
        run = connection.execute
        return Ends(
            lambda: not connection.in_transaction,
            lambda: run("BEGIN IMMEDIATE"),
            lambda: run("COMMIT"),
            lambda: run("ROLLBACK"),
        )


class SqliteTransaction(_Looked, Transaction):
    def execute(self, statement: Query | Change) -> Any:
        return _executed(self._connection, statement)


def _executed(connection: Any, statement: Query | Change) -> Any:
    """The caller's rows may be dicts, and the caller's texts bytes: ours are plain."""
    factory = connection.text_factory
    if factory is not str:
        connection.text_factory = str
    try:
        cursor = connection.cursor()
        cursor.row_factory = None
        cursor.execute(statement.sql, statement.args)
        return cursor.fetchall() if type(statement) is Query else cursor.rowcount
    finally:
        if factory is not str:
            connection.text_factory = factory


class AiosqliteTransaction(_Looked, AsyncTransaction):
    _state = TransactionState.UNKNOWN

    async def check(self) -> None:
        """From Python 3.12 on, only the connection's own thread may read all of its state."""
        connection = self._connection
        try:
            self._state = (
                TransactionState.OPEN
                if connection.in_transaction
                else await connection._execute(state_of, self.dialect, connection)
            )
        except Exception as error:
            raise explain(self.dialect, error) from error
        await super().check()

    def look(self, answered: bool = False) -> TransactionState:
        return self._state

    async def execute(self, statement: Query | Change) -> Any:
        connection = self._connection
        return await connection._execute(_executed, connection._conn, statement)
