"""A wake-up for one waiting thread, which anything may send: also the garbage collector, and the end of the process.

The lock of a `threading.Event` is held for moments by the thread that waits. The collector may run in one of
them, in that very thread; and when the interpreter ends, a background thread may stop in one, and the lock
stays locked. Then setting the event never returns. Here `set` waits for nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress

__all__ = ["Wakeup"]


class Wakeup:
    """It is kept if it comes before the wait, and used up by one wait. Several are one."""

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is set already
            self._asleep.release()

    def wait(self, seconds: float | None) -> bool:
        """False: it did not come in time. None: wait for as long as it takes."""
        return self._asleep.acquire(timeout=-1 if seconds is None else seconds)
