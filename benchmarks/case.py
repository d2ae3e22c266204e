"""One case of the benchmark: who takes part, how it is offered work, and what is aimed at.

The first contestant of a case is the floor that ratios refer to. Targets are the project's own;
`docs/explanation/performance.md` says how they are judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import ours, peers
from .measure import LAP, Measured, measure
from .workload import Absent, Contestant, Offer

FLOOR, PER_STATEMENT, BATCHED = "floor", "hop per statement", "batch by hand"
COLUMNS = (
    FLOOR,
    ours.NAME,
    PER_STATEMENT,
    BATCHED,
    peers.EXACTLY_ONCE,
    peers.IDEMKIT,
    peers.POWERTOOLS,
    peers.JUSTONCE,
    peers.DBOS,
    peers.ASGI_IDEMPOTENCY_HEADER,
    peers.FASTSTREAM_OUTBOX,
)

Entrants = Sequence[Contestant | Absent]


@dataclass(frozen=True)
class Target:
    """What is aimed at: a ratio to the floor, a gain over it, or seconds."""

    limit: float
    kind: str = "ratio"

    def __str__(self) -> str:
        match self.kind:
            case "ratio":
                return f"≤ {self.limit:g}×"
            case "gain":
                return f"≥ {self.limit:g}×"
        return f"≤ {self.limit * 1e6:g} µs" if self.limit < 1e-3 else f"≤ {self.limit * 1e3:g} ms"

    def is_met(self, found: Measured) -> bool:
        assert found.ratio is not None
        assert found.seconds is not None
        match self.kind:
            case "ratio":
                return found.ratio.median <= self.limit
            case "gain":
                return 1 / found.ratio.median >= self.limit
        return found.seconds.median <= self.limit


@dataclass(frozen=True)
class Case:
    id: str
    section: str
    title: str
    entrants: Callable[[Path], Entrants]
    mode: str = "blocking"
    callers: int = 1
    fresh: bool = True
    batch: int = 0
    herd: bool = False
    target: Target | None = None
    share: float = 1.0
    """Of the usual number of rounds: less for what takes long and varies little."""
    waits: bool = True
    """Else processor time is counted: what never waits is slowed by strangers alone."""
    gains: bool = False
    """Shown as how many times faster than the floor, not as a ratio of costs."""
    lap: float = LAP
    quick: bool = True
    """Part of a quick look too."""
    engine: str = ""
    """The server it needs, as `engines` calls it; none for stores in the process."""

    def run(self, folder: Path, rounds: int, lap: float | None = None) -> list[Measured]:
        clock = time.perf_counter if self.waits else time.process_time
        offer = Offer(self.mode, self.callers, self.batch, self.herd, clock)
        folder.mkdir(parents=True)
        try:
            return measure(
                self.entrants(folder),
                offer,
                fresh=self.fresh,
                rounds=max(3, round(rounds * self.share)),
                lap=lap or self.lap,
            )
        finally:
            offer.close()
