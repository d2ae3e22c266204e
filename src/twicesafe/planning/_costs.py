"""Costs: what a window costs, which window costs least, and what the protection returns.

    cost(window) = fixed + bytes(window) × storage price + late duplicates(window) × price of a duplicate

A longer window needs more storage and lets fewer duplicates through. Between two knots of the delays the
cost is convex, so the least cost of each part is found by golden-section search, and the best part wins.
All amounts are per month, in the currency of the prices. There is no price list here: you give the prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .._values.settings import expect, suggesting
from ._storage import storage
from ._workload import MONTH, Workload

__all__ = ["Cost", "Prices", "Return", "best_window", "cost", "cost_curve", "return_on"]

GIGABYTE: Final = 1e9
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_STEPS: Final = 80
"""Each step keeps 62 % of the interval: enough for the precision of a float."""


@suggesting("price")
@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What you pay. A duplicate's price is what one effect that happens twice costs you on average."""

    duplicate: float
    """One effect that happens twice: the refund, the support call, the lost customer."""
    storage: float
    """One gigabyte (10⁹ bytes) for a month; of memory, for Redis and the memory store."""
    fixed: float = 0.0
    """Per month, the same for every window: the server, its operation."""

    def __post_init__(self) -> None:
        for name in ("duplicate", "storage", "fixed"):
            value: object = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            expect(
                number and math.isfinite(value) and value >= 0,  # type: ignore[arg-type,operator]
                name, value, "use an amount of 0 or more, as a number like 0.25",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one window costs in a month."""

    window: float
    storage: float
    fixed: float
    late_duplicates: float

    @property
    def total(self) -> float:
        return self.storage + self.fixed + self.late_duplicates


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The protection against its absence, in a month."""

    unprotected: float
    """Every duplicate has its effect."""
    protected: float
    """Storage, the fixed price, and the duplicates that come after the window."""

    @property
    def saved(self) -> float:
        return self.unprotected - self.protected

    @property
    def ratio(self) -> float:
        """What each unit of money that the protection costs saves; infinite if it costs nothing."""
        if not self.protected:
            return math.inf if self.unprotected else 0.0
        return self.saved / self.protected


def cost(workload: Workload, store: str, prices: Prices, window: float) -> Cost:
    held = storage(workload, store, window)
    late = workload.late_per_second(window) * MONTH
    return Cost(
        window=window,
        storage=held.bytes / GIGABYTE * prices.storage,
        fixed=prices.fixed,
        late_duplicates=late * prices.duplicate,
    )


def cost_curve(
    workload: Workload, store: str, prices: Prices, windows: Iterable[float]
) -> tuple[Cost, ...]:
    return tuple(cost(workload, store, prices, window) for window in windows)


def best_window(workload: Workload, store: str, prices: Prices) -> Cost:
    """The window that costs least."""

    def total(window: float) -> float:
        return cost(workload, store, prices, window).total

    edges = sorted({0.0, *workload.delays.knots})
    found = [_least(total, low, high) for low, high in pairwise(edges)]
    return cost(workload, store, prices, min([*edges, *found], key=total))


def return_on(workload: Workload, store: str, prices: Prices, window: float) -> Return:
    every = workload.duplicates_per_second * MONTH * prices.duplicate
    return Return(unprotected=every, protected=cost(workload, store, prices, window).total)


def _least(total: Callable[[float], float], low: float, high: float) -> float:
    """The least cost of a convex part."""
    start = low
    if total(low + (high - low) * 1e-6) >= total(low):
        return start  # convex, and it rises from the start
    for _ in range(_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if total(left) <= total(right):
            high = right
        else:
            low = left
    return (low + high) / 2
