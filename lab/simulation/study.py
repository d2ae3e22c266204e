"""A study: a part of the shipped core that is simulated, with all that a campaign must know of it.

The seed makes the plan, which is plain data; the plan alone makes the run. So a seed replays bit for
bit, and a failing plan is made small by leaving things out of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from .violations import Rules, Violation

__all__ = ["Ran", "Say", "Study"]

Say = Callable[[str], None]


class Ran(Protocol):
    """What is left of a run."""

    events: int
    seen: Counter[Any]
    """(kind, what…) → how often it was met."""


class Study(msgspec.Struct, frozen=True):
    name: str
    about: str
    """For the report: what is simulated, and what of it is the shipped code."""
    rules: Rules
    draw: Callable[[int], Any]
    run: Callable[[Any, Say | None], tuple[Ran, Violation | None]]
    smaller: Callable[[Any], Iterator[Any]]
    """Plans with less in them, the boldest cuts first."""
    written: Callable[[Any], list[str]]
    """A plan for a reader."""
    wanted: tuple[str, ...]
    """What many schedules must have met, as `campaign` counts it: ``"fault: reply lost"``."""
    met: dict[str, str]
    """The kinds of what was met that the report shows, each with its title."""
    ways: dict[str, Callable[[Any], Any]] = {}
    """Other ways on which a plan can run: a mutant must be found on each of them too."""
    share: int = 1
    """It gets one of so many schedules: where one takes longer."""
