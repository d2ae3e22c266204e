"""The world: a store, a broker, the consumers between them, and the clocks.

Messages are sent and everything goes wrong, until it is quiet. From then on only poison kills, and
every message must be settled; then the consumers are stopped.
"""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from typing import Any

from twicesafe.stores.memory import MemoryStore

from ..plans import Fault, Incident
from ..study import Say
from ..virtual import VirtualWorld
from .broker import SESSION, Broker
from .invariants import broken
from .monitor import Monitor
from .network import StoreNetwork
from .plan import QUIET, Plan, Post
from .process import Process
from .transactions import Database
from .works import Copy, Work

__all__ = ["World"]

EPOCH = 1_700_000_000_000
TIME_LIMIT = 25.0
"""Seconds within which something must have changed, once it is quiet: the longest rests end."""
CHECK = 1.0


class World(VirtualWorld):
    most_events = 60_000

    def __init__(self, plan: Plan, say: Say | None = None) -> None:
        super().__init__(plan, say)
        self.plan = plan
        self.faulty = True
        self.settled_by = QUIET
        """When the last fault has had its effect."""
        self._latency = cycle(plan.latencies)
        self._faults = {(one.op, one.nth): one for one in (*plan.faults, *plan.calls)}
        self._asked: Counter[str] = Counter()
        self._changed = 0.0
        self.store = MemoryStore(now=self.store_now)
        self.network = StoreNetwork(self)
        self.broker = Broker(self)
        self.database = Database(self)
        self.monitor = Monitor(self)
        self.works: list[Work] = []
        self.copies: dict[str, Copy] = {}
        self.processes: dict[int, Process] = {}
        self._lives: Counter[int] = Counter()
        self._ending = self._reached = False

    # -- time and faults ----------------------------------------------------------------------

    def store_now(self) -> int:
        return int(self.now * 1000) + EPOCH

    def latency(self) -> float:
        return next(self._latency)

    def delayed(self, seconds: float) -> None:
        """Something that went wrong has its effect so much later."""
        self.settled_by = max(self.settled_by, self.now + seconds)

    def progress(self) -> None:
        self._changed = self.now

    def fault(self, op: str) -> Any:
        """What happens to this request."""
        number = self._asked[op]
        self._asked[op] += 1
        if not self.faulty:
            return None
        found: Fault | None = self._faults.get((op, number))
        store = op in ("claim", "complete", "fail", "abandon", "lanes", "renew")
        if not store and self.now < self.broker.away_until and op not in ("publish", "commit"):
            return "away"
        if found is not None and not store:
            self.seen["call", found.kind] += 1
            if self.say:
                self.say(f"~~ {op} {number}: {found.kind} {found.seconds:.2f}")
        return found

    def begin(self) -> None:
        for number, post in enumerate(self.plan.posts):
            self.after(post.at, None, self._send, post, number)
        for number, seat in enumerate(self.plan.seats):
            self.after(seat.start, None, self._start, number)
        for incident in self.plan.incidents:
            self.after(incident.at, None, self._happen, incident)
        self.after(QUIET, None, self._quiet)

    def endless(self, how: str) -> None:
        broken("consumers pause", how)

    def end(self) -> None:
        if not self._reached:
            broken("nothing is lost", "the end was never reached")

    # -- messages -----------------------------------------------------------------------------

    def _send(self, post: Post, number: int) -> None:
        work = Work(post, number)
        self.works.append(work)
        self.monitor.add(work)
        self._send_copy(work)
        if post.again:
            self.after(post.again, None, self._send_copy, work)

    def _send_copy(self, work: Work) -> None:
        parts = self.plan.partitions
        key = work.post.key if work.post.key >= 0 else work.number
        position = f"{work.name}{'' if not work.copies else '-again'}"
        copy = Copy(work, position, key % parts if parts else 0)
        work.copies.append(copy)
        self.copies[position] = copy
        self.broker.send(copy)
        self.seen["broker", "sent again" if len(work.copies) > 1 else "sent"] += 1

    def lane(self, work: Work) -> list[Work]:
        """Earlier messages of the same key, in the order in which they were sent."""
        before = self.works[: self.works.index(work)]
        return [one for one in before if one.post.key == work.post.key]

    # -- consumers ----------------------------------------------------------------------------

    def living(self) -> list[Process]:
        return [one for one in self.processes.values() if one.alive]

    def _start(self, number: int) -> None:
        sitting = self.processes.get(number)
        if self._ending or (sitting is not None and sitting.alive):
            return
        self._lives[number] += 1
        process = self.processes[number] = Process(self, number, self._lives[number])
        process.start()
        self.broker.balance()

    def crash(self, process: Any, killer: Work | None = None) -> None:
        if not process.alive:
            return
        process.alive = False
        self.progress()
        self.monitor.died(process, killer)
        self.seen["outcome", "died"] += 1
        if self.say:
            self.say(f"†  {process.name} dies")
        back = 0.2 + 0.1 * process.number
        self.delayed(back)
        self.after(SESSION, None, self.broker.lose, process)
        self.after(back, None, self._start, process.number)

    def consumer_ended(self, process: Process) -> None:
        self.seen["outcome", "stopped"] += 1
        if self.say:
            self.say(f"□  {process.name} has ended")
        if process.running:
            broken(
                "consumers end", f"{process.name} leaves {process.running[0].copy.position} running"
            )
        self.broker.lose(process)
        self.after(0.2, None, self._start, process.number)

    # -- what the plan says -------------------------------------------------------------------

    def _happen(self, incident: Incident) -> None:
        kind, process = incident.kind, self.processes.get(incident.target)
        if self.say:
            self.say(f"!! {kind} {incident.target} {incident.seconds:+.2f}")
        until = self.now + incident.seconds
        if kind == "outage":
            self.network.down_until = until
        elif kind == "broker away":
            self.broker.away_until = until
        elif kind == "dead letters away":
            self.broker.letters_away_until = until
        elif process is None or not process.alive:
            return
        elif kind == "crash":
            self.crash(process)
        elif kind == "pause":
            process.paused_until = max(process.paused_until, until)
            self.delayed(incident.seconds)
        elif kind == "rebalance":
            self.broker.move(incident.target)
        else:
            process.stop()
        self.seen["incident", kind] += 1

    # -- the end ------------------------------------------------------------------------------

    def _quiet(self) -> None:
        self.faulty = self.network.faulty = False
        if self.say:
            self.say("── no more faults; poison kills as before")
        self.delayed(0.0)
        self.progress()
        self._look()

    def _look(self) -> None:
        """Is everything settled? Then the consumers are stopped."""
        unsettled = [one.position for one in self.copies.values() if not one.settled]
        unreleased = self.monitor.unreleased()
        if unsettled or unreleased or self.now <= self.settled_by:
            if self.now > max(self._changed, self.settled_by) + TIME_LIMIT:
                what = f"{unsettled} not settled, {unreleased} not released"
                broken("nothing is lost", f"{what}: nothing has changed for {TIME_LIMIT:g} s")
            self.after(CHECK, None, self._look)
            return
        for work in self.works:
            dead = any(copy.published for copy in work.copies)
            if not work.done and not dead:
                broken("nothing is lost", f"{work.name} is neither done nor dead")
            if work.post.ends == ("kill",) and not dead:
                broken("poison is dead-lettered", f"{work.name} is not")
        self._ending = True
        if self.say:
            self.say("── all is settled; the consumers are stopped")
        for process in self.living():
            process.stop()
        self.after(TIME_LIMIT, None, self._check)

    def _check(self) -> None:
        for process in self.living():
            broken("consumers end", f"{process.name} goes on")
        self._reached = True
