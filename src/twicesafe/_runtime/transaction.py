"""The transaction runtime: performs an inbox flow in the caller's own open transaction.

Entering and leaving are statements on the caller's connection. The handler runs in the caller's own
thread or task. A background thread writes what must survive a rollback, in a transaction of the
store's own (`DeferredWrites`). There are no leases here and nothing to
release: if the caller dies, the database rolls back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from .. import _transactions as transactions
from .._core.commands import Flow, Invoke
from .._core.driving import drive, drive_async
from .._core.inbox_requests import AwaitDeferred, DeferredWrite, Enter, Entered, EnterMany, Leave
from .._forking import RenewedLock
from .._transactions import AsyncTransaction, Transaction
from .._values.clocks import WorkerClock, since_boot
from .._values.closed import closed, require_open
from ..errors import SchemaVersionError, StoreUnavailableError, UsageError
from .deferred_writes import DeferredWrites
from .flow_run import invoke, invoke_async

__all__ = [
    "AsyncTransactionRun",
    "AsyncTransactionRuntime",
    "TransactionRun",
    "TransactionRuntime",
]

T = TypeVar("T")


class _Shared:
    """The store's programs for each kind of connection, and the deferred writes."""

    store: Any = None
    """The blocking store; an async runtime opens it with its first flow."""
    deferred: DeferredWrites

    def __init__(self, clock: WorkerClock = since_boot) -> None:
        self.clock = clock
        self.programs: Any = {}
        """The store's programs by dialect and placeholder style; once closed, a `Closed`."""

        self._blocks = 0

    def enter(self) -> None:
        """A `with` block begins. One that follows another opens the store again."""
        self._blocks += 1
        self.programs = {}

    def leave(self) -> None:
        self._blocks -= 1

    def _refuse_flows(self, store: Any) -> None:
        if self._blocks <= 0:
            self.programs = closed(store, "inbox")

    def use(self, store: Any) -> None:
        @functools.cache  # made with the first deferred write: a store may open late
        def ours() -> Any:
            return store.in_transaction()

        def write(deferred: DeferredWrite) -> None:
            try:
                store.own_transaction(lambda: _writing(ours(), deferred))
            except SchemaVersionError:  # perhaps it was migrated since
                store.refresh()
                ours.cache_clear()
                store.own_transaction(lambda: _writing(ours(), deferred))

        self.deferred = DeferredWrites(write)
        self.store = store

    def programs_for(self, transaction: Transaction | AsyncTransaction) -> Any:
        """The store's programs in the SQL and the placeholders of this connection."""
        language = transaction.dialect, transaction.style
        known = self.programs.get(language)
        if known is None:
            ours, theirs = self.store.dialect, transaction.dialect
            if ours != theirs:
                raise UsageError(
                    f"this inbox is on {ours}, but the connection is {theirs}: open the inbox on "
                    "the database of your connection"
                )
            known = self.programs[language] = self.store.in_transaction(transaction.style)
        return known

    def follow_migration(self, tried: Any, transaction: Any) -> None:
        """A statement did not find its table. If the store was migrated since, the next transaction
        uses the new layout, and this raises the error that says so."""
        self.store.refresh()
        require_open(self.programs)
        self.programs = {}
        if self.programs_for(transaction).programs.layout != tried.programs.layout:
            raise StoreUnavailableError(
                "the records of this database were migrated to another layout meanwhile; roll back, and "
                "have the message delivered again"
            )


def _writing(programs: Any, deferred: DeferredWrite) -> Generator[Any, Any, None]:
    yield from programs.write_deferred(deferred)
    deferred.written = True  # while this transaction still holds the key


class TransactionRuntime(_Shared):
    """Runs inbox flows for all threads, each on its own connection."""

    _transaction: Callable[[Any], Transaction] = staticmethod(transactions.of)

    def __init__(self, store: Any, clock: WorkerClock = since_boot) -> None:
        super().__init__(clock)
        self.use(store)

    def run(self, connection: Any, flow: Flow[T]) -> T:
        """Run the flow in the transaction that is open on this connection."""
        transaction = self._transaction(connection)
        transaction.check()
        return drive(flow, TransactionRun(self, transaction).perform)

    def close(self) -> None:
        """Finish deferred writes and close the store. Further flows are refused."""
        self._refuse_flows(self.store)
        self.deferred.close()
        self.store.close()


class TransactionRun:
    """One flow in the caller's own thread."""

    __slots__ = ("_deferred", "_programs", "_runtime", "_transact", "_transaction")

    def __init__(self, runtime: Any, transaction: Any) -> None:
        self._runtime = runtime
        self._programs = runtime.programs_for(transaction)
        self._transaction = transaction
        self._transact = transaction.run
        self._deferred = runtime.deferred

    def perform(self, command: Any) -> Any:
        kind = type(command)
        if kind is AwaitDeferred:
            if command.id in self._deferred.pending:
                self._deferred.wait(command.id, command.seconds)
            return None
        if kind is Enter:
            entered: Entered = self._entered(self._programs.enter_one(command))
            if self._deferred.pending:
                entered.unwritten = self._deferred.unwritten(command.id)
            return entered
        if kind is Invoke:
            return invoke(command.claim, command.run)
        if kind is Leave:
            return self._transact(self._programs.leave(command))
        if kind is EnterMany:
            return self._entered(self._programs.enter(command.asks, command.asks[0].wait))
        assert kind is DeferredWrite, kind
        return self._deferred.add(command)

    def _entered(self, program: Any) -> Any:
        try:
            return self._transact(program)
        except SchemaVersionError:
            self._runtime.follow_migration(self._programs, self._transaction)
            raise


class AsyncTransactionRuntime(_Shared):
    """Runs inbox flows for all tasks of all event loops, each on its own connection."""

    _transaction: Callable[[Any], AsyncTransaction] = staticmethod(transactions.async_of)

    def __init__(self, store: Any, clock: WorkerClock = since_boot) -> None:
        super().__init__(clock)
        self._async_store = store
        self._opening = RenewedLock()
        if store.capabilities.single_writer:
            # Opened now: later, the caller's own transaction may block it.
            self.use(store.blocking_store())

    async def run(self, connection: Any, flow: Flow[T]) -> T:
        """Run the flow in the transaction that is open on this connection."""
        if self.store is None:
            await self.prepare()
        transaction = self._transaction(connection)
        await transaction.check()
        return await drive_async(flow, AsyncTransactionRun(self, transaction).perform)

    async def prepare(self) -> None:
        """Open the store that writes what is deferred, if it is not open yet."""
        from .event_loop import running_loop

        running_loop()
        if self.store is None:
            require_open(self.programs)
            await self.in_thread(self.open_blocking_store)

    async def close(self) -> None:
        """Finish deferred writes and close the store. Further flows are refused."""
        self._refuse_flows(self._async_store)
        if self.store is not None:
            await self.in_thread(self.deferred.close)
        await self._async_store.close()

    async def in_thread(self, work: Callable[..., object], *args: Any) -> None:
        """Run blocking work in a thread."""
        import asyncio

        await asyncio.to_thread(work, *args)

    def open_blocking_store(self) -> None:
        with self._opening.now:  # only one task opens it
            if self.store is None:
                self.use(self._async_store.blocking_store())


class AsyncTransactionRun(TransactionRun):
    """One flow in the caller's own task."""

    __slots__ = ()

    def perform(self, command: Any) -> Any:
        """The answer, or a coroutine that returns it."""
        kind = type(command)
        if kind is AwaitDeferred:
            if command.id not in self._deferred.pending:
                return None
            return self._runtime.in_thread(self._deferred.wait, command.id, command.seconds)
        if kind is Enter:
            return self._enter(command)
        if kind is Invoke:
            return invoke_async(command.claim, command.run, command.timeout)
        if kind is Leave:
            return self._transact(self._programs.leave(command))
        return super().perform(command)

    async def _enter(self, ask: Enter) -> Entered:
        entered: Entered = await self._entered(self._programs.enter_one(ask))
        if self._deferred.pending:
            entered.unwritten = self._deferred.unwritten(ask.id)
        return entered

    async def _entered(self, program: Any) -> Any:
        try:
            return await self._transact(program)
        except SchemaVersionError:
            follow = self._runtime.follow_migration
            await self._runtime.in_thread(follow, self._programs, self._transaction)
            raise
