"""The connections of one event loop to PostgreSQL: four, each with one program at a time.

One is for claims, one for ends (complete, fail), one for claims of keys that an open transaction
locks, and one for all other work. Calls that arrive while a connection is busy share its next statement
(`AsyncBatcher`). If a call is cancelled or fails, its connection is dropped. A retry on a new one gets
the same answer, by the owner token. A cancelled call waits until its statement has ended in the
server, so the request that follows it (`Abandon`, on the same connection) cannot overtake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..._core.protocol import Request
from ...errors import SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._base import Program
from ...stores._batching import AsyncBatcher, uncancellable
from ..sql.commands import Query
from ..sql.migrations import LAYOUT_CHANGES
from .connections import AsyncConnection
from .settings import explain
from .store import BATCH, POLL
from .wakeups import AsyncListener

if TYPE_CHECKING:
    from .async_store import AsyncStoreBase

__all__ = ["LoopConnections"]

T = TypeVar("T")

SETTLING: Final = 1.0
"""Seconds that a cancelled call waits for its statement to end in the server."""


CLAIMS: Final = frozenset({"claim", "start_run", "submit_run", "abandon"})


class SerialConnection:
    """One connection that runs one program at a time. Opened on first use, dropped after any error."""

    def __init__(self, store: AsyncStoreBase) -> None:
        self._store = store
        self._connection: AsyncConnection | None = None
        self._lock = asyncio.Lock()
        self._until: float | None = None
        """When the running program has taken too long; None: none runs."""
        self._timer: asyncio.TimerHandle | None = None
        """One timer for all programs: starting and cancelling one for each took a tenth of a call."""

    async def run(self, program: Callable[..., Program[T]], *words: Any) -> T:
        """Run the program that ``program(*words)`` returns."""
        timeout = self._store.settings.timeout
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        if self._lock.locked():
            try:
                await asyncio.wait_for(self._lock.acquire(), timeout)
            except TimeoutError as error:
                raise self._timed_out() from error
        else:
            await self._lock.acquire()
        try:
            connection = self._connection
            if connection is None:
                async with asyncio.timeout_at(until):
                    connection = self._connection = await self._open()
            self._until = until
            if self._timer is None:
                self._timer = loop.call_at(until, self._check_time, loop)
            try:
                return await connection.drive(program(*words))
            except SchemaVersionError:
                # The tables were there when the store was opened, so they were migrated since.
                for _ in range(LAYOUT_CHANGES):
                    await self._store.refit(connection)  # raises if they keep generations now
                    with suppress(SchemaVersionError):
                        return await connection.drive(program(*words))
                raise
            finally:
                self._until = None
        except asyncio.CancelledError:
            await self._wait_for_statement()
            raise
        except BaseException as error:
            self.drop()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error  # the driver raised its own error instead
            if isinstance(error, TimeoutError) or loop.time() >= until:
                raise self._timed_out() from error
            raise
        finally:
            self._lock.release()

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(self._store.settings.timeout), self._lock:
                if self._connection is None:
                    self._connection = await self._open()
        except TimeoutError as error:
            raise self._timed_out() from error

    def _timed_out(self) -> StoreUnavailableError:
        store = self._store
        return StoreUnavailableError(
            f"{store.url} did not answer within {store.settings.timeout:g} s"
        )

    async def _wait_for_statement(self) -> None:
        """Wait until the running statement has ended in the server; then drop the connection."""
        if self._connection is not None:
            try:
                async with asyncio.timeout(SETTLING):
                    await self._connection.execute(Query("SELECT 1"))
            except Exception:
                return
            finally:
                self.drop()

    async def _open(self) -> AsyncConnection:
        connection = self._store.new_connection()
        try:
            await connection.open()
        except TimeoutError:
            raise
        except Exception as error:
            raise explain(error, self._store.url) from error
        try:
            await self._store.prepare(connection)
        except BaseException:
            connection.drop()
            raise
        return connection

    def _check_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """Not asyncio.timeout: a cancelled driver first tries to reach the server, which may hang."""
        self._timer = None
        if self._until is None or self._connection is None:
            return
        if self._until > loop.time():
            self._timer = loop.call_at(self._until, self._check_time, loop)
        else:
            self._connection.abort()

    def drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()


class LoopConnections:
    """The connections of one event loop, and which request goes to which."""

    def __init__(self, store: AsyncStoreBase) -> None:
        self._store = store
        self._claims = SerialConnection(store)
        self._ends = SerialConnection(store)
        self.other = SerialConnection(store)
        self._locked = SerialConnection(store)
        """For claims of keys that an open transaction locks: no other call waits behind them."""
        claims, ends = self._batcher(self._claims), self._batcher(self._ends)
        self._batchers = {
            "claim": claims,
            "start_run": claims,
            "submit_run": claims,
            "abandon": claims,
            "complete": ends,
            "fail": ends,
            "record_step": ends,
        }
        self._listener = AsyncListener(store.new_connection)

    def _batcher(self, connection: SerialConnection) -> AsyncBatcher:
        return AsyncBatcher(
            partial(connection.run, self._performed),
            partial(connection.run, self._all_performed),
            BATCH,
        )

    def _performed(self, request: Request) -> Program[Any]:
        """With the store's current programs, which change when the store is migrated."""
        return self._store.programs.perform(request)

    def _all_performed(self, requests: Sequence[Request]) -> Program[list[Any]]:
        return self._store.programs.perform_all(requests)

    async def connect(self) -> None:
        for connection in (self._claims, self._ends):
            await connection.connect()

    def perform(self, request: Request) -> Coroutine[Any, Any, Any]:
        store = self._store
        if store.programs.locked and self._is_locked(request):
            return self._locked.run(self._performed, request)
        batcher = self._batchers.get(request.op)
        if batcher is not None:
            return batcher.perform(request)
        return self.other.run(self._performed, request)

    def submit(self, request: Request) -> Awaitable[Any]:
        batcher = self._batchers.get(request.op)
        if batcher is None or (self._store.programs.locked and self._is_locked(request)):
            return uncancellable(self.perform(request))
        return batcher.submit(request)

    def _is_locked(self, request: Any) -> bool:
        return request.op in CLAIMS and request.id in self._store.programs.locked

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            connection = self._claims if part[0].op in CLAIMS else self._ends
            try:
                answers += await connection.run(self._all_performed, part)
            except StoreError as error:
                answers += [error.again() for _ in part]
        return answers

    def _awaited(self, id_: bytes) -> Program[bool]:
        return self._store.programs.awaits(id_)

    # -- wake-ups -----------------------------------------------------------------------------

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await self.wait(id[:16], seconds, self._awaited, id)

    async def wait(
        self,
        id: bytes,  # noqa: A002
        seconds: float,
        awaits: Callable[[bytes], Program[bool]],
        whom: bytes,
    ) -> None:
        """The async version of `PostgresStore._wait`."""
        if not self._store.settings.wake:
            await asyncio.sleep(min(seconds, POLL))
            return
        try:
            async with asyncio.timeout(seconds), self._listener.listening(id) as wakeup:
                # Mark the row after we listen and before we wait, so that no end is missed.
                if await self.other.run(awaits, whom):
                    await wakeup.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        await self._listener.close()
        for connection in (self._claims, self._ends, self.other, self._locked):
            connection.drop()
