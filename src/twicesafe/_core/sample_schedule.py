"""When to count a store for gauges. Counting a large store is slow, so it takes at most 5 % of the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .._values.clocks import WorkerClock

__all__ = ["SampleSchedule"]

SHARE: Final = 20


class SampleSchedule:
    """When the next sample may be taken. ``every``: seconds between two of them, at least."""

    def __init__(self, every: float, clock: WorkerClock) -> None:
        self._every, self._clock = every, clock
        self._next = clock()

    def is_due(self) -> bool:
        return self._clock() >= self._next

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Around a sample. One that fails is repeated as late as one that succeeds."""
        began = self._clock()
        try:
            yield
        finally:
            now = self._clock()
            self._next = now + max(self._every, SHARE * (now - began))
