"""Plan: one value with all answers, for the command line, the documentation and your own code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .._values.quantities import Share, share
from .._values.settings import Duration, expect, seconds
from ..errors import ConfigurationError
from ._collisions import Collision, collisions
from ._costs import Cost, Prices, Return, best_window, cost, return_on
from ._delays import ObservedDelays
from ._storage import STORES, Storage, storage, store_of
from ._workload import DAY, YEAR, Workload

__all__ = ["Plan", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answers for one workload and one window."""

    workload: Workload
    store: str
    window: float
    """Seconds that completed records are kept: the policy's ``retention``."""
    outside: float
    """The probability that a duplicate comes after the window."""
    outside_at_most: float | None
    """With observed delays: its upper bound with 95 % confidence."""
    risk: float
    """The target: the share of duplicates that may come after the window."""
    window_for_risk: float
    """The shortest window that reaches the target; infinite: none does."""
    storage: tuple[Storage, ...]
    """Per store."""
    collisions: tuple[Collision, ...]
    prices: Prices | None
    cost: Cost | None
    """Of this window, per month."""
    best: Cost | None
    """Of the window that costs least."""
    returns: Return | None

    @property
    def late_per_day(self) -> float:
        """Duplicates that run again, per day."""
        return self.workload.late_per_second(self.window) * DAY

    @property
    def late_per_year(self) -> float:
        return self.workload.late_per_second(self.window) * YEAR

    @property
    def chosen(self) -> Storage:
        """The storage of the chosen store."""
        return next(each for each in self.storage if each.store == self.store)

    def data(self) -> dict[str, Any]:
        """As plain data, for JSON. What is infinite is None."""
        load, returns = self.workload, self.returns
        document = {
            "store": self.store,
            "window": self.window,
            "duplicates": {
                "per_second": load.duplicates_per_second,
                "outside_window": self.outside,
                "outside_window_at_most": self.outside_at_most,
                "late_per_day": self.late_per_day,
                "late_per_year": self.late_per_year,
            },
            "target": {"risk": self.risk, "window": self.window_for_risk},
            "storage": [asdict(each) for each in self.storage],
            "cost": None if self.cost is None else _cost_data(self.cost),
            "best": None if self.best is None else _cost_data(self.best),
            "returns": None
            if returns is None
            else {**asdict(returns), "saved": returns.saved, "ratio": returns.ratio},
            "collisions": [asdict(each) for each in self.collisions],
        }
        made: dict[str, Any] = _finite(document)
        return made


def plan(
    workload: Workload,
    *,
    store: str,
    window: Duration | None = None,
    risk: Share = 1e-6,
    prices: Prices | None = None,
) -> Plan:
    """All answers for a workload. ``window``: default is the shortest one that reaches ``risk``."""
    target = share(risk, "risk")
    name, needed = store_of(store), workload.delays.window(target)
    if window is None and not math.isfinite(needed):
        raise ConfigurationError(
            f"risk={target:g} is not reached by any window with these delays: give a window like '7d', "
            "or a larger risk like '0.1%'"
        )
    chosen = needed if window is None else seconds(window, "window")
    expect(chosen >= 0, "window", window, "use 0 or more seconds, or text like '7d'")
    delays = workload.delays
    return Plan(
        workload=workload,
        store=name,
        window=chosen,
        outside=delays.outside(chosen),
        outside_at_most=delays.at_most(chosen) if isinstance(delays, ObservedDelays) else None,
        risk=target,
        window_for_risk=needed,
        storage=tuple(storage(workload, each, chosen) for each in STORES),
        collisions=collisions(workload.new_keys, chosen),
        prices=prices,
        cost=None if prices is None else cost(workload, name, prices, chosen),
        best=None if prices is None else best_window(workload, name, prices),
        returns=None if prices is None else return_on(workload, name, prices, chosen),
    )


def _cost_data(found: Cost) -> dict[str, float]:
    return {**asdict(found), "total": found.total}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
