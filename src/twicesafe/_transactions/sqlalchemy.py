"""SQLAlchemy 2: Core connections and ORM sessions, blocking and async, on any of its drivers.

Statements go to the driver unchanged (`exec_driver_sql`), in the session's own transaction. We do not
flush what is pending in an ORM session; its commit does. Whether a transaction
is open is read from the driver, not from the engine, its options or its arguments.

SQLite: the driver sends BEGIN before the first INSERT, UPDATE or DELETE only. A `begin_nested()`
that comes earlier is a bare SAVEPOINT, and SQLite commits at its release. It is refused unless the
engine is seen to send BEGIN by itself.
"""

from __future__ import annotations

import abc
import weakref
from typing import Any, Final, cast

from .._engines.sql.commands import Change, Query
from ..errors import UsageError
from .base import (
    AsyncTransaction,
    Described,
    Dialect,
    Ends,
    Style,
    Transaction,
    TransactionState,
    plain,
    refuse_pipeline,
    state_of,
)
from .mysql import with_hex

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
_WHOLE: Final = {"stream_results": False, "yield_per": None}
"""Our rows are read at once, though the caller may stream: a statement that writes needs a plain cursor."""
_MAY_NEST: weakref.WeakSet[Any] = weakref.WeakSet()
"""SQLite engines that are known to send BEGIN first."""


class _Wrapped(Described):
    """A SQLAlchemy connection: the blocking one, also behind an async connection."""

    begins = True  # the engine, for a driver that does not: asyncpg, or by an event
    remedy = (
        "do not use isolation_level='AUTOCOMMIT', nor the driver's own autocommit, here; "
        "`with engine.begin() as connection:`"
    )

    def _learn(self, dialect: Any) -> None:
        name, style = dialect.name, dialect.paramstyle
        if name not in _DIALECTS or style not in _STYLES:
            raise UsageError(
                f"SQLAlchemy uses {name}+{dialect.driver} here, but a record can join only a "
                "transaction of SQLite, PostgreSQL, MySQL or MariaDB"
            )
        self.dialect, self.style = _DIALECTS[name], _STYLES[style]

    @abc.abstractmethod
    def blocking(self) -> Any:
        """The `sqlalchemy.Connection`."""

    def driver(self) -> Any:
        return self.blocking().connection.driver_connection

    def look(self, answered: bool = False) -> TransactionState:
        connection = self.blocking().connection
        driver = connection.driver_connection
        refuse_pipeline(driver, "SQLAlchemy")
        if getattr(connection.dbapi_connection, "autocommit", False) is True:
            return TransactionState.COMMITS  # after a BEGIN by hand too: rollback() may do nothing
        return state_of(self.dialect, driver, answered)

    def is_doubtful(self) -> bool:
        """Whether a savepoint may be the whole transaction, so that its release would commit."""
        if self.dialect != "sqlite":
            return False
        connection = self.blocking()
        return connection.in_nested_transaction() and connection.engine not in _MAY_NEST

    def refuse_nested(self) -> UsageError:
        return UsageError(
            "this is begin_nested() on SQLite, and the driver may have sent SAVEPOINT without BEGIN: "
            "its release would commit the record separately from your transaction; pass the "
            'connection before begin_nested(), let the engine\'s "begin" event send BEGIN (see '
            '"Serializable isolation / Savepoints" in SQLAlchemy\'s page on SQLite), or with Python '
            '3.12 or newer connect with connect_args={"autocommit": False}'
        )


def prove_nesting(connection: Any) -> bool:
    """Whether this engine sends BEGIN before a savepoint, tried on our own connection.

    The caller's connection cannot tell: SQLite says "in a transaction" inside any savepoint.
    """
    from sqlalchemy import Connection

    engine, callers = connection.engine, connection.connection.driver_connection
    pool = engine.pool.recreate()  # the same arguments and events, other connections
    proxied = pool.connect()
    if proxied.driver_connection is callers:  # creator= gives the same one each time
        proxied.detach()  # or it would be rolled back on its return
        return False
    try:
        cursor = proxied.cursor()  # not by the engine, which might begin with this
        cursor.execute("PRAGMA busy_timeout = 0")
        cursor.close()
        with Connection(engine, connection=proxied) as probe:
            began = _begins_first(probe, proxied.driver_connection)
    finally:
        pool.dispose()
    if began:
        _MAY_NEST.add(engine)
    return began


def _begins_first(probe: Any, driver: Any) -> bool:
    try:
        probe.begin()
    except Exception as error:
        return "locked" in str(error)  # BEGIN IMMEDIATE, while the caller writes
    return state_of("sqlite", driver) is TransactionState.OPEN


def _is_idle(connection: Any) -> bool:
    """A session may be bound to a connection, whose transaction it would join without committing it."""
    if connection.in_transaction():
        return False
    bind: Any = connection.get_bind() if hasattr(connection, "get_bind") else None
    return not (hasattr(bind, "in_transaction") and bind.in_transaction())


def _begin_sqlite(connection: Any) -> None:
    """Begin now. The driver would begin only before the first write, after our savepoint, and SQLAlchemy's
    begin sends nothing to SQLite unless an event does."""
    if connection.dialect.name == "sqlite":
        driver = connection.connection.driver_connection
        if not getattr(driver, "_conn", driver).in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _connected(connection: Any) -> None:
    """Connect again, as the next statement would."""
    _ = connection.connection


class ConnectionTransaction(_Wrapped, Transaction):
    @staticmethod
    def ends(connection: Any) -> Ends:
        """Of a connection or a session."""

        def begin() -> None:
            connection.begin()
            is_session = hasattr(connection, "get_bind")
            _begin_sqlite(connection.connection() if is_session else connection)

        return Ends(lambda: _is_idle(connection), begin, connection.commit, connection.rollback)

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._learn(connection.dialect)

    def blocking(self) -> Any:
        return self._connection

    def check(self) -> None:
        super().check()
        if self.is_doubtful() and not prove_nesting(self._connection):
            raise self.refuse_nested()

    def execute(self, statement: Query | Change) -> Any:
        sent = with_hex(statement) if self.dialect == "mysql" else statement
        args = sent.args or None
        return _reply(statement, self._connection.exec_driver_sql(sent.sql, args, _WHOLE))


class SessionTransaction(ConnectionTransaction):
    def __init__(self, session: Any) -> None:
        super().__init__(session.connection())


class AsyncConnectionTransaction(_Wrapped, AsyncTransaction):
    @staticmethod
    def ends(connection: Any) -> Ends:
        """Of a connection or a session."""

        async def begin() -> None:
            await connection.begin()
            is_session = hasattr(connection, "get_bind")
            inner = await connection.connection() if is_session else connection
            await inner.run_sync(_begin_sqlite)

        return Ends(lambda: _is_idle(connection), begin, connection.commit, connection.rollback)

    _session: Any = None

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._learn(connection.dialect)

    def blocking(self) -> Any:
        return self._connection.sync_connection

    async def check(self) -> None:
        if self._session is not None:
            self._connection = await self._session.connection()
        if self._connection.invalidated:  # a look would connect, outside of SQLAlchemy's greenlet
            try:
                await self._connection.run_sync(_connected)
            except Exception as error:
                raise self.explained(error) from error
        await super().check()
        if self.is_doubtful() and not await self._connection.run_sync(prove_nesting):
            raise self.refuse_nested()

    async def execute(self, statement: Query | Change) -> Any:
        sent = with_hex(statement) if self.dialect == "mysql" else statement
        args = sent.args or None
        return _reply(statement, await self._connection.exec_driver_sql(sent.sql, args, _WHOLE))


class AsyncSessionTransaction(AsyncConnectionTransaction):
    """A session's connection must be awaited, so the check fetches it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._learn(session.get_bind().dialect)


def _reply(statement: Query | Change, result: Any) -> Any:
    if type(statement) is not Query:
        return cast("int", result.rowcount)
    return plain(result.fetchall()) if result.returns_rows else []
