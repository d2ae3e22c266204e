"""Is a transaction open? The server's last answer, read from the driver's own connection.

A wrapper (SQLAlchemy, Django) only knows its own calls; a driver argument, an engine option or a raw
COMMIT can make it wrong. The driver knows the server's state: PostgreSQL and MySQL send it with their
answers, SQLite keeps it in the connection. So every adapter asks here.

    OPEN      the caller's transaction is open on the server
    BEGINS    none yet, but the next write begins one that only the caller ends
    STALE     the driver's state may be old: send a statement first
    COMMITS   every statement commits by itself
    FAILED    open, but it takes no more statements
    UNKNOWN   this driver does not know; `ask` finds out by statements
"""

from __future__ import annotations

import enum
import weakref
from typing import Any

from .._engines.sql.commands import Change, Query
from ..errors import AtomicityBrokenError, UsageError
from ..stores._base import Program

__all__ = ["TransactionState", "ask", "refuse_pipeline", "state_of", "sync", "sync_async"]


class TransactionState(enum.Enum):
    OPEN = enum.auto()
    BEGINS = enum.auto()
    STALE = enum.auto()
    COMMITS = enum.auto()
    FAILED = enum.auto()
    UNKNOWN = enum.auto()


def sqlite_state(connection: Any) -> TransactionState:
    """Of a connection of `sqlite3`, or of a library that copies it.

    A savepoint without a BEGIN opens a transaction too, which its RELEASE commits. SQLite does not
    tell the two apart, so a wrapper that nests must prove its BEGIN by other means.
    """
    connection = getattr(connection, "_conn", connection)  # aiosqlite has one inside
    if not hasattr(connection, "in_transaction"):
        raise UsageError(
            f"a {type(connection).__module__} connection does not tell whether a transaction is "
            "open; use sqlite3 or aiosqlite"
        )
    if connection.in_transaction:
        return TransactionState.OPEN
    autocommit = getattr(connection, "autocommit", -1)  # Python 3.12; -1: by isolation_level
    if autocommit is True or autocommit is False:
        return TransactionState.COMMITS if autocommit else TransactionState.BEGINS
    commits = connection.isolation_level is None
    return TransactionState.COMMITS if commits else TransactionState.BEGINS


_PG_IDLE, _PG_ACTIVE, _PG_FAILED = 0, 1, 3


def postgresql_state(connection: Any, answered: bool) -> TransactionState:
    """psycopg 3 begins by itself unless autocommit is on; asyncpg never does.

    psycopg learns the state when the server is ready for the next query. In a pipeline that is at a
    sync only: before it, a BEGIN or COMMIT may be on its way, and statements without a BEGIN are in
    a transaction that the next sync commits. ``answered``: the pipeline was just synced.
    """
    if hasattr(connection, "pgconn"):
        status = int(connection.pgconn.transaction_status)
        if status == _PG_ACTIVE or (not answered and int(connection.pgconn.pipeline_status)):
            return TransactionState.STALE
        if status == _PG_FAILED:
            return TransactionState.FAILED
        if status != _PG_IDLE:
            return TransactionState.OPEN
        return TransactionState.COMMITS if connection.autocommit else TransactionState.BEGINS
    if hasattr(connection, "is_in_transaction"):
        return TransactionState.OPEN if connection.is_in_transaction() else TransactionState.COMMITS
    return TransactionState.UNKNOWN


_IN_TRANSACTION, _AUTOCOMMIT = 1, 2
_ANSWERED: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
"""Connections that answered one of our statements, with the number of their session."""


def mysql_state(connection: Any, answered: bool) -> TransactionState:
    """PyMySQL, asyncmy and aiomysql keep the flags of the server's last OK, which can be outdated.

    An error carries no flags, but a deadlock rolls back the whole transaction: after one, a
    connection in autocommit mode still looks open. And the flags of the login are older than what
    the server's `init_connect` sets. ``answered``: a statement was just answered.
    """
    flags = getattr(connection, "server_status", None)
    if not isinstance(flags, int):
        return TransactionState.UNKNOWN
    session = getattr(connection, "server_thread_id", None)
    if answered:
        _ANSWERED[connection] = session
    elif _ANSWERED.get(connection) != session:
        return TransactionState.STALE
    if not flags & _AUTOCOMMIT:
        return TransactionState.BEGINS
    if not flags & _IN_TRANSACTION:
        return TransactionState.COMMITS
    return TransactionState.OPEN if answered else TransactionState.STALE


def state_of(dialect: str, connection: Any, answered: bool = False) -> TransactionState:
    """The state, read from the driver's own connection."""
    if dialect == "mysql":
        return mysql_state(connection, answered)
    return (
        sqlite_state(connection) if dialect == "sqlite" else postgresql_state(connection, answered)
    )


def refuse_pipeline(connection: Any, wrapper: str) -> None:
    """Refuse a pipeline below a wrapper, which would take its delayed answers for empty ones."""
    if hasattr(connection, "pgconn") and int(connection.pgconn.pipeline_status):
        raise UsageError(
            f"the psycopg connection below {wrapper} is in pipeline mode, which {wrapper} cannot "
            "read answers in; leave the pipeline first"
        )


def sync(connection: Any) -> None:
    """Sync psycopg with the server: an empty pipeline syncs the one that it is nested in."""
    with connection.pipeline():
        pass


async def sync_async(connection: Any) -> None:
    async with connection.pipeline():
        pass


def ask(dialect: str) -> Program[TransactionState]:
    """Find out by statements: a setting or a savepoint lasts as long as its transaction."""
    try:
        if dialect == "postgresql":
            yield Query("SELECT set_config('twicesafe.open', 'yes', true)")
            rows = yield Query("SELECT current_setting('twicesafe.open', true)")
            return TransactionState.OPEN if rows[0][0] == "yes" else TransactionState.COMMITS
        rows = yield Query("SELECT @@autocommit")
        if not int(rows[0][0]):
            return TransactionState.BEGINS
    except AtomicityBrokenError:
        return TransactionState.FAILED
    yield Change("SAVEPOINT twicesafe_open")
    try:
        yield Change("RELEASE SAVEPOINT twicesafe_open")
    except AtomicityBrokenError:
        return TransactionState.COMMITS
    return TransactionState.OPEN
