"""A campaign: many seeds on all cores, counted; and the hunt for mutants.

What was visited is counted as well: a transition, verdict, fault or cause that no schedule met
has not been tested, whatever the number of schedules, and fails the campaign.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from twicesafe.core.lifecycle import TRANSITIONS
from twicesafe.core.protocol import Verdict
from twicesafe.records import Cause

from .plan import FAULTS, INCIDENTS, draw
from .world import run

__all__ = ["Found", "Hunt", "Tally", "campaign", "cores", "hunt_all", "missing"]

CHUNK = 500
ENOUGH_FOUND = 20
"""Violations after which a campaign stops: there is something to repair first."""


class Found(msgspec.Struct):
    seed: int
    invariant: str
    how: str


class Tally(msgspec.Struct):
    """What a campaign did and saw."""

    first_seed: int
    schedules: int = 0
    events: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    seen: dict[str, int] = {}
    violations: list[Found] = []

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.cpu_seconds += other.cpu_seconds
        for what, count in other.seen.items():
            self.seen[what] = self.seen.get(what, 0) + count
        self.violations += other.violations


class Hunt(msgspec.Struct):
    """One mutant: the first schedule that showed it; None: it survived."""

    mutant: str
    bug: str
    schedule: int | None
    invariant: str = ""
    how: str = ""


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def campaign(
    first: int, schedules: int, jobs: int, progress: Callable[[Tally], None] | None = None
) -> Tally:
    """Run the seeds from `first` on; stop early when there is enough to repair."""
    began = time.monotonic()
    total = Tally(first)
    chunks = [
        (start, min(start + CHUNK, first + schedules))
        for start in range(first, first + schedules, CHUNK)
    ]
    with _workers(jobs, len(chunks)) as each:
        for part in each(_run_chunk, chunks):
            total.add(part)
            total.seconds = time.monotonic() - began
            if progress is not None:
                progress(total)
            if len(total.violations) >= ENOUGH_FOUND:
                break
    total.violations.sort(key=lambda found: found.seed)
    return total


def _run_chunk(bounds: tuple[int, int]) -> Tally:
    began = time.process_time()
    tally = Tally(bounds[0])
    seen: Counter[Any] = Counter()
    for seed in range(*bounds):
        world, violation = run(draw(seed))
        tally.schedules += 1
        tally.events += world.events
        seen.update(world.seen)
        if violation is not None:
            tally.violations.append(Found(seed, violation.name, violation.how))
    tally.seen = {": ".join(str(part) for part in what): count for what, count in seen.items()}
    tally.cpu_seconds = time.process_time() - began
    return tally


def missing(seen: dict[str, int]) -> list[str]:
    """What should have been met and was not."""
    wanted = [
        *(f"transition: {state}: {event}" for state, event in TRANSITIONS),
        *(f"verdict: {verdict.name.lower()}" for verdict in Verdict),
        *(f"fault: {kind}" for kind in FAULTS),
        *(f"incident: {kind}" for kind in (*INCIDENTS, "cancel")),
        # The simulated store loses nothing, so it never has to say that it did.
        *(f"cause: {cause}" for cause in (None, *Cause) if cause is not Cause.RECORD_LOST),
    ]
    return [what for what in wanted if not seen.get(what)]


def hunt_all(names: list[str], limit: int, jobs: int) -> Iterator[Hunt]:
    with _workers(jobs, len(names)) as each:
        yield from each(_hunt, [(name, limit) for name in names])


def _hunt(quarry: tuple[str, int]) -> Hunt:
    from ..mutants import MUTANTS, mutated

    name, limit = quarry
    bug = MUTANTS[name].bug
    with mutated(name):
        for seed in range(limit):
            _, violation = run(draw(seed))
            if violation is not None:
                return Hunt(name, bug, seed, violation.name, violation.how)
    return Hunt(name, bug, None)


@contextmanager
def _workers(jobs: int, tasks: int) -> Iterator[Callable[..., Iterator[Any]]]:
    if min(jobs, tasks) <= 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(min(jobs, tasks)) as pool:
        yield pool.imap
