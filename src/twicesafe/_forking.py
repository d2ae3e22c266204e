"""Forking: what a child process must make anew.

A fork copies the memory of a process, and one of its threads. A lock that another thread held at that
moment stays locked in the child, and no thread is there to release it: the first call that needs it
waits for ever. So whatever keeps a lock or a thread for longer than a call says here how to make it
anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

__all__ = ["RenewedLock", "in_child"]

_renewals: set[weakref.WeakMethod[Callable[[], None]]] = set()


def in_child(renew: Callable[[], None]) -> None:
    """Call this bound method in every forked child, as long as its object lives.

    It must not wait for anything: the other threads of the parent are not there.
    """
    _renewals.add(weakref.WeakMethod(renew, _renewals.discard))


class RenewedLock:
    """``with lock.now:`` is a lock that every forked child has anew."""

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
