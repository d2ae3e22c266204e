"""How a case is measured on a machine that others use too.

All contestants of a case take turns within each of many short rounds, so what disturbs one
disturbs its neighbours. A ratio is taken within its round, and the median over the rounds is
reported with its quartiles: the middle half of what was seen. Before that, every contestant is
warmed up and its lap is sized to last about as long as the others'. A very slow one sits out some
rounds. The garbage collector runs between laps, not in them. Where nothing waits for a disk or
for another thread, processor time is counted instead of wall time.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from .workload import Absent, Contestant, Keys, Offer

LAP = 0.01
"""Seconds that one lap should last."""

MOST = 2_000
"""Keys in one lap at most, so that memory stores stay small."""

FEWEST_LAPS = 3


@dataclass(frozen=True)
class Spread:
    """The median of what was seen, and its middle half."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)


@dataclass
class Measured:
    """One contestant in one case: seconds per key, and the ratio to the first contestant."""

    name: str
    seconds: Spread | None = None
    ratio: Spread | None = None
    absent: str = ""
    laps: int = 0


@dataclass
class _Runner:
    contestant: Contestant
    keys: Keys
    size: int = 1
    every: int = 1
    failed: str = ""
    laps: dict[int, float] = field(default_factory=dict)


def measure(
    entrants: Sequence[Contestant | Absent],
    offer: Offer,
    *,
    fresh: bool,
    rounds: int,
    lap: float = LAP,
) -> list[Measured]:
    """Interleaved rounds of all entrants; the first one present is what ratios refer to."""
    runners = [
        _Runner(e, Keys(fresh=fresh, callers=offer.callers))
        for e in entrants
        if isinstance(e, Contestant)
    ]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for runner in runners:
            with _telling(runner):
                _prepare(runner, offer, rounds, lap)
        runners[0].every = 1  # ratios need it in every round
        for turn in range(rounds):
            start = turn % len(runners)
            for runner in runners[start:] + runners[:start]:  # nobody is always first
                if turn % runner.every == 0 and not runner.failed:
                    with _telling(runner):
                        runner.laps[turn] = _lap(runner, offer)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
        for runner in runners:
            with _telling(runner):
                offer.finish(runner.contestant)
    base = runners[0].laps
    found = {runner.contestant.name: _summed_up(runner, base) for runner in runners}
    return [
        Measured(e.name, absent=e.reason) if isinstance(e, Absent) else found[e.name]
        for e in entrants
    ]


@contextmanager
def _telling(runner: _Runner) -> Iterator[None]:
    """A neighbour's failure is its result; anybody else's is ours."""
    try:
        yield
    except Exception as error:
        if not runner.contestant.guest:
            raise
        runner.failed = runner.failed or f"failed here ({type(error).__name__})"


def _prepare(runner: _Runner, offer: Offer, rounds: int, lap: float) -> None:
    """Warm up; settle what duplicates will ask for; find the size of a lap."""
    least = offer.least(runner.contestant)
    offer.alone(runner.contestant)
    if not runner.keys.fresh:
        offer.seconds(runner.contestant, runner.keys.settled)
    runner.size = least
    if offer.herd:
        _lap(runner, offer)
        return
    per_key = _lap(runner, offer)
    while runner.size * per_key < lap / 4 and runner.size < MOST:
        runner.size = min(MOST, runner.size * 4)
        per_key = _lap(runner, offer)
    wanted = min(MOST, lap / per_key) if per_key else MOST
    runner.size = max(1, round(wanted / least)) * least
    slow = int(runner.size * per_key / (4 * lap))
    runner.every = max(1, min(slow, rounds // FEWEST_LAPS))


def _lap(runner: _Runner, offer: Offer) -> float:
    keys = runner.keys.take(runner.size)
    seconds = offer.seconds(runner.contestant, keys)
    return seconds if offer.herd else seconds / len(keys)


def _summed_up(runner: _Runner, base: dict[int, float]) -> Measured:
    if runner.failed or not runner.laps:
        return Measured(runner.contestant.name, absent=runner.failed)
    both = [turn for turn in runner.laps if turn in base]
    return Measured(
        runner.contestant.name,
        Spread.of(list(runner.laps.values())),
        Spread.of([runner.laps[turn] / base[turn] for turn in both]),
        laps=len(runner.laps),
    )


def repeat(rounds: int, contestants: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """For what measures itself (a sweep, an import): its values, interleaved in the same way."""
    values: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            values[name].append(run())
    return values
