"""A wake-up for one waiting thread. A garbage collection and the end of the process may send it too.

A `threading.Event` has a lock, which the waiting thread holds for moments. The garbage collector
may run in that thread at such a moment. When the interpreter ends, a background thread may stop at
such a moment, and the lock stays locked. In both cases, setting the event never returns. Here `set`
waits for nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress

__all__ = ["Wakeup"]


class Wakeup:
    """A wake-up that comes before the wait is kept. One wait uses up all that came."""

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is set already
            self._asleep.release()

    def wait(self, seconds: float | None) -> bool:
        """Returns False if none came in time. ``None``: wait without a limit."""
        return self._asleep.acquire(timeout=-1 if seconds is None else seconds)
