"""Forking: locks and threads that a child process must recreate.

A fork copies the memory of a process but only one of its threads. A lock that another thread held
at that moment stays locked in the child, with no thread to release it, and the first call that
needs it waits forever. So every object that keeps a lock or a thread longer than one call registers
here how to recreate it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

__all__ = ["RenewedLock", "in_child"]

_renewals: set[weakref.WeakMethod[Callable[[], None]]] = set()


def in_child(renew: Callable[[], None]) -> None:
    """Call this bound method in every forked child while its object is alive.

    It must not wait for anything: the parent's other threads do not exist in the child.
    """
    _renewals.add(weakref.WeakMethod(renew, _renewals.discard))


class RenewedLock:
    """A lock that every forked child gets fresh: ``with lock.now: …``."""

    def __init__(self) -> None:
        self._renew()
        in_child(self._renew)

    def _renew(self) -> None:
        self.now = threading.Lock()


def _after_fork() -> None:
    for reference in list(_renewals):
        renew = reference()
        if renew is not None:
            renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
