"""Sweeping by itself: on a timer, by one node among many."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
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
        assert swept.wait(10)
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


def test_a_round_that_fails_is_not_the_last() -> None:
    class Sick(MemoryStore):
        sick = True

        def sweep(self, ask: Any) -> Any:
            if self.sick:
                raise StoreUnavailableError("too much")
            return super().sweep(ask)

    store = Sick()
    receiver = Receiver(store)
    upkeep = receiver.maintain(every=86_400 * 365)
    assert upkeep.round() is False
    store.sick = False
    assert upkeep.round() is True
    receiver.close()


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


async def test_the_awaited_twin() -> None:
    clock, swept = FakeClock(), asyncio.Event()

    def observe(event: ev.Event) -> None:
        if isinstance(event, ev.Swept) and event.removed:
            swept.set()

    store = MemoryStore(now=clock)
    expired(store, clock)
    async with AsyncReceiver(AsyncMemoryStore(store), observers=[observe]) as receiver:
        upkeep = receiver.maintain(every=0.05)
        async with asyncio.timeout(10):
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
        assert claim._trip is not None
        claim._trip.end()

    contextvars.copy_context().run(die)


@pytest.mark.parametrize("takeover, state", [("retry", State.PARKED), ("hold", State.HELD)])
def test_work_that_nobody_finished_waits_for_somebody_to_look(takeover: Any, state: State) -> None:
    receiver = Receiver(MemoryStore(), policy=Policy(lease=0.05, takeover=takeover))
    stuck(receiver, "old")
    assert receiver.park_stuck(older_than=3600) == []  # not long enough
    assert receiver.park_stuck(older_than=-1)[0].value == "old"
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


async def test_parking_in_the_awaited_twin() -> None:
    store = MemoryStore()
    stuck(Receiver(store, policy=Policy(lease=0.05)), "old")
    seen: list[ev.Event] = []
    receiver = AsyncReceiver(AsyncMemoryStore(store), observers=[seen.append])
    assert [record.value for record in await receiver.park_stuck(older_than=-1)] == ["old"]
    assert any(isinstance(event, ev.GivenUp) for event in seen)
