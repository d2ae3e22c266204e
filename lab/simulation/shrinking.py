"""Shrinking: leave out of a failing plan whatever its failure does not need.

A plan is data, so this is plain: leave out halves, then quarters, then single things, as long as
the same invariant breaks; then make what is left simpler. The result is a plan of a few lines, and
the second half of this file writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from .study import Study

__all__ = ["cuts", "evened", "fewer", "shrink", "simpler", "timeline", "troubles"]

T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)
"""A plan of any study."""

MOST_RUNS = 4_000


def shrink(study: Study, plan: Any, invariant: str) -> Any:
    """The smallest plan found that still breaks this invariant."""
    runs = 0
    better = True
    while better and runs < MOST_RUNS:
        better = False
        for smaller in study.smaller(plan):
            runs += 1
            _, violation = study.run(smaller, None)
            if violation is not None and violation.name == invariant:
                plan, better = smaller, True
                break
            if runs >= MOST_RUNS:
                break
    return plan


def cuts(things: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Without its halves, then without its quarters, then without single things."""
    size = len(things)
    while size:
        for start in range(0, len(things), size):
            yield (*things[:start], *things[start + size :])
        size //= 2


def fewer(plan: P, *fields: str) -> Iterator[P]:
    """Without some of the things in these fields."""
    for field in fields:
        for kept in cuts(getattr(plan, field)):
            yield replace(plan, **{field: kept})


def simpler(plan: P, field: str, others: Callable[[Any], Iterable[Any]]) -> Iterator[P]:
    """With one thing of a field in another, simpler way."""
    things = getattr(plan, field)
    for index, thing in enumerate(things):
        for other in others(thing):
            if other != thing:
                yield replace(plan, **{field: (*things[:index], other, *things[index + 1 :])})


def evened(plan: Any) -> Iterator[Any]:
    """With every message equally long under way."""
    even = (0.001,) * len(plan.latencies)
    if plan.latencies != even:
        yield replace(plan, latencies=even)


# --- for a reader ----------------------------------------------------------------------------


def timeline(plan: Any, things: Iterable[tuple[float, str]]) -> list[str]:
    """These, and the plan's incidents, in the order in which they happen."""
    incidents = [(one.at, f"{one.kind} {one.target} {one.seconds:g} s") for one in plan.incidents]
    return [f"  {at:.3f} s  {text}" for at, text in sorted([*things, *incidents])]


def troubles(delivery: Any, word: str) -> str:
    """What goes wrong with a delivery; `word`: what of it is counted."""
    found = [f"{word} {fault.nth}: {fault.kind} {fault.seconds:g} s" for fault in delivery.faults]
    found += [f"cancelled after {seconds:g} s" for seconds in delivery.cancelled]
    return "".join(f"; {one}" for one in found)
