"""One async connection, with the same methods for psycopg and asyncpg.

It performs the commands of a program and turns the driver's errors into ours (`explain`). It can be
aborted, so that the running statement fails now, and dropped without waiting.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from ..._core.driving import drive_async
from ...errors import StoreError
from ...stores._base import Program
from ..sql.commands import Query
from .settings import Settings, explain
from .statement_runner import StatementRunner
from .statements import CHANNEL
from .store import connection_options
from .wakeups import shut_down_socket

__all__ = ["AsyncConnection", "AsyncpgConnection", "PsycopgConnection"]

T = TypeVar("T")


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
        perform = self.execute if self._store._tap is None else self._tapped
        return drive_async(program, perform, self._explained)

    async def _tapped(self, command: Any) -> Any:
        tap = self._store._tap
        assert tap is not None
        tap("before", command)
        reply = await self.execute(command)
        tap("after", command)
        return reply

    def _explained(self, error: Exception) -> Exception:
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
