"""A slot that is lost and won back: what was fetched before may be neither published nor judged.

Found by the simulation of relays: others may have published, parked or skipped the rows meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.polling import until
from twicesafe import Backoff, StoreUnavailableError
from twicesafe._core.outbox.relay_lease import Collect, Publish, RelayState
from twicesafe._core.outbox.relay_publish import publish_pending
from twicesafe._core.outbox.requests import (
    SLOTS,
    Fetch,
    Fetched,
    Heartbeat,
    Message,
    Pending,
    Relays,
    Setback,
    Settle,
    lane_of,
    slot_of,
)
from twicesafe.outbox import AsyncOutbox, Outbox

Put = Callable[..., list[str]]

LANE = lane_of("k", "")
SLOT = slot_of(LANE)


# --- the publishing flow -----------------------------------------------------------------------------------


@pytest.fixture
def state() -> RelayState:
    made = RelayState(
        lease=5, batch=4, group=1, concurrency=1, max_attempts=3, backoff=Backoff(), publish_timeout=300,
        wake=False, clock=lambda: 0.0, notify=lambda event: None,
    )  # fmt: skip
    made.slots, made.deadline = {SLOT: 1}, 1.0
    return made


def rows(*numbers: int) -> list[Pending]:
    return [
        Pending(n, LANE, SLOT, 0, False, 0, Message(f"m{n}", "orders", b"", "k")) for n in numbers
    ]


def under_way(state: RelayState) -> Any:
    """A publishing flow that has published the first of two rows and waits for the answer."""
    flow = publish_pending(state)
    assert type(flow.send(None)) is Fetch
    first = flow.send(Fetched(rows(1, 2)))
    assert type(first) is Publish
    assert type(flow.send(None)) is Collect
    return flow


def test_rows_of_an_earlier_holding_are_not_published(state: RelayState):
    flow = under_way(state)
    state.slots = {SLOT: 3}
    settlement = flow.send([(1, [None])])
    while type(settlement) is not Settle:
        assert type(settlement) is not Publish
        settlement = flow.send([])
    assert settlement.done == [1]
    again = flow.send(0)
    assert type(again) is Fetch
    assert again.except_lanes == []


def test_a_refusal_has_the_fence_that_its_row_was_fetched_with(state: RelayState):
    flow = under_way(state)
    state.slots = {SLOT: 3}
    settlement = flow.send([(1, [ValueError("no")])])
    assert [setback.fence for setback in settlement.setbacks] == [1]


def test_a_slot_with_something_to_settle_is_not_given_back(state: RelayState):
    flow = under_way(state)
    state.unwanted = frozenset({SLOT})
    settlement = flow.send([(1, [None])])
    while type(settlement) is not Settle:
        settlement = flow.send([])
    assert type(flow.throw(StoreUnavailableError("away"))) is Collect
    assert state.drained == (state.unwanted, frozenset())
    state.stopping = True
    assert flow.send([]) is settlement


# --- the store -------------------------------------------------------------------------------------


class Holder:
    """Speaks to the store as a relay that holds the slot of one lane with three messages."""

    def __init__(self, outbox: Outbox, put: Put) -> None:
        self.perform = outbox.store.outbox.perform
        put("1", "2", "3", key="k")
        self.fence = self.perform(Heartbeat(b"me", 60_000)).slots[SLOT]
        self.numbers = [row.n for row in self.perform(Fetch([SLOT], 10, [])).rows]

    def refused(self, attempts: int, park: bool = False) -> int:
        it = Setback(SLOT, self.fence, LANE, self.numbers[0], attempts, 0, "no", park)
        return self.settle(setbacks=[it], aside={LANE: self.numbers} if park else {})

    def settle(self, done: Any = (), setbacks: Any = (), aside: Any = None) -> int:
        ask = Settle(b"me", list(done), {}, list(setbacks), aside or {})
        return self.perform(ask)


@pytest.fixture
def holder(outbox: Outbox, put: Put) -> Holder:
    return Holder(outbox, put)


def test_a_refusal_of_what_is_parked_leaves_it_parked(outbox: Outbox, holder: Holder):
    holder.refused(1)
    holder.refused(2, park=True)
    assert holder.refused(1) == 0
    [lane] = outbox.parked()
    assert (lane.waiting, lane.attempts) == (3, 2)


def test_a_refusal_of_what_another_published_parks_nothing(outbox: Outbox, holder: Holder):
    holder.settle(done=holder.numbers[:1])
    assert holder.refused(1, park=True) == 0
    depth = outbox.depth()
    assert (depth.pending, depth.parked, depth.parked_lanes) == (2, 0, 0)


def test_a_settlement_said_again_does_not_undo_an_operator(outbox: Outbox, holder: Holder):
    holder.refused(1)
    holder.refused(2, park=True)
    [lane] = outbox.parked()
    outbox.retry(lane.lane, by="me", why="repaired")
    assert holder.refused(2, park=True) == 0
    assert outbox.parked() == []
    assert outbox.depth().pending == 3


def test_a_lane_does_not_rest_for_what_is_gone(outbox: Outbox, holder: Holder):
    holder.refused(1)
    assert outbox.depth().resting_lanes == 1
    holder.settle(done=holder.numbers[:1])  # by a relay that had fetched it before it was refused
    assert outbox.depth().resting_lanes == 0


def test_a_refusal_that_was_counted_before_counts_nothing_back(holder: Holder):
    """A settlement whose answer was lost is said again, behind the next one."""
    for attempts in (1, 2, 1):
        assert holder.refused(attempts) == 0
    assert holder.perform(Fetch([SLOT], 10, [])).rows[0].attempts == 2


# --- who holds what ----------------------------------------------------------------------------------------


async def test_relays_are_listed_with_what_waits_in_their_slots(url: str, outbox: Outbox, put: Put):
    assert outbox.relays() == Relays([], 0, 0.0)
    put("a", key="ann")
    put("b", key="bob")
    assert (outbox.relays().relays, outbox.relays().unserved) == ([], 2)
    port = outbox.store.outbox
    held = port.perform(Heartbeat(b"a" * 16, 60_000))
    assert len(held.slots) == SLOTS
    give = frozenset({slot_of(lane_of("ann", ""))})
    port.perform(Heartbeat(b"b" * 16, 60_000))
    port.perform(Heartbeat(b"a" * 16, 60_000, give))
    found = outbox.relays()
    assert {one.id[:2]: (one.is_alive, one.slots) for one in found.relays} == {
        "61": (True, SLOTS - 1),
        "62": (True, 0),
    }
    shared = slot_of(lane_of("ann", "")) == slot_of(lane_of("bob", ""))
    assert found.unserved == (2 if shared else 1)
    assert sum(one.pending for one in found.relays) + found.unserved == 2
    port.perform(Heartbeat(b"b" * 16, 60_000))
    found = outbox.relays()
    assert (found.unserved, sum(one.pending for one in found.relays)) == (0, 2)
    until(lambda: max(one.oldest_age for one in outbox.relays().relays) > 0)
    port.perform(Heartbeat(b"a" * 16, 60_000, leave=True))
    async with AsyncOutbox.open(url) as other:
        assert [one.id[:2] for one in (await other.relays()).relays] == ["62"]
