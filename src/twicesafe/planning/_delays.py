"""Delays: how long after the first answer a duplicate comes, as a distribution.

Each distribution answers two questions, and they are inverse to each other:

    delays.outside(window)    the share of duplicates that come later than the window: they run again
    delays.window(risk)       the shortest window that at most this share of duplicates misses

`window` of a random number from 0 to 1 is therefore a random delay, which is how a stream of duplicates
is simulated. ``knots`` are the windows at which the curve bends. Between two of them it is convex, so that
a minimum of costs can be found exactly. A delay counts from the completion of the first delivery, as the
retention does. A sender counts from its first attempt, which is earlier, so its horizon is on the safe side.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from .._values.quantities import Share, share
from .._values.settings import Duration, expect, seconds, suggesting
from ..errors import ConfigurationError

__all__ = [
    "BackoffDelays",
    "Delays",
    "ExponentialDelays",
    "MixedDelays",
    "ObservedDelays",
    "UniformDelays",
]

_Z95: Final = 1.6448536269514722
"""One-sided 95 % quantile of the normal distribution."""
_NEVER: Final = 1e13
"""Seconds: longer than any delay that can be given."""
_OVER: Final = 746.0
"""The exponential of its negative is 0, in the precision of a float."""


class Delays(Protocol):
    """What a plan needs to know about the ages of duplicates."""

    @property
    def knots(self) -> tuple[float, ...]:
        """Windows at which the curve bends, ascending; after the last one it is flat."""

    def outside(self, window: float) -> float:
        """The share of duplicates that come later than this many seconds."""

    def window(self, risk: float) -> float:
        """The shortest window that at most this share of duplicates misses; may be infinite."""


@suggesting("delay setting")
@dataclass(frozen=True, slots=True)
class UniformDelays:
    """Any delay up to ``within`` is equally likely: redrives by people, queues that were stopped."""

    within: Duration

    def __post_init__(self) -> None:
        _positive(self, "within")

    @property
    def knots(self) -> tuple[float, ...]:
        return (seconds(self.within),)

    def outside(self, window: float) -> float:
        return _clipped(1 - window / seconds(self.within))

    def window(self, risk: float) -> float:
        return seconds(self.within) * (1 - _risk(risk))


@suggesting("delay setting")
@dataclass(frozen=True, slots=True)
class BackoffDelays:
    """Retries with exponential back-off, from ``first`` until the sender gives up after ``within``.

    Such a sender makes equally many retries in each doubling of the delay, so the logarithm of the
    delay is uniform. Every retry counts alike, although the later ones happen only if all before
    failed: the tail is longer than in practice, which is the safe side.
    """

    within: Duration
    first: Duration = 1.0

    def __post_init__(self) -> None:
        _positive(self, "within")
        _positive(self, "first")
        expect(
            seconds(self.first) < seconds(self.within),
            "within", self.within, f"it must be longer than first={self.first:g}",
        )  # fmt: skip

    @property
    def knots(self) -> tuple[float, ...]:
        return (seconds(self.first), seconds(self.within))

    def outside(self, window: float) -> float:
        first, within = self.knots
        if window <= first:
            return 1.0
        return _clipped(math.log(within / window) / math.log(within / first))

    def window(self, risk: float) -> float:
        first, within = self.knots
        return float(within * (first / within) ** _risk(risk))


@suggesting("delay setting")
@dataclass(frozen=True, slots=True)
class ExponentialDelays:
    """A mean delay without a longest one: a duplicate is as likely in the next hour, however late it is."""

    mean: Duration

    def __post_init__(self) -> None:
        _positive(self, "mean")

    @property
    def knots(self) -> tuple[float, ...]:
        return (_OVER * seconds(self.mean),)

    def outside(self, window: float) -> float:
        return math.exp(-max(window, 0.0) / seconds(self.mean))

    def window(self, risk: float) -> float:
        return -seconds(self.mean) * math.log(risk) if _risk(risk) else math.inf


@dataclass(frozen=True, slots=True, init=False)
class ObservedDelays:
    """Measured ages of duplicates, and how many more came ``late``: after all of these, age unknown.

    A receiver sees the age of a duplicate only within its window. What came later ran as new work, and
    counts as late if the old record was still there.
    """

    ages: tuple[float, ...]
    late: int

    def __init__(self, ages: Iterable[Duration], late: int = 0) -> None:
        found = tuple(sorted(seconds(age, "age") for age in ages))
        expect(not found or found[0] >= 0, "age", found[:1], "an age is 0 or more seconds")
        expect(late >= 0, "late", late, "use 0 or more")
        if not found and not late:
            raise ConfigurationError("there are no ages: observe at least one duplicate")
        object.__setattr__(self, "ages", found)
        object.__setattr__(self, "late", late)

    @property
    def total(self) -> int:
        """How many duplicates were seen."""
        return len(self.ages) + self.late

    @property
    def knots(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys(self.ages))

    def outside(self, window: float) -> float:
        return (self.total - bisect.bisect_right(self.ages, window)) / self.total

    def window(self, risk: float) -> float:
        missed = math.floor(_risk(risk) * self.total + 1e-9)
        if missed < self.late:
            return math.inf
        kept = self.total - missed
        return self.ages[kept - 1] if kept else 0.0

    def at_most(self, window: float) -> float:
        """The share outside the window, at most, with 95 % confidence (Wilson's score interval)."""
        n, p, z2 = self.total, self.outside(window), _Z95 * _Z95
        margin = _Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        return max(p, _clipped((p + z2 / (2 * n) + margin) / (1 + z2 / n)))


@dataclass(frozen=True, slots=True, init=False)
class MixedDelays:
    """Several kinds of duplicates, each with its share: ``MixedDelays((0.99, retries), (0.01, redrives))``."""

    parts: tuple[tuple[float, Delays], ...]

    def __init__(self, *parts: tuple[Share, Delays]) -> None:
        found = tuple((share(weight, "share"), delays) for weight, delays in parts)
        total = math.fsum(weight for weight, _ in found)
        expect(abs(total - 1) < 1e-9, "shares", total, "the shares must add up to 1")
        object.__setattr__(self, "parts", found)

    @property
    def knots(self) -> tuple[float, ...]:
        return tuple(sorted({knot for _, delays in self.parts for knot in delays.knots}))

    def outside(self, window: float) -> float:
        return _clipped(math.fsum(weight * d.outside(window) for weight, d in self.parts))

    def window(self, risk: float) -> float:
        """By bisection: a mixture has no closed form."""
        if self.outside(0.0) <= _risk(risk):
            return 0.0
        low, high = 0.0, 1.0
        while self.outside(high) > risk:
            low, high = high, high * 2
            if high > _NEVER:
                return math.inf
        while low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if self.outside(middle) <= risk else (middle, high)
        return high


def _positive(delays: object, name: str) -> None:
    found = seconds(getattr(delays, name), name)
    expect(found > 0, name, getattr(delays, name), "use more than 0 seconds")
    object.__setattr__(delays, name, found)


def _risk(risk: float) -> float:
    expect(0 <= risk <= 1, "risk", risk, "use a share from 0 to 1")
    return risk


def _clipped(probability: float) -> float:
    return min(max(probability, 0.0), 1.0)
