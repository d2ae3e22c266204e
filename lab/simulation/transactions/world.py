"""The world: workers, their broker and their database, which has its own clock, which can be set."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from twicesafe._core import operations
from twicesafe._core.protocol import Forget, Release, Resolve, Sweep
from twicesafe._values.keys import Key
from twicesafe.errors import UsageError

from ..plans import Fault, Incident
from ..study import Say
from ..violations import Violation
from ..virtual import VirtualWorld
from .broker import Broker
from .database import Database
from .invariants import broken
from .ledger import Ledger
from .monitor import Monitor
from .plan import QUIET, Behaviour, Delivery, Plan
from .policies import KEYS, LONGEST_WAIT, POLICIES
from .worker import Worker

__all__ = ["World"]

REFEREE = next(
    number
    for number, (policy, _) in enumerate(POLICIES)
    if (policy.retention, policy.max_attempts, policy.wait) == (60.0, 3, LONGEST_WAIT)
)
"""The policy of the last delivery of each key."""
_ALL_KEYS = [key for keys in KEYS for key in keys]


class World(VirtualWorld):
    most_events = 20_000

    def __init__(self, plan: Plan, say: Say | None = None) -> None:
        super().__init__(plan, say)
        self.hub = getcurrent()
        self.plan = plan
        self.faulty = True
        self.found: Violation | None = None
        """What was found inside a fibre."""
        self.runs = itertools.count(1)
        self.latency = itertools.cycle(plan.latencies)
        self.monitor = Monitor(self.seen)
        self.ledger = Ledger(self.monitor, self.seen)
        self.database = Database(self)
        self.broker = Broker(self)
        self.workers = [Worker(self, number) for number in range(len(plan.loops))]
        self._deferred_faults = {fault.nth: fault for fault in plan.notes}
        self._deferred_sent = itertools.count()

    def begin(self) -> None:
        for delivery in self.plan.deliveries:
            self.broker.take(delivery)
        for incident in self.plan.incidents:
            self.after(incident.at, None, self._happen, incident)
        self.after(QUIET, None, self._quiet)

    def endless(self, how: str) -> None:
        broken("every delivery ends", how)

    def fault_of_deferred(self) -> Fault | None:
        return (
            self._deferred_faults.get(next(self._deferred_sent)) if self._deferred_faults else None
        )

    # -- what the plan says -------------------------------------------------------------------

    def _happen(self, incident: Incident) -> None:
        kind, target = incident.kind, incident.target
        self.seen["incident", kind] += 1
        if self.say:
            self.say(f"!!     {kind} {target} {incident.seconds:+g}")
        if kind == "crash":
            self.crash(self.workers[target], incident.seconds)
        elif kind == "restart":
            self.database.restart(incident.seconds)
        elif kind == "jump":
            self.database.offset += round(incident.seconds * 1000)
            self.database.furthest = max(self.database.furthest, self.database.offset)
        elif kind == "sweep":
            self.database.sweep(Sweep(500))
        else:
            self.operator(kind, _ALL_KEYS[target], 100 + round(incident.seconds * 1000))

    def operator(
        self, kind: str, key: Key, kept: int, then: Callable[[], None] | None = None
    ) -> None:
        """An operator's word, in its own transaction: it waits for the one that has the record."""
        if key.id in self.database.locks:
            self.after(0.05, None, self.operator, kind, key, kept, then)
            return
        who: dict[str, Any] = {"by": "lab", "why": "", "retention": kept}
        ask: Any
        if kind in ("release", "force"):
            ask = Release(key.id, **who, force=kind == "force")
        elif kind == "resolve":
            ask = Resolve(key.id, **who, result=b'j"by hand %d"' % next(self.runs))
        else:
            ask = Forget(key.id, **who)
        flow = operations.operate(key, ask)
        try:
            request = next(flow)
            while True:
                request = flow.send(self.database.operate(request))
        except (StopIteration, UsageError):
            pass
        if then is not None:
            then()

    def crash(self, worker: Worker, linger: float) -> None:
        """The process dies; the server keeps its sessions for as long as it does not notice."""
        if not worker.alive:
            return
        worker.alive = False
        self.seen["worker", "crashed"] += 1
        if self.say:
            self.say(f"†  w{worker.number} dies")
        for connection in list(worker.connections):
            connection.close(linger)
        for fiber in worker.fibers:
            fiber.kill()
        for job in worker.jobs:
            self.broker.again(job, 0.1)
        self.after(0.2, None, self._restart, worker.number)

    def _restart(self, number: int) -> None:
        self.workers[number] = Worker(self, number)

    # -- the end: every delivery must reach one -----------------------------------------------

    def _quiet(self) -> None:
        self.faulty = False
        self.database.offset = self.database.furthest  # a clock that was set back is set right
        if self.say:
            self.say("──     no more faults; every message is delivered once more")
        for consumer in range(len(KEYS)):
            for message in range(len(KEYS[consumer])):
                if any(
                    (one.consumer, one.message) == (consumer, message)
                    for one in self.plan.deliveries
                ):
                    worker = (self.plan.seed + message) % len(self.workers)
                    last = (self.now, worker, consumer, message, (Behaviour(),), REFEREE)
                    self.broker.take(Delivery(*last))

    def end(self) -> None:
        if self.broker.unacknowledged:
            broken("every delivery ends", f"{self.broker.unacknowledged} have no answer")
        for session in self.database.sessions:
            broken("every delivery ends", f"{session.name} stays open")
        for key in _ALL_KEYS:
            self.monitor.looks(key.id, self.database.rows)
        for worker in self.workers:
            self.ledger.counted(worker)

    def close(self) -> None:
        """Fibres that still wait are dead: nothing of this run reaches the next."""
        for worker in self.workers:
            for fiber in worker.fibers:
                fiber.kill()
