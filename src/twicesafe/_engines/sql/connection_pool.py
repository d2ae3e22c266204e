"""A pool of connections for the threads of one process: bounded, last in first out.

A pooled connection is checked by using it: one that fails is closed, never handed out again, and
the exchange asks again on a new one with the same owner token. So there is no round trip for
checking, and whoever cannot connect is told why at once. Connections of a forked parent are left
to the parent.

An interrupt may come after any call in here. So no place is counted up and down: the pool looks at
its places by weak reference, and one that nobody holds any more is free. A bell that nobody rang
costs who waits for it a moment (`LOOK`), after which it looks for itself.
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

_left_to_parent: list[object] = []


class _Place(Generic[C]):
    """Room for one connection."""

    __slots__ = ("__weakref__", "connection", "over")

    def __init__(self) -> None:
        self.connection: C | None = None
        self.over = False


class Pool(Generic[C]):
    def __init__(self, connect: Callable[[], C], most: int, patience: float) -> None:
        self._connect = connect
        self._most = most
        self._patience = patience
        self._fresh()
        in_child(self._leave_to_parent)

    def _fresh(self) -> None:
        self._idle: deque[_Place[C]] = deque()
        self._places: list[weakref.ref[_Place[C]]] = []
        self._counting = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def _leave_to_parent(self) -> None:
        """In a forked child: closing the parent's connections here would end them there."""
        _left_to_parent.append(self._idle)
        self._fresh()

    @contextmanager
    def connection(self) -> Iterator[C]:
        """A connection for one piece of work; whatever goes wrong in it ends the connection."""
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
                self._end(place, error)
            raise
        idle.append(place)
        if self._waiting:
            self._ring()

    def close(self) -> None:
        """Close what is idle; what is in use is closed by whoever uses it next in vain."""
        while True:
            try:
                place = self._idle.pop()
            except IndexError:
                return
            self._end(place)

    def _wait(self, new: _Place[C]) -> _Place[C]:
        """An idle place, or this new one, as soon as there is room for it."""
        until = time.monotonic() + self._patience
        while not self._has_room(new):
            with suppress(IndexError):
                return self._idle.pop()
            left = until - time.monotonic()
            if left <= 0:
                raise StoreUnavailableError(
                    f"all {self._most} connections were busy for {self._patience:g} s; "
                    "raise pool= or look for what is slow"
                )
            bell = threading.Lock()
            bell.acquire()
            self._waiting.append(bell)
            if not self._idle:
                bell.acquire(timeout=min(left, LOOK))
            with suppress(ValueError):
                self._waiting.remove(bell)
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
                self.close()  # what is idle has most likely met the same end
        self._ring()

    def _ring(self) -> None:
        with suppress(IndexError, RuntimeError):  # nobody waits, or it looks for itself just now
            self._waiting.popleft().release()


def _is_taken(reference: weakref.ref[_Place[C]]) -> bool:
    place = reference()
    return place is not None and not place.over
