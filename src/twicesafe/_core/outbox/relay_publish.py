"""The publish loop: which rows are published next, in which order, and what happens on failure.

The order of a lane is kept here, and nowhere else. The publisher gets one row of a lane at a time, and
the next one after the broker has accepted it. So a broker may accept any part of a call, in any
order. A publisher that `keeps_order` by itself gets many rows of a lane in one call, all of one
topic, because brokers accept or refuse topic by topic. After a refusal the lane backs off; after too
many refusals it is parked.

`relay_answers` decides what the answers cause.
`relay_lease` says what a crash at each point leaves behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Final

from ... import events
from ..._values.keys import chance
from ...errors import BrokerUnavailableError, CorruptRecordError
from ..commands import Flow
from ..encrypting import decrypt_body
from .relay_answers import RelayAnswers
from .relay_lease import (
    DEAF_POLL,
    REST,
    STORE_FAILURES,
    CheckBroker,
    Collect,
    GiveUp,
    Listen,
    Publish,
    RelayState,
)
from .requests import Awake, Fetch, Fetched, Pending, Settle

__all__ = ["publish_pending"]

GATHER: Final = 0.005
"""Seconds between two fetches at low load, so that more rows are published together."""


def publish_pending(state: RelayState) -> Flow[None]:
    """Fetch, publish and settle until stopped; then finish running publishes and settle them."""
    return _PublishLoop(state).run()


class _PublishLoop(RelayAnswers):
    def __init__(self, state: RelayState) -> None:
        super().__init__(state)
        self.tickets = 0
        self.pause = 0.0
        self.asleep = False
        self.usable: dict[int, int] = {}
        """The slots that this relay could publish from when this turn began."""

    def run(self) -> Flow[None]:
        state = self.state
        while True:
            self._let_go()
            if not state.stopping:
                found = yield from self._refill()
                empty = found == 0 and not self.ready and not self.todo.aside
                if state.until_empty and not self.under_way and (empty or state.outage is not None):
                    break
                yield from self._start_publishing()
            elif not self.under_way:
                break
            yield from self._wait()
            if self._is_due():
                yield from self._settle()
        yield from self._settle(repeats=True)
        state.publishing_ended = True

    # -- fetching -----------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Drop rows of slots that we lost or must release; report when those slots are idle."""
        state, before = self.state, self.usable
        unwanted, usable = state.unwanted, state.usable()
        self.usable = usable
        if before.items() <= usable.items() and not unwanted:
            return
        busy_lanes = {row.lane for rows in self.under_way.values() for row in rows}
        for lane, rows in list(self.lanes.items()):
            if not _is_ours(rows[0], usable) and lane not in busy_lanes:
                self._forget(lane)
        self.ready = deque(lane for lane in self.ready if lane in self.lanes)
        busy = {row.slot for rows in self.under_way.values() for row in rows}
        state.drained = (unwanted, unwanted - busy - self.owed)

    def _refill(self) -> Flow[int | None]:
        """Fetch rows, always from the first one, if too few are ready and there is room.

        None: it did not fetch.
        """
        state, todo = self.state, self.todo
        unsettled = todo.done or todo.setbacks or todo.cured
        enough = self.ready and self._has_enough()
        if unsettled or enough or state.clock() < self.down_until:
            return None
        if self.rows_under_way >= state.batch or state.is_full():
            return None
        slots = self.usable
        if not slots:
            state.outage = state.outage or state.unheld
            self.pause = GATHER * 4
            return None
        if self.compare:
            self._make_room()
        try:
            fetched: Fetched = yield Fetch(sorted(slots), state.batch, list(self.lanes))
        except STORE_FAILURES as error:
            self._outage("outbox_fetch", error)
            return None
        rows, self.compare = fetched.rows, False
        todo.aside = fetched.aside
        self._sort_in(rows, slots)
        if rows:
            self.pause = GATHER if len(rows) < max(1, state.batch // 10) else 0.0
            if self.asleep:
                yield from self._tell_awake()
        else:
            self.pause = min(state.longest_pause, max(GATHER, self.pause * 2))
        return len(rows)

    def _has_enough(self) -> bool:
        """Whether enough lanes are ready. After an outage, one of them must not be a suspect, unless many are ready.

        The suspects alone would be retried forever, with nothing to compare them with.
        """
        if self.compare and len(self.ready) <= self.state.batch:
            return any(not self.suspects[lane] for lane in self.ready)
        return True

    def _make_room(self) -> None:
        """Keep the first row of each ready lane only, if there are more than a batch in all.

        Otherwise every comparison would add a batch, as long as an outage lasts.
        """
        if sum(map(len, self.lanes.values())) > self.state.batch:
            for lane in self.ready:
                self.lanes[lane] = deque((self.lanes[lane][0],))

    def _sort_in(self, rows: Sequence[Pending], slots: dict[int, int]) -> None:
        for row in rows:
            row.fence = slots[row.slot]
            decrypt_body(self.state.cipher, row)
            if row.lane in self.lanes:
                self.lanes[row.lane].append(row)
            else:
                self.lanes[row.lane] = deque((row,))
                self.ready.append(row.lane)
        if self.suspects:  # others first: if the broker accepts them, the suspects are to blame
            self.ready = deque(sorted(self.ready, key=lambda lane: self.suspects[lane] > 0))

    # -- publishing ---------------------------------------------------------------------------

    def _start_publishing(self) -> Flow[None]:
        state = self.state
        while self.ready and not state.is_full():
            room = min(state.group, self._room())
            if room <= 0 or state.clock() < self.down_until:
                return
            if self.doubt and state.checks:
                if not self.under_way:
                    yield from self._ask_broker()
                return
            rows = self._group(room, state.usable())
            if not rows:
                return
            self.rows_under_way += len(rows)
            yield Publish(self._ticket(rows), [row.message for row in rows])

    def _group(self, room: int, usable: dict[int, int]) -> list[Pending]:
        """Rows for one publish call: lane by lane, each in order."""
        chosen: list[Pending] = []
        while self.ready and len(chosen) < room:
            lane = self.ready[0]
            rows, alone = self.lanes[lane], self.alone[lane]
            if not _is_ours(rows[0], usable):
                self.ready.popleft()
                self._forget(lane)
                continue
            if chosen and alone:
                break
            self.ready.popleft()
            if rows[0].unreadable is not None:
                counts = isinstance(rows[0].unreadable, CorruptRecordError)
                self._refused(rows[0], rows[0].unreadable, counts)
                continue
            chosen.append(rows[0])
            if alone:
                break
            if self.state.keeps_order:
                chosen += self._followers(rows, room - len(chosen))
        return chosen

    def _followers(self, rows: Sequence[Pending], room: int) -> list[Pending]:
        """The next rows of a lane that may go together with its first one."""
        topic = rows[0].message.topic
        next_rows = islice(rows, 1, 1 + room)
        return list(
            takewhile(lambda row: row.message.topic == topic and row.unreadable is None, next_rows)
        )

    def _ask_broker(self) -> Flow[None]:
        yield CheckBroker(self._ticket([]))

    def _ticket(self, rows: list[Pending]) -> int:
        self.tickets += 1
        self.under_way[self.tickets] = rows
        self.state.calls[self.tickets] = self.state.clock(), len(rows)
        return self.tickets

    def _give_up_overdue(self) -> Flow[None]:
        """A publisher that does not return is an outage; the call may be cancelled, or stay in its thread."""
        state = self.state
        limit = state.clock() - state.publish_timeout
        for ticket in [one for one in self.under_way if state.calls[one][0] <= limit]:
            yield GiveUp(ticket)
            said = f"the publisher did not return within {state.publish_timeout:g} s"
            state.outage = BrokerUnavailableError(said)
            self._call_ended(ticket, state.outage)

    def _wait(self) -> Flow[None]:
        """Wait for an answer if a publish is running, else for new rows."""
        state = self.state
        down = max(0.0, self.down_until - state.clock())
        if self.under_way or (state.is_full() and not state.stopping):
            busy = state.is_full() or self.rows_under_way >= state.batch
            wait = state.lease / 6 if busy else max(down, self.pause, GATHER)
            self._handle_answers((yield Collect(wait)))
            yield from self._give_up_overdue()
        elif state.stopping:
            return
        elif down:
            self._handle_answers((yield Collect(min(down, state.lease / 6))))
        elif self.ready or not self.pause:
            return
        elif state.wake and self.pause >= DEAF_POLL:
            self.asleep = True
            try:
                yield Listen(state.owner, self.pause)
            except STORE_FAILURES as error:
                self._outage("outbox_listen", error)
        else:
            self._handle_answers((yield Collect(self.pause)))

    def _tell_awake(self) -> Flow[None]:
        try:
            yield Awake(self.state.owner)
        except STORE_FAILURES:
            return  # writers keep waking us without need, which costs them little
        self.asleep = False

    # -- settling -----------------------------------------------------------------------------

    def _room(self) -> int:
        """Room for rows: at most one batch is unsettled, so a kill repeats at most one batch."""
        return self.state.batch - self.rows_under_way - len(self.todo.done)

    def _is_due(self) -> bool:
        """True if it is time to settle; while more is ready, groups are settled together."""
        todo = self.todo
        if todo.setbacks or todo.aside or not self.ready or self._room() <= 0:
            return True
        return self.state.clock() >= self.settle_by

    def _settle(self, repeats: bool = False) -> Flow[None]:
        """Write the results to the store; if that fails, they are kept and retried."""
        todo, state = self.todo, self.state
        if not (todo.done or todo.cured or todo.setbacks or todo.aside):
            return
        for turn in range(1, 9 if repeats else 2):
            slots = state.slots
            try:
                if (yield todo):
                    state.doubted = slots  # until the keeper has renewed them
                break
            except STORE_FAILURES as error:
                self._outage("outbox_settle", error)
                if repeats:
                    yield Collect(REST.delay(turn, chance(state.owner, turn)))
        else:
            return  # kept, and retried before the next fetch
        self.outages = 0
        if todo.done:
            state.published += len(todo.done)
            state.notify(events.Relayed(len(todo.done)))
        self.todo = Settle(state.owner, [], {}, [], {})
        self.owed.clear()


def _is_ours(row: Pending, usable: dict[int, int]) -> bool:
    """False also after losing and regaining the slot: another relay may have handled the row."""
    return usable.get(row.slot) == row.fence
