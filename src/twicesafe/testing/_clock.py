"""A clock that moves only when a test advances it.

Leases, back-offs and retention depend on time; a test that waits for them is slow and unreliable.
``clock()`` is the time of a *store* (whole milliseconds, P5), ``clock.worker()`` of a *worker* (seconds).

    clock = FakeClock()
    store = MemoryStore(now=clock)
    clock.advance(30)            # seconds, as in a policy
    clock.advance(ms=1)          # milliseconds, as in a request
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["FakeClock"]

START: Final = 1_700_000_000_000
"""A Tuesday in November 2023: far from 0, so that "never" and "long ago" cannot be confused."""


class FakeClock:
    """Safe to read and to move from many threads. It never goes back."""

    def __init__(self, start: int = START) -> None:
        self._now = start
        self._lock = threading.Lock()

    def __call__(self) -> int:
        """The store's time in milliseconds."""
        return self._now

    def worker(self) -> float:
        """The worker's time in seconds."""
        return self._now / 1000

    def advance(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        """Let time pass."""
        step = round(seconds * 1000) + ms
        if step < 0:
            raise ValueError("a FakeClock cannot go back: advance it by 0 or more")
        with self._lock:
            self._now += step

    def __repr__(self) -> str:
        return f"<FakeClock {self._now} ms>"
