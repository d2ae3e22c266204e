"""etcd leases, shared by claims: etcd's time decides, and a claim is still one round trip.

A claim, a back-off and a retention each last as long as an etcd lease. Granting one costs an extra
write, and etcd is not made for millions of leases. So requests that need a lease for about the same
time share one, as Kubernetes does it, up to `MOST` keys. It lasts at least as long as each of them
asked for, and up to a second or 3 % longer.

The worker's clock only chooses among leases. It counts from before the lease was asked for, so it is never
too generous. If a lease is over anyway, etcd refuses it, and the request continues with another.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

from ..._forking import RenewedLock
from ..._values.clocks import since_boot
from ...errors import UsageError

__all__ = ["FOREVER", "Leases"]

MOST: Final = 1000
"""Keys of one lease: when it ends, etcd removes all of them in one step."""
LONGEST: Final = 9_000_000_000
"""Seconds; etcd grants no more."""
FOREVER: Final = 1 << 47
"""Milliseconds; a request may ask for less."""


class Leases:
    """The leases that a process may still use. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = since_boot, slack: int = 1000) -> None:
        self._clock = clock
        self._slack = slack
        self._lock = RenewedLock()
        self._ends: list[tuple[float, int]] = []
        """When they end at the earliest, in milliseconds of our clock, and their ids; sorted."""
        self._uses: dict[int, int] = {}
        self._shortest = 0
        """etcd grants no shorter ones, in milliseconds; 0: not known."""

    def now(self) -> float:
        """Milliseconds. Take it before a lease is asked for."""
        return self._clock() * 1000

    def seconds(self, ms: int) -> int:
        """How long a lease to ask for, if it is needed for this many milliseconds."""
        if not 0 <= ms < FOREVER:
            raise UsageError(f"a duration of {ms} ms is not valid")
        return min(LONGEST, -(-(ms + self._slack_of(ms)) // 1000))

    def find(self, ms: int, since: float) -> int:
        """A lease that lasts so long after this time, and not much longer; 0: ask for one.

        `since`: when the request began, so that a lease that was asked for later is always good enough.
        """
        with self._lock.now:
            now = self.now()
            while self._ends and self._ends[0][0] <= now:
                self._forget(0)
            at = bisect_left(self._ends, (since + ms, 0))
            if at == len(self._ends):
                return 0
            end, lease = self._ends[at]
            most = max(ms + self._slack_of(ms), self._shortest)
            if end > now + most + (1000 if self._slack else 0):  # it was rounded up to a second
                return 0
            self._uses[lease] += 1
            if self._uses[lease] >= MOST:
                self._forget(at)
            return lease

    def add(self, lease: int, asked: float, ms: int, seconds: int) -> None:
        """Add a lease that was asked for at `asked`, for ``ms``, and granted for ``seconds``."""
        if seconds > self.seconds(ms):
            self._shortest = seconds * 1000
        self._keep(lease, asked + seconds * 1000)

    def _keep(self, lease: int, end: float) -> None:
        with self._lock.now:
            insort(self._ends, (end, lease))
            self._uses[lease] = 0

    def drop(self, lease: int) -> None:
        """etcd no longer knows it."""
        with self._lock.now:
            for at, (_, known) in enumerate(self._ends):
                if known == lease:
                    self._forget(at)
                    return

    def _forget(self, at: int) -> None:
        del self._uses[self._ends.pop(at)[1]]

    def _slack_of(self, ms: int) -> int:
        return max(self._slack, ms // 32) if self._slack else 0
