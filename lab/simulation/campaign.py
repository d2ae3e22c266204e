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

from .study import Study

__all__ = ["Found", "Hunt", "Tally", "campaign", "cores", "hunt_all", "missing", "workers"]

CHUNK = 500
ENOUGH_FOUND = 20
"""Violations after which a campaign stops: there is something to repair first."""


class Found(msgspec.Struct):
    seed: int
    invariant: str
    how: str


class Tally(msgspec.Struct):
    """What a campaign did and saw."""

    study: str
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
    study: str
    bug: str
    schedule: int | None
    invariant: str = ""
    how: str = ""
    ways: dict[str, int | None] = {}
    """On each other way of its study, the first schedule that showed it; None: it survived there."""

    @property
    def survived(self) -> bool:
        return self.schedule is None or None in self.ways.values()


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def campaign(
    study: Study,
    first: int,
    schedules: int,
    jobs: int,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    """Run the seeds from `first` on; stop early when there is enough to repair."""
    began = time.monotonic()
    total = Tally(study.name, first)
    chunks = [
        (study.name, start, min(start + CHUNK, first + schedules))
        for start in range(first, first + schedules, CHUNK)
    ]
    with workers(jobs, len(chunks)) as each:
        for part in each(_run_chunk, chunks):
            total.add(part)
            total.seconds = time.monotonic() - began
            if progress is not None:
                progress(total)
            if len(total.violations) >= ENOUGH_FOUND:
                break
    total.violations.sort(key=lambda found: found.seed)
    return total


def _run_chunk(chunk: tuple[str, int, int]) -> Tally:
    from . import STUDIES

    began = time.process_time()
    name, first, end = chunk
    study, tally = STUDIES[name], Tally(name, first)
    seen: Counter[Any] = Counter()
    for seed in range(first, end):
        world, violation = study.run(study.draw(seed), None)
        tally.schedules += 1
        tally.events += world.events
        seen.update(world.seen)
        if violation is not None:
            tally.violations.append(Found(seed, violation.name, violation.how))
    tally.seen = {": ".join(str(part) for part in what): count for what, count in seen.items()}
    tally.cpu_seconds = time.process_time() - began
    return tally


def missing(study: Study, seen: dict[str, int]) -> list[str]:
    """What should have been met and was not."""
    return [what for what in study.wanted if not seen.get(what)]


def hunt_all(names: list[str], limit: int, jobs: int) -> Iterator[Hunt]:
    with workers(jobs, len(names)) as each:
        yield from each(_hunt, [(name, limit) for name in names])


def _hunt(quarry: tuple[str, int]) -> Hunt:
    from ..mutants import MUTANTS, mutated
    from . import STUDIES

    name, limit = quarry
    bug, study = MUTANTS[name].bug, STUDIES[MUTANTS[name].study]
    seeds = range(MUTANTS[name].first, MUTANTS[name].first + limit)
    with mutated(name):
        found = _first_violation(study, lambda plan: plan, seeds)
        hunt = Hunt(name, study.name, bug, None)
        if found is not None:
            hunt = Hunt(name, study.name, bug, found.seed, found.invariant, found.how)
        for way, take in study.ways.items():
            there = _first_violation(study, take, seeds)
            hunt.ways[way] = None if there is None else there.seed
    return hunt


def _first_violation(study: Study, take: Callable[[Any], Any], seeds: range) -> Found | None:
    for seed in seeds:
        _, violation = study.run(take(study.draw(seed)), None)
        if violation is not None:
            return Found(seed, violation.name, violation.how)
    return None


@contextmanager
def workers(jobs: int, tasks: int) -> Iterator[Callable[..., Iterator[Any]]]:
    if min(jobs, tasks) <= 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(min(jobs, tasks)) as pool:
        yield pool.imap
