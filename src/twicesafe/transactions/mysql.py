"""MariaDB and MySQL by PyMySQL, asyncmy or aiomysql."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from ..stores.sql import Change, Query
from .base import AsyncTransaction, Described, Dialect, Style, Transaction

__all__ = ["AiomysqlTransaction", "AsyncmyTransaction", "PymysqlTransaction"]

_REMEDY = "say connection.begin() first, or connect without autocommit"
_IN_TRANSACTION = 1
"""In the status that the server sends with every answer."""


class _Looked(Described):
    dialect: Dialect = "mysql"
    style: Style = "%s"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def _problem(self, is_open: bool) -> UsageError | None:
        if is_open or not self._connection.get_autocommit():
            return None
        return self.refuse(_REMEDY)


class PymysqlTransaction(_Looked, Transaction):
    def check(self) -> None:
        problem = self._problem(bool(self._connection.server_status & _IN_TRANSACTION))
        if problem is not None:
            raise problem

    def execute(self, statement: Query | Change) -> Any:
        from pymysql.cursors import Cursor

        with self._connection.cursor(Cursor) as cursor:
            changed = cursor.execute(statement.sql, statement.args or None)
            return _rows(cursor, cursor.fetchall()) if type(statement) is Query else changed


class AsyncmyTransaction(_Looked, AsyncTransaction):
    async def check(self) -> None:
        problem = self._problem(self._connection.get_transaction_status())
        if problem is not None:
            raise problem

    def _cursor(self) -> Any:
        from asyncmy.cursors import Cursor

        return self._connection.cursor(Cursor)

    async def execute(self, statement: Query | Change) -> Any:
        async with self._cursor() as cursor:
            changed = await cursor.execute(statement.sql, statement.args or None)
            if type(statement) is not Query:
                return changed
            return _rows(cursor, await cursor.fetchall())


class AiomysqlTransaction(AsyncmyTransaction):
    """Its way to write bytes does not go with PyMySQL of today: they are written as hex here."""

    def _cursor(self) -> Any:
        from aiomysql.cursors import Cursor

        return self._connection.cursor(Cursor)

    async def execute(self, statement: Query | Change) -> Any:
        head, *rest = statement.sql.split("%s")
        args: list[Any] = []
        for part, value in zip(rest, statement.args, strict=True):
            if isinstance(value, bytes):
                head += f"x'{value.hex()}'{part}"
            else:
                head += f"%s{part}"
                args.append(value)
        return await super().execute(type(statement)(head, tuple(args)))


def _rows(cursor: Any, rows: Any) -> list[Any]:
    """A statement that gives rows on MariaDB may give none at all on MySQL."""
    return [] if cursor.description is None else list(rows)
