"""A pool of connections for the threads of one process: bounded, last in first out.

A pooled connection is checked by using it: one that fails is closed, never handed out again, and
the exchange asks again on a new one with the same owner token. So there is no round trip for
checking, and whoever cannot connect is told why at once. Connections of a forked parent are left
to the parent.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from ..errors import StoreUnavailableError

__all__ = ["Pool"]


class Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closable)

_everyone: weakref.WeakSet[Pool[Closable]] = weakref.WeakSet()
_left_to_parent: list[object] = []


class Pool(Generic[C]):
    def __init__(self, connect: Callable[[], C], most: int, patience: float) -> None:
        self._connect = connect
        self._most = most
        self._patience = patience
        self._fresh()
        _everyone.add(self)  # type: ignore[arg-type]

    def _fresh(self) -> None:
        self._idle: deque[C] = deque()
        self._places = threading.BoundedSemaphore(self._most)

    @contextmanager
    def connection(self) -> Iterator[C]:
        """A connection for one piece of work; whatever goes wrong in it ends the connection."""
        places = self._places
        if not places.acquire(timeout=self._patience):
            raise StoreUnavailableError(
                f"all {self._most} connections were busy for {self._patience:g} s; "
                "raise pool= or look for what is slow"
            )
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                yield connection
            except BaseException as error:
                connection.close()
                if isinstance(error, StoreUnavailableError):
                    self.close()  # what is idle has most likely met the same end
                raise
            self._idle.append(connection)
        finally:
            places.release()

    def close(self) -> None:
        """Close what is idle; what is in use is closed by whoever uses it next in vain."""
        while self._idle:
            self._idle.pop().close()


def _after_fork() -> None:
    for pool in list(_everyone):
        _left_to_parent.append(pool._idle)
        pool._fresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
