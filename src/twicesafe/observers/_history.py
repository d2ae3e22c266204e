"""Numbers over time: what was counted, and what the counts were some minutes and an hour ago.

recent()     the last minutes, in numbers that health is judged by
course()     deliveries by outcome over the last hour or longer, one slice after the other
ages()       duplicates by age, as a share of the window, since the start
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from .._core.health import Recent
from .._forking import RenewedLock
from .._values.clocks import WorkerClock
from ._metric_table import metric
from ._tally import Cell

__all__ = [
    "APART",
    "LATELY",
    "SEEN",
    "SLICE",
    "Ages",
    "MetricHistory",
    "Numbers",
    "Slice",
    "ages_of",
]

LATELY: Final = 300.0
"""Seconds that count as lately, if the numbers are asked for that often."""
APART: Final = 10.0
"""Seconds between two snapshots that are kept."""
SLICE: Final = 30.0
"""Seconds of a slice of the course, at least."""
SLICES: Final = 120
"""Slices that are kept: an hour of a busy receiver."""

SEEN: Final = tuple(
    metric(name)
    for name in (
        *("deliveries_total", "conflicts_total", "reruns_total", "store_seconds"),
        "duplicate_age_window_ratio",
    )
)
"""The metrics that it needs."""
_DUPLICATES: Final = ("replayed", "in_progress", "mismatch", "held", "parked", "not_kept")

Numbers: TypeAlias = dict[tuple[str, ...], Cell]
"""By the name of a metric and the value of its label."""


class Slice(NamedTuple):
    """Deliveries by outcome in one part of the last hour."""

    ago: float
    """Seconds from its begin until now."""
    seconds: float
    outcomes: dict[str, int]


class Ages(NamedTuple):
    """Duplicates by age, as a share of the window."""

    bounds: tuple[float, ...]
    """Upper bounds of the shares."""
    counts: list[int]
    """Duplicates up to each bound, and above the last."""
    late: int
    """Those that came after the window, and ran again."""


class MetricHistory:
    """``numbers``: what was counted since it began."""

    def __init__(self, numbers: Callable[[], Numbers], clock: WorkerClock) -> None:
        self._numbers, self._clock = numbers, clock
        self._lock = RenewedLock()
        began = clock()
        self._snapshots: deque[tuple[float, Numbers]] = deque([(began, {})])
        self._course: deque[tuple[float, dict[str, int]]] = deque([(began, {})], SLICES + 1)

    def look(self) -> None:
        """Take a snapshot, if the last one is old enough."""
        now = self._clock()
        if now - self._snapshots[-1][0] < APART:
            return
        numbers = self._numbers()
        with self._lock.now:
            self._keep(now, numbers)

    def _keep(self, now: float, numbers: Numbers) -> None:
        if now - self._course[-1][0] >= SLICE:
            self._course.append((now, _outcomes(numbers)))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= now - LATELY:
            self._snapshots.popleft()
        if now - self._snapshots[-1][0] >= APART:
            self._snapshots.append((now, numbers))

    def recent(self) -> Recent:
        now, numbers = self._clock(), self._numbers()
        with self._lock.now:
            while len(self._snapshots) > 1 and self._snapshots[1][0] <= now - LATELY:
                self._snapshots.popleft()
            began, before = self._snapshots[0]
            self._keep(now, numbers)
        since = {name: _minus(cell, before.get(name)) for name, cell in numbers.items()}
        count = _Counts(since)
        ages = count.sum_of("duplicate_age_window_ratio")
        return Recent(
            seconds=now - began,
            deliveries=count.of("deliveries_total"),
            duplicates=count.of("deliveries_total", _DUPLICATES),
            conflicts=count.of("conflicts_total"),
            unprotected=count.of("deliveries_total", ("unprotected",)),
            too_late=count.of("reruns_total", ("retention_expired",)),
            oldest_share=_highest(ages, metric("duplicate_age_window_ratio").buckets),
            store_p99=_percentile(count.sum_of("store_seconds"), metric("store_seconds").buckets),
        )

    def course(self) -> list[Slice]:
        """The last hour or longer, the oldest slice first; the last one may be short."""
        now, numbers = self._clock(), self._numbers()
        with self._lock.now:
            self._keep(now, numbers)
            points = list(self._course)
        outcomes = _outcomes(numbers)
        if now > points[-1][0] and outcomes != points[-1][1]:
            points.append((now, outcomes))
        return [
            Slice(now - began, ended - began, _more(before, after))
            for (began, before), (ended, after) in pairwise(points)
        ]

    def ages(self) -> Ages:
        """The age of duplicates since the start."""
        return ages_of(self._numbers())


def ages_of(numbers: Numbers) -> Ages:
    row = metric("duplicate_age_window_ratio")
    count = _Counts(numbers)
    cell = count.sum_of(row.name) or [0.0] * (len(row.buckets) + 2)
    late = count.of("reruns_total", ("retention_expired",))
    return Ages(row.buckets, [round(number) for number in cell[:-1]], late)


def _outcomes(numbers: Numbers) -> dict[str, int]:
    return {
        values[0]: round(cell[0])
        for (name, *values), cell in numbers.items()
        if name == "deliveries_total"
    }


class _Counts:
    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def of(self, name: str, values: Iterable[str] = ()) -> int:
        """The sum of a counter, over all values of its label or over these."""
        found = [
            cell[0]
            for (metric_name, *labels), cell in self._numbers.items()
            if metric_name == name and (not values or labels[0] in values)
        ]
        return round(sum(found))

    def sum_of(self, name: str) -> Cell:
        """A histogram, over all values of its label."""
        cells = [cell for (found, *_), cell in self._numbers.items() if found == name]
        return [sum(column) for column in zip(*cells, strict=True)]


def _more(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    grown = {outcome: count - before.get(outcome, 0) for outcome, count in after.items()}
    return {outcome: count for outcome, count in grown.items() if count}


def _minus(cell: Cell, before: Cell | None) -> Cell:
    return cell if before is None else [a - b for a, b in zip(cell, before, strict=True)]


def _highest(cell: Cell, bounds: tuple[float, ...]) -> float:
    """The upper bound of the highest bucket that is not empty; 0: all are."""
    found = [bound for bound, count in zip((*bounds, bounds[-1]), cell, strict=False) if count > 0]
    return found[-1] if found else 0.0


def _percentile(cell: Cell, bounds: tuple[float, ...], share: float = 0.99) -> float | None:
    """The upper bound of the bucket in which this share is reached."""
    total = sum(cell[:-1])
    if not total:
        return None
    seen = 0.0
    for bound, count in zip(bounds, cell, strict=False):
        seen += count
        if seen >= share * total:
            return bound
    return bounds[-1]
