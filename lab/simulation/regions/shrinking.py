"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..shrinking import fewer
from .plan import REGIONS, Plan

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    yield from fewer(plan, "deliveries", "incidents", "faults", "passes")
    if any(rate != 1.0 for rate in plan.rates):
        yield replace(plan, rates=(1.0,) * len(plan.rates))
    if any(plan.offsets):
        yield replace(plan, offsets=(0,) * len(plan.offsets))


def written(plan: Plan) -> list[str]:
    things = [
        (
            one.at,
            f"key {one.key} to w{one.worker} ({REGIONS[one.worker % 2]}), {one.seconds:g} s{', fails' * one.fails}",
        )
        for one in plan.deliveries
    ]
    things += [(at, f"a pass{' back' * back} of the follower") for at, back in plan.passes]
    things += [(one.at, f"{one.kind} {one.target}, {one.seconds:g} s") for one in plan.incidents]
    lines = [
        f"seed {plan.seed}: unknown keys: {plan.unknown}; time limit {plan.time_limit:g} s{', fences that are times: ' * any(plan.timed)}"
        + " ".join(name for name, timed in zip(REGIONS, plan.timed, strict=True) if timed),
        f"clocks {plan.rates}, {plan.offsets}",
    ]
    lines += [f"  {at:7.3f} {what}" for at, what in sorted(things)]
    return [*lines, *(f"  request {f.nth}: {f.kind} {f.seconds:g} s" for f in plan.faults)]
