"""Shrinking: leave out of a failing plan whatever its failure does not need.

A plan is data, so this is plain: leave out halves, then quarters, then single things, as long as
the same invariant breaks; then make what is left simpler. The result is a plan of a few lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from .study import Study

__all__ = ["cuts", "shrink"]

T = TypeVar("T")

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
