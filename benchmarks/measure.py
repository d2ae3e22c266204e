"""How a case is measured on a machine that others use too.

All contestants of a case take turns within each of many short rounds, so what disturbs one
disturbs its neighbours. A ratio is taken within its round, and the median over the rounds is
reported with its quartiles: the middle half of what was seen. Before that, every contestant is
warmed up and its lap is sized to last about as long as the others'. A very slow one sits out some
rounds. The garbage collector runs between laps, not in them.

Each lap is timed by both clocks, wall time and processor time of the whole process. A case is judged
by wall time if it waits for a disk, a server or another thread, and by processor time if not.
Where the target lies within the confidence interval of the median, the rounds are repeated, up to
`REPEATS` times in all: more rounds narrow that interval (they would not narrow the quartiles).
Single calls are timed one by one at the end, in laps of their own, for the tail.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from .spread import Spread, Tail
from .workload import SETTLED, Absent, Contestant, Keys, Lap, Offer

LAP = 0.01
"""Seconds that one lap should last."""

MOST = 2_000
"""Keys in one lap at most, so that memory stores stay small."""

FEWEST_LAPS = 3

REPEATS = 4
"""How many times the rounds are run at most, to decide about a target."""

TAIL_CALLS = 250
"""Calls per round that are timed one by one; at most `TAIL_LAPS` laps' worth of seconds."""
TAIL_LAPS = 4

Undecided = Callable[[Sequence[float], Sequence[float]], bool]
"""Of our seconds per key and of our ratios: does it take more rounds to judge them?"""


@dataclass(frozen=True)
class Timing:
    """Seconds per key by one clock, and the ratio to the first contestant."""

    seconds: Spread
    ratio: Spread


@dataclass
class Measured:
    """One contestant in one case. ``seconds`` and ``ratio`` are those of the clock that judges it."""

    name: str
    seconds: Spread | None = None
    ratio: Spread | None = None
    absent: str = ""
    laps: int = 0
    clock: str = "wall"
    wall: Timing | None = None
    processor: Timing | None = None
    tail: Tail | None = None


@dataclass
class Runner:
    """A contestant, its keys, and the laps that it has run."""

    contestant: Contestant
    keys: Keys
    size: int = 1
    every: int = 1
    failed: str = ""
    laps: dict[int, Lap] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)


def measure(
    entrants: Sequence[Contestant | Absent],
    offer: Offer,
    *,
    fresh: bool,
    rounds: int,
    lap: float = LAP,
    clock: str = "wall",
    settled: int = SETTLED,
    undecided: Undecided | None = None,
) -> list[Measured]:
    """Interleaved rounds of all entrants. Ratios refer to the first one, targets to the second."""
    runners = [
        Runner(e, Keys(fresh=fresh, callers=offer.callers, settled=settled))
        for e in entrants
        if isinstance(e, Contestant)
    ]
    with no_collection():
        try:
            for runner in runners:
                with _telling(runner):
                    prepare(runner, offer, rounds, lap)
            runners[0].every = 1  # ratios need it in every round
            for again in range(REPEATS):
                _run_rounds(runners, offer, range(again * rounds, (again + 1) * rounds))
                if undecided is None or not undecided(*values(runners[1], runners[0], clock)):
                    break
            _time_calls(runners, offer, rounds, lap)
        finally:
            for runner in runners:
                with _telling(runner):
                    offer.finish(runner.contestant)
    found = {runner.contestant.name: summed_up(runner, runners[0], clock) for runner in runners}
    return [
        Measured(e.name, absent=e.reason) if isinstance(e, Absent) else found[e.name]
        for e in entrants
    ]


@contextmanager
def no_collection() -> Iterator[None]:
    """The garbage collector rests. Laps call it between themselves, for what is new since here."""
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()


@contextmanager
def _telling(runner: Runner) -> Iterator[None]:
    """A peer's failure is its result; a failure of the floor or of ours ends the run."""
    try:
        yield
    except Exception as error:
        if not runner.contestant.guest:
            raise
        runner.failed = runner.failed or f"failed here ({type(error).__name__})"


def _run_rounds(runners: list[Runner], offer: Offer, turns: range) -> None:
    for turn in turns:
        start = turn % len(runners)
        for runner in runners[start:] + runners[:start]:  # each is first in turn
            if turn % runner.every == 0 and not runner.failed:
                with _telling(runner):
                    runner.laps[turn] = one_lap(runner, offer)
        gc.collect()


def prepare(runner: Runner, offer: Offer, rounds: int, lap: float) -> None:
    """Warm up; settle what duplicates will ask for; find the size of a lap."""
    least = offer.least(runner.contestant)
    offer.alone(runner.contestant)
    if not runner.keys.fresh:
        offer.lap(runner.contestant, runner.keys.settled)
    runner.size = least
    per_key = one_lap(runner, offer).wall
    if offer.herd:
        return
    while runner.size * per_key < lap / 4 and runner.size < MOST:
        runner.size = min(MOST, runner.size * 4)
        per_key = one_lap(runner, offer).wall
    wanted = min(MOST, lap / per_key) if per_key else MOST
    runner.size = max(1, round(wanted / least)) * least
    slow = int(runner.size * per_key / (4 * lap))
    runner.every = max(1, min(slow, rounds // FEWEST_LAPS))


def one_lap(runner: Runner, offer: Offer, times: list[float] | None = None) -> Lap:
    """Seconds per key; of a herd, until all are answered."""
    keys = runner.keys.take(runner.size)
    took = offer.lap(runner.contestant, keys, times)
    return took if offer.herd else took.per(len(keys))


def _time_calls(runners: list[Runner], offer: Offer, rounds: int, lap: float) -> None:
    """In turns, the calls of the floor and of ours one by one. Peers would take minutes."""
    if offer.herd or offer.batch:
        return
    calls, seconds = rounds * TAIL_CALLS, rounds * lap * TAIL_LAPS
    waiting = [runner for runner in runners if not runner.contestant.guest]
    spent = dict.fromkeys(range(len(waiting)), 0.0)
    turn = 0
    while spent:
        if turn % 16 == 0:  # a collection takes longer than a lap of slow calls
            gc.collect()
        turn += 1
        for number in list(spent):
            runner = waiting[number]
            spent[number] += one_lap(runner, offer, runner.times).wall * runner.size
            if len(runner.times) >= calls or spent[number] >= seconds:
                del spent[number]


def values(runner: Runner, base: Runner, clock: str) -> tuple[list[float], list[float]]:
    """Seconds per key by this clock, and their ratios to the base of the same round."""
    seconds = {turn: float(getattr(lap, clock)) for turn, lap in runner.laps.items()}
    bases = {turn: float(getattr(lap, clock)) for turn, lap in base.laps.items()}
    ratios = [each / bases[turn] for turn, each in seconds.items() if bases.get(turn)]
    return list(seconds.values()), ratios or [1.0]


def summed_up(runner: Runner, base: Runner, clock: str) -> Measured:
    if runner.failed or not runner.laps:
        return Measured(runner.contestant.name, absent=runner.failed)
    by = {
        name: Timing(*map(Spread.of, values(runner, base, name))) for name in ("wall", "processor")
    }
    return Measured(
        runner.contestant.name,
        by[clock].seconds,
        by[clock].ratio,
        laps=len(runner.laps),
        clock=clock,
        wall=by["wall"],
        processor=by["processor"],
        tail=Tail.of(runner.times),
    )
