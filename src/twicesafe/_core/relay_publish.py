"""The publish loop: which rows are published next, in which order, and what happens on failure.

The order of a lane is kept here, and nowhere else. One row of a lane is handed over at a time, and
the next one after the broker has accepted it. So a broker may accept any part of a call, in any
order. A publisher that `keeps_order` by itself gets many rows of a lane in one call, all of one
topic, because brokers accept or refuse topic by topic. After a refusal the lane backs off; after too
many refusals it is parked.

Outage or refusal? If the broker accepts nothing, no message is to blame, and no attempt is counted.
But a message on which the broker closes the connection looks like an outage every time, and would
block all lanes forever. So when an outage repeats, messages are sent one by one. A message that
fails alone again is to blame if, since the last outage, the broker accepted another message or
(where `blames` allows it) answered a check.

`relay_lease` says what a crash at each point leaves behind.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Any, Final

from .. import events
from .._values.owner_token import chance
from ..errors import BrokerUnavailableError, CorruptRecordError, StoreError, TwicesafeError, text_of
from .commands import Flow
from .encrypting import decrypt_body
from .outbox_requests import Fetch, Fetched, Pending, Rise, Setback, Settle
from .publisher import NOT_TRIED, NotNow
from .relay_lease import DEAF_POLL, REST, Check, Collect, Listen, Publish, RelayState

__all__ = ["publish_pending"]

GATHER: Final = 0.005
"""Seconds between two fetches at low load, so that more rows are published together."""

TOGETHER: Final = 0.25
"""Seconds that a published row may wait to be settled together with later ones."""

OUTAGES: Final = 3
"""Consecutive failures after which `drain` treats it as an outage and ends."""

NOT_COUNTED: Final = 4
"""A message that is not to blame backs off as if it had been refused this many times."""


def publish_pending(state: RelayState) -> Flow[None]:
    """Fetch, publish and settle until stopped; then finish running publishes and settle them."""
    return _PublishLoop(state).run()


class _PublishLoop:
    def __init__(self, state: RelayState) -> None:
        self.state = state
        self.lanes: dict[bytes, deque[Pending]] = {}
        """Rows that are fetched or being published: by lane, in order."""
        self.ready: deque[bytes] = deque()
        """Lanes with rows, none of which is being published."""
        self.under_way: dict[int, list[Pending]] = {}
        self.rows_under_way = 0
        self.tickets = 0
        self.todo = Settle(state.owner, [], {}, [], {})
        self.owed: set[int] = set()
        """Slots with unsettled rows: if released now, the next holder would publish them again."""
        self.settle_by = 0.0
        self.pause = 0.0
        self.outages = 0
        self.down_until = 0.0
        self.alone: Counter[bytes] = Counter()
        """By lane, how many messages to send one by one: a group with them failed."""
        self.suspects: Counter[bytes] = Counter()
        """Outages per lane since the broker last accepted a message of that lane."""
        self.took = self.answered = False
        """Since the last outage: the broker accepted a message; it answered a check."""
        self.doubt = False
        """After an outage: check the broker before sending more."""
        self.compare = False
        """After an outage: fetch other messages before the suspects are sent again."""
        self.asleep = False
        self.known: object = None

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
        yield from self._settle(patient=True)
        state.publishing_ended = True

    # -- fetching -----------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Drop rows of slots that we lost or must release; report when those slots are idle."""
        state = self.state
        unwanted, usable = state.unwanted, state.usable()
        if usable == self.known and not unwanted:
            return
        self.known = usable
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
        if unsettled or self._has_enough() or state.clock() < self.down_until:
            return None
        if self.rows_under_way >= state.batch or len(self.under_way) >= state.concurrency:
            return None
        slots = state.usable()
        if not slots:
            state.outage = state.outage or state.unheld
            self.pause = GATHER * 4
            return None
        if self.compare:
            self._make_room()
        try:
            fetched: Fetched = yield Fetch(sorted(slots), state.batch, list(self.lanes))
        except StoreError as error:
            self._outage("outbox_fetch", error)
            return None
        rows, self.compare = fetched.rows, False
        todo.aside = fetched.aside
        self._sort_in(rows, slots)
        if rows:
            self.pause = GATHER if len(rows) < max(1, state.batch // 10) else 0.0
            if self.asleep:
                yield from self._rise()
        else:
            self.pause = min(state.longest_pause, max(GATHER, self.pause * 2))
        return len(rows)

    def _has_enough(self) -> bool:
        """A lane is ready. After an outage: one that cannot be to blame for it, unless many are ready.

        The suspects alone would be retried forever, with nothing to compare them with.
        """
        if self.compare and len(self.ready) <= self.state.batch:
            return any(not self.suspects[lane] for lane in self.ready)
        return bool(self.ready)

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

    def _forget(self, lane: bytes) -> None:
        """Its rows are fetched again later, or by another relay."""
        self.lanes.pop(lane, None)
        self.suspects.pop(lane, None)
        self.alone.pop(lane, None)

    # -- publishing ---------------------------------------------------------------------------

    def _start_publishing(self) -> Flow[None]:
        state = self.state
        while self.ready and len(self.under_way) < state.concurrency:
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
            self.tickets += 1
            self.under_way[self.tickets] = rows
            self.rows_under_way += len(rows)
            yield Publish(self.tickets, [row.message for row in rows])

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
        self.tickets += 1
        self.under_way[self.tickets] = []
        yield Check(self.tickets)

    def _wait(self) -> Flow[None]:
        """Wait for an answer if a publish is running, else for new rows."""
        state = self.state
        down = max(0.0, self.down_until - state.clock())
        if self.under_way:
            busy = len(self.under_way) >= state.concurrency or self.rows_under_way >= state.batch
            patience = state.lease / 6 if busy else max(down, self.pause, GATHER)
            self._handle_answers((yield Collect(patience)))
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
            except StoreError as error:
                self._outage("outbox_listen", error)
        else:
            self._handle_answers((yield Collect(self.pause)))

    def _rise(self) -> Flow[None]:
        try:
            yield Rise(self.state.owner)
        except StoreError:
            return  # writers keep waking us without need, which costs them little
        self.asleep = False

    # -- settling -----------------------------------------------------------------------------

    def _handle_answers(self, ended: Sequence[tuple[int, Any]]) -> None:
        for ticket, answers in ended:
            rows = self.under_way.pop(ticket)
            if not rows:
                self._broker_answered(answers)
                continue
            self.rows_under_way -= len(rows)
            if isinstance(answers, Exception):
                if len(rows) > 1:
                    self._broker_failed(rows, answers)
                    self._make_ready(rows)
                    continue
                answers = [answers]  # noqa: PLW2901 - alone, it may be to blame
            self._sort_out(rows, answers)
            self._make_ready(rows)

    def _sort_out(self, rows: Sequence[Pending], answers: Sequence[Any]) -> None:
        stopped: set[bytes] = set()
        away: list[Pending] = []
        outage: BrokerUnavailableError | None = None
        for row, answer in zip(rows, answers, strict=True):
            if row.lane in stopped:
                continue
            if answer is None:
                self._published(row)
                continue
            stopped.add(row.lane)
            if isinstance(answer, BrokerUnavailableError):
                away.append(row)
                outage = outage or answer
            elif answer is not NOT_TRIED:
                self._refused(row, answer, counts=not isinstance(answer, NotNow))
        if _nothing_sent(answers):
            outage = outage or BrokerUnavailableError("the publisher sent none of its messages")
            away = list(rows)
        if outage is None:
            return
        if len(rows) == 1 and self._is_to_blame(rows[0], outage):
            self.took = self.answered = False
            self._refused(rows[0], outage)
        else:
            self._broker_failed(away, outage)

    def _is_to_blame(self, row: Pending, error: BrokerUnavailableError) -> bool:
        """The message failed before and fails alone again, although the broker is up."""
        if error.blames == "none" or not self.suspects[row.lane]:
            return False
        return self.took or (self.answered and error.blames == "alone")

    def _broker_answered(self, error: Exception | None) -> None:
        """A check has ended."""
        if error is None:
            self.doubt, self.answered = False, True
        else:
            self.state.outage = (
                error
                if isinstance(error, TwicesafeError)
                else BrokerUnavailableError(f"the broker cannot be checked: {_named(error)}")
            )
            self._rest(0, error)

    def _make_ready(self, rows: Sequence[Pending]) -> None:
        for lane in dict.fromkeys(row.lane for row in rows):
            if self.lanes.get(lane):
                self.ready.append(lane)
            else:
                self.lanes.pop(lane, None)

    def _broker_failed(self, rows: Sequence[Pending], error: Exception) -> None:
        """No message is known to be to blame, so no attempt is counted: back off, then retry."""
        state = self.state
        self.took = self.answered = False
        if isinstance(error, BrokerUnavailableError):
            self.doubt = self.compare = True
            if error.blames == "none":
                self.suspects.clear()
            else:
                lanes = {row.lane for row in rows}
                self.suspects.update(lanes)
                if any(self.suspects[lane] > 1 for lane in lanes):
                    self.alone |= Counter(row.lane for row in rows)
            if error.blames == "none" or self.outages + 1 >= OUTAGES:
                state.outage = error
        else:
            self.alone |= Counter(row.lane for row in rows)
        self._rest(len(rows), error)

    def _rest(self, count: int, error: Exception) -> None:
        state = self.state
        self.outages += 1
        delay = REST.delay(self.outages, chance(state.owner, self.outages))
        self.down_until = state.clock() + delay
        state.notify(events.BrokerFailed(count, _named(error), delay))

    def _published(self, row: Pending) -> None:
        self.outages = 0
        self.took, self.doubt = True, False
        self.suspects.pop(row.lane, None)
        if self.alone:
            self.alone -= Counter((row.lane,))
        waiting = self.lanes.get(row.lane)
        if waiting and waiting[0].n == row.n:
            waiting.popleft()
        if not self.todo.done:
            self.settle_by = self.state.clock() + TOGETHER
        self.todo.done.append(row.n)
        self.owed.add(row.slot)
        if row.last:
            self.todo.cured[row.lane] = row.n

    def _refused(self, row: Pending, error: Exception, counts: bool = True) -> None:
        """Back off the lane, or park it with all its fetched rows; other lanes continue."""
        state, attempts = self.state, row.attempts + counts
        mine = self.lanes.get(row.lane, deque((row,)))
        self._forget(row.lane)
        park = counts and attempts >= state.max_attempts
        rest = state.backoff.delay(attempts if counts else NOT_COUNTED, chance(state.owner, row.n))
        where = (row.slot, row.fence, row.lane, row.n)
        said = Setback(*where, attempts, round(1000 * rest), _said(error), park, counts)
        self.todo.setbacks.append(said)
        self.owed.add(row.slot)
        if park:
            self.todo.aside.setdefault(row.lane, []).extend(other.n for other in mine)
        if not counts:
            state.not_now = BrokerUnavailableError(text_of(error), blames="none")
            state.notify(events.BrokerFailed(1, text_of(error), rest))
            return
        message = row.message
        kind = events.LaneParked if park else events.PublishFailed
        state.notify(kind(message.id, message.topic, attempts, _named(error)))

    def _room(self) -> int:
        """Room for rows: at most one batch is unsettled, so a kill repeats at most one batch."""
        return self.state.batch - self.rows_under_way - len(self.todo.done)

    def _is_due(self) -> bool:
        """True if it is time to settle; while more is ready, groups are settled together."""
        todo = self.todo
        if todo.setbacks or todo.aside or not self.ready or self._room() <= 0:
            return True
        return self.state.clock() >= self.settle_by

    def _settle(self, patient: bool = False) -> Flow[None]:
        """Write the results to the store; if that fails, they are kept and retried."""
        todo, state = self.todo, self.state
        if not (todo.done or todo.cured or todo.setbacks or todo.aside):
            return
        for turn in range(1, 9 if patient else 2):
            slots = state.slots
            try:
                if (yield todo):
                    state.doubted = slots  # until the keeper has renewed them
                break
            except StoreError as error:
                self._outage("outbox_settle", error)
                if patient:
                    yield Collect(REST.delay(turn, chance(state.owner, turn)))
        else:
            return  # kept, and retried before the next fetch
        self.outages = 0
        if todo.done:
            state.published += len(todo.done)
            state.notify(events.Relayed(len(todo.done)))
        self.todo = Settle(state.owner, [], {}, [], {})
        self.owed.clear()

    def _outage(self, what: str, error: StoreError) -> None:
        state = self.state
        state.outage = error
        self.outages += 1
        state.notify(events.StoreFailed(None, what, str(error)))
        delay = REST.delay(self.outages, chance(state.owner, self.outages))
        self.down_until = state.clock() + delay


def _is_ours(row: Pending, usable: dict[int, int]) -> bool:
    """False also after losing and regaining the slot: another relay may have handled the row."""
    return usable.get(row.slot) == row.fence


def _nothing_sent(answers: Sequence[Any]) -> bool:
    """No message was accepted or refused: the call says something about the broker only."""
    return None not in answers and all(
        one is NOT_TRIED or isinstance(one, BrokerUnavailableError) for one in answers
    )


def _said(error: Exception) -> str:
    """The error text that is stored with the message for the operator."""
    return f"{type(error).__name__}: {text_of(error)}".replace("\0", " ")[:500]


def _named(error: Exception) -> str:
    """The error text for logs: a foreign error's text may contain message content."""
    return text_of(error) if isinstance(error, TwicesafeError) else type(error).__name__
