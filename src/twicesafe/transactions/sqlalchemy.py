"""SQLAlchemy 2: Core connections and ORM sessions, blocking and awaited, on any of its drivers.

Statements go to the driver as they are (`exec_driver_sql`), in the session's own transaction; what
is pending in an ORM session is not flushed by us, it is flushed by its commit.
"""

from __future__ import annotations

from typing import Any, Final, cast

from ..errors import UsageError
from ..stores.sql import Change, Query
from .base import AsyncTransaction, Dialect, Style, Transaction, plain

__all__ = [
    "AsyncConnectionTransaction",
    "AsyncSessionTransaction",
    "ConnectionTransaction",
    "SessionTransaction",
]

_DIALECTS: Final[dict[str, Dialect]] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_STYLES: Final[dict[str, Style]] = {
    "qmark": "?",
    "format": "%s",
    "pyformat": "%s",
    "numeric_dollar": "$1",
}
_REMEDY = "do not use isolation_level='AUTOCOMMIT' here; `with engine.begin() as connection:`"


class _Known:
    """What the dialect behind a connection says; the same for both colours."""

    dialect: Dialect
    style: Style

    def _learn(self, dialect: Any) -> None:
        name, style = dialect.name, dialect.paramstyle
        if name not in _DIALECTS or style not in _STYLES:
            raise UsageError(
                f"SQLAlchemy speaks {name}+{dialect.driver} here, but a record can join only a "
                "transaction of SQLite, PostgreSQL, MySQL or MariaDB"
            )
        self.dialect, self.style = _DIALECTS[name], _STYLES[style]

    def _is_autocommit(self, connection: Any) -> bool:
        chosen = connection.get_execution_options().get("isolation_level")
        if chosen is None:
            chosen = getattr(connection.dialect, "_on_connect_isolation_level", None)
        return bool(chosen == "AUTOCOMMIT")


class ConnectionTransaction(_Known, Transaction):
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._learn(connection.dialect)

    def check(self) -> None:
        if self._is_autocommit(self._connection):
            raise self.refuse(_REMEDY)

    def execute(self, statement: Query | Change) -> Any:
        return _reply(
            statement, self._connection.exec_driver_sql(statement.sql, statement.args or None)
        )


class SessionTransaction(ConnectionTransaction):
    def __init__(self, session: Any) -> None:
        super().__init__(session.connection())


class AsyncConnectionTransaction(_Known, AsyncTransaction):
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._learn(connection.dialect)

    async def check(self) -> None:
        if self._is_autocommit(self._connection.sync_connection):
            raise self.refuse(_REMEDY)

    async def execute(self, statement: Query | Change) -> Any:
        return _reply(
            statement, await self._connection.exec_driver_sql(statement.sql, statement.args or None)
        )


class AsyncSessionTransaction(AsyncConnectionTransaction):
    """The connection of a session must be awaited: it is asked for with the first check."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._learn(session.get_bind().dialect)

    async def check(self) -> None:
        self._connection = await self._session.connection()
        await super().check()


def _reply(statement: Query | Change, result: Any) -> Any:
    if type(statement) is not Query:
        return cast("int", result.rowcount)
    return plain(result.fetchall()) if result.returns_rows else []
