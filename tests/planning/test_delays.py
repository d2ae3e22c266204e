"""Delays of duplicates: how much of them a window covers, and which window a risk needs."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from twicesafe import ConfigurationError, Policy, Receiver
from twicesafe.planning import (
    BackoffDelays,
    Delays,
    DuplicateSample,
    ExponentialDelays,
    MixedDelays,
    ObservedDelays,
    UniformDelays,
    Workload,
)
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing import FakeClock

durations = st.floats(0.01, 1e8)
shares = st.floats(0, 1)


@st.composite
def backoffs(draw: st.DrawFn) -> BackoffDelays:
    first, within = sorted((draw(durations), draw(durations)))
    assume(first * 1.001 < within)
    return BackoffDelays(within=within, first=first)


smooth = st.one_of(durations.map(UniformDelays), durations.map(ExponentialDelays), backoffs())
observed = st.builds(
    ObservedDelays, st.lists(durations, min_size=1, max_size=50), late=st.integers(0, 5)
)


@st.composite
def mixtures(draw: st.DrawFn) -> MixedDelays:
    weight = draw(shares)
    return MixedDelays((weight, draw(smooth)), (1 - weight, draw(st.one_of(smooth, observed))))


any_delays: st.SearchStrategy[Any] = st.one_of(smooth, observed, mixtures())


@given(any_delays, durations, durations)
def test_a_longer_window_never_lets_more_through(delays: Delays, one: float, other: float):
    short, long = sorted((one, other))
    assert 0 <= delays.outside(long) <= delays.outside(short) + 1e-12 <= 1 + 1e-12


@given(smooth)
def test_no_window_covers_nothing_and_an_endless_one_everything(delays: Delays):
    assert delays.outside(0) == 1
    assert delays.outside(1e300) == 0


@given(any_delays, shares)
def test_the_window_for_a_risk_reaches_it(delays: Delays, risk: float):
    window = delays.window(risk)
    assert window >= 0
    if math.isfinite(window):
        assert delays.outside(window) <= risk * (1 + 1e-6) + 1e-9


@given(smooth, st.floats(1e-6, 1 - 1e-6))
def test_a_shorter_window_does_not(delays: Delays, risk: float):
    assert delays.outside(delays.window(risk) * (1 - 1e-6)) >= risk - 1e-9


@given(any_delays)
def test_all_of_the_risk_needs_no_window_at_all(delays: Delays):
    assert delays.window(1.0) <= (min(delays.knots) if delays.knots else 0.0) * (1 + 1e-9)


@given(any_delays, st.lists(durations, min_size=3, max_size=3), st.floats(0, 1))
def test_between_two_knots_the_curve_is_convex(delays: Delays, at: list[float], part: float):
    low, high = min(at), max(at)
    assume(not any(low < knot <= high for knot in delays.knots))
    middle = low + (high - low) * part
    chord = delays.outside(low) * (1 - part) + delays.outside(high) * part
    assert delays.outside(middle) <= chord + 1e-9


def test_what_is_observed_is_counted():
    delays = ObservedDelays(["1m", 10, 10, "1h"])
    assert [delays.outside(w) for w in (0, 9, 10, 60, 3600)] == [1, 1, 0.5, 0.25, 0]
    assert [delays.window(risk) for risk in (0, 0.24, 0.25, 0.5, 1)] == [3600, 3600, 60, 10, 0]


def test_late_ones_are_outside_of_every_window():
    delays = ObservedDelays([1, 2, 3], late=1)
    assert delays.outside(1e9) == 0.25
    assert delays.window(0.25) == 3
    assert delays.window(0.2) == math.inf
    assert ObservedDelays([], late=2).outside(5) == 1


def test_a_small_sample_promises_little():
    few, many = ObservedDelays([1.0] * 10), ObservedDelays([1.0] * 10_000)
    assert few.outside(2) == many.outside(2) == 0
    assert 0.2 < few.at_most(2) < 0.3
    assert many.at_most(2) == pytest.approx(3 / 10_000, rel=0.2)  # the rule of three


@given(observed, durations)
def test_the_bound_is_above_the_estimate(delays: ObservedDelays, window: float):
    assert delays.outside(window) <= delays.at_most(window) <= 1


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: UniformDelays("3 days"), "within='3 days' is not a duration: did you mean '3d'"),
        (lambda: UniformDelays(0), "within=0 is not valid"),
        (lambda: BackoffDelays(within=1, first=2), "longer than first=2"),
        (lambda: ExponentialDelays(-1), "mean=-1"),
        (lambda: ObservedDelays([]), "no ages"),
        (lambda: ObservedDelays([-1]), "age"),
        (lambda: MixedDelays((0.5, UniformDelays(1))), "add up to 1"),
        (lambda: UniformDelays(1).window(2), "risk=2"),
    ],
)
def test_nonsense_is_refused_by_name(make: Any, told: str):
    with pytest.raises(ConfigurationError, match=told):
        make()


# ------------------------------------------------------------------ a real stream of duplicates


@pytest.mark.parametrize(
    "delays",
    [
        UniformDelays("3d"),
        BackoffDelays(within="3d"),
        ExponentialDelays("8h"),
        MixedDelays((0.9, BackoffDelays(within="1h")), (0.1, UniformDelays("30d"))),
    ],
    ids=lambda delays: type(delays).__name__,
)
@pytest.mark.parametrize("window", [600, 86400])
def test_a_receiver_runs_as_many_duplicates_again_as_the_formula_says(
    delays: Delays, window: float
):
    """First deliveries and their duplicates in the order of their times, through a real receiver."""
    chance = random.Random(7)
    count = 4_000
    arrivals = []
    for n in range(count):
        at = n * 10.0
        arrivals += [(at, f"tx-{n}"), (at + delays.window(chance.random()), f"tx-{n}")]
    clock, seen, ran = FakeClock(), DuplicateSample(seed=1), 0

    def handler() -> None:
        nonlocal ran
        ran += 1

    now = 0.0
    policy = Policy(retention=window)
    with Receiver(MemoryStore(now=clock), policy=policy, observers=[seen]) as receiver:
        for at, key in sorted(arrivals):
            clock.advance(at - now)
            now = at
            receiver.process(key, handler)
    expected = delays.outside(window)
    late = ran - count
    # Five standard deviations of a binomial distribution; the seed is fixed.
    assert abs(late - count * expected) <= 5 * math.sqrt(count * expected * (1 - expected)) + 5
    assert (seen.first, seen.late, seen.repeats) == (count, late, count - late)
    assert seen.duplicates == 0.5
    assert seen.covered == pytest.approx(1 - late / count)
    assert seen.delays().outside(window) == pytest.approx(late / count, abs=0.001)


def test_a_workload_reads_what_people_write():
    load = Workload(rate="30k/m", duplicates="2%", delays=UniformDelays("1h"), result="4KiB")
    assert (load.deliveries, load.duplicate_share, load.result) == (500, 0.02, 4096)
    assert load.duplicates_per_second == 10
    assert load.late_per_second(1800) == 5
    with pytest.raises(ConfigurationError, match="rate='500' is not a rate: write '500/s'"):
        Workload(rate="500", duplicates=0, delays=UniformDelays(1))
    with pytest.raises(ConfigurationError, match="rate=0"):
        Workload(rate=0, duplicates=0, delays=UniformDelays(1))
    with pytest.raises(ConfigurationError, match="duplicates=1"):
        Workload(rate=1, duplicates=1, delays=UniformDelays(1))
