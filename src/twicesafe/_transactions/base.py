"""A caller's transaction: runs our statements in it, and checks whether it is open.

A `Transaction` never begins or ends anything. Whether it is open is what the server says, not the
wrapper (`state`). `driver_errors` turns a driver's errors into ours.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Coroutine, Iterable
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from .._core.driving import drive, drive_async
from .._engines.sql.commands import Change, Query
from ..errors import TwicesafeError, UsageError
from ..stores._base import Program
from .driver_errors import Dialect, explain
from .state import TransactionState, ask, state_of, sync, sync_async

__all__ = [
    "AsyncTransaction",
    "Described",
    "Dialect",
    "Ends",
    "Style",
    "Transaction",
    "plain",
]

T = TypeVar("T")

Style: TypeAlias = Literal["?", "%s", "$1"]
"""The driver's placeholder style."""


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
