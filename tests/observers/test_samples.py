"""Samples: what observers learn about the store, by an explicit look and never with a delivery."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from twicesafe import AsyncReceiver, Outbox, OutboxRelay, Receiver, State
from twicesafe import events as ev
from twicesafe._core.sample_schedule import SHARE, SampleSchedule
from twicesafe.receiver._maintenance import RoundTimer, sweep_round
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing._clock import FakeClock


def test_a_sample_tells_observers_what_is_in_the_store(bench: Bench):
    for key in ("a", "b"):
        bench.process(key, Counter().quick)
    assert bench.events(ev.StoreSampled) == []
    stats = bench.sample()
    (event,) = bench.events(ev.StoreSampled)
    assert event.by_state == stats.by_state == {State.COMPLETED: 2}
    assert (event.stuck, event.expired, event.oldest_expired) == (0, 0, 0.0)
    assert event.size == stats.size
    assert (stats.size is None) == (bench.kind == "memory")


def test_a_sample_tells_how_far_the_sweep_is_behind(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    clock = FakeClock()
    monkeypatch.setattr("twicesafe.receiver._operator_flows.wall_clock", clock)
    with Receiver(MemoryStore(now=clock), observers=[seen.append]) as receiver:
        receiver.process("k", int)
        clock.advance(86400 + 600)
        receiver.sample()
    assert seen[-1].expired == 1
    assert seen[-1].oldest_expired == pytest.approx(600, abs=1)


def test_every_node_learns_the_numbers_of_a_round(tmp_path: Path):
    """The node that wins the round counts; the others get its report as a replay."""
    url = f"sqlite:///{tmp_path}/keys.db"
    one: list[Any] = []
    two: list[Any] = []
    with (
        Receiver.open(url, observers=[one.append]) as first,
        Receiver.open(url, observers=[two.append]) as second,
    ):
        first.process("k", int)
        timers = [RoundTimer(86400, None), RoundTimer(86400, None)]
        sweep_round(first, timers[0])
        sweep_round(second, timers[1])
    (here,) = [event for event in one if isinstance(event, ev.StoreSampled)]
    (there,) = [event for event in two if isinstance(event, ev.StoreSampled)]
    assert here == there
    assert here.by_state[State.COMPLETED] == 1
    assert not any(isinstance(event, ev.Swept) for event in two), "it has not counted itself"


async def test_the_async_maintenance_samples_too():
    seen: list[Any] = []
    async with AsyncReceiver.open("memory://", observers=[seen.append]) as receiver:
        await receiver.process("k", _nothing)
        upkeep = receiver.maintain(every=86400)
        assert await upkeep.round()
        await upkeep.stop()
    assert [event.by_state for event in seen if isinstance(event, ev.StoreSampled)] == [
        {State.COMPLETED: 1, State.IN_PROGRESS: 1}  # the round itself
    ]


async def _nothing() -> None: ...


def test_a_receiver_without_observers_counts_nothing(monkeypatch: pytest.MonkeyPatch):
    with Receiver.open("memory://") as receiver:
        monkeypatch.setattr(receiver, "stats", lambda: pytest.fail("counted"))
        outcome = sweep_round(receiver, RoundTimer(86400, None))
    assert outcome is not None
    assert "sample" not in outcome.value


def test_counting_takes_a_twentieth_of_the_time_at_most():
    now = [0.0]
    schedule = SampleSchedule(10.0, lambda: now[0])
    assert schedule.is_due()
    with schedule.measured():
        now[0] += 0.1
    now[0] += 9.9
    assert not schedule.is_due()
    now[0] += 0.2
    assert schedule.is_due()
    with contextlib.suppress(OSError), schedule.measured():
        now[0] += 3
        raise OSError
    now[0] += 3 * SHARE - 1
    assert not schedule.is_due()
    now[0] += 1
    assert schedule.is_due()


def test_a_relay_samples_its_outbox(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/shop.db"
    seen: list[Any] = []
    outbox = Outbox.open(url)
    connection = sqlite3.connect(tmp_path / "shop.db")
    with connection:
        outbox.add(connection, topic="orders", body={"n": 1})
    connection.close()
    outbox.close()
    relay = OutboxRelay.open(url, lambda message: None, observers=[seen.append])
    relay.drain()
    relay.close()
    (sample,) = [event for event in seen if isinstance(event, ev.OutboxSampled)]
    assert (sample.relays, sample.parked_lanes) == (1, 0)
    assert sample.pending <= 1
