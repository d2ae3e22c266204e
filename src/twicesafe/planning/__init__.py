"""Planning: how long to keep records, what they take and cost, before you deploy and after.

    from twicesafe import planning

    workload = planning.Workload(
        rate="500/s", duplicates="2%", delays=planning.BackoffDelays(within="3d")
    )
    found = planning.plan(workload, store="postgresql", window="1d")
    found.outside             the probability that a duplicate comes after the window, and runs again
    found.window_for_risk     the window that a target risk needs
    found.chosen.bytes        what the store holds

Everything here is a pure function of frozen values, except `measure`, which reads the newest records of a
store. The documentation has the formulas and their sources (docs/explanation/planning.md);
``twicesafe plan`` shows the same numbers.

    _workload     what a plan is made for; `_delays`: how late duplicates come
    _plan         all answers in one value
    _storage      records and bytes; `_published`: sizes that the benchmark measured
    _costs        what a window costs; `_collisions`: how likely two keys are equal
    _measuring    a workload, measured in a store and by an observer
    _charts       risk and cost as SVG
"""

from __future__ import annotations

from ._charts import svg
from ._collisions import Collision, collision_probability, collisions
from ._costs import Cost, Prices, Return, best_window, cost, cost_curve, return_on
from ._delays import (
    BackoffDelays,
    Delays,
    ExponentialDelays,
    MixedDelays,
    ObservedDelays,
    UniformDelays,
)
from ._measuring import DuplicateSample, Measured, measure, measured_from
from ._plan import Plan, plan
from ._storage import STORES, Storage, bytes_per_key, records, storage
from ._workload import Workload

__all__ = [
    "STORES",
    "BackoffDelays",
    "Collision",
    "Cost",
    "Delays",
    "DuplicateSample",
    "ExponentialDelays",
    "Measured",
    "MixedDelays",
    "ObservedDelays",
    "Plan",
    "Prices",
    "Return",
    "Storage",
    "UniformDelays",
    "Workload",
    "best_window",
    "bytes_per_key",
    "collision_probability",
    "collisions",
    "cost",
    "cost_curve",
    "measure",
    "measured_from",
    "plan",
    "records",
    "return_on",
    "storage",
    "svg",
]
