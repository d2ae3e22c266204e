"""The world: the store, the processes, and the clocks in it."""

from __future__ import annotations

import itertools
from typing import Any

from greenlet import getcurrent

from twicesafe._core import operations
from twicesafe._core.durable import run_state
from twicesafe._core.durable.run_requests import FOREVER, Restart, Signal
from twicesafe._core.protocol import Forget, Release, Resolve
from twicesafe._values.codecs import DEFAULT_CODEC
from twicesafe._values.steps import SIGNAL
from twicesafe.errors import UsageError
from twicesafe.stores.memory import MemoryStore

from ..plans import Incident
from ..study import Say
from ..violations import Violation
from ..virtual import VirtualWorld
from .invariants import broken
from .ledger import Ledger
from .monitor import Monitor
from .network import Network
from .plan import QUIET, Plan, Sent, Start
from .policies import KEYS
from .process import Process

__all__ = ["World"]

EPOCH = 1_700_000_000_000
TIME_LIMIT = 60.0
"""Virtual seconds after which a run has no excuse: it would have been due, and taken over, long ago."""

_STATE: Any = run_state
"""Where the core looks up in which branch of a function it is: here, in which fibre."""
_branch = _STATE.branch


class World(VirtualWorld):
    most_events = 60_000

    def __init__(self, plan: Plan, say: Say | None = None) -> None:
        super().__init__(plan, say)
        self.hub = getcurrent()
        self.plan = plan
        self.found: Violation | None = None
        """What was found inside a fibre."""
        self.settled_by = QUIET
        """When the last fault has had its effect."""
        self.numbers = itertools.count(1)
        self.ticks = itertools.count(1)
        """The order of what the monitor and the ledger see."""
        self.store = MemoryStore(now=self.store_now)
        self.monitor = Monitor(self)
        self.ledger = Ledger(self)
        self.network = Network(self)
        self.processes = [Process(self, number) for number in range(len(plan.rates))]
        _STATE.branch = lambda: (0, id(getcurrent()), 0)

    def store_now(self) -> int:
        return int(self.now * 1000) + EPOCH

    def begin(self) -> None:
        for start in self.plan.starts:
            self.after(start.at, None, self._start, start)
        for sent in self.plan.signals:
            self.after(sent.at, None, self._signal, sent)
        for incident in self.plan.incidents:
            self.after(incident.at, None, self._happen, incident)
        self.after(QUIET, None, self._quiet)

    def endless(self, how: str) -> None:
        broken("every run ends", how)

    def close(self) -> None:
        _STATE.branch = _branch
        for process in self.processes:
            for fiber in process.fibers:
                fiber.kill()

    # -- what the plan says ---------------------------------------------------------------------

    def _start(self, start: Start) -> None:
        process = self.processes[start.process]
        if process.alive:
            process.begin(start)
        else:
            self.after(0.3, None, self._start, start)

    def _signal(self, sent: Sent) -> None:
        value = DEFAULT_CODEC.encode(sent.value, Any)
        self.network.apply(Signal(KEYS[sent.key].id, SIGNAL + sent.name, value, 60_000), "signal")

    def _happen(self, incident: Incident) -> None:
        kind, target = incident.kind, incident.target
        self.seen["incident", kind] += 1
        if self.say:
            self.say(f"!!     {kind} {target} {incident.seconds:+.2f}")
        if kind == "crash":
            self.crash(self.processes[target])
        elif kind == "pause":
            process = self.processes[target]
            process.paused_until = max(process.paused_until, self.now + incident.seconds)
            self.settled_by = max(self.settled_by, process.paused_until)
        elif kind == "outage":
            self.network.down_until = max(self.network.down_until, self.now + incident.seconds)
        elif kind == "sweep":
            self._operator(operations.sweep(None))
            self._operator(operations.tidy_runs())
        else:
            key = KEYS[target]
            who: dict[str, Any] = {"by": "lab", "why": "", "retention": 5_000}
            if kind == "release":
                force = incident.seconds < 1
                self._operator(operations.operate_run(key, Release(key.id, **who, force=force)))
            elif kind == "restart":
                force = incident.seconds < 1
                restart = Restart(key.id, **{**who, "retention": FOREVER}, force=force)
                self._operator(operations.operate_run(key, restart))
            elif kind == "resolve":
                by_hand = DEFAULT_CODEC.encode(["by hand"], Any)
                self._operator(operations.operate_run(key, Resolve(key.id, **who, result=by_hand)))
            else:
                self._operator(operations.operate_run(key, Forget(key.id, **who)))

    def _operator(self, flow: Any) -> None:
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
        for fiber in process.fibers:
            fiber.kill()
        back = self.now + 0.2 + 0.1 * process.number
        self.settled_by = max(self.settled_by, back)
        self.after(back - self.now, None, self._restart, process.number)

    def _restart(self, number: int) -> None:
        if not self.processes[number].alive:
            self.processes[number] = Process(self, number)

    # -- the end: every run must reach one ------------------------------------------------------

    def _quiet(self) -> None:
        self.network.faulty = False
        if self.say:
            self.say("──     no more faults; the completer looks until every run is at its end")
        self._last_looks()

    def _last_looks(self) -> None:
        reasons = [self.ledger.is_at_its_end(key, self.store_now()) for key in KEYS]
        if self.now > self.settled_by and not any(reasons):
            return
        if self.now > self.settled_by + TIME_LIMIT:
            broken("every run ends", str(next(why for why in reasons if why)))
        number = int(self.now * 10) % len(self.processes)
        self.processes[number].begin(Start(round(self.now, 3), number, "complete"))
        self.after(0.5, None, self._last_looks)

    def end(self) -> None:
        for key in KEYS:
            row = self.store._rows.get(key.id)
            self.seen["end", "none" if row is None else str(row.state)] += 1
