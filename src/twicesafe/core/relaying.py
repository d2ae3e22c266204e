"""The relay's brain: which rows go next, in which order, and what becomes of those that fail.

Two flows share one `Desk`. `keep` renews the slots; `carry` fetches rows, hands them to the
publisher in groups, and settles what came back. Neither does any I/O: they yield requests to the
store and the commands below, and both runtimes perform the same ones.

What if we die here?
    before a publish     the rows are there; whoever leases their slots next publishes them
    after it, before the settlement   they are published again, under the same ids
    in the settlement    it happened or not; saying it again changes nothing

A lane is in one hand: its slot is leased by one relay, and of its rows at most one group is under
way. A relay whose lease may be over publishes nothing more (P7); its deadline counts from the
moment when the renewal was sent. A slot that is to be given back goes only after the carrier has
said that nothing of it is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from .. import events
from ..errors import BrokerUnavailableError, StoreError, TwicesafeError
from ..policy import Backoff
from ..tokens import chance, new_owner
from .commands import Flow
from .outbox import BELL, Fetch, Held, Hold, Message, Pending, Rise, Setback, Settle
from .publishing import NOT_TRIED

__all__ = ["Collect", "Desk", "Listen", "Pause", "Publish", "carry", "keep"]

MARGIN: Final = 0.1
"""Of the lease: a relay stops this much before the store lets go."""

GATHER: Final = 0.005
"""Seconds between two looks while little comes: what gathers meanwhile goes together."""

DEAF_POLL: Final = 0.25
"""The longest pause between two looks where nobody wakes us."""

RENEWAL: Final = 1.0
"""Seconds between two renewals at most: who takes over from a dead relay comes this much later."""

TOGETHER: Final = 0.25
"""Seconds that what was published may wait to be settled with what comes next."""

REST: Final = Backoff(first=0.1, factor=2, most=10, jitter=0.5)
"""While the store, or the broker as a whole, does not answer."""


# --- commands --------------------------------------------------------------------------------


class Publish(msgspec.Struct, gc=False):
    """Start to publish these, in order; do not wait for it."""

    ticket: int
    messages: list[Message]


class Collect(msgspec.Struct, gc=False):
    """Wait until a publish has ended, somebody says stop, or `seconds` are over.

    Reply: pairs of a ticket and its answers: a list with None or an exception for each message, or
    one exception if the broker as a whole did not take them.
    """

    seconds: float


class Listen(msgspec.Struct, gc=False):
    """Sleep until a message was added (stores with ``wake``), somebody says stop, or time is over."""

    bell: bytes
    seconds: float


class Pause(msgspec.Struct, gc=False):
    """The keeper's rest; ended early by stop, or when there are slots to give back."""

    seconds: float


# --- what both flows know ----------------------------------------------------------------------


class Desk:
    """One relay's state. Its two flows may be in two threads: each field has one writer."""

    def __init__(
        self,
        *,
        lease: float,
        batch: int,
        group: int,
        concurrency: int,
        max_attempts: int,
        backoff: Backoff,
        wake: bool,
        clock: Callable[[], float],
        notify: Callable[[events.Event], None],
    ) -> None:
        self.owner = new_owner()
        self.lease = lease
        self.batch = batch
        self.group = min(group, batch)
        self.concurrency = concurrency
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.longest_pause = 1.0 if wake else DEAF_POLL
        self.wake = wake
        self.clock = clock
        self.notify = notify
        self.stopping = False
        """Set by whoever wants it to end: nothing new is started."""
        self.until_empty = False
        """End when nothing is left that may go now."""
        # Written by the keeper:
        self.slots: dict[int, int] = {}
        self.deadline = 0.0
        self.doubted: object = None
        """Slots of which the store says that they are not ours: the carrier's word to itself."""
        self.unwanted: frozenset[int] = frozenset()
        """More than our share: to be given back when nothing of them is under way."""
        # Written by the carrier:
        self.drained = (self.unwanted, self.unwanted)
        """Of which unwanted slots nothing is under way, and of which set of them that was said."""
        self.carried = False
        """The carrier has ended."""
        self.published = 0

    def usable(self) -> dict[int, int]:
        """The slots that we may publish from, by our own clock."""
        slots, unwanted = self.slots, self.unwanted
        if self.clock() >= self.deadline or slots is self.doubted:
            return {}
        return {slot: fence for slot, fence in slots.items() if slot not in unwanted}


# --- the keeper --------------------------------------------------------------------------------


def keep(desk: Desk) -> Flow[None]:
    """Renew our slots in time, take what is free, give back what is too much; leave in the end."""
    failures = 0
    while not desk.carried:
        sent = desk.clock()
        said_of, drained = desk.drained
        give = drained if said_of is desk.unwanted else frozenset()
        try:
            held: Held = yield Hold(desk.owner, round(desk.lease * 1000), give)
        except StoreError as error:
            failures += 1
            desk.notify(events.StoreFailed(None, "outbox_hold", str(error)))
            yield Pause(min(desk.lease / 6, REST.delay(failures, chance(desk.owner, failures))))
            continue
        failures = 0
        desk.slots = held.slots
        desk.deadline = sent + desk.lease * (1 - MARGIN)
        unwanted = frozenset(sorted(held.slots)[held.share :])
        if unwanted != desk.unwanted:  # the same object: unwanted all the time
            desk.unwanted = unwanted
        yield Pause(min(desk.lease / 3, RENEWAL))
    try:
        yield Hold(desk.owner, 0, leave=True)
    except StoreError as error:
        desk.notify(events.StoreFailed(None, "outbox_hold", str(error)))  # the leases will end


# --- the carrier -------------------------------------------------------------------------------


def carry(desk: Desk) -> Flow[None]:
    """Fetch, publish, settle, until told to stop; then end what is under way and settle it."""
    carrier = _Carrier(desk)
    yield from carrier.run()
    desk.carried = True


class _Carrier:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.lanes: dict[bytes, deque[Pending]] = {}
        """Rows that we fetched and did not publish yet, or are publishing: lane by lane, in order."""
        self.ready: deque[bytes] = deque()
        """Lanes with rows of which nothing is under way."""
        self.flying: dict[int, list[Pending]] = {}
        self.in_flight = 0
        self.tickets = 0
        self.todo = Settle(desk.owner, [], [], [], {})
        self.settle_by = 0.0
        self.pause = 0.0
        self.outages = 0
        self.down_until = 0.0
        self.alone = 0
        """So many messages go one by one: a group of them failed, and one may be to blame."""
        self.asleep = False
        self.known: object = None

    def run(self) -> Flow[None]:
        desk = self.desk
        while True:
            self._let_go()
            if not desk.stopping:
                found = yield from self._refill()
                if found == 0 and desk.until_empty and not self.flying and not self.todo.aside:
                    break
                yield from self._take_off()
            elif not self.flying:
                break
            yield from self._wait()
            if self._is_due():
                yield from self._settle()
        yield from self._settle(patient=True)

    # -- fetching -----------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Drop rows of slots that are not ours any more, or soon not; say when they are free."""
        desk = self.desk
        unwanted, usable = desk.unwanted, desk.usable()
        if usable == self.known and not unwanted:
            return
        self.known = usable
        flying = {row.lane for rows in self.flying.values() for row in rows}
        for lane, rows in list(self.lanes.items()):
            if rows[0].slot not in usable and lane not in flying:
                del self.lanes[lane]
        self.ready = deque(lane for lane in self.ready if lane in self.lanes)
        busy = {row.slot for rows in self.flying.values() for row in rows}
        desk.drained = (unwanted, unwanted - busy)

    def _refill(self) -> Flow[int | None]:
        """Look for rows if none is ready and there is room: from the first one on, every time.

        None: it did not look.
        """
        desk, todo = self.desk, self.todo
        unsettled = todo.done or todo.setbacks or todo.cured
        if self.ready or unsettled or desk.clock() < self.down_until:
            return None
        if self.in_flight >= desk.batch or len(self.flying) >= desk.concurrency:
            return None
        slots = desk.usable()
        if not slots:
            self.pause = GATHER * 4
            return None
        try:
            rows: list[Pending] = yield Fetch(sorted(slots), desk.batch, list(self.lanes))
        except StoreError as error:
            self._outage("outbox_fetch", error)
            return None
        self._sort_in(rows)
        if rows:
            self.pause = GATHER if len(rows) < max(1, desk.batch // 10) else 0.0
            if self.asleep:
                yield from self._rise()
        else:
            self.pause = min(desk.longest_pause, max(GATHER, self.pause * 2))
        return len(rows)

    def _sort_in(self, rows: Sequence[Pending]) -> None:
        for row in rows:
            if row.parked:
                self.todo.aside.setdefault(row.lane, []).append(row.n)
            elif row.lane in self.lanes:
                self.lanes[row.lane].append(row)
            else:
                self.lanes[row.lane] = deque((row,))
                self.ready.append(row.lane)

    # -- publishing ---------------------------------------------------------------------------

    def _take_off(self) -> Flow[None]:
        desk = self.desk
        while self.ready and len(self.flying) < desk.concurrency:
            room = min(1 if self.alone else desk.group, self._room())
            if room <= 0 or desk.clock() < self.down_until:
                return
            rows = self._group(room, desk.usable())
            if not rows:
                return
            self.tickets += 1
            self.flying[self.tickets] = rows
            self.in_flight += len(rows)
            yield Publish(self.tickets, [row.message for row in rows])

    def _group(self, room: int, usable: dict[int, int]) -> list[Pending]:
        """Rows for one call: lane by lane, each in order."""
        chosen: list[Pending] = []
        while self.ready and len(chosen) < room:
            lane = self.ready.popleft()
            rows = self.lanes[lane]
            if rows[0].slot not in usable:
                del self.lanes[lane]  # not ours any more
                continue
            chosen += [rows[place] for place in range(min(len(rows), room - len(chosen)))]
        return chosen

    def _wait(self) -> Flow[None]:
        """For an answer, if any is out; else for new rows."""
        desk = self.desk
        down = max(0.0, self.down_until - desk.clock())
        if self.flying:
            busy = len(self.flying) >= desk.concurrency or self.in_flight >= desk.batch
            patience = desk.lease / 6 if busy else max(down, self.pause, GATHER)
            self._land((yield Collect(patience)))
        elif desk.stopping:
            return
        elif down:
            self._land((yield Collect(min(down, desk.lease / 6))))
        elif self.ready or not self.pause:
            return
        elif desk.wake and self.pause >= DEAF_POLL:
            self.asleep = True
            try:
                yield Listen(BELL + desk.owner, self.pause)
            except StoreError as error:
                self._outage("outbox_listen", error)
        else:
            self._land((yield Collect(self.pause)))

    def _rise(self) -> Flow[None]:
        try:
            yield Rise(self.desk.owner)
        except StoreError:
            return  # we are announced to, and do not need it: it costs others a little
        self.asleep = False

    # -- settling -----------------------------------------------------------------------------

    def _land(self, ended: Sequence[tuple[int, Any]]) -> None:
        for ticket, answers in ended:
            rows = self.flying.pop(ticket)
            self.in_flight -= len(rows)
            if isinstance(answers, Exception):
                if len(rows) > 1 or isinstance(answers, BrokerUnavailableError):
                    self._broker_failed(rows, answers)
                    continue
                answers = [answers]  # noqa: PLW2901 - alone, it is to blame
            self.alone = max(0, self.alone - len(rows))
            stopped: set[bytes] = set()
            for row, answer in zip(rows, answers, strict=True):
                if answer is None and row.lane not in stopped:
                    self._published(row)
                elif answer is not None and row.lane not in stopped:
                    stopped.add(row.lane)
                    if answer is not NOT_TRIED:
                        self._refused(row, answer)
            self._make_ready(rows)

    def _make_ready(self, rows: Sequence[Pending]) -> None:
        for lane in dict.fromkeys(row.lane for row in rows):
            if self.lanes.get(lane):
                self.ready.append(lane)
            else:
                self.lanes.pop(lane, None)

    def _broker_failed(self, rows: Sequence[Pending], error: Exception) -> None:
        """No message is known to be to blame, so no attempt is counted: rest, then try again."""
        desk = self.desk
        if not isinstance(error, BrokerUnavailableError):
            self.alone = len(rows)
        self.outages += 1
        delay = REST.delay(self.outages, chance(desk.owner, self.outages))
        self.down_until = desk.clock() + delay
        desk.notify(events.BrokerFailed(len(rows), _named(error), delay))
        self._make_ready(rows)

    def _published(self, row: Pending) -> None:
        self.outages = 0
        waiting = self.lanes.get(row.lane)
        if waiting and waiting[0].n == row.n:
            waiting.popleft()
        if not self.todo.done:
            self.settle_by = self.desk.clock() + TOGETHER
        self.todo.done.append(row.n)
        if row.attempts:
            self.todo.cured.append(row.n)

    def _refused(self, row: Pending, error: Exception) -> None:
        """The lane rests, or is parked with all of it that we have; other lanes go on."""
        desk, attempts = self.desk, row.attempts + 1
        mine = self.lanes.pop(row.lane, deque((row,)))
        park = attempts >= desk.max_attempts
        delay = desk.backoff.delay(attempts, chance(desk.owner, row.n))
        fence = desk.slots.get(row.slot, -1)
        self.todo.setbacks.append(
            Setback(
                row.slot, fence, row.lane, row.n, attempts, round(delay * 1000), _said(error), park
            )
        )
        if park:
            self.todo.aside.setdefault(row.lane, []).extend(other.n for other in mine)
        message = row.message
        kind = events.LaneParked if park else events.PublishFailed
        desk.notify(kind(message.id, message.topic, attempts, _named(error)))

    def _room(self) -> int:
        """What is under way and what is not settled is one batch at most: so much a kill repeats."""
        return self.desk.batch - self.in_flight - len(self.todo.done)

    def _is_due(self) -> bool:
        """Many groups are settled together, while there is more to publish at once."""
        todo = self.todo
        if todo.setbacks or todo.aside or not self.ready or self._room() <= 0:
            return True
        return self.desk.clock() >= self.settle_by

    def _settle(self, patient: bool = False) -> Flow[None]:
        """What ended is written down. While we live and the store fails, we go on trying."""
        todo, desk = self.todo, self.desk
        if not (todo.done or todo.cured or todo.setbacks or todo.aside):
            return
        for turn in range(1, 9 if patient else 2):
            slots = desk.slots
            try:
                if (yield todo):
                    desk.doubted = slots  # until the keeper has asked again
                break
            except StoreError as error:
                self._outage("outbox_settle", error)
                if patient:
                    yield Collect(REST.delay(turn, chance(desk.owner, turn)))
        else:
            return  # kept, and tried again before anything else is fetched
        self.outages = 0
        if todo.done:
            desk.published += len(todo.done)
            desk.notify(events.Relayed(len(todo.done)))
        self.todo = Settle(desk.owner, [], [], [], {})

    def _outage(self, what: str, error: Exception) -> None:
        desk = self.desk
        self.outages += 1
        desk.notify(events.StoreFailed(None, what, str(error)))
        delay = REST.delay(self.outages, chance(desk.owner, self.outages))
        self.down_until = desk.clock() + delay


def _said(error: Exception) -> str:
    """For the operator, kept beside the message."""
    return f"{type(error).__name__}: {error}".replace("\0", " ")[:500]


def _named(error: Exception) -> str:
    """For logs: a stranger's words may hold what is in the message."""
    return str(error) if isinstance(error, TwicesafeError) else type(error).__name__
