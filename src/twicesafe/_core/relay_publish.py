"""The carrier: which rows go next, in which order, and what becomes of those that fail.

Of a lane at most one group is under way, and all of it has one topic: so its order holds on brokers that
take a group in parts, too. What was refused makes its lane rest, and parks it in the end.

Outage or refusal? A broker that takes nothing is no message's fault, and nothing is counted. But a
message that the broker hangs up on looks like an outage each time, and would make all lanes wait for ever.
So when it repeats, messages go one by one; one that fails alone again is to blame if, since the last
outage, the broker took another message or (where `blames` allows it) answered a check.

`relaying` says what a death at each point leaves behind.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

from .. import events
from .._values.owner_token import chance
from ..errors import BrokerUnavailableError, StoreError, TwicesafeError, text_of
from .commands import Flow
from .outbox_requests import BELL, Fetch, Fetched, Pending, Rise, Setback, Settle
from .publisher import NOT_TRIED, NotNow
from .relay_lease import DEAF_POLL, REST, Check, Collect, Listen, Publish, RelayState

__all__ = ["publish_pending"]

GATHER: Final = 0.005
"""Seconds between two looks while little comes: what gathers meanwhile goes together."""

TOGETHER: Final = 0.25
"""Seconds that what was published may wait to be settled with what comes next."""

OUTAGES: Final = 3
"""Failures in a row after which `drain` takes it for an outage and ends."""

NOT_COUNTED: Final = 4
"""A message that is not to blame rests as if it had been refused so often."""


def publish_pending(desk: RelayState) -> Flow[None]:
    """Fetch, publish, settle, until told to stop; then end what is under way and settle it."""
    carrier = _PublishLoop(desk)
    yield from carrier.run()
    desk.carried = True


class _PublishLoop:
    def __init__(self, desk: RelayState) -> None:
        self.desk = desk
        self.lanes: dict[bytes, deque[Pending]] = {}
        """Rows that we fetched and did not publish yet, or are publishing: lane by lane, in order."""
        self.ready: deque[bytes] = deque()
        """Lanes with rows of which nothing is under way."""
        self.flying: dict[int, list[Pending]] = {}
        self.in_flight = 0
        self.tickets = 0
        self.todo = Settle(desk.owner, [], {}, [], {})
        self.owed: set[int] = set()
        """Slots of what is to be settled: given back now, their next holder would publish it again."""
        self.settle_by = 0.0
        self.pause = 0.0
        self.outages = 0
        self.down_until = 0.0
        self.alone = 0
        """So many messages go one by one: a group of them failed, and one may be to blame."""
        self.suspects: Counter[bytes] = Counter()
        """Lanes whose first message met outages: how many since the broker last took one of it."""
        self.took = self.answered = False
        """Since the last outage: the broker took a message; it answered a check."""
        self.doubt = False
        """An outage was met: ask whether the broker is there before sending more."""
        self.asleep = False
        self.known: object = None

    def run(self) -> Flow[None]:
        desk = self.desk
        while True:
            self._let_go()
            if not desk.stopping:
                found = yield from self._refill()
                empty = found == 0 and not self.todo.aside
                if desk.until_empty and not self.flying and (empty or desk.outage is not None):
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
            if not _is_ours(rows[0], usable) and lane not in flying:
                del self.lanes[lane]
                self.suspects.pop(lane, None)
        self.ready = deque(lane for lane in self.ready if lane in self.lanes)
        busy = {row.slot for rows in self.flying.values() for row in rows}
        desk.drained = (unwanted, unwanted - busy - self.owed)

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
            desk.outage = desk.outage or desk.unheld
            self.pause = GATHER * 4
            return None
        try:
            fetched: Fetched = yield Fetch(sorted(slots), desk.batch, list(self.lanes))
        except StoreError as error:
            self._outage("outbox_fetch", error)
            return None
        rows = fetched.rows
        todo.aside = fetched.aside
        self._sort_in(rows, slots)
        if rows:
            self.pause = GATHER if len(rows) < max(1, desk.batch // 10) else 0.0
            if self.asleep:
                yield from self._rise()
        else:
            self.pause = min(desk.longest_pause, max(GATHER, self.pause * 2))
        return len(rows)

    def _sort_in(self, rows: Sequence[Pending], slots: dict[int, int]) -> None:
        for row in rows:
            row.fence = slots[row.slot]
            if row.lane in self.lanes:
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
            if self.doubt and desk.checks:
                if not self.flying:
                    yield from self._ask_broker()
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
            if not _is_ours(rows[0], usable):
                del self.lanes[lane]
                continue
            topic = rows[0].message.topic
            for place in range(min(len(rows), room - len(chosen))):
                if rows[place].message.topic != topic:
                    break
                chosen.append(rows[place])
        return chosen

    def _ask_broker(self) -> Flow[None]:
        self.tickets += 1
        self.flying[self.tickets] = []
        yield Check(self.tickets)

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
            if not rows:
                self._broker_answered(answers)
                continue
            self.in_flight -= len(rows)
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
        if outage is None:
            self.alone = max(0, self.alone - len(rows))
        elif len(rows) == 1 and self._is_to_blame(rows[0], outage):
            self.alone = max(0, self.alone - 1)
            self.took = self.answered = False
            self._refused(rows[0], outage)
        else:
            self._broker_failed(away, outage)

    def _is_to_blame(self, row: Pending, error: BrokerUnavailableError) -> bool:
        """It failed before, and fails alone again, although the broker is there."""
        if error.blames == "none" or not self.suspects[row.lane]:
            return False
        return self.took or (self.answered and error.blames == "alone")

    def _broker_answered(self, error: Exception | None) -> None:
        """A check has ended."""
        if error is None:
            self.doubt, self.answered = False, True
        else:
            self.desk.outage = (
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
        """No message is known to be to blame, so no attempt is counted: rest, then try again."""
        desk = self.desk
        self.took = self.answered = False
        if isinstance(error, BrokerUnavailableError):
            self.doubt = True
            if error.blames == "none":
                self.suspects.clear()
            else:
                lanes = {row.lane for row in rows}
                self.suspects.update(lanes)
                if any(self.suspects[lane] > 1 for lane in lanes):
                    self.alone = max(self.alone, len(rows))
            if error.blames == "none" or self.outages + 1 >= OUTAGES:
                desk.outage = error
        else:
            self.alone = len(rows)
        self._rest(len(rows), error)

    def _rest(self, count: int, error: Exception) -> None:
        desk = self.desk
        self.outages += 1
        delay = REST.delay(self.outages, chance(desk.owner, self.outages))
        self.down_until = desk.clock() + delay
        desk.notify(events.BrokerFailed(count, _named(error), delay))

    def _published(self, row: Pending) -> None:
        self.outages = 0
        self.took, self.doubt = True, False
        self.suspects.pop(row.lane, None)
        waiting = self.lanes.get(row.lane)
        if waiting and waiting[0].n == row.n:
            waiting.popleft()
        if not self.todo.done:
            self.settle_by = self.desk.clock() + TOGETHER
        self.todo.done.append(row.n)
        self.owed.add(row.slot)
        if row.last:
            self.todo.cured[row.lane] = row.n

    def _refused(self, row: Pending, error: Exception, counts: bool = True) -> None:
        """The lane rests, or is parked with all of it that we have; other lanes go on."""
        desk, attempts = self.desk, row.attempts + counts
        self.suspects.pop(row.lane, None)
        mine = self.lanes.pop(row.lane, deque((row,)))
        park = counts and attempts >= desk.max_attempts
        rest = desk.backoff.delay(attempts if counts else NOT_COUNTED, chance(desk.owner, row.n))
        where = (row.slot, row.fence, row.lane, row.n)
        said = Setback(*where, attempts, round(1000 * rest), _said(error), park, counts)
        self.todo.setbacks.append(said)
        self.owed.add(row.slot)
        if park:
            self.todo.aside.setdefault(row.lane, []).extend(other.n for other in mine)
        if not counts:
            desk.not_now = BrokerUnavailableError(text_of(error), blames="none")
            desk.notify(events.BrokerFailed(1, text_of(error), rest))
            return
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
        self.todo = Settle(desk.owner, [], {}, [], {})
        self.owed.clear()

    def _outage(self, what: str, error: StoreError) -> None:
        desk = self.desk
        desk.outage = error
        self.outages += 1
        desk.notify(events.StoreFailed(None, what, str(error)))
        delay = REST.delay(self.outages, chance(desk.owner, self.outages))
        self.down_until = desk.clock() + delay


def _is_ours(row: Pending, usable: dict[int, int]) -> bool:
    """Lost and won back is not ours: others may have published, parked or skipped it meanwhile."""
    return usable.get(row.slot) == row.fence


def _said(error: Exception) -> str:
    """For the operator, kept beside the message."""
    return f"{type(error).__name__}: {text_of(error)}".replace("\0", " ")[:500]


def _named(error: Exception) -> str:
    """For logs: a stranger's words may hold what is in the message."""
    return text_of(error) if isinstance(error, TwicesafeError) else type(error).__name__
