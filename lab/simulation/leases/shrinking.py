"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..shrinking import evened, fewer, simpler, timeline, troubles
from .plan import Behaviour, Delivery, Plan

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    yield from fewer(plan, "deliveries", "incidents", "renewals")
    yield from simpler(plan, "deliveries", _simpler)
    yield from evened(plan)
    if any(rate != 1.0 for rate in plan.rates):
        yield replace(plan, rates=(1.0,) * len(plan.rates))
    used = max([1, *(key + 1 for delivery in plan.deliveries for key in delivery.keys)])
    if used < plan.keys:
        yield replace(plan, keys=used)


def _simpler(delivery: Delivery) -> Iterator[Delivery]:
    yield from fewer(delivery, "faults", "cancelled")
    if len(delivery.keys) > 1:
        for index in range(len(delivery.keys)):
            keys = (*delivery.keys[:index], *delivery.keys[index + 1 :])
            handlers = (*delivery.handlers[:index], *delivery.handlers[index + 1 :])
            yield replace(delivery, keys=keys, handlers=handlers)
    if delivery.fingerprint:
        yield replace(delivery, fingerprint=0)
    yield from simpler(
        delivery,
        "handlers",
        lambda how: (Behaviour(), replace(how, end="return"), replace(how, careful=False)),
    )


def written(plan: Plan) -> list[str]:
    """A plan for a reader."""
    kinds = ["event loop" if loop else "threads" for loop in plan.loops]
    lines = [f"seed {plan.seed}: {', '.join(f'p{i} {kind}' for i, kind in enumerate(kinds))}"]
    things: list[tuple[float, str]] = []
    for one in plan.deliveries:
        what = f"p{one.process} gets key {', '.join(map(str, one.keys))}"
        handlers = "; ".join(f"{h.end} after {h.seconds:g} s" for h in one.handlers)
        things.append((one.at, f"{what}; its handler: {handlers}{troubles(one, 'message')}"))
    lines += timeline(plan, things)
    lines += [f"  renewal {f.nth}: {f.kind} {f.seconds:g} s" for f in plan.renewals]
    return lines
