"""The world: virtual time, the clocks in it, and one run of one plan.

A run has three parts. First messages are added and everything goes wrong. Then faults stop, but
poison stays: all other lanes must go on, and the poisoned ones must end up parked. Then the broker
is mended, an operator retries what is parked, everything must go out, and the relays are stopped.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import cycle
from typing import Any

from twicesafe import tokens
from twicesafe.core.outbox import Backlog, Depth, ParkedLanes, Unpark
from twicesafe.core.relaying import REST

from ..violations import Violation
from .broker import Broker
from .invariants import broken
from .monitor import Monitor
from .network import Network
from .plan import LEASE, QUIET, Incident, Plan
from .posting import Office
from .relay import Relay
from .table import Table

__all__ = ["World", "run"]

EPOCH = 1_700_000_000_000
MOST_EVENTS = 40_000
BOUND = LEASE + float(REST.most) + 4.0
"""A lease ends, the longest rest ends, and there is work to do."""


class World:
    def __init__(self, plan: Plan, say: Callable[[str], None] | None = None) -> None:
        # Owner tokens come from a counter here: the same in every run of a plan.
        tokens._prefix, tokens._counter = b"lab-owner.", itertools.count()
        self.plan = plan
        self.now = 0.0
        self.offset = self._furthest = EPOCH
        self.seen: Counter[Any] = Counter()
        self.events = 0
        self.say = say
        self.faulty = True
        self.jumped = False
        """The store's clock was set: leases may have ended early, again and again."""
        self._heap: list[tuple[float, int, Relay | None, Callable[..., None], tuple[Any, ...]]]
        self._heap = []
        self._order = itertools.count()
        self._latency = cycle(plan.latencies)
        self._delayed_until = QUIET
        self._part = 1
        self.table = Table(self.store_now)
        self.monitor = Monitor(self)
        self.office = Office(self)
        self.broker = Broker(self)
        self.network = Network(self)
        self.relays: dict[int, Relay] = {}
        self._lives: Counter[int] = Counter()

    # -- time ---------------------------------------------------------------------------------

    def store_now(self) -> int:
        return int(self.now * 1000) + self.offset

    def latency(self) -> float:
        return next(self._latency)

    def after(
        self, seconds: float, whose: Relay | None, act: Callable[..., None], *args: Any
    ) -> None:
        heappush(self._heap, (self.now + seconds, next(self._order), whose, act, args))

    def delayed(self, seconds: float) -> None:
        """Something that went wrong has its effect so much later."""
        self._delayed_until = max(self._delayed_until, self.now + seconds)

    def run(self) -> None:
        for number, post in enumerate(self.plan.posts):
            self.after(post.at, None, self.office.post, post, number)
        for number, seat in enumerate(self.plan.seats):
            self.after(seat.start, None, self._start, number)
        for incident in self.plan.incidents:
            self.after(incident.at, None, self._happen, incident)
        self.after(QUIET, None, self._quiet)
        heap = self._heap
        while heap:
            self.now, _, whose, act, args = heappop(heap)
            if whose is not None:
                if not whose.alive:
                    continue
                if whose.paused_until > self.now:  # it stands still; this waits for it
                    heappush(heap, (whose.paused_until, next(self._order), whose, act, args))
                    continue
            self.events += 1
            act(*args)
            if self.events > MOST_EVENTS:
                broken("relays end", f"still busy after {self.events} events")
        if self._part != 4:
            broken("nothing is lost", "the end was never reached")

    # -- relays -------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        sitting = self.relays.get(number)
        if self._part > 2 or (sitting is not None and sitting.alive):
            return
        self._lives[number] += 1
        relay = self.relays[number] = Relay(self, number, self._lives[number])
        relay.start()

    def crash(self, relay: Relay) -> None:
        if not relay.alive:
            return
        relay.alive, relay.crashed = False, True
        self.monitor.causes += 1
        self.seen["outcome", "died"] += 1
        if self.say:
            self.say(f"†  {relay.name} dies")
        back = 0.1 + 0.2 * relay.number
        self.delayed(back)
        self.after(back, None, self._start, relay.number)

    def relay_ended(self, relay: Relay) -> None:
        self.seen["outcome", "stopped"] += 1
        if self.say:
            self.say(f"□  {relay.name} has ended")

    def ring(self, owner: bytes) -> None:
        for relay in self.relays.values():
            if relay.owner == owner:
                self.after(self.latency(), relay, relay.ring)

    # -- what the plan says -------------------------------------------------------------------

    def _happen(self, incident: Incident) -> None:
        kind, relay = incident.kind, self.relays.get(incident.target)
        if self.say:
            self.say(f"!! {kind} {incident.target} {incident.seconds:+.2f}")
        if kind == "jump":
            self._jump(round(incident.seconds * 1000))
        elif kind == "outage":
            self.broker.away_until = self.now + incident.seconds
        elif kind in ("retry", "skip"):
            self._operate(skip=kind == "skip")
            return
        elif relay is None or not relay.alive:
            return
        elif kind == "crash":
            self.crash(relay)
        elif kind == "pause":
            relay.paused_until = max(relay.paused_until, self.now + incident.seconds)
            self.delayed(incident.seconds)
        elif kind == "cut off":
            relay.cut_off_until = self.now + incident.seconds
        else:
            relay.stop()
        self.seen["incident", kind] += 1

    def _jump(self, milliseconds: int) -> None:
        self.jumped = self.jumped or milliseconds != 0
        self.offset += milliseconds
        self._furthest = max(self._furthest, self.offset)
        for relay in self.relays.values():
            relay.misled_since = self.now

    def parked(self) -> None:
        if self.faulty and self.plan.attentive:
            self.after(self.plan.attentive, None, self._operate, self.plan.skips)

    def _operate(self, skip: bool) -> None:
        """An operator looks at what is parked, and says of each lane what becomes of it."""
        for lane in self.table.perform(ParkedLanes(100)):
            kind = "skip" if skip else "retry"
            letter = self.office.letters[lane.message_id]
            if self.say:
                self.say(f"op {kind} {lane.message_id}, {lane.waiting} waiting")
            if skip:
                letter.skipped_at = self.now
            self.table.perform(Unpark(bytes.fromhex(lane.lane), skip, "lab", "why not"))
            self.seen["incident", kind] += 1
        self.settled()

    # -- the end ------------------------------------------------------------------------------

    def _quiet(self) -> None:
        self.faulty = False
        self.broker.away_until = 0.0
        self._jump(self._furthest - self.offset)  # whoever set the clock back sets it right
        if all(relay.ended or relay.desk.stopping for relay in self.relays.values()):
            self._start(len(self.relays))
        if self.say:
            self.say("── no more faults; poison is refused as before")
        self._expect("others go on", 1)

    def _expect(self, rule: str, part: int) -> None:
        wait = max(0.0, self._delayed_until - self.now) + BOUND
        self.after(wait, None, self._too_late, rule, part)
        self.after(0.0, None, self.settled)

    def _too_late(self, rule: str, part: int) -> None:
        if self._part == part:
            broken(rule, f"{self.table.perform(Backlog())} after {BOUND} s; {self._unpublished()}")

    def settled(self) -> None:
        """Something was settled: is this part of the run over?"""
        if self.faulty or self._part > 2 or self.office.open:
            return
        depth: Depth = self.table.perform(Backlog())
        if depth.pending:
            return
        if self._part == 1:
            self._part = 2
            if self.say:
                self.say("── the broker is mended; an operator retries what is parked")
            self.broker.mended = True
            self._expect("nothing is lost", 2)
            self._retry()
        elif not depth.parked and not depth.parked_lanes:
            self._part = 3
            self.after(0.0, None, self._finish)

    def _retry(self) -> None:
        if self._part == 2:
            self._operate(skip=False)
            self.after(0.3, None, self._retry)

    def _finish(self) -> None:
        lost = self._unpublished()
        if lost:
            broken("nothing is lost", f"{lost} never published")
        if self.say:
            self.say("── all is published; the relays are stopped")
        for relay in list(self.relays.values()):
            if relay.alive:
                relay.stop()
        self.after(max(0.0, self._delayed_until - self.now) + BOUND, None, self._check_end)

    def _unpublished(self) -> list[str]:
        letters = self.office.letters.values()
        return [one.message.id for one in letters if not one.calls and one.skipped_at is None]

    def _check_end(self) -> None:
        for relay in self.relays.values():
            if relay.alive:
                broken("relays end", f"{relay.name} goes on")
        depth = self.table.perform(Backlog())
        if depth.pending or depth.parked or depth.parked_lanes or depth.resting_lanes:
            broken("nothing is left", str(depth))
        self._part = 4


def run(plan: Plan, say: Callable[[str], None] | None = None) -> tuple[World, Violation | None]:
    """Run a plan to its end, or to the first broken invariant."""
    world = World(plan, say)
    if say:
        original = say
        world.say = lambda line: original(f"{world.now:8.4f} {line}")
    try:
        world.run()
    except Violation as violation:
        if world.say:
            world.say(f"✗      {violation}")
        return world, violation
    return world, None
