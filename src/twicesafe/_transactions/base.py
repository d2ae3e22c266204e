"""A caller's transaction: runs our statements in it, and checks whether it is open.

A `Transaction` never begins or ends anything. `driver_errors` turns a driver's errors into ours.

Whether it is open is read from the driver's own connection: the state that the server reported
last. A wrapper (SQLAlchemy, Django) only knows its own calls, so a driver argument, an engine
option or a raw COMMIT can make it wrong. PostgreSQL and MySQL send the state with their answers,
SQLite keeps it in the connection.

    OPEN      the caller's transaction is open on the server
    BEGINS    none yet, but the next write begins one that only the caller ends
    STALE     the driver's state may be old: send a statement first
    COMMITS   every statement commits by itself
    FAILED    open, but it takes no more statements
    UNKNOWN   this driver does not know; `ask` finds out by statements
"""

from __future__ import annotations

import abc
import enum
import weakref
from collections.abc import Callable, Coroutine, Iterable
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from .._core.driving import drive, drive_async
from .._engines.sql.commands import Change, Query
from ..errors import AtomicityBrokenError, TwicesafeError, UsageError
from ..stores._base import Program
from .driver_errors import Dialect, explain

__all__ = [
    "AsyncTransaction",
    "Described",
    "Dialect",
    "Ends",
    "Style",
    "Transaction",
    "TransactionState",
    "plain",
    "refuse_pipeline",
    "state_of",
    "sync",
    "sync_async",
]

T = TypeVar("T")

Style: TypeAlias = Literal["?", "%s", "$1"]
"""The driver's placeholder style."""


class TransactionState(enum.Enum):
    OPEN = enum.auto()
    BEGINS = enum.auto()
    STALE = enum.auto()
    COMMITS = enum.auto()
    FAILED = enum.auto()
    UNKNOWN = enum.auto()


SURE: Final = (TransactionState.OPEN, TransactionState.BEGINS)
"""The caller's later commit will commit what we write now."""


class SyncPipeline:
    """A command: sync psycopg's pipeline, so that the driver knows the current state."""


SYNC_PIPELINE: Final = SyncPipeline()


class Ends(NamedTuple):
    """How a transaction of our own is begun and ended on the user's connection; async ones are awaited."""

    is_idle: Callable[[], Any]
    """Whether no transaction is open. `begin` may be called then."""
    begin: Callable[[], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


class Described(abc.ABC):
    """Shared by the blocking and the async class: how to find out whether a transaction is open."""

    dialect: Dialect
    style: Style
    remedy: str
    """What the caller should do about a connection in autocommit mode."""
    begins: bool = False
    """True: a wrapper, not the driver, begins the transaction with the first statement."""

    @staticmethod
    @abc.abstractmethod
    def ends(connection: Any) -> Ends:
        """How to begin and end a transaction on this connection, as its users do."""

    @abc.abstractmethod
    def driver(self) -> Any:
        """The driver's own connection, below any wrapper."""

    def look(self, answered: bool = False) -> TransactionState:
        """The state that the driver knows, without a round trip; `answered`: the server just answered."""
        return state_of(self.dialect, self.driver(), answered)

    def opened(self, state: TransactionState) -> Program[None]:
        """Raise `UsageError` unless the caller's later commit will commit what we write now.

        `state`: what a first look told, which is not sure of that.
        """
        if state is TransactionState.STALE:
            yield Change("DO 0") if self.dialect == "mysql" else SYNC_PIPELINE
            state = self._looked(answered=True)
        if state is TransactionState.COMMITS and self.begins:
            yield Query("SELECT 1")
            state = self._looked()
        if state is TransactionState.UNKNOWN:
            state = yield from ask(self.dialect)
        if state is TransactionState.FAILED:
            raise self.failed()
        # still claimed: another thread uses it
        if state in (TransactionState.COMMITS, TransactionState.STALE):
            raise self.refuse()

    def _looked(self, answered: bool = False) -> TransactionState:
        try:
            return self.look(answered)
        except TwicesafeError:
            raise
        except Exception as error:  # closed, or broken
            raise explain(self.dialect, error) from error

    def explained(self, error: Exception) -> TwicesafeError:
        """A driver's error as one of ours; our own errors stay as they are."""
        if isinstance(error, TwicesafeError):
            return error
        ours = explain(self.dialect, error)
        ours.__cause__ = error
        return ours

    def refuse(self) -> UsageError:
        return UsageError(
            "this connection has no open transaction: every statement would commit by itself, "
            f"and the record separately from your data; {self.remedy}"
        )

    def failed(self) -> UsageError:
        return UsageError(
            "the transaction on this connection has failed and takes no more statements; roll it "
            "back and begin again"
        )


class Transaction(Described):
    """A blocking transaction."""

    def check(self) -> None:
        """Raise `UsageError` unless the caller's later commit will commit what we write now."""
        state = self._looked()
        if state not in SURE:
            drive(self.opened(state), self._perform, self.explained)

    @abc.abstractmethod
    def execute(self, statement: Query | Change) -> Any:
        """The rows of a query, or the row count of a change; may raise the driver's error."""

    def _perform(self, statement: Query | Change | SyncPipeline) -> Any:
        return (
            sync(self.driver()) if isinstance(statement, SyncPipeline) else self.execute(statement)
        )

    def run(self, program: Program[T]) -> T:
        """Run a whole program in the caller's transaction."""
        return drive(program, self.execute, self.explained)


class AsyncTransaction(Described):
    """The async version of `Transaction`."""

    async def check(self) -> None:
        """Raise `UsageError` unless the caller's later commit will commit what we write now."""
        state = self._looked()
        if state not in SURE:
            await drive_async(self.opened(state), self._perform, self.explained)

    @abc.abstractmethod
    async def execute(self, statement: Query | Change) -> Any:
        """The rows of a query, or the row count of a change; may raise the driver's error."""

    def _perform(self, statement: Query | Change | SyncPipeline) -> Any:
        if isinstance(statement, SyncPipeline):
            return sync_async(self.driver())
        return self.execute(statement)

    def run(self, program: Program[T]) -> Coroutine[Any, Any, T]:
        """Run a whole program in the caller's transaction."""
        return drive_async(program, self.execute, self.explained)


def plain(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows of any kind as tuples; psycopg 2 returns memoryviews for bytes."""
    found = list(map(tuple, rows))
    if memoryview not in map(type, chain.from_iterable(found)):
        return found
    return [
        tuple(bytes(value) if type(value) is memoryview else value for value in row)
        for row in found
    ]


# --- is a transaction open? ---------------------------------------------------------------------


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
