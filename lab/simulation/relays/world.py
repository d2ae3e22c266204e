"""The world: a store, a broker, the relays between them, and the clocks.

Messages are added and everything goes wrong, until it is quiet: then begins the end.
"""

from __future__ import annotations

from collections import Counter
from itertools import cycle

from twicesafe._core.outbox.requests import ParkedLanes, Unpark

from ..plans import Incident
from ..study import Say
from ..virtual import VirtualWorld
from .broker import Broker
from .ending import Ending
from .invariants import broken
from .monitor import Monitor
from .network import Network
from .plan import QUIET, Plan
from .relay import Relay
from .table import Table
from .writers import Writers

__all__ = ["World"]

EPOCH = 1_700_000_000_000


class World(VirtualWorld):
    most_events = 40_000

    def __init__(self, plan: Plan, say: Say | None = None) -> None:
        super().__init__(plan, say)
        self.plan = plan
        self.offset = self._furthest = EPOCH
        self.faulty = True
        self.jumped = False
        """The store's clock was set: leases may have ended early, again and again."""
        self._latency = cycle(plan.latencies)
        self._delayed_until = QUIET
        self.ending = Ending(self)
        self.table = Table(self.store_now)
        self.monitor = Monitor(self)
        self.writers = Writers(self)
        self.broker = Broker(self)
        self.network = Network(self)
        self.relays: dict[int, Relay] = {}
        self._lives: Counter[int] = Counter()

    # -- time ---------------------------------------------------------------------------------

    def store_now(self) -> int:
        return int(self.now * 1000) + self.offset

    def latency(self) -> float:
        return next(self._latency)

    def delayed(self, seconds: float) -> None:
        """Something that went wrong has its effect so much later."""
        self._delayed_until = max(self._delayed_until, self.now + seconds)

    def delay(self) -> float:
        """So long until everything that went wrong has had its effect."""
        return max(0.0, self._delayed_until - self.now)

    def begin(self) -> None:
        for number, post in enumerate(self.plan.posts):
            self.after(post.at, None, self.writers.post, post, number)
        for number, seat in enumerate(self.plan.seats):
            self.after(seat.start, None, self._start, number)
        for incident in self.plan.incidents:
            self.after(incident.at, None, self._happen, incident)
        self.after(QUIET, None, self._quiet)

    def endless(self, how: str) -> None:
        broken("relays end", how)

    def end(self) -> None:
        if not self.ending.reached:
            broken("nothing is lost", "the end was never reached")

    # -- relays -------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        sitting = self.relays.get(number)
        if self.ending.stopping or (sitting is not None and sitting.alive):
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
            self.operate(skip=kind == "skip")
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
            self.after(self.plan.attentive, None, self.operate, self.plan.skips)

    def operate(self, skip: bool) -> None:
        """An operator looks at what is parked, and says of each lane what becomes of it."""
        for lane in self.table.perform(ParkedLanes(100)):
            kind = "skip" if skip else "retry"
            tracked = self.writers.messages[lane.message_id]
            if self.say:
                self.say(f"op {kind} {lane.message_id}, {lane.waiting} waiting")
            if skip:
                tracked.skipped_at = self.now
            self.table.perform(Unpark(bytes.fromhex(lane.lane), skip, "lab", "why not"))
            self.seen["incident", kind] += 1
        self.ending.look()

    # -- the end ------------------------------------------------------------------------------

    def _quiet(self) -> None:
        self.faulty = False
        self.broker.away_until = 0.0
        self._jump(self._furthest - self.offset)  # a clock that was set back is set right
        if all(relay.ended or relay.state.stopping for relay in self.relays.values()):
            self._start(len(self.relays))
        self.ending.begin()
