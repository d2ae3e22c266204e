"""Wake-ups by NOTIFY: one connection listens for all waiters of a process, or of an event loop.

Wake-ups only save time, nothing relies on them: a waiter looks again after two seconds anyway. When
the listening connection is lost, all waiters wake up, and the next one that waits opens a new connection.

    Listener       threads: one thread per process, which ends when nothing waits
    AsyncListener  the async version: one task per event loop
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from ...errors import TwicesafeError
from ..sql.commands import Change
from .statements import CHANNEL

if TYPE_CHECKING:
    import psycopg

    from .connections import AsyncConnection

__all__ = ["AsyncListener", "Listener", "shut_down_socket"]

RECONNECT_DELAY: Final = 0.1
"""Seconds before waiters are woken because the listener lost its connection: they come back at once."""

IDLE: Final = 5.0
"""Seconds after which a listener without waiters ends."""


KEY: Final = 32
"""Digits by which the waiters of a key listen. In the wide layout more are announced."""


class Listener:
    """For threads."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self.pid = os.getpid()
        self._connect = connect
        self._lock = threading.Lock()
        self._wakeups: dict[str, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._socket = -1
        self._closed = False

    @contextmanager
    def listening(self, id: bytes) -> Iterator[threading.Event]:  # noqa: A002
        """An event that is set when this key's end is announced."""
        wakeup, name = threading.Event(), id.hex()
        with self._lock:
            self._wakeups.setdefault(name, set()).add(wakeup)
            if self._thread is None:
                self._closed = False
                self._ready.clear()
                thread = threading.Thread(target=self._listen, name="twicesafe-listen", daemon=True)
                thread.start()  # it may fail: then the next waiter tries again
                self._thread = thread
        try:
            self._ready.wait(1.0)
            yield wakeup
        finally:
            with self._lock:
                wakeups = self._wakeups.get(name, set())
                wakeups.discard(wakeup)
                if not wakeups:
                    self._wakeups.pop(name, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread = self._thread
            if self._socket >= 0:
                shut_down_socket(self._socket)
        if thread is not None:
            thread.join(1.0)

    # -- the thread ---------------------------------------------------------------------------

    def _listen(self) -> None:
        import psycopg

        try:
            with self._connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}")
                with self._lock:
                    self._socket = connection.fileno()
                self._ready.set()
                self._read_notifications(connection)
        except (psycopg.Error, TwicesafeError):
            if not self._closed:
                time.sleep(RECONNECT_DELAY)
        finally:
            self._end()

    def _read_notifications(self, connection: psycopg.Connection[Any]) -> None:
        try:
            while not self._closed:
                for notice in connection.notifies(timeout=IDLE):
                    self._ring(notice.payload)
                with self._lock:
                    if not self._wakeups:
                        self._thread = None  # the next waiter starts another
                        return
        finally:
            with self._lock:
                self._socket = -1

    def _end(self) -> None:
        with self._lock:
            if self._thread is threading.current_thread():
                self._thread = None
                for wakeups in self._wakeups.values():
                    for wakeup in wakeups:
                        wakeup.set()
            self._ready.set()

    def _ring(self, name: str) -> None:
        with self._lock:
            for short in {name, name[:KEY]}:
                for wakeup in self._wakeups.get(short, ()):
                    wakeup.set()


class AsyncListener:
    """For the tasks of one event loop."""

    def __init__(self, new_connection: Callable[[], AsyncConnection]) -> None:
        self._new_connection = new_connection
        self._wakeups: dict[str, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @asynccontextmanager
    async def listening(self, id: bytes) -> AsyncIterator[asyncio.Event]:  # noqa: A002
        """An event that is set when this key's end is announced."""
        wakeup, name = asyncio.Event(), id.hex()
        self._wakeups.setdefault(name, set()).add(wakeup)
        try:
            if self._task is None or self._task.done():
                self._ready.clear()
                self._task = asyncio.create_task(self._listen())
            await self._ready.wait()
            yield wakeup
        finally:
            wakeups = self._wakeups[name]
            wakeups.discard(wakeup)
            if not wakeups:
                del self._wakeups[name]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _listen(self) -> None:
        connection = self._new_connection()
        try:
            await connection.open()
            await connection.execute(Change(f"LISTEN {CHANNEL}"))
            self._ready.set()
            await connection.listen(self._ring)
        except Exception:
            await asyncio.sleep(RECONNECT_DELAY)  # the next waiter starts a new task
        finally:
            self._ready.set()
            connection.drop()
            for name in self._wakeups:
                self._ring(name)

    def _ring(self, name: str) -> None:
        for short in {name, name[:KEY]}:
            for wakeup in self._wakeups.get(short, ()):
                wakeup.set()


def shut_down_socket(number: int) -> None:
    """End a connection while another thread reads from it: that thread reads the end of the stream."""
    try:
        with socket.socket(fileno=os.dup(number)) as same:
            same.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already
