"""When a lease is over, although the conditions of the server compare no times.

A lease ends when *one* of these is certain:

    watched     this process has seen the same version of the record for the whole lease, on its own
                steady clock. The owner counts from before it sent that version, so its time is
                over too. No wall clock is involved.
    first sight the time of the service is past the lease's end by the margin ``skew``. Without this,
                a process that lives shorter than a lease could never take over.

The time of the service is read from its replies (`ServiceClock`), so the clock of a worker may be wrong by
hours. Replies take time, some tell whole seconds, and the servers behind one address differ a little. The
margin covers all three. docs/decisions/0027-dynamodb.md has the argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..._forking import RenewedLock
from ..._values.clocks import since_boot_ms, wall_clock
from ..._values.records import Row, State
from .record import Versioned, granted

__all__ = ["GivenClock", "LeaseWatch", "ServiceClock"]

MOST: Final = 10_000
"""Records in progress that are watched. A forgotten one is watched from the start."""


class ServiceClock:
    """The time of the service: a steady clock, corrected by replies that tell its time.

    Until the first one it is the wall clock of the worker; opening a store asks the service, so no request
    is decided before that. Setting the wall clock later changes nothing.
    """

    def __init__(
        self, wall: Callable[[], int] = wall_clock, steady: Callable[[], int] = since_boot_ms
    ) -> None:
        self.steady = steady
        self._offset = wall() - steady()
        self._asked: int | None = None

    def now(self) -> int:
        return self.steady() + self._offset

    def observed(self, earliest: int, latest: int, sent: int) -> None:
        """A reply came: at some moment between `sent` and now, the service's time was in this range."""
        self._asked = now = self.steady()
        low, high = earliest - now, latest - sent
        self._offset = min(max(self._offset, low), high)

    def due(self, every: int) -> bool:
        """Whether the service should be asked for its time; yes for one caller per `every` ms."""
        now = self.steady()
        if self._asked is not None and now - self._asked < every:
            return False
        self._asked = now
        return True


class GivenClock:
    """A clock that a test sets; it is the time of the service and the steady clock in one."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = self.steady = now

    def observed(self, earliest: int, latest: int, sent: int) -> None:
        """Its time is the test's."""

    def due(self, every: int) -> bool:
        return False


class _Sight(NamedTuple):
    version: tuple[int, State, int]
    since: int
    bare: bool


class LeaseWatch:
    """Which versions this process has seen, and since when. Shared by all threads and loops."""

    def __init__(self, clock: ServiceClock | GivenClock, skew: float) -> None:
        self.clock = clock
        self.skew = round(skew * 1000)
        self._sights: dict[bytes, _Sight] = {}
        self._lock = RenewedLock()

    def judged(self, found: Versioned, now: int) -> Row:
        """The row, with the end of its lease as this process may conclude it."""
        row = found.row
        if row.state is not State.IN_PROGRESS:
            return row
        watched = self.saw(found) + found.lease - self.clock.steady()
        first_sight = row.lease_until + self.skew - now
        return replace(row, lease_until=now + min(watched, first_sight))

    def saw(self, found: Versioned) -> int:
        """Note that this version is there; returns since when that is known."""
        id_, version = found.row.id, found.version
        with self._lock.now:
            known = self._sights.get(id_)
            if known is not None and known.version == version:
                return known.since
            if known is None and len(self._sights) >= MOST:
                del self._sights[next(iter(self._sights))]
            since = self.clock.steady()
            bare = not found.row.error and found.lease == granted(found.row)
            self._sights[id_] = _Sight(version, since, bare)
            return since

    def is_bare(self, id_: bytes, fence: int) -> bool:
        """Whether the claim with this fence is known to have neither the error of an earlier one nor a renewal."""
        known = self._sights.get(id_)
        return known is not None and known.bare and known.version[0] == fence

    def forget(self, id_: bytes) -> None:
        """The record is another version now."""
        with self._lock.now:
            self._sights.pop(id_, None)
