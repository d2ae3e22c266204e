"""Workload: what a plan is made for. You estimate the numbers, or measure them in your store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .._values.quantities import Rate, Share, Size, per_second, share, size
from .._values.settings import Duration, expect, seconds, suggesting
from ._delays import Delays
from ._published import KEY_BYTES, RESULT_BYTES

__all__ = ["DAY", "MONTH", "YEAR", "Workload"]

DAY: Final = 86400.0
YEAR: Final = 365.25 * DAY
MONTH: Final = YEAR / 12


@suggesting("workload setting")
@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How many deliveries come, how many of them are duplicates, how late, and how much is kept of each."""

    rate: Rate
    """Deliveries per second, first ones and duplicates: a number, or text like "500/s"."""
    duplicates: Share
    """The share of deliveries that are duplicates: 0.02, or "2%"."""
    delays: Delays
    """How long after the first answer a duplicate comes."""
    result: Size = RESULT_BYTES
    """Bytes of a stored result; the default is that of the benchmark."""
    key: Size = KEY_BYTES
    """Bytes of a key's value and scope; the default is that of the benchmark."""
    sweep_every: Duration = 300.0
    """How long an expired record stays, at most, until a sweep removes it."""

    def __post_init__(self) -> None:
        for name, read in (
            ("rate", per_second), ("duplicates", share), ("result", size), ("key", size),
            ("sweep_every", seconds),
        ):  # fmt: skip
            object.__setattr__(self, name, read(getattr(self, name), name))
        expect(self.deliveries > 0, "rate", self.rate, "use more than 0, like '500/s'")
        expect(self.duplicate_share < 1, "duplicates", self.duplicates, "not every delivery is one")
        expect(seconds(self.sweep_every) >= 0, "sweep_every", self.sweep_every, "use 0 or more")

    @property
    def deliveries(self) -> float:
        """Per second."""
        return float(self.rate)

    @property
    def duplicate_share(self) -> float:
        return float(self.duplicates)

    @property
    def duplicates_per_second(self) -> float:
        return self.deliveries * self.duplicate_share

    def late_per_second(self, window: float) -> float:
        """Duplicates that come after the window and run again."""
        return self.duplicates_per_second * self.delays.outside(window)

    @property
    def new_keys(self) -> float:
        """First deliveries per second: each makes a record."""
        return self.deliveries - self.duplicates_per_second
