"""The world: the store, the processes, and the clocks in it.

The store has its own clock, which can be set; so has every process, which cannot.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

from twicesafe._core import operations
from twicesafe._core.protocol import Forget, Release, Resolve
from twicesafe.errors import UsageError
from twicesafe.stores.memory import MemoryStore

from ..plans import Incident
from ..study import Say
from ..virtual import VirtualWorld
from .invariants import broken
from .ledger import Ledger
from .monitor import Monitor
from .network import Network
from .plan import QUIET, Behaviour, Delivery, Plan
from .policies import KEYS, LEASE, LONGEST_REST, REFEREE
from .process import Process

__all__ = ["World"]

EPOCH = 1_700_000_000_000


class World(VirtualWorld):
    most_events = 60_000

    def __init__(self, plan: Plan, say: Say | None = None) -> None:
        super().__init__(plan, say)
        self.plan = plan
        self.offset = self._furthest = EPOCH
        self.settled_by = QUIET
        """When the last fault has had its effect."""
        self.runs = itertools.count(1)
        self.monitor = Monitor(self.seen)
        self.ledger = Ledger(self.monitor, self.seen)
        self.store = MemoryStore(now=self.store_now)
        self.network = Network(self)
        self.processes = [Process(self, number) for number in range(len(plan.loops))]
        self.waiting = plan.keys

    # -- time ---------------------------------------------------------------------------------

    def store_now(self) -> int:
        return int(self.now * 1000) + self.offset

    def begin(self) -> None:
        for delivery in self.plan.deliveries:
            self.after(delivery.at, None, self._deliver, delivery)
        for incident in self.plan.incidents:
            self.after(incident.at, None, self._happen, incident)
        self.after(QUIET, None, self._quiet)

    def endless(self, how: str) -> None:
        broken("every key ends", how)

    def end(self) -> None:
        for process in self.processes:
            if process.alive and process.open:
                broken("callers are answered", f"{next(iter(process.open)).name} waits for nothing")
        if self.waiting:
            broken("every key ends", "the last delivery of a key has no answer")

    # -- what the plan says -------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        process = self.processes[delivery.process]
        if process.alive:
            process.receive(delivery)
        else:  # its sender tries again when the process is back
            self.after(0.3, None, self._deliver, delivery)

    def _happen(self, incident: Incident) -> None:
        self.seen["incident", incident.kind] += 1
        if self.say:
            self.say(f"!!     {incident.kind} {incident.target} {incident.seconds:+.2f}")
        kind, target = incident.kind, incident.target
        if kind == "crash":
            self.crash(self.processes[target])
        elif kind == "pause":
            process = self.processes[target]
            process.paused_until = max(process.paused_until, self.now + incident.seconds)
            self.settled_by = max(self.settled_by, process.paused_until)
        elif kind == "jump":
            self.offset += round(incident.seconds * 1000)
            self._furthest = max(self._furthest, self.offset)
        elif kind == "outage":
            self.network.down_until = max(self.network.down_until, self.now + incident.seconds)
        elif kind == "transaction":
            self.network.hold(KEYS[target].id, incident.seconds)
        elif kind == "sweep":
            self.operator(operations.sweep(None))
        else:
            key = KEYS[target]
            kept = round(incident.seconds * 1000)
            who: dict[str, Any] = {"by": "lab", "why": "", "retention": kept}
            ask: Any
            if kind == "read":
                self.operator(operations.read(key))
                return
            if kind in ("release", "force"):
                ask = Release(key.id, **who, force=kind == "force")
            elif kind == "resolve":
                ask = Resolve(key.id, **who, result=b'j"by hand %d"' % next(self.runs))
            else:
                ask = Forget(key.id, **who)
            self.operator(operations.operate(key, ask))

    def operator(self, flow: Any) -> None:
        """Operators and timers talk to the store directly; their flows are the shipped ones."""
        try:
            ask = next(flow)
            while True:
                ask = flow.send(self.network.apply(ask))
        except (StopIteration, UsageError):
            return

    def crash(self, process: Process) -> None:
        if not process.alive:
            return
        process.alive = False
        self.seen["process", "crashed"] += 1
        if self.say:
            self.say(f"†  p{process.number}  dies")
        back = self.now + 0.2 + 0.1 * process.number
        self.settled_by = max(self.settled_by, back)
        self.after(back - self.now, None, self._restart, process.number)

    def _restart(self, number: int) -> None:
        if not self.processes[number].alive:
            self.processes[number] = Process(self, number)

    # -- the end: every key must reach one ----------------------------------------------------

    def _quiet(self) -> None:
        self.network.faulty = False
        self.offset = self._furthest  # a clock that was set back is set right
        if self.say:
            self.say("──     no more faults; every key is delivered once more")
        self._last_deliveries()

    def _last_deliveries(self) -> None:
        if self.now <= self.settled_by:  # a process stands still, or is about to come back
            self.after(self.settled_by - self.now + 0.001, None, self._last_deliveries)
            return
        for number in range(self.plan.keys):
            process = self.processes[(self.plan.seed + number) % len(self.processes)]
            last = Delivery(self.now, process.number, (number,), (Behaviour(),), -1)
            process.receive(last, REFEREE, partial(self._ended, number, self.now))

    def _ended(self, number: int, began: float) -> None:
        """`lease + handler time + 1 s`: handler time is all that ran on this key meanwhile."""
        key = KEYS[number].id
        worked = sum(
            min(to, self.now) - max(since, began)
            for id_, since, to in self.ledger.spans
            if id_ == key and to > began and since < self.now
        )
        taken = self.now - began
        self.waiting -= 1
        if taken > LEASE + LONGEST_REST + worked + 1.0:
            broken(
                "every key ends", f"key {number} took {taken:.2f} s, handlers {worked:.2f} s of it"
            )
