"""A pool of connections for the threads of one process: bounded, last in first out.

A connection is not checked before it is used. One that fails is closed, and the request is retried on
a new one with the same owner token. So there is no extra round trip, and a caller that cannot connect
gets the reason at once. A forked child leaves the connections to its parent.

An interrupt (Ctrl-C, an exception sent into a thread) may come after any call in here. So places are
not counted up and down: the pool keeps weak references to them, and a place that no thread holds is
free. A waiter that is not woken checks for itself after `LOOK` seconds.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Generic, Protocol, TypeVar

from ..._forking import in_child
from ...errors import StoreUnavailableError

__all__ = ["Pool"]


class Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closable)

LOOK: Final = 0.05
"""Seconds after which a waiter checks for itself."""

_left_to_parent: list[object] = []
"""Idle connections that a forked child inherited. They are kept, so that they are never closed."""


class _Place(Generic[C]):
    """Room for one connection."""

    __slots__ = ("__weakref__", "connection", "over")

    def __init__(self) -> None:
        self.connection: C | None = None
        self.over = False


class Pool(Generic[C]):
    """At most `most` connections; a caller waits up to `timeout` seconds for one."""

    def __init__(self, connect: Callable[[], C], most: int, timeout: float) -> None:
        self._connect = connect
        self._most = most
        self._timeout = timeout
        self._reset()
        in_child(self._leave_to_parent)

    def _reset(self) -> None:
        self._idle: deque[_Place[C]] = deque()
        self._places: list[weakref.ref[_Place[C]]] = []
        self._counting = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def _leave_to_parent(self) -> None:
        """In a forked child: to close these connections would also end them for the parent."""
        _left_to_parent.append(self._idle)
        self._reset()

    @contextmanager
    def connection(self) -> Iterator[C]:
        """A connection for one piece of work. Any exception in it closes the connection."""
        idle = self._idle
        place: _Place[C] | None = None
        try:
            try:
                place = idle.pop()
            except IndexError:
                place = _Place()
                place = self._wait(place)
            if place.connection is None:
                place.connection = self._connect()
            yield place.connection
        except BaseException as error:
            if place is not None:
                place.over = True  # an interrupt may come before the first line of the next call
                self._end(place, error)
            raise
        idle.append(place)
        if self._waiting:
            self._ring()

    def close(self) -> None:
        """Close idle connections; one in use is closed when its next use fails."""
        while True:
            try:
                place = self._idle.pop()
            except IndexError:
                return
            self._end(place)

    def _wait(self, new: _Place[C]) -> _Place[C]:
        """An idle place, or this new one, as soon as there is room for it."""
        until = time.monotonic() + self._timeout
        while not self._has_room(new):
            with suppress(IndexError):
                return self._idle.pop()
            left = until - time.monotonic()
            if left <= 0:
                raise StoreUnavailableError(
                    f"all {self._most} connections were busy for {self._timeout:g} s; "
                    "raise pool= in the URL, or find what is slow"
                )
            wakeup = threading.Lock()
            wakeup.acquire()
            self._waiting.append(wakeup)
            if not self._idle:
                wakeup.acquire(timeout=min(left, LOOK))
            with suppress(ValueError):
                self._waiting.remove(wakeup)
        return new

    def _has_room(self, new: _Place[C]) -> bool:
        with self._counting:
            self._places = [place for place in self._places if _is_taken(place)]
            if len(self._places) >= self._most:
                return False
            self._places.append(weakref.ref(new))
            return True

    def _end(self, place: _Place[C], error: BaseException | None = None) -> None:
        place.over = True
        if place.connection is not None:
            place.connection.close()
            if isinstance(error, StoreUnavailableError):
                self.close()  # idle connections are most likely broken too
        self._ring()

    def _ring(self) -> None:
        with suppress(IndexError, RuntimeError):  # there is no waiter, or it is checking for itself
            self._waiting.popleft().release()


def _is_taken(reference: weakref.ref[_Place[C]]) -> bool:
    place = reference()
    return place is not None and not place.over
