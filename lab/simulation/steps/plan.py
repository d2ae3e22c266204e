"""A plan: one schedule as plain data. The seed makes the plan; the plan alone makes the run.

Every key has one durable function, drawn as a list of what it does: steps with and without an undo,
sleeps, waits, branches, failures. The same function runs in every attempt, as code would.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec

from ..plans import Fault, Incident
from .policies import POLICIES

__all__ = [
    "FAULTS",
    "INCIDENTS",
    "QUIET",
    "SIGNALS",
    "Op",
    "Plan",
    "Script",
    "Sent",
    "Start",
    "draw",
]

QUIET: Final = 8.0
"""Virtual seconds after which nothing new goes wrong, and every run must reach its end."""

BUSY_UNTIL: Final = 5.0

FAULTS: Final = (
    "request lost", "refused", "reply lost", "request late", "reply late", "ghost", "twice",
    "crash before", "crash after", "crash at reply",
)  # fmt: skip
INCIDENTS: Final = (
    "sweep", "pause", "crash", "outage", "release", "restart", "resolve", "forget",
)  # fmt: skip
SIGNALS: Final = ("yes", "no", "perhaps")


class Op(msgspec.Struct, frozen=True):
    """One thing that a durable function does."""

    kind: str
    """run, capture, sleep, wait, branches, fail, abort."""
    name: str = ""
    seconds: float = 0.01
    """How long a step takes, or a sleep; of a wait its time-out, 0: none."""
    undo: bool = False
    fails: int = 0
    """So many executions raise."""
    dies: tuple[str, ...] = ()
    """Per execution: its process dies "before" or "after" the effect, or it lives ("")."""
    tries: int = 1
    timeout: float | None = None
    probe: bool = False
    probe_fails: int = 0
    """So many times its probe raises."""
    caught: bool = False
    """The function catches its error, and goes on."""
    fickle: bool = False
    """Its arguments are others in every attempt: the code is not deterministic."""
    undo_fails: int = 0
    undo_dies: tuple[str, ...] = ()
    branches: tuple[tuple[Op, ...], ...] = ()
    joins: bool = True
    """It waits for all branches, as a pool of threads does; else for the first error, like `gather`."""
    aborts: bool = False
    """Of a wait: the signal "no" aborts the run."""
    cancels: bool = False
    """Its first execution cancels its own task at its end."""


class Script(msgspec.Struct, frozen=True):
    """A durable function."""

    ops: tuple[Op, ...]
    policy: int
    cleanup: bool = False
    """It has a ``finally`` with a step in it."""


class Start(msgspec.Struct, frozen=True):
    """A process calls a function, submits it, or looks for what is due."""

    at: float
    process: int
    kind: str
    """call, submit, complete."""
    key: int = 0
    faults: tuple[Fault, ...] = ()
    cancelled: tuple[float, ...] = ()
    """Its caller is cancelled after so many seconds."""


class Sent(msgspec.Struct, frozen=True):
    """A signal."""

    at: float
    key: int
    name: str
    value: str


class Plan(msgspec.Struct, frozen=True):
    seed: int
    scripts: tuple[Script, ...]
    """By key."""
    rates: tuple[float, ...]
    """Per process: how fast its clock runs."""
    timeout: float
    latencies: tuple[float, ...]
    starts: tuple[Start, ...]
    signals: tuple[Sent, ...] = ()
    incidents: tuple[Incident, ...] = ()
    renewals: tuple[Fault, ...] = ()
    fast: bool = True
    """Steps take the fast path, as shipped; else the whole flow."""


class _Draw:
    def __init__(self, seed: int) -> None:
        self.rng = Random(f"steps/{seed}")
        self.probes = Random(f"steps/probes/{seed}")
        self.cancels = Random(f"steps/cancels/{seed}")
        self.itself = Random(f"steps/cancels itself/{seed}")
        self.seed = seed
        self.trouble = self.rng.choice((0.0, 0.25, 0.5, 0.8))
        self.kinds = [kind for kind in FAULTS if self.chance() < 0.4] or ["crash after"]
        self.names = 0
        self.waits: list[tuple[int, str]] = []

    def chance(self) -> float:
        return self.rng.random()

    def seconds(self, least: float, most: float) -> float:
        return round(self.rng.uniform(least, most), 3)

    def faults(self) -> tuple[Fault, ...]:
        if self.chance() >= self.trouble:
            return ()
        return tuple(
            Fault(self.rng.randrange(12), self.rng.choice(self.kinds), self.seconds(0.01, 2.5))
            for _ in range(self.rng.choice((1, 1, 2, 3)))
        )

    def dies(self, share: float = 0.2) -> tuple[str, ...]:
        if self.chance() >= share * (self.trouble > 0):
            return ()
        return tuple(self.rng.choice(("", "before", "after")) for _ in range(2))

    def step(self, key: int, **more: Any) -> Op:
        self.names += 1
        undo = self.chance() < 0.5
        slow = self.chance() < 0.15
        more["probe_fails"] = self.probes.choice((0, 0, 1, 9))
        more["cancels"] = self.itself.random() < 0.1 * (self.trouble > 0)
        return Op(
            "run",
            f"step-{self.names}",
            self.seconds(0.6, 1.8) if slow else self.seconds(0.001, 0.05),
            undo,
            self.rng.choice((0, 0, 0, 0, 1, 2)),
            self.dies(),
            self.rng.choice((1, 1, 1, 2)),
            self.rng.choice((None, None, None, 0.3)),
            self.chance() < 0.25,
            caught=self.chance() < 0.15,
            fickle=self.chance() < 0.04,
            undo_fails=self.rng.choice((0, 0, 0, 1, 1, 9)) if undo else 0,
            undo_dies=self.dies() if undo else (),
            **more,
        )

    def op(self, key: int, deep: bool = False) -> Op:
        kind = self.rng.choice(
            ("run", "run", "run", "run", "capture", "sleep", "wait", "wait", "branches")
        )
        if kind == "run" or (kind == "branches" and deep):
            return self.step(key)
        self.names += 1
        name = f"{kind}-{self.names}"
        if kind == "capture":
            return Op(kind, name)
        if kind == "sleep":
            return Op(kind, name, self.rng.choice((0.0, 0.05, 0.2, 0.6, 1.5)))
        if kind == "wait":
            self.waits.append((key, name))
            seconds = self.rng.choice((0.0, 0.0, 0.1, 0.5, 2.0))
            return Op(kind, name, seconds, aborts=self.cancels.random() < 0.2)
        parts = tuple(
            tuple(self.op(key, True) for _ in range(self.rng.choice((1, 2))))
            for _ in range(self.rng.choice((2, 2, 3)))
        )
        if self.cancels.random() < 0.1:  # one branch aborts the run, beside the others
            parts = (*parts[:-1], (*parts[-1], Op("abort")))
        return Op(kind, name, branches=parts, joins=self.chance() < 0.5)

    def cancelled(self) -> tuple[float, ...]:
        """In the midst of its steps, its sleeps or its undos."""
        if self.cancels.random() >= 0.3 * (self.trouble > 0):
            return ()
        most = self.cancels.choice((0.02, 0.1, 0.6, 2.0))
        times = self.cancels.choice((1, 1, 1, 2))
        return tuple(round(self.cancels.uniform(0, most), 4) for _ in range(times))

    def script(self, key: int) -> Script:
        ops = [self.op(key) for _ in range(self.rng.choice((1, 2, 3, 4)))]
        end = self.chance()
        if end < 0.2:
            ops.append(Op("fail", fails=99))
        elif end < 0.3:
            ops.append(Op("abort"))
        elif end < 0.4:
            ops.append(Op("fail", fails=self.rng.choice((1, 2))))
        return Script(tuple(ops), self.rng.randrange(len(POLICIES)), self.chance() < 0.1)


def draw(seed: int) -> Plan:
    """The plan of this seed."""
    here = _Draw(seed)
    rng, uniform, pick = here.rng, here.seconds, here.rng.choice
    processes = pick((1, 2, 2, 3))
    keys = pick((1, 1, 2))
    scripts = tuple(here.script(key) for key in range(keys))
    starts = [
        Start(
            uniform(0, 1.5) if number < keys else uniform(0, BUSY_UNTIL),
            rng.randrange(processes),
            pick(("call", "call", "call", "submit")),
            number % keys,
            here.faults(),
            here.cancelled(),
        )
        for number in range(keys + pick((0, 1, 2, 4)))
    ]
    starts += [
        Start(
            uniform(0.2, QUIET),
            rng.randrange(processes),
            "complete",
            0,
            here.faults(),
            here.cancelled(),
        )
        for _ in range(pick((1, 3, 6)))
    ]
    signals = [
        Sent(
            round(pick(starts).at + uniform(0, 0.1), 3)
            if here.chance() < 0.4
            else uniform(0, BUSY_UNTIL),
            key,
            name,
            pick(SIGNALS),
        )
        for key, name in here.waits
        for _ in range(pick((0, 1, 1, 2)))
    ]
    incidents = []
    if (
        here.trouble and here.chance() < 0.2
    ):  # a worker that stands still, and another that takes over
        first = pick(starts)
        at = round(first.at + uniform(0, 0.03), 3)
        incidents.append(Incident(at, "pause", first.process, uniform(1.1, 2.8)))
        other = (first.process + 1) % processes
        starts.append(Start(round(at + 1.05, 3), other, "call", first.key))
    if here.trouble:
        wanted = [kind for kind in INCIDENTS if here.chance() < 0.3] or ["pause"]
        for _ in range(pick((0, 1, 2, 4))):
            kind = pick(wanted)
            whom = processes if kind in ("pause", "crash") else keys
            at = uniform(0, BUSY_UNTIL + 1)
            if here.chance() < 0.4:  # while a function runs
                at = round(pick(starts).at + uniform(0, 0.06), 3)
            incidents.append(Incident(at, kind, rng.randrange(whom), uniform(0.2, 2.8)))
    return Plan(
        seed,
        scripts,
        tuple(pick((1.0, 1.0, 0.98, 1.02)) for _ in range(processes)),
        pick((0.05, 0.2, 0.3)),
        tuple(round(rng.uniform(0.0002, 0.004), 5) for _ in range(13)),
        tuple(sorted(starts, key=lambda start: start.at)),
        tuple(sorted(signals, key=lambda sent: sent.at)),
        tuple(sorted(incidents, key=lambda incident: incident.at)),
        tuple(
            Fault(nth, pick(here.kinds), uniform(0.01, 1.5))
            for nth in range(6)
            if here.chance() < here.trouble * 0.3
        ),
    )
