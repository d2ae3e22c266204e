"""Many measured values in a few numbers: median and quartiles, the median's interval, the tail."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """The median of what was seen, and its middle half."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)


@dataclass(frozen=True)
class Tail:
    """What single calls took. A percentile that rests on fewer than two calls above it is left out."""

    calls: int
    p50: float
    p99: float | None
    p999: float | None

    @classmethod
    def of(cls, times: Sequence[float]) -> Tail | None:
        if not times:
            return None
        ordered = sorted(times)

        def at(share: float) -> float | None:
            above = (1 - share) * len(ordered)
            return ordered[int(len(ordered) * share)] if above >= 2 else None

        return cls(len(ordered), statistics.median(ordered), at(0.99), at(0.999))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the true median lies with 95 % confidence, whatever the distribution: by order alone.

    Each value is above the true median as often as below, so the count of those below is binomial.
    Fewer than six values allow no such statement; then it is everything between the least and the greatest.
    """
    ordered, count = sorted(values), len(values)
    outside, skipped = 0.0, 0
    while True:
        outside += math.comb(count, skipped) / 2**count
        if outside > (1 - CONFIDENCE) / 2:
            break
        skipped += 1
    first = max(skipped - 1, 0)
    return ordered[first], ordered[count - 1 - first]
