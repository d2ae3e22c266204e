"""MariaDB and MySQL by PyMySQL, asyncmy or aiomysql."""

from __future__ import annotations

from typing import Any, Final

from .._engines.sql.commands import Change, Query
from .base import AsyncTransaction, Described, Dialect, Ends, Style, Transaction

__all__ = ["AiomysqlTransaction", "AsyncmyTransaction", "PymysqlTransaction", "with_hex"]


class _Looked(Described):
    dialect: Dialect = "mysql"
    style: Style = "%s"
    remedy = "call connection.begin() first, or connect without autocommit"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def driver(self) -> Any:
        return self._connection


_IN_TRANSACTION: Final = 1
_HEAR: Final = Change("DO 0")
"""The flags of the server's last answer may be outdated, so it is asked first. BEGIN would commit what is
open, so it must be known."""


class PymysqlTransaction(_Looked, Transaction):
    @staticmethod
    def ends(connection: Any) -> Ends:
        def is_idle() -> bool:
            PymysqlTransaction(connection).execute(_HEAR)
            return not connection.server_status & _IN_TRANSACTION

        return Ends(is_idle, connection.begin, connection.commit, connection.rollback)

    def execute(self, statement: Query | Change) -> Any:
        from pymysql.cursors import Cursor

        with self._connection.cursor(Cursor) as cursor:
            sent = with_hex(statement)
            changed = cursor.execute(sent.sql, sent.args or None)
            return _rows(cursor, cursor.fetchall()) if type(statement) is Query else changed


class AsyncmyTransaction(_Looked, AsyncTransaction):
    @classmethod
    def ends(cls, connection: Any) -> Ends:
        async def is_idle() -> bool:
            await cls(connection).execute(_HEAR)
            return not connection.server_status & _IN_TRANSACTION

        return Ends(is_idle, connection.begin, connection.commit, connection.rollback)

    def _cursor(self) -> Any:
        from asyncmy.cursors import Cursor

        return self._connection.cursor(Cursor)

    async def execute(self, statement: Query | Change) -> Any:
        async with self._cursor() as cursor:
            sent = with_hex(statement)
            changed = await cursor.execute(sent.sql, sent.args or None)
            if type(statement) is not Query:
                return changed
            return _rows(cursor, await cursor.fetchall())


class AiomysqlTransaction(AsyncmyTransaction):
    def _cursor(self) -> Any:
        from aiomysql.cursors import Cursor

        return self._connection.cursor(Cursor)


def with_hex(statement: Query | Change) -> Query | Change:
    """The same statement with its bytes written as hex.

    Some drivers quote bytes with backslashes, whatever the session is. With the character set gbk, big5 or
    sjis, or with NO_BACKSLASH_ESCAPES, a key could then end its own literal and continue as SQL.
    """
    head, *rest = statement.sql.split("%s")
    args: list[Any] = []
    for part, value in zip(rest, statement.args, strict=True):
        if isinstance(value, bytes):
            head += f"x'{value.hex()}'{part}"
        else:
            head += f"%s{part}"
            args.append(value)
    return type(statement)(head, tuple(args))


def _rows(cursor: Any, rows: Any) -> list[Any]:
    """A statement that returns rows on MariaDB may return no result on MySQL."""
    return [] if cursor.description is None else list(rows)
