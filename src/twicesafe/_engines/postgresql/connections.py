"""One async connection, with the same methods for psycopg and asyncpg.

It performs the commands of a program and turns the driver's errors into ours (`explain`). It can be
aborted, so that the running statement fails now, and dropped without waiting.

A store uses it through a `SerialConnection`, which runs one program at a time. If a call is cancelled or
fails, its connection is dropped. A retry on a new one gets the same answer, by the owner token. A
cancelled call waits until its statement has ended in the server, so the request that follows it
(`Abandon`, on the same connection) cannot overtake it.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ..._core.driving import drive_async
from ...errors import SchemaVersionError, StoreError, StoreUnavailableError
from ...stores._base import Program
from ..sql.commands import Query
from ..sql.migrations import LAYOUT_CHANGES
from .settings import Settings, explain
from .statement_runner import StatementRunner
from .statements import CHANNEL
from .store import connection_options
from .wakeups import shut_down_socket

if TYPE_CHECKING:
    from .async_store import AsyncStoreBase

__all__ = ["AsyncConnection", "AsyncpgConnection", "PsycopgConnection", "SerialConnection"]

T = TypeVar("T")

SETTLING: Final = 1.0
"""Seconds that a cancelled call waits for its statement to end in the server."""


class _Owner(Protocol):
    """The store that a connection belongs to."""

    url: str
    settings: Settings
    _tap: Callable[[str, Any], None] | None


class AsyncConnection(abc.ABC):
    """One connection of one driver."""

    def __init__(self, store: _Owner) -> None:
        self._store = store

    def drive(self, program: Program[T]) -> Coroutine[Any, Any, T]:
        perform = self.execute if self._store._tap is None else self.tapped
        return drive_async(program, perform, self.explained)

    async def tapped(self, command: Any) -> Any:
        tap = self._store._tap
        assert tap is not None
        tap("before", command)
        reply = await self.execute(command)
        tap("after", command)
        return reply

    def explained(self, error: Exception) -> Exception:
        if isinstance(error, (TimeoutError, StoreError)):
            return error
        ours = explain(error, self._store.url)
        ours.__cause__ = error
        return ours

    @property
    @abc.abstractmethod
    def pid(self) -> int:
        """The server process of this connection, as the server named it."""

    @abc.abstractmethod
    async def open(self) -> None: ...
    @abc.abstractmethod
    def execute(self, command: Any) -> Coroutine[Any, Any, Any]: ...
    @abc.abstractmethod
    async def listen(self, wake: Callable[[str], None]) -> None:
        """Call `wake` for every notification, until the connection ends."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Make the running statement fail now, even if the server does not answer."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Close without waiting: the other side may be gone."""


class PsycopgConnection(AsyncConnection):
    _connection: Any = None
    _run: Callable[[Any], Any]

    @property
    def pid(self) -> int:
        return self._connection.info.backend_pid  # type: ignore[no-any-return]

    async def open(self) -> None:
        import psycopg

        settings = self._store.settings
        self._connection = await psycopg.AsyncConnection.connect(
            settings.dsn,
            autocommit=True,
            prepare_threshold=None,  # `StatementRunner` prepares
            **connection_options(settings.timeout),
        )
        self._run = StatementRunner(self._connection, settings.prepare).run

    def execute(self, command: Any) -> Coroutine[Any, Any, Any]:
        return self._connection.wait(self._run(command))  # type: ignore[no-any-return]

    async def listen(self, wake: Callable[[str], None]) -> None:
        async for notice in self._connection.notifies():
            wake(notice.payload)

    def abort(self) -> None:
        shut_down_socket(self._connection.fileno())

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.pgconn.finish()


class AsyncpgConnection(AsyncConnection):
    _connection: Any = None

    @property
    def pid(self) -> int:
        return self._connection.get_server_pid()  # type: ignore[no-any-return]

    async def open(self) -> None:
        import asyncpg

        settings = self._store.settings
        self._connection = await asyncpg.connect(
            settings.dsn,
            timeout=settings.timeout,
            statement_cache_size=100 if settings.prepare else 0,
            target_session_attrs="read-write",
        )

    def execute(self, command: Any) -> Coroutine[Any, Any, Any]:
        if type(command) is Query:
            return self._connection.fetch(command.sql, *command.args)  # type: ignore[no-any-return]
        return self._change(command)

    async def _change(self, command: Any) -> int:
        status = await self._connection.execute(command.sql, *command.args)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def listen(self, wake: Callable[[str], None]) -> None:
        over = asyncio.Event()
        self._connection.add_termination_listener(lambda _: over.set())
        await self._connection.add_listener(CHANNEL, lambda *heard: wake(heard[3]))
        await over.wait()

    def abort(self) -> None:
        self._connection.terminate()

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()


class SerialConnection:
    """One connection that runs one program at a time. Opened on first use, dropped after any error.

    `spare`: another one, which runs the program if the server gives us no connection of our own.
    """

    def __init__(self, store: AsyncStoreBase, spare: SerialConnection | None = None) -> None:
        self._store, self._spare = store, spare
        self._connection: AsyncConnection | None = None
        self._lock = asyncio.Lock()
        self._until: float | None = None
        """When the running program has taken too long; None: none runs."""
        self._timer: asyncio.TimerHandle | None = None
        """One timer for all programs: starting and cancelling one for each took a tenth of a call."""

    async def run(
        self, chosen: Callable[[AsyncStoreBase], Callable[..., Program[T]]], *words: Any
    ) -> T:
        """Run the program that ``chosen(store)(*words)`` returns."""
        store, timeout = self._store, self._store.settings.timeout
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        cancels = 0 if task is None else task.cancelling()  # a task may have swallowed earlier ones
        until = loop.time() + timeout
        if self._lock.locked():
            try:
                async with asyncio.timeout_at(until):
                    await self._lock.acquire()
            except TimeoutError as error:
                raise self._timed_out() from error
        else:
            await self._lock.acquire()
        try:
            connection = self._connection
            if connection is None:
                try:
                    async with asyncio.timeout_at(until):
                        connection = self._connection = await self._open()
                except StoreUnavailableError:
                    if self._spare is None or self._spare._connection is None:
                        raise
                    return await self._spare.run(chosen, *words)
            self._until = until
            if self._timer is None:
                self._timer = loop.call_at(until, self._check_time, loop)
            perform = connection.execute if store._tap is None else connection.tapped
            try:
                for _ in range(LAYOUT_CHANGES):
                    try:
                        return await drive_async(
                            chosen(store)(*words), perform, connection.explained
                        )
                    except SchemaVersionError:
                        # The tables were there when the store was opened, so they were migrated since.
                        await store.refit(connection)  # raises if they keep generations now
                return await drive_async(chosen(store)(*words), perform, connection.explained)
            finally:
                self._until = None
        except asyncio.CancelledError:
            await self._wait_for_statement()
            raise
        except BaseException as error:
            self.drop()
            if task is not None and task.cancelling() > cancels:
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
