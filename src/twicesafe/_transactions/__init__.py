"""Transactions: the caller's open transaction, of any supported driver or framework.

    transaction = of(connection)          # AsyncTransaction: async_of(connection)
    transaction.check()                   # open? autocommit is refused, with the remedy
    transaction.run(program)              # our statements, inside the caller's transaction

The module names of an object's classes say which file handles it, so no driver is loaded that the
caller did not load. `base` finds out whether a transaction is open, and never begins or ends it;
`driver_errors` says what a driver's error means.

    sqlite            sqlite3, aiosqlite
    psycopg           psycopg 3, blocking and async
    asyncpg           asyncpg, pooled or not
    mysql             PyMySQL, asyncmy, aiomysql
    sqlalchemy        Connection, Session, AsyncConnection, AsyncSession, scoped or not
    django            a connection, or the alias of one

Transactions that twicesafe begins and ends itself:

    idle_connection   on a connection that the user passes idle (a step of a durable run)
    fresh_connection  on a connection that ``connect=`` opens for one message (a consumer)
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from ..errors import UsageError
from .base import AsyncTransaction, Dialect, Style, Transaction

__all__ = [
    "AsyncTransaction",
    "Dialect",
    "Style",
    "Transaction",
    "async_class_of",
    "async_of",
    "class_of",
    "of",
]

# Module and class, as the driver names them → our module and class.
_BLOCKING: Final = {
    "sqlite3.Connection": "sqlite:SqliteTransaction",
    "psycopg.Connection": "psycopg:PsycopgTransaction",
    "pymysql.connections.Connection": "mysql:PymysqlTransaction",
    "sqlalchemy.engine.base.Connection": "sqlalchemy:ConnectionTransaction",
    "sqlalchemy.orm.session.Session": "sqlalchemy:SessionTransaction",
    "sqlalchemy.orm.scoping.scoped_session": "sqlalchemy:SessionTransaction",
    "django.db.backends.base.base.BaseDatabaseWrapper": "django:DjangoTransaction",
    "django.utils.connection.ConnectionProxy": "django:DjangoTransaction",
    "builtins.str": "django:DjangoTransaction",
}
_ASYNC: Final = {
    "aiosqlite.core.Connection": "sqlite:AiosqliteTransaction",
    "psycopg.AsyncConnection": "psycopg:AsyncPsycopgTransaction",
    "asyncpg.connection.Connection": "asyncpg:AsyncpgTransaction",
    "asyncpg.connection._ConnectionProxy": "asyncpg:AsyncpgTransaction",
    "asyncmy.connection.Connection": "mysql:AsyncmyTransaction",
    "aiomysql.connection.Connection": "mysql:AiomysqlTransaction",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "sqlalchemy:AsyncConnectionTransaction",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "sqlalchemy:AsyncSessionTransaction",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "sqlalchemy:AsyncSessionTransaction",
}

# What was found for a class of a driver.
_blocking: dict[type, Any] = {}
_async: dict[type, Any] = {}


def of(connection: Any) -> Transaction:
    """The caller's transaction behind a blocking connection or session."""
    found: Transaction = class_of(connection)(connection)
    return found


def async_of(connection: Any) -> AsyncTransaction:
    """The caller's transaction behind an async connection or session."""
    found: AsyncTransaction = async_class_of(connection)(connection)
    return found


def class_of(connection: Any) -> Any:
    """The `Transaction` class for a blocking connection or session."""
    return _blocking.get(type(connection)) or _class_for(connection, _BLOCKING, _ASYNC, _blocking)


def async_class_of(connection: Any) -> Any:
    """The `AsyncTransaction` class for an async connection or session."""
    return _async.get(type(connection)) or _class_for(connection, _ASYNC, _BLOCKING, _async)


def _class_for(
    connection: Any, wanted: dict[str, str], other: dict[str, str], found: dict[type, Any]
) -> Any:
    kind = type(connection)
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in kind.__mro__]
    target = next((wanted[name] for name in names if name in wanted), None)
    if target is None:
        raise _unknown(names, wanted, any(name in other for name in names))
    module, _, name = target.partition(":")
    cls = getattr(importlib.import_module(f".{module}", __package__), name)
    found[kind] = cls
    return cls


def _unknown(names: list[str], wanted: dict[str, str], other_mode: bool) -> UsageError:
    what = names[0].removeprefix("builtins.")
    if other_mode and wanted is _BLOCKING:
        return UsageError(
            f"a {what} is asynchronous; use AsyncInbox, AsyncOutbox and AsyncReceiver"
        )
    if other_mode:
        return UsageError(f"a {what} is blocking; use Inbox, Outbox and Receiver")
    first = "sqlite3, psycopg, PyMySQL, SQLAlchemy (Connection, Session) or Django (a connection, or its alias)"
    second = "psycopg, asyncpg, asyncmy, aiomysql, aiosqlite or SQLAlchemy (AsyncConnection, AsyncSession)"
    return UsageError(
        f"a {what} is not a supported connection: pass an open connection or session of "
        + (first if wanted is _BLOCKING else second)
    )
