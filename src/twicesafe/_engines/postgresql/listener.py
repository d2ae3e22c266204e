"""Hearing of ends: one connection and one thread per process, for all who wait in it.

Wake-ups are a kindness, never relied on: a waiter looks for itself after two seconds anyway. When
the connection is lost, everyone is woken at once, and the next who waits makes a new one.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import TwicesafeError
from .statements import CHANNEL

if TYPE_CHECKING:
    import psycopg

__all__ = ["REST", "Listener", "cut"]

REST = 0.1
"""Seconds before those who wait are told that the listener is lost: they come back at once."""

IDLE = 5.0
"""Seconds after which a listener that nobody needs ends."""


class Listener:
    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self.pid = os.getpid()
        self._connect = connect
        self._lock = threading.Lock()
        self._bells: dict[str, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._socket = -1
        self._closed = False

    @contextmanager
    def listening(self, id: bytes) -> Iterator[threading.Event]:  # noqa: A002
        """A bell that rings when this key's end is announced."""
        bell, name = threading.Event(), id.hex()
        with self._lock:
            self._bells.setdefault(name, set()).add(bell)
            if self._thread is None:
                self._closed = False
                self._ready.clear()
                self._thread = threading.Thread(
                    target=self._listen, name="twicesafe-listen", daemon=True
                )
                self._thread.start()
        try:
            self._ready.wait(1.0)
            yield bell
        finally:
            with self._lock:
                bells = self._bells.get(name, set())
                bells.discard(bell)
                if not bells:
                    self._bells.pop(name, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread = self._thread
            if self._socket >= 0:
                cut(self._socket)
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
                self._hear(connection)
        except (psycopg.Error, TwicesafeError):
            if not self._closed:
                time.sleep(REST)
        finally:
            self._end()

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        try:
            while not self._closed:
                for notice in connection.notifies(timeout=IDLE):
                    self._ring(notice.payload)
                with self._lock:
                    if not self._bells:
                        self._thread = None  # the next who waits starts another
                        return
        finally:
            with self._lock:
                self._socket = -1

    def _end(self) -> None:
        with self._lock:
            if self._thread is threading.current_thread():
                self._thread = None
                for bells in self._bells.values():
                    for bell in bells:
                        bell.set()
            self._ready.set()

    def _ring(self, name: str) -> None:
        with self._lock:
            for bell in self._bells.get(name, ()):
                bell.set()


def cut(number: int) -> None:
    """End a connection under whoever waits on it: he reads its end, as if the server had gone."""
    try:
        with socket.socket(fileno=os.dup(number)) as same:
            same.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already
