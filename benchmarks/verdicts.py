"""Did a case become slower or faster? What two versions of the library took, and what follows from it.

The two take turns in blocks of four laps (old new new old). A block gives one ratio, new over old, by each clock.
A verdict is about the median of all ratios: it lies somewhere in its confidence interval.

    slower      the whole interval is above 1.03, and so is the median of every pair of processes
    faster      the same below 1/1.03
    same        the whole interval is between the two; or it is still unclear after the last repetition
    not there   a version cannot run the case

A pair of fresh processes may be slower or faster by chance, for as long as it lives (where its memory lies,
for example), and no number of laps shows that. So a change counts only if a second pair shows it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .case import Case
from .spread import Spread, median_interval
from .workload import Lap

LIMIT = 1.03
SLOWER, FASTER, SAME, NOT_THERE, UNCLEAR = "slower", "faster", "same", "not there", "unclear"
CLOCKS = ("wall", "processor")


def verdict_of(pairs: Sequence[Sequence[float]]) -> str:
    """Of the ratios that each pair of processes gave."""
    low, high = median_interval([ratio for ratios in pairs for ratio in ratios])
    medians = [median(ratios) for ratios in pairs]
    if low > LIMIT and min(medians) > LIMIT:
        return SLOWER if len(pairs) > 1 else UNCLEAR
    if high < 1 / LIMIT and max(medians) < 1 / LIMIT:
        return FASTER if len(pairs) > 1 else UNCLEAR
    return SAME if low >= 1 / LIMIT and high <= LIMIT else UNCLEAR


@dataclass(frozen=True)
class Block:
    """Seconds per key of both versions, side by side."""

    old: Lap
    new: Lap

    def ratio(self, clock: str) -> float:
        old = float(getattr(self.old, clock))
        return float(getattr(self.new, clock)) / old if old else 1.0


@dataclass
class Comparison:
    """One case in two versions; one list of blocks for each pair of processes."""

    case: Case
    pairs: list[list[Block]] = field(default_factory=list)
    absent: str = ""

    @property
    def clocks(self) -> tuple[str, ...]:
        """Those that decide. What never waits is decided by processor time alone."""
        return CLOCKS if self.case.waits else ("processor",)

    def by_clock(self, clock: str) -> str:
        return verdict_of([[block.ratio(clock) for block in blocks] for blocks in self.pairs])

    @property
    def is_decided(self) -> bool:
        if self.absent:
            return True
        return bool(self.pairs) and all(self.by_clock(each) != UNCLEAR for each in self.clocks)

    @property
    def verdict(self) -> str:
        """Slower by one clock is slower."""
        if self.absent:
            return NOT_THERE
        found = {self.by_clock(clock) for clock in self.clocks}
        return next((word for word in (SLOWER, FASTER) if word in found), SAME)

    def ratio(self, clock: str) -> Spread:
        return Spread.of([block.ratio(clock) for blocks in self.pairs for block in blocks])

    def seconds(self, version: str, clock: str) -> float:
        laps = [getattr(block, version) for blocks in self.pairs for block in blocks]
        return float(median(getattr(lap, clock) for lap in laps))

    def as_data(self) -> dict[str, Any]:
        found: dict[str, Any] = {"id": self.case.id, "verdict": self.verdict}
        if self.absent:
            return {**found, "reason": self.absent}
        for clock in CLOCKS:
            found[clock] = {
                "verdict": self.by_clock(clock),
                "old_seconds": self.seconds("old", clock),
                "new_seconds": self.seconds("new", clock),
                "ratio": asdict(self.ratio(clock)),
            }
        pairs, blocks = len(self.pairs), sum(map(len, self.pairs))
        return {**found, "decided": self.is_decided, "pairs": pairs, "blocks": blocks}
