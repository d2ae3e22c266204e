"""One case of the benchmark: who takes part, how it is offered work, and what is aimed at.

The floor of a case is what ratios refer to. Targets are the project's own;
`docs/explanation/performance.md` says how they are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import ours, peers
from .measure import LAP, Measured, measure
from .spread import median_interval
from .workload import SETTLED, Absent, Contestant, Offer

FLOOR, PER_STATEMENT, BATCHED = "floor", "hop per statement", "batch by hand"
CALL_BY_CALL, SETNX = "call by call", "SETNX by hand"
FASTSTREAM, CELERY = "FastStream, SETNX by hand", "Celery, SETNX by hand"
OTHER_CLOCK, TAIL = "other clock", "p50 / p99 / p99.9"
COLUMNS = (
    FLOOR,
    ours.NAME,
    OTHER_CLOCK,
    TAIL,
    PER_STATEMENT,
    BATCHED,
    CALL_BY_CALL,
    SETNX,
    FASTSTREAM,
    CELERY,
    peers.EXACTLY_ONCE,
    peers.IDEMKIT,
    peers.POWERTOOLS,
    peers.JUSTONCE,
    peers.DBOS,
    peers.ASGI_IDEMPOTENCY_HEADER,
    peers.FASTSTREAM_OUTBOX,
)

Maker = Callable[[Path], Contestant]
Entrants = Sequence[Contestant | Absent]


def no_others(folder: Path) -> Entrants:
    return ()


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

    def is_undecided(self, seconds: Sequence[float], ratios: Sequence[float]) -> bool:
        """The true median may be on either side of the limit."""
        limit = 1 / self.limit if self.kind == "gain" else self.limit
        low, high = median_interval(seconds if self.kind == "seconds" else ratios)
        return low <= limit < high


@dataclass(frozen=True)
class Case:
    id: str
    section: str
    title: str
    floor: Maker
    ours: Maker
    """By public names only: `against` runs it on older versions of the library too."""
    others: Callable[[Path], Entrants] = no_others
    mode: str = "blocking"
    callers: int = 1
    fresh: bool = True
    batch: int = 0
    herd: bool = False
    settled: int = SETTLED
    target: Target | None = None
    share: float = 1.0
    """Of the usual number of rounds: less for what takes long and varies little."""
    waits: bool = True
    """Else processor time judges it: what never waits is slowed by other programs alone."""
    gains: bool = False
    """Shown as how many times faster than the floor, not as a ratio of costs."""
    lap: float = LAP
    quick: bool = True
    """Part of a quick look too."""
    engine: str = ""
    """The server it needs, as `engines` calls it; none for stores in the process."""

    @property
    def clock(self) -> str:
        return "wall" if self.waits else "processor"

    def offer(self) -> Offer:
        return Offer(self.mode, self.callers, self.batch, self.herd)

    def run(self, folder: Path, rounds: int, lap: float | None = None) -> list[Measured]:
        folder.mkdir(parents=True)
        offer = self.offer()
        try:
            return measure(
                [self.floor(folder), self.ours(folder), *self.others(folder)],
                offer,
                fresh=self.fresh,
                rounds=max(3, round(rounds * self.share)),
                lap=lap or self.lap,
                clock=self.clock,
                settled=self.settled,
                undecided=None if self.target is None else self.target.is_undecided,
            )
        finally:
            offer.close()
