"""The connections of a SQLite store: one that writes, any number that read, and none across a fork.

All threads write through one connection, one transaction at a time (`GroupCommit`). A reader takes
an idle connection or opens one, so it never waits for a writer. SQLite keeps its locks per process
and a forked child would inherit those of our threads, so before a fork all connections are closed.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ..._core.driving import drive
from ..._forking import around_fork
from ...errors import StoreError
from ...stores._base import Program
from ...stores._group_commit import GroupCommit
from ..sql.commands import Query
from .database_file import DatabaseFile

__all__ = ["SqliteConnections"]

T = TypeVar("T")

FORK_TIMEOUT: Final = 5.0
"""Seconds, in addition to the store's time-out, that a fork waits for the store's threads."""

_left_to_parent: list[object] = []
"""Connections that a forked child inherited: closing them in the child could harm the parent."""


class _Fork:
    """One fork, from the moment its thread asks the other threads to stop."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.holds_writer = False
        """No other thread can start a write."""
        self.clean = False
        """No connection is open."""


class SqliteConnections:
    """Runs programs on the right connection. The base class of `SqliteStore`."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._tap: Callable[[str, Any], None] | None = None
        """Tests only: called before and after every statement."""
        self._fork: _Fork | None = None
        self._is_lost = False
        """This process was forked while connections were open, so it must not open any."""
        self._reset_connections()
        around_fork(self._before_fork, self._after_fork_in_parent, self._after_fork_in_child)

    def _reset_connections(self) -> None:
        self._writes = GroupCommit(self._write_one, self._write_all)
        self._writer: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        """Of the writer, for single statements: a new one for each would cost more."""
        self._idle_readers: deque[sqlite3.Connection] = deque()
        self._reading: dict[object, None] = {}
        """One entry per thread that reads now. A dict, because its single steps are atomic."""

    def _write_one(self, request: Any) -> Any:
        """Perform one request on the writing connection."""
        raise NotImplementedError

    def _write_all(self, requests: list[Any]) -> list[Any]:
        """Perform these requests in one transaction; a failed item's error is in its place."""
        raise NotImplementedError

    # -- running programs -----------------------------------------------------------------------

    def _read(self, program: Program[T]) -> T:
        """Run this on a reading connection. It waits for no writer, only for a fork."""
        me = object()
        connection: sqlite3.Connection | None = None
        try:
            self._reading[me] = None
            # We enter first and look for a fork second, so that one of the two sees the other.
            while (fork := self._fork) is not None:
                del self._reading[me]
                fork.over.wait(self._file.timeout + FORK_TIMEOUT)
                self._reading[me] = None
            try:
                connection = self._idle_readers.pop()
            except IndexError:
                connection = self._connect()
            answer = drive(program, self._executor(connection.cursor()))
            self._file.check()
            self._idle_readers.append(connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise self._file.error_of(error) from error
            raise
        finally:
            self._reading.pop(me, None)
        return answer

    def _write(self, program: Program[T]) -> T:
        """Run this on the writing connection, as soon as no other thread uses it."""
        with self._file.errors():
            return self._writes.alone(lambda: self._run_on_writer(program))

    def _run_on_writer(self, program: Program[T]) -> T:
        cursor = self._open_writer()
        try:
            answer = drive(program, self._executor(cursor))
            self._file.check()
        except BaseException:
            self._close_writer()
            raise
        return answer

    def _open_writer(self) -> sqlite3.Cursor:
        if self._cursor is None:
            if self._writer is None:
                self._writer = self._connect()
            self._cursor = self._writer.cursor()
        return self._cursor

    def _close_writer(self) -> None:
        """Closing also rolls back and ends every statement, so nothing half-done stays behind."""
        writer, self._writer, self._cursor = self._writer, None, None  # an interrupt may follow
        if writer is not None:
            writer.close()

    def _executor(self, cursor: sqlite3.Cursor) -> Callable[[Any], Any]:
        run, connection, tap = cursor.execute, cursor.connection, self._tap

        def execute(command: Any) -> Any:
            if command.sql == "ROLLBACK" and not connection.in_transaction:
                # SQLite itself rolls back when the disk is full. The first error is the one to report.
                return 0
            if tap is not None:
                tap("before", command)
            run(command.sql, command.args)
            reply = cursor.fetchall() if type(command) is Query else cursor.rowcount
            if tap is not None:
                tap("after", command)
            return reply

        return execute

    # -- opening and closing ----------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        if self._is_lost:
            raise StoreError(
                "this process was forked while another thread was using the store, so it cannot tell "
                "SQLite's locks from those of its parent; fork before the store is used, or use spawn"
            )
        return self._file.connect()

    def close(self) -> None:
        self._writes.alone(self._disconnect)

    def _disconnect(self) -> None:
        self._close_writer()
        while self._idle_readers:
            self._idle_readers.pop().close()

    # -- forking ----------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Stop all readers and writers and close all connections, so the child inherits no lock."""
        fork = _Fork()
        seconds = self._file.timeout + FORK_TIMEOUT
        until = time.monotonic() + seconds
        # Writers first, readers second: a thread that writes may have to read to finish.
        fork.holds_writer = self._writes.hold(seconds)
        self._fork = fork
        while self._reading and time.monotonic() < until:
            time.sleep(0.0005)
        if fork.holds_writer and not self._reading:
            self._disconnect()
            fork.clean = True

    def _after_fork_in_parent(self) -> None:
        fork, self._fork = self._fork, None
        if fork is not None:
            if fork.holds_writer:
                self._writes.let_go()
            fork.over.set()

    def _after_fork_in_child(self) -> None:
        fork, self._fork = self._fork, None
        if fork is None or not fork.clean:
            self._is_lost = True
            _left_to_parent.append((self._writer, self._cursor, self._idle_readers))
        self._reset_connections()
