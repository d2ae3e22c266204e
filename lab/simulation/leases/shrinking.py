"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ..shrinking import cuts
from .plan import Behaviour, Delivery, Plan

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    for field in ("deliveries", "incidents", "renewals"):
        for kept in cuts(getattr(plan, field)):
            yield replace(plan, **{field: kept})
    for index, delivery in enumerate(plan.deliveries):
        for simpler in _simpler(delivery):
            rest = (*plan.deliveries[:index], simpler, *plan.deliveries[index + 1 :])
            yield replace(plan, deliveries=rest)
    even = (0.001,) * len(plan.latencies)
    if plan.latencies != even:
        yield replace(plan, latencies=even)
    if any(rate != 1.0 for rate in plan.rates):
        yield replace(plan, rates=(1.0,) * len(plan.rates))
    used = max([1, *(key + 1 for delivery in plan.deliveries for key in delivery.keys)])
    if used < plan.keys:
        yield replace(plan, keys=used)


def _simpler(delivery: Delivery) -> Iterator[Delivery]:
    for kept in cuts(delivery.faults):
        yield replace(delivery, faults=kept)
    if delivery.cancelled:
        yield replace(delivery, cancelled=0.0)
    if len(delivery.keys) > 1:
        for index in range(len(delivery.keys)):
            keys = (*delivery.keys[:index], *delivery.keys[index + 1 :])
            handlers = (*delivery.handlers[:index], *delivery.handlers[index + 1 :])
            yield replace(delivery, keys=keys, handlers=handlers)
    if delivery.fingerprint:
        yield replace(delivery, fingerprint=0)
    for index, handler in enumerate(delivery.handlers):
        for simple in (
            Behaviour(),
            replace(handler, end="return"),
            replace(handler, careful=False),
        ):
            if simple != handler:
                rest = (*delivery.handlers[:index], simple, *delivery.handlers[index + 1 :])
                yield replace(delivery, handlers=rest)


def written(plan: Plan) -> list[str]:
    """A plan for a reader."""
    kinds = ["event loop" if loop else "threads" for loop in plan.loops]
    lines = [f"seed {plan.seed}: {', '.join(f'p{i} {kind}' for i, kind in enumerate(kinds))}"]
    things: list[tuple[float, str]] = []
    for one in plan.deliveries:
        what = f"p{one.process} gets key {', '.join(map(str, one.keys))}"
        handlers = "; ".join(f"{h.end} after {h.seconds:g} s" for h in one.handlers)
        things.append((one.at, f"{what}; its handler: {handlers}{_troubles(one)}"))
    for incident in plan.incidents:
        text = f"{incident.kind} {incident.target} {incident.seconds:g} s"
        things.append((incident.at, text))
    lines += [f"  {at:.3f} s  {text}" for at, text in sorted(things)]
    lines += [f"  renewal {f.nth}: {f.kind} {f.seconds:g} s" for f in plan.renewals]
    return lines


def _troubles(delivery: Any) -> str:
    found = [f"message {fault.nth}: {fault.kind} {fault.seconds:g} s" for fault in delivery.faults]
    if delivery.cancelled:
        found.append(f"cancelled after {delivery.cancelled:g} s")
    return "".join(f"; {one}" for one in found)
