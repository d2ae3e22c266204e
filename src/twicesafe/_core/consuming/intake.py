"""Which of the held messages may start now: lanes, back-offs, and suspects.

A *lane* is a queue of messages that must not run at the same time: those of one ordering key
(``order="key"``), or, without an order, the deliveries of one idempotency key. Only the first
message of a lane may start. A message that *rests* after a failed attempt keeps its place, so later
ones of its lane wait, and all other lanes continue.

A *suspect* is a message whose last worker died while it ran. It starts only when nothing else runs in
this process, and nothing else starts while it runs. So if it kills the process again, no attempt of
another message is counted.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any

import msgspec

from ..._values.context import ActiveClaim
from ..call import Call
from ..commands import Reply
from .message import Received

__all__ = ["Delivery", "Intake"]


class Delivery(msgspec.Struct, eq=False):
    """One message that is held: fetched, and not settled with the broker."""

    number: int
    received: Received
    extended: float
    """When the broker last began to wait for it."""
    leases: bool
    lane: Any
    call: Call | None = None
    claim: ActiveClaim | None = None
    unrecorded: Reply | None = None
    """How its handler ended under this claim, if the store did not answer until the claim had expired."""
    mark: Call | None = None
    """Transaction mode: what is claimed to count its start; None: its start is not counted."""
    doomed: Exception | None = None
    """Transaction mode: why it will be dead, unless its record says that it is done."""
    dead: Exception | None = None
    """Why it goes to the dead letters; its call then publishes it there."""
    overdue: bool = False
    """It was not extended in time, so the broker may have delivered it elsewhere."""
    revoked: bool = False
    """Its partition was taken away: it never starts again here."""
    state: str = "waiting"
    """waiting, running, resting or suspect"""

    @property
    def is_marked(self) -> bool:
        """Its claim only counts its start: the transaction writes the record."""
        return self.mark is not None and self.dead is None

    @property
    def claims(self) -> Call | None:
        """The call whose key is claimed before this one starts; None: it starts without a claim."""
        if self.leases or self.dead is not None:
            return self.call
        return None if self.doomed is not None else self.mark


class Intake:
    """The held messages, by lane."""

    def __init__(self) -> None:
        self.held: dict[int, Delivery] = {}
        self.running = 0
        self.resting = 0
        self._lanes: dict[Hashable, list[Delivery]] = {}
        self._ready: OrderedDict[Hashable, None] = OrderedDict()
        """Lanes whose first message may start."""
        self._rests: list[tuple[float, int]] = []
        self._suspects: deque[Delivery] = deque()
        self._alone: Delivery | None = None
        """The suspect that runs: nothing starts beside it."""

    def add(self, delivery: Delivery) -> None:
        self.held[delivery.number] = delivery
        name = delivery.lane
        lane = self._lanes.get(name)
        if lane is None:
            self._lanes[name] = [delivery]
            self._ready[name] = None
        else:
            lane.append(delivery)

    def take(self, most: int, now: float) -> list[Delivery]:
        """The next messages to start. A suspect comes alone, when nothing runs."""
        self.wake(now)
        chosen: list[Delivery] = []
        if self._suspects:
            if not self.running:
                chosen.append(self._suspects.popleft())
        elif self._alone is None:
            while self._ready and len(chosen) < most:
                chosen.append(self._lanes[self._ready.popitem(last=False)[0]][0])
        for delivery in chosen:
            delivery.state = "running"
        self.running += len(chosen)
        return chosen

    def can_take(self, concurrency: int) -> bool:
        """Whether a message could start now."""
        if self._suspects or self._alone is not None:
            return not self.running
        return bool(self._ready) and self.running < concurrency

    def wake(self, now: float) -> None:
        """Let messages start again whose pause has ended."""
        while self._rests and self._rests[0][0] <= now:
            _, number = heapq.heappop(self._rests)
            delivery = self.held.get(number)
            if delivery is not None and delivery.state == "resting":
                self.resting -= 1
                delivery.state = "waiting"
                self._ready[delivery.lane] = None

    def again(self, delivery: Delivery) -> None:
        """It may start again at once."""
        self._stops(delivery, "waiting")
        self._ready[delivery.lane] = None
        self._ready.move_to_end(delivery.lane, last=False)

    def rest(self, delivery: Delivery, until: float) -> None:
        self._stops(delivery, "resting")
        self.resting += 1
        heapq.heappush(self._rests, (until, delivery.number))

    def suspect(self, delivery: Delivery) -> None:
        self._stops(delivery, "suspect")
        self._suspects.append(delivery)

    def isolate(self, delivery: Delivery) -> None:
        """Nothing starts until this one, which runs, has ended."""
        self._alone = delivery

    def done(self, delivery: Delivery) -> None:
        """It is settled, or no longer ours: the next message of its lane may start."""
        self._stops(delivery, "done")
        self._drop(delivery)

    def drop_waiting(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Forget and return those of these messages that are not running."""
        idle = [one for one in deliveries if one.state != "running"]
        for delivery in idle:
            self.resting -= delivery.state == "resting"
            if delivery.state == "suspect":
                self._suspects.remove(delivery)
            delivery.state = "done"
            self._drop(delivery)
        return idle

    def _drop(self, delivery: Delivery) -> None:
        del self.held[delivery.number]
        lane = self._lanes[delivery.lane]
        first = lane[0] is delivery
        if len(lane) == 1:
            del self._lanes[delivery.lane]
            self._ready.pop(delivery.lane, None)
            return
        lane.remove(delivery)
        if first and lane[0].state == "waiting":
            self._ready[delivery.lane] = None

    def _stops(self, delivery: Delivery, state: str) -> None:
        assert delivery.state == "running"
        self.running -= 1
        if self._alone is delivery:
            self._alone = None
        delivery.state = state

    def next_rest(self) -> float | None:
        """When the next resting message may start again."""
        return self._rests[0][0] if self._rests else None
