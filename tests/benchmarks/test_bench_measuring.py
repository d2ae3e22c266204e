"""How values become numbers: clocks, tails, intervals, and when rounds are repeated."""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import median

import pytest

from benchmarks import measure as measuring
from benchmarks.case import Case, Target
from benchmarks.measure import measure
from benchmarks.spread import Tail, median_interval
from benchmarks.workload import Contestant, Lap, Offer, handler


def test_both_clocks_are_read():
    """Sleeping takes wall time and next to no processor time; whatever the machine does, it is so."""
    start = Lap.now()
    time.sleep(0.05)
    lap = Lap.now().since(start)
    assert lap.wall >= 0.05
    assert lap.processor < lap.wall


def test_the_interval_of_the_median_holds_it_and_narrows():
    draw = random.Random(7)
    hits = 0
    for _ in range(400):
        low, high = median_interval([draw.random() for _ in range(21)])
        hits += low <= 0.5 <= high
    assert hits >= 370  # 95 % and a bit: it errs on the safe side
    few = median_interval([draw.random() for _ in range(12)])
    many = median_interval([draw.random() for _ in range(1200)])
    assert many[1] - many[0] < few[1] - few[0]
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_a_tail_leaves_out_what_too_few_calls_show():
    assert Tail.of([]) is None
    few, many = Tail.of([1.0] * 100), Tail.of([float(n) for n in range(10_000)])
    assert few is not None
    assert (few.p99, few.p999) == (None, None)
    assert many is not None
    assert (many.p50, many.p99, many.p999) == (median(range(10_000)), 9900.0, 9990.0)


one_real_lap = measuring.one_lap


def rounds_of(target: Target | None, monkeypatch: pytest.MonkeyPatch, ratio: float) -> int:
    """How many rounds ours ran, if every lap of it took ``ratio`` times the floor's, and some noise."""
    draw = random.Random(3)

    def one_lap(runner: measuring.Runner, offer: Offer, times: list[float] | None = None) -> Lap:
        one_real_lap(runner, offer, times)
        took = 1.0 if runner.contestant.name == "floor" else draw.uniform(0.9, 1.1) * ratio
        return Lap(took * 1e-4, took * 1e-4)

    monkeypatch.setattr(measuring, "one_lap", one_lap)
    monkeypatch.setattr(measuring.gc, "collect", int)  # slow here, where pytest has a large heap
    offer = Offer("blocking")
    entrants = [Contestant("floor", handler), Contestant("twicesafe", handler)]
    undecided = None if target is None else target.is_undecided
    found = measure(entrants, offer, fresh=True, rounds=9, lap=0.0001, undecided=undecided)
    offer.close()
    return found[1].laps


def test_rounds_are_repeated_while_the_target_is_undecided(monkeypatch: pytest.MonkeyPatch):
    assert rounds_of(None, monkeypatch, 1.0) == 9
    assert rounds_of(Target(1.5), monkeypatch, 1.0) == 9
    assert rounds_of(Target(0.4, "gain"), monkeypatch, 2.0) == 9
    assert rounds_of(Target(1.0), monkeypatch, 1.0) == 9 * measuring.REPEATS


def test_single_calls_of_the_floor_and_of_ours_are_timed(tmp_path: Path):
    case = Case(
        "a",
        "b",
        "c",
        lambda folder: Contestant("floor", handler),
        lambda folder: Contestant("twicesafe", handler),
        lambda folder: [Contestant("peer", handler, guest=True)],
        callers=4,
    )
    floor, mine, peer = case.run(tmp_path / "case", rounds=3, lap=0.0005)
    for each in (floor, mine):
        assert each.tail is not None
        assert each.tail.calls >= 4
    assert peer.tail is None
    assert mine.wall is not None
    assert mine.processor is not None
    assert (mine.seconds, mine.ratio) == (mine.wall.seconds, mine.wall.ratio)
