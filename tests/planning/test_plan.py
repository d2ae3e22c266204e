"""Storage, costs, collisions, and the plan that holds all answers."""

from __future__ import annotations

import json
import math
import sqlite3
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.house.repository import ROOT
from tests.planning.test_delays import any_delays, durations
from twicesafe import AsyncReceiver, ConfigurationError, Key, Policy, Receiver, planning
from twicesafe._values.quantities import duration_text
from twicesafe._values.settings import seconds
from twicesafe.events import Replayed
from twicesafe.planning import Prices, UniformDelays, Workload
from twicesafe.planning._collisions import STORED_BITS
from twicesafe.planning._storage import store_of
from twicesafe.stores._urls import SCHEMES
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing import FakeClock

LOAD = Workload(rate="500/s", duplicates="2%", delays=planning.BackoffDelays(within="3d"))
amounts = st.floats(0, 1e4)


def test_sizes_are_those_of_the_published_benchmark():
    rows = json.loads((ROOT / "benchmarks/results/published.json").read_text("utf-8"))["rows"]
    published = {r["id"]: r["raw"]["bytes_per_key"] for r in rows if r["id"].startswith("size/")}
    counted = json.loads((ROOT / "benchmarks/results/calls.json").read_text("utf-8"))
    published |= {f"size/{s}": has["bytes"] for s, has in counted.items() if "bytes" in has}
    assert {f"size/{s}": planning.bytes_per_key(s) for s in planning.STORES} == published


def test_every_store_has_a_size():
    assert {store_of(f"{scheme}://host") for scheme in SCHEMES} == set(planning.STORES)
    with pytest.raises(ConfigurationError, match="did you mean 'postgres'"):
        store_of("postgrse://user:secret@host")
    with pytest.raises(ConfigurationError) as caught:
        store_of("user:secret@host")
    assert "secret" not in str(caught.value)


def test_bytes_of_results_and_keys_are_added():
    plain = planning.bytes_per_key("sqlite")
    assert planning.bytes_per_key("sqlite", result="1201B") == plain + 1000
    assert planning.bytes_per_key("sqlite", key=14 + 50) == plain + 50


@pytest.mark.parametrize(
    "size, most", [(20, 1.1), (200, 1.1), (400, 1.1), (1500, 1.34), (2500, 1.67), (10_000, 1.1)]
)
def test_the_sizes_hold_on_a_real_file(tmp_path: Path, size: int, most: float):
    """SQLite fills pages of 4 KiB: the page of the docs names how far that can be from the plan.

    The published sizes are those of the layout before 16-byte identities: small records take less.
    """
    path, count, body = tmp_path / "keys.db", 4_000, "x" * size
    with Receiver.open(f"sqlite:///{path}?synchronous=normal") as receiver:
        for start in range(0, count, 1000):
            keys = range(start, start + 1000)
            receiver.process_many(keys, lambda _: body, key=lambda n: f"order-{n:08x}")
        measured = planning.measure(receiver, limit=count)
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    planned = planning.bytes_per_key("sqlite", result=measured.result, key=measured.key)
    assert 0.75 < path.stat().st_size / count / planned < most


def test_records_follow_littles_law():
    found = planning.storage(LOAD, "sqlite", 86400)
    assert found.records == pytest.approx(490 * (86400 + 300))
    assert found.bytes == pytest.approx(found.records * found.bytes_per_key)
    assert found.growth_per_day * found.full_after / 86400 == pytest.approx(found.bytes)
    assert found.memory_while_saving is None
    valkey = planning.storage(LOAD, "redis", 86400)
    assert valkey.records == pytest.approx(490 * 86400)  # it expires records by itself
    assert valkey.memory_while_saving == 2 * valkey.bytes


@given(any_delays, st.floats(0.01, 1e5), st.floats(0, 0.9), amounts, amounts, st.floats(0, 1))
def test_no_window_costs_less_than_the_best(
    delays: planning.Delays,
    rate: float,
    duplicates: float,
    price: float,
    gigabyte: float,
    part: float,
):
    load = Workload(rate=rate, duplicates=duplicates, delays=delays)
    prices = Prices(duplicate=price, storage=gigabyte)
    best = planning.best_window(load, "valkey", prices)
    far = max([*delays.knots, 86400.0]) * 2
    for window in (0.0, far * part, far, best.window * part, *delays.knots[:20]):
        other = planning.cost(load, "valkey", prices, window)
        assert best.total <= other.total * (1 + 1e-9) + 1e-9


@given(any_delays, durations, durations)
def test_a_longer_window_costs_more_storage_and_fewer_duplicates(
    delays: planning.Delays, one: float, other: float
):
    load = Workload(rate=1, duplicates=0.5, delays=delays)
    short, long = planning.cost_curve(
        load, "sqlite", Prices(duplicate=3, storage=1, fixed=7), sorted((one, other))
    )
    assert short.storage <= long.storage
    assert short.late_duplicates >= long.late_duplicates - 1e-6
    assert short.fixed == long.fixed == 7


def test_the_return_is_what_the_duplicates_would_have_cost():
    load = Workload(rate=1, duplicates=0.5, delays=UniformDelays(100))
    found = planning.return_on(load, "valkey", Prices(duplicate=2, storage=0), 100)
    month = 365.25 / 12 * 86400
    assert found.unprotected == pytest.approx(month)
    assert (found.protected, found.ratio) == (0, math.inf)
    half = planning.return_on(load, "valkey", Prices(duplicate=2, storage=0), 50)
    assert half.saved == pytest.approx(month / 2)
    assert half.ratio == pytest.approx(1)


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, True, "5"])
def test_a_price_that_is_none_is_refused(wrong: float):
    with pytest.raises(ConfigurationError, match="duplicate="):
        Prices(duplicate=wrong, storage=1)


# ------------------------------------------------------------------ collisions


def test_the_birthday_bound():
    # 23 people share a birthday with a chance of one half; 2**77 values of 64 bits surely.
    assert planning.collision_probability(2**32, 64) == pytest.approx(1 - math.exp(-0.5), rel=1e-6)
    assert planning.collision_probability(1, 8) == 0
    assert planning.collision_probability(2**77, 64) == 1


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.integers(1, 256))
def test_more_keys_collide_more_and_more_bits_less(one: float, other: float, bits: int):
    few, many = sorted((one, other))
    assert planning.collision_probability(few, bits) <= planning.collision_probability(many, bits)
    assert planning.collision_probability(few, bits + 1) <= planning.collision_probability(
        few, bits
    )


def test_an_id_with_a_time_meets_only_its_millisecond():
    (v7,) = (c for c in planning.collisions(1000, 86400) if c.keys == "UUIDv7")
    (v4,) = (c for c in planning.collisions(1000, 86400) if c.keys == "UUIDv4")
    year = 365.25 * 86400
    assert v7.probability == pytest.approx(year * 1000 / 2 / 2**74, rel=1e-6)
    assert v4.probability == pytest.approx(1000 * year * 1000 * 86400 / 2**122, rel=1e-6)


def test_the_stored_identity_has_as_many_bits_as_a_store_keeps(tmp_path: Path):
    with Receiver.open(f"sqlite:///{tmp_path}/keys.db?table=t") as receiver:
        receiver.process("tx-1", lambda: 1)
    db = sqlite3.connect(tmp_path / "keys.db")
    (length,) = db.execute("SELECT length(id) FROM t_keys").fetchone()
    db.close()
    assert 8 * length == STORED_BITS


# ------------------------------------------------------------------ all of it


def test_a_plan_without_a_window_takes_the_one_for_its_risk():
    found = planning.plan(LOAD, store="sqlite", risk="0.1%")
    assert found.window == found.window_for_risk == LOAD.delays.window(0.001)
    assert found.outside == pytest.approx(0.001)
    endless = Workload(rate=1, duplicates=0.1, delays=planning.ObservedDelays([1], late=1))
    with pytest.raises(ConfigurationError, match="not reached by any window"):
        planning.plan(endless, store="sqlite")


def test_the_data_of_a_plan_is_valid_json():
    endless = Workload(rate=1, duplicates=0.1, delays=planning.ObservedDelays([1], late=1))
    data = planning.plan(
        endless, store="sqlite", window=5, prices=Prices(duplicate=1, storage=1)
    ).data()
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again["target"]["window"] is None
    assert again["duplicates"]["outside_window_at_most"] > 0.5


@given(any_delays, st.floats(0, 1e7), st.booleans())
def test_every_plan_can_be_drawn(delays: planning.Delays, window: float, priced: bool):
    prices = Prices(duplicate=1, storage=1) if priced else None
    load = Workload(rate=10, duplicates=0.1, delays=delays)
    drawn = planning.svg(planning.plan(load, store="redis", window=window, prices=prices))
    root = ET.fromstring(drawn)
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 1 + priced
    assert "nan" not in drawn
    assert "inf" not in drawn


@given(st.floats(1, 1e9))
def test_a_window_is_shown_as_text_that_is_long_enough(window: float):
    assert seconds(duration_text(window, up=True)) >= window
    assert seconds(duration_text(window)) <= window + 0.5


# ------------------------------------------------------------------ measuring


def test_a_store_shows_its_rate_its_sizes_and_its_late_duplicates():
    clock = FakeClock()
    with Receiver(MemoryStore(now=clock), policy=Policy(retention=3600)) as receiver:
        assert planning.measure(receiver).records == 0
        for n in range(101):
            receiver.process(f"tx-{n:04d}", lambda: "x" * 98)
            clock.advance(2)
        clock.advance(3600 - 2 * 101)
        receiver.process("tx-0000", lambda: "late")
        found = planning.measure(receiver)
        warnings = [f.what for f in receiver.doctor() if "ran again" in f.what]
    assert warnings == [
        "1 of the 101 newest records are duplicates that came after the retention and ran again"
    ]
    assert (found.records, found.late, found.retention) == (101, 1, 3600)
    assert found.key == 7
    assert found.result == pytest.approx(100, rel=0.02)
    with pytest.raises(ConfigurationError, match="rate='500/s'"):
        planning.measured_from([]).rate(0.1)


async def test_the_async_doctor_says_the_same():
    clock = FakeClock()
    store = AsyncMemoryStore(MemoryStore(now=clock))
    async with AsyncReceiver(store, policy=Policy(retention=60)) as receiver:
        await receiver.process("tx-1", lambda: 1)
        (found,) = [f for f in await receiver.doctor() if "ran again" in f.what]
        assert (found.level, found.what) == (
            "ok",
            "none of the 1 newest records is a duplicate that came after the retention and ran again",
        )
        clock.advance(61)
        await receiver.process("tx-1", lambda: 1)
        (found,) = [f for f in await receiver.doctor() if "ran again" in f.what]
    assert "1 of the 1 newest records" in found.what


def test_an_observer_tells_how_much_the_window_covers():
    clock, seen = FakeClock(), planning.DuplicateSample()
    assert seen.finding().what == "no duplicate was seen yet"
    policy = Policy(retention=1000)
    with Receiver(MemoryStore(now=clock), policy=policy, observers=[seen]) as receiver:
        for age in (0, *range(1, 126)):
            clock.advance(age - (age - 1 if age else 0))
            receiver.process("tx-1", lambda: 1)
        assert seen.finding().what == "the window covers 100 % of the 125 duplicates seen"
        clock.advance(1000)
        receiver.process("tx-1", lambda: 1)
    assert (seen.finding().level, seen.late, seen.covered) == ("warn", 1, 125 / 126)
    assert seen.finding().what == "the window covers 99.2 % of the 126 duplicates seen"
    delays = seen.delays()
    assert (delays.late, delays.outside(125)) == (1, 1 / 126)


def test_a_sample_of_ages_is_bounded_and_fair():
    seen = planning.DuplicateSample(size=100, seed=3)
    for n in range(10_000):
        seen(Replayed(Key("k"), float(n)))
    ages = seen.delays().ages
    assert len(ages) == 100
    assert 4_000 < sum(ages) / 100 < 6_000
