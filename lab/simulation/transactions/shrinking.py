"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..shrinking import cuts
from .plan import Behaviour, Delivery, Plan
from .terms import CONSUMERS

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    for field in ("deliveries", "incidents", "notes"):
        for kept in cuts(getattr(plan, field)):
            yield replace(plan, **{field: kept})
    for index, delivery in enumerate(plan.deliveries):
        for simpler in _simpler(delivery):
            rest = (*plan.deliveries[:index], simpler, *plan.deliveries[index + 1 :])
            yield replace(plan, deliveries=rest)
    even = (0.001,) * len(plan.latencies)
    if plan.latencies != even:
        yield replace(plan, latencies=even)


def _simpler(delivery: Delivery) -> Iterator[Delivery]:
    for kept in cuts(delivery.faults):
        yield replace(delivery, faults=kept)
    for fewer in cuts(delivery.handlers):
        if fewer:
            yield replace(delivery, handlers=fewer)
    if delivery.cancelled:
        yield replace(delivery, cancelled=0.0)
    if delivery.fingerprint:
        yield replace(delivery, fingerprint=0)
    if delivery.accepts:
        yield replace(delivery, accepts=False)
    for index, handler in enumerate(delivery.handlers):
        for simple in (Behaviour(), replace(handler, end="return"), replace(handler, seconds=0.01)):
            if simple != handler:
                rest = (*delivery.handlers[:index], simple, *delivery.handlers[index + 1 :])
                yield replace(delivery, handlers=rest)


def written(plan: Plan) -> list[str]:
    """A plan for a reader."""
    kinds = ["event loop" if loop else "threads" for loop in plan.loops]
    lines = [f"seed {plan.seed}: {', '.join(f'w{i} {kind}' for i, kind in enumerate(kinds))}"]
    things: list[tuple[float, str]] = []
    for one in plan.deliveries:
        what = f"w{one.worker} gets m-{one.message} for {CONSUMERS[one.consumer]}"
        handlers = "; ".join(f"{how.end} after {how.seconds:g} s" for how in one.handlers)
        how = "accepts it" if one.accepts else "its handler"
        things.append((one.at, f"{what}; {how}: {handlers}{_troubles(one)}"))
    things += [(one.at, f"{one.kind} {one.target} {one.seconds:g} s") for one in plan.incidents]
    lines += [f"  {at:.3f} s  {text}" for at, text in sorted(things)]
    lines += [f"  statement {f.nth} of notes: {f.kind} {f.seconds:g} s" for f in plan.notes]
    return lines


def _troubles(delivery: Delivery) -> str:
    found = [
        f"statement {fault.nth}: {fault.kind} {fault.seconds:g} s" for fault in delivery.faults
    ]
    if delivery.cancelled:
        found.append(f"cancelled after {delivery.cancelled:g} s")
    return "".join(f"; {one}" for one in found)
