"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..shrinking import evened, fewer, simpler, timeline, troubles
from .plan import Behaviour, Delivery, Plan
from .policies import CONSUMERS

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    yield from fewer(plan, "deliveries", "incidents", "notes")
    yield from simpler(plan, "deliveries", _simpler)
    yield from evened(plan)


def _simpler(delivery: Delivery) -> Iterator[Delivery]:
    yield from fewer(delivery, "faults", "cancelled")
    yield from (one for one in fewer(delivery, "handlers") if one.handlers)
    if delivery.fingerprint:
        yield replace(delivery, fingerprint=0)
    if delivery.accepts:
        yield replace(delivery, accepts=False)
    yield from simpler(
        delivery,
        "handlers",
        lambda how: (Behaviour(), replace(how, end="return"), replace(how, seconds=0.01)),
    )


def written(plan: Plan) -> list[str]:
    """A plan for a reader."""
    kinds = ["event loop" if loop else "threads" for loop in plan.loops]
    lines = [f"seed {plan.seed}: {', '.join(f'w{i} {kind}' for i, kind in enumerate(kinds))}"]
    things: list[tuple[float, str]] = []
    for one in plan.deliveries:
        what = f"w{one.worker} gets m-{one.message} for {CONSUMERS[one.consumer]}"
        handlers = "; ".join(f"{how.end} after {how.seconds:g} s" for how in one.handlers)
        how = "accepts it" if one.accepts else "its handler"
        things.append((one.at, f"{what}; {how}: {handlers}{troubles(one, 'statement')}"))
    lines += timeline(plan, things)
    lines += [f"  statement {f.nth} of notes: {f.kind} {f.seconds:g} s" for f in plan.notes]
    return lines
