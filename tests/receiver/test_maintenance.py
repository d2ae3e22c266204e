"""Sweeping by itself: on a timer, by one node among many."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from typing import Any

import pytest

from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    Key,
    Policy,
    Receiver,
    State,
    StoreUnavailableError,
)
from twicesafe import events as ev
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing import FakeClock


def expired(store: MemoryStore, clock: FakeClock, count: int = 5) -> None:
    with_short_memory = Receiver(store, policy=Policy(retention=1))
    for number in range(count):
        with_short_memory.process(f"old-{number}", lambda: None)
    clock.advance(2)


def test_it_sweeps_until_the_receiver_is_closed() -> None:
    clock, swept = FakeClock(), threading.Event()

    def observe(event: ev.Event) -> None:
        if isinstance(event, ev.Swept) and event.removed == 5:
            swept.set()

    store = MemoryStore(now=clock)
    expired(store, clock)
    with Receiver(store, observers=[observe]) as receiver:
        upkeep = receiver.maintain(every=0.05)
        assert swept.wait(60)
    assert not upkeep._thread.is_alive()


def test_one_node_of_many_does_a_round() -> None:
    clock = FakeClock()
    store = MemoryStore(now=clock)
    expired(store, clock)
    receivers = [Receiver(store) for _ in range(4)]
    nodes = [receiver.maintain(every=86_400 * 365) for receiver in receivers]
    assert [node.round() for node in nodes] == [True, False, False, False]
    for node in nodes:
        node.stop()


class Sick(MemoryStore):
    trouble: Exception | None = None

    def sweep(self, ask: Any) -> Any:
        if self.trouble is not None:
            raise self.trouble
        return super().sweep(ask)


TROUBLES = {"ours": StoreUnavailableError("too much"), "foreign": ZeroDivisionError("a bug")}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_round_that_fails_is_logged_and_not_the_last(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "twicesafe")
    store = Sick()
    receiver = Receiver(store)
    upkeep = receiver.maintain(every=86_400 * 365)
    store.trouble = trouble
    assert upkeep.round() is False
    assert str(trouble) in caplog.text
    store.trouble = None
    assert upkeep.round() is True
    receiver.close()


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
async def test_nor_in_the_async_version(trouble: Exception) -> None:
    store = Sick()
    async with AsyncReceiver(AsyncMemoryStore(store)) as receiver:
        upkeep = receiver.maintain(every=86_400 * 365)
        store.trouble = trouble
        assert await upkeep.round() is False
        store.trouble = None
        assert await upkeep.round() is True


FINGERPRINTS: dict[str, Any] = {"arguments": True, "callable": lambda order: order}


@pytest.mark.parametrize("setting", FINGERPRINTS.values(), ids=FINGERPRINTS)
def test_fingerprints_are_for_deliveries_and_not_for_rounds(setting: Any) -> None:
    with Receiver(MemoryStore(), fingerprint=setting) as receiver:
        assert receiver.maintain(every=86_400 * 365).round() is True


@pytest.mark.parametrize("setting", FINGERPRINTS.values(), ids=FINGERPRINTS)
async def test_nor_for_async_ones(setting: Any) -> None:
    async with AsyncReceiver(AsyncMemoryStore(), fingerprint=setting) as receiver:
        assert await receiver.maintain(every=86_400 * 365).round() is True


def test_a_receiver_without_references_maintains_for_those_that_share_its_runtime() -> None:
    receiver = Receiver(MemoryStore())
    upkeep = receiver.options(policy=Policy(retention=5)).maintain(every=86_400 * 365)
    gc.collect()
    assert upkeep.round() is True
    del receiver
    gc.collect()
    assert upkeep.round() is False
    upkeep._thread.join(60)
    assert not upkeep._thread.is_alive(), "a timer without a receiver goes on"


async def test_nor_does_the_async_version_outlive_its_receivers() -> None:
    receiver = AsyncReceiver(AsyncMemoryStore())
    upkeep = receiver.options(policy=Policy(retention=5)).maintain(every=0.05)
    once = receiver.options().maintain(every=86_400 * 365)
    gc.collect()
    assert await once.round() is True
    await once.stop()
    del receiver
    gc.collect()
    async with asyncio.timeout(120):
        await upkeep._task


def test_a_store_that_cannot_keep_up_gets_smaller_bites() -> None:
    bites: list[int] = []

    class Slow(MemoryStore):
        def sweep(self, ask: Any) -> Any:
            bites.append(ask.limit)
            if ask.limit > 50:
                raise StoreUnavailableError("statement timeout")
            return super().sweep(ask)

    assert Receiver(Slow()).sweep().removed == 0
    assert bites == [500, 125, 31]


def test_the_rest_of_a_limit_makes_no_small_bites() -> None:
    """Live records are looked at, too: one by one it would take 1,200 requests."""
    asked: list[tuple[int, int]] = []

    class Counting(MemoryStore):
        def sweep(self, ask: Any) -> Any:
            asked.append((ask.limit, ask.most))
            return super().sweep(ask)

    clock = FakeClock()
    store = Counting(now=clock)
    expired(store, clock, 40)
    Receiver(store).process_many(range(1200), lambda number: number, key=str)
    receiver = Receiver(store)
    assert receiver.sweep(limit=39).removed == 39
    assert receiver.sweep(limit=2).removed == 1
    assert asked == [(500, 39), (500, 2), (500, 1), (500, 1)]


async def test_the_async_version() -> None:
    clock, swept = FakeClock(), asyncio.Event()

    def observe(event: ev.Event) -> None:
        if isinstance(event, ev.Swept) and event.removed:
            swept.set()

    store = MemoryStore(now=clock)
    expired(store, clock)
    async with AsyncReceiver(AsyncMemoryStore(store), observers=[observe]) as receiver:
        upkeep = receiver.maintain(every=0.05)
        async with asyncio.timeout(120):
            await swept.wait()
        again = receiver.maintain(every=86_400 * 365)
        assert await again.round() is True
        assert await again.round() is False
    assert upkeep._task.done()


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="every"):
        Receiver(MemoryStore()).maintain(every=0)


def stuck(receiver: Receiver, key: str) -> None:
    """A worker that died in mid-work: claimed, never ended."""

    def die() -> None:
        claim = receiver.claim(key)
        claim.__enter__()
        assert claim._flow_run is not None
        claim._flow_run.end()

    contextvars.copy_context().run(die)


@pytest.mark.parametrize("takeover, state", [("retry", State.PARKED), ("hold", State.HELD)])
def test_unfinished_work_waits_for_an_operator(takeover: Any, state: State) -> None:
    receiver = Receiver(MemoryStore(), policy=Policy(lease=0.05, takeover=takeover))
    stuck(receiver, "old")
    assert receiver.park_stuck(older_than=3600) == []  # not long enough
    assert [(found.value, found.state) for found in receiver.park_stuck(older_than=-1)] == [
        ("old", state)
    ]
    record = receiver.record("old")
    assert record is not None
    assert record.state is state
    receiver.release("old", by="ana")
    assert receiver.process("old", lambda: 1).value == 1


def test_an_owner_that_was_wrongly_parked_may_still_complete() -> None:
    receiver = Receiver(MemoryStore(), policy=Policy(lease=0.05))
    with receiver.claim("slow") as claim:
        assert receiver.park_stuck(older_than=-60)
        claim.complete("done after all")
    assert receiver.process("slow", lambda: "again").value == "done after all"


async def test_parking_in_the_async_version() -> None:
    store = MemoryStore()
    stuck(Receiver(store, policy=Policy(lease=0.05)), "old")
    seen: list[ev.Event] = []
    receiver = AsyncReceiver(AsyncMemoryStore(store), observers=[seen.append])
    assert [record.value for record in await receiver.park_stuck(older_than=-1)] == ["old"]
    assert [event for event in seen if isinstance(event, (ev.Held, ev.Parked))] == [
        ev.Parked(Key("old"), "its lease ended long ago and it was not redelivered")
    ]
