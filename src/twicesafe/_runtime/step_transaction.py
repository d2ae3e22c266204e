"""A step of a durable run in a separate transaction, on the user's idle connection.

    begin       begin a transaction, check that this worker owns the run, set a mark
    record      write the step, if the transaction is still the one that was begun
    commit      raises the driver's own error: whether it was committed is unknown then
    give_up     the function raised: roll back; had it committed or rolled back itself before?
    rollback    never raises

The flow that sends these is `_core.durable.transaction_step`. The SQL is the store's
(`InTransaction`), in the dialect and with the placeholders of the user's connection.
"""

from __future__ import annotations

from typing import Any, NoReturn

from .._core.durable.run_requests import RecordStep
from .._core.protocol import Ack
from .._transactions.base import Described
from .._transactions.driver_errors import explain, is_of_database
from .._transactions.idle_connection import AsyncBegun, Begun, begin, begin_async
from ..errors import (
    AtomicityBrokenError,
    SchemaVersionError,
    StillInProgressError,
    StoreUnavailableError,
    TwicesafeError,
    UnsupportedByStoreError,
    UsageError,
)

__all__ = ["AsyncStepTransaction", "StepTransaction", "StepTransactions"]


class StepTransactions:
    """The store's programs for each kind of connection. One per runtime."""

    def __init__(self, store: Any) -> None:
        if not store.capabilities.transactions:
            raise UnsupportedByStoreError(
                f"{store.url} cannot share a transaction with your data: steps.transact needs "
                "sqlite:///…, postgresql://… or mysql://…; use steps.run"
            )
        self.store = store
        self.blocking: Any = None
        """The store whose programs are used; an async runtime opens it with its first transaction."""
        self._programs: dict[tuple[str, str], Any] = {}

    def open(self) -> None:
        if self.blocking is None:
            is_async = hasattr(self.store, "blocking_store")
            self.blocking = self.store.blocking_store() if is_async else self.store

    def programs_for(self, transaction: Described) -> Any:
        spoken = transaction.dialect, transaction.style
        known = self._programs.get(spoken)
        if known is None:
            ours, theirs = self.blocking.dialect, transaction.dialect
            if ours != theirs:
                raise UsageError(
                    f"the receiver is on {ours}, but the connection is {theirs}: steps.transact needs a "
                    "connection to the database of the receiver"
                )
            known = self._programs[spoken] = self.blocking.in_transaction(transaction.style)
        return known

    def refresh(self) -> None:
        """The records may have been migrated to another layout."""
        self.blocking.refresh()
        self._programs.clear()


class StepTransaction:
    """One transaction, on a blocking connection."""

    _begun: Begun | None = None
    _programs: Any

    def __init__(self, shared: StepTransactions, connection: Any) -> None:
        self._shared, self._connection = shared, connection

    def begin(self, ask: RecordStep) -> Ack:
        self._shared.open()
        try:
            return self._begin(ask)
        except SchemaVersionError:
            self._shared.refresh()
            return self._begin(ask)

    def _begin(self, ask: RecordStep) -> Ack:
        try:
            self._begun = begun = begin(self._connection)
            self._programs = self._shared.programs_for(begun.transaction)
            return begun.transaction.run(self._programs.begin_step(ask))  # type: ignore[no-any-return]
        except Exception as error:
            self.rollback()
            _raise(error, self._shared.blocking.dialect)

    def record(self, ask: RecordStep, renewed: int) -> Ack:
        assert self._begun is not None
        try:
            return self._begun.transaction.run(self._programs.record_step(ask, renewed))  # type: ignore[no-any-return]
        except Exception as error:
            _raise(error, self._begun.transaction.dialect)

    def commit(self) -> None:
        assert self._begun is not None
        self._begun.commit()
        self._begun = None

    def give_up(self, ask: RecordStep, error: BaseException) -> AtomicityBrokenError | None:
        """Roll back, because the function raised this. The reply: it had ended the transaction before."""
        begun = self._begun
        try:
            if begun is not None and _may_have_ended(begun, error):
                begun.transaction.run(self._programs.rewind_step(ask))
        except AtomicityBrokenError as broken:
            return broken
        except Exception:  # the connection is broken, so nothing was committed
            return None
        finally:
            self.rollback()
        return None

    def rollback(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.rollback()


class AsyncStepTransaction:
    """The async version of `StepTransaction`."""

    _begun: AsyncBegun | None = None
    _programs: Any

    def __init__(self, shared: StepTransactions, connection: Any) -> None:
        # A scoped session of SQLAlchemy is another one in another task: ours is the caller's.
        scoped = getattr(connection, "registry", None)
        self._shared, self._connection = shared, connection if scoped is None else scoped()

    async def begin(self, ask: RecordStep) -> Ack:
        import asyncio

        if self._shared.blocking is None:
            await asyncio.to_thread(self._shared.open)
        try:
            return await self._begin(ask)
        except SchemaVersionError:
            await asyncio.to_thread(self._shared.refresh)
            return await self._begin(ask)

    async def _begin(self, ask: RecordStep) -> Ack:
        try:
            self._begun = begun = await begin_async(self._connection)
            self._programs = self._shared.programs_for(begun.transaction)
            return await begun.transaction.run(self._programs.begin_step(ask))
        except Exception as error:
            await self.rollback()
            _raise(error, self._shared.blocking.dialect)

    async def record(self, ask: RecordStep, renewed: int) -> Ack:
        assert self._begun is not None
        try:
            return await self._begun.transaction.run(self._programs.record_step(ask, renewed))
        except Exception as error:
            _raise(error, self._begun.transaction.dialect)

    async def commit(self) -> None:
        assert self._begun is not None
        await self._begun.commit()
        self._begun = None

    async def give_up(self, ask: RecordStep, error: BaseException) -> AtomicityBrokenError | None:
        """Roll back, because the function raised this. The reply: it had ended the transaction before."""
        begun = self._begun
        try:
            if begun is not None and _may_have_ended(begun, error):
                await begun.transaction.run(self._programs.rewind_step(ask))
        except AtomicityBrokenError as broken:
            return broken
        except Exception:  # the connection is broken, so nothing was committed
            return None
        finally:
            await self.rollback()
        return None

    async def rollback(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            await begun.rollback()


def _may_have_ended(begun: Begun | AsyncBegun, error: BaseException) -> bool:
    """Whether to look if the function ended the transaction itself. After an error of the database
    a transaction that is gone proves nothing (a deadlock rolls it back), and a statement may still
    run after a cancellation."""
    if not isinstance(error, Exception) or isinstance(error, TimeoutError):
        return False
    return not is_of_database(begun.transaction.dialect, error)


def _raise(error: Exception, dialect: Any) -> NoReturn:
    """Raise our error for a driver's; in the words of a step, not of an inbox."""
    ours = error if isinstance(error, TwicesafeError) else explain(dialect, error)
    if isinstance(ours, StoreUnavailableError) and ours is not error:
        ours = StoreUnavailableError(
            "the database did not answer in the transaction of this step, which was not committed "
            f"({type(error).__name__}); the run is tried again"
        )
    elif isinstance(ours, StillInProgressError):
        ours = StoreUnavailableError(
            "another transaction locks the rows of this step (on SQLite, the database); the step was "
            "rolled back, and the run is tried again"
        )
    elif isinstance(ours, SchemaVersionError):
        ours = SchemaVersionError(
            "the database of this connection has no tables of durable runs; pass a connection to the "
            f"database of the receiver ({ours.message})"
        )
    if ours is error:
        raise ours
    raise ours from error
