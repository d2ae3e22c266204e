"""A plan: one schedule as plain data. The seed makes the plan; the plan alone makes the run.

Nothing is drawn at random while a plan runs, so a seed replays bit for bit, and a failing plan
can be made smaller by leaving things out. Every plan draws its own taste for trouble first: some
are calm, some are full of one kind of fault, some of all.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from ..plans import Fault, Incident
from .policies import POLICIES

__all__ = [
    "FAULTS",
    "INCIDENTS",
    "QUIET",
    "Behaviour",
    "Delivery",
    "Plan",
    "draw",
]

QUIET: Final = 8.0
"""Virtual seconds after which nothing new goes wrong, and every key must reach its end."""

BUSY_UNTIL: Final = 4.0
"""Deliveries and incidents begin before this."""

FAULTS: Final = (
    "request lost", "refused", "reply lost", "request late", "reply late", "ghost", "twice",
    "part lost", "crash before", "crash after", "crash at reply",
)  # fmt: skip
INCIDENTS: Final = (
    "sweep", "pause", "crash", "jump", "release", "force", "resolve", "forget", "read", "outage",
    "transaction",
)  # fmt: skip


class Behaviour(msgspec.Struct, frozen=True):
    """How a handler goes: how long, when its effect happens, how it ends."""

    seconds: float = 0.01
    effect: float = 0.5
    """The share of its time after which the effect happens."""
    end: str = "return"
    """return, fail, remember, cancel, unstorable, large, crash; or with what the store does not take:
    refused, stuck (it never gets through), remember refused, remember stuck."""
    careful: bool = False
    """Asks its claim before the effect, as handlers should."""


class Delivery(msgspec.Struct, frozen=True):
    """One message or call; several keys are a batch."""

    at: float
    process: int
    keys: tuple[int, ...]
    handlers: tuple[Behaviour, ...]
    policy: int
    fingerprint: int = 0
    cancelled: tuple[float, ...] = ()
    """So long after its arrival the caller is cancelled, or interrupted; perhaps twice."""
    faults: tuple[Fault, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    seed: int
    keys: int
    loops: tuple[bool, ...]
    """Per process: does it run an event loop? Else threads."""
    rates: tuple[float, ...]
    """Per process: how fast its clock runs."""
    wakes: bool
    """Does the store wake those who wait?"""
    timeout: float
    """Seconds after which a worker no longer waits for a reply."""
    latencies: tuple[float, ...]
    deliveries: tuple[Delivery, ...]
    incidents: tuple[Incident, ...] = ()
    renewals: tuple[Fault, ...] = ()
    """Faults of keeper messages, numbered over all processes."""
    fast: bool = True
    """Single deliveries take the fast path, as shipped; else the whole flow."""


_ENDS: Final = (
    *["return"] * 12, *["fail"] * 4, *["remember"] * 2, "cancel", "unstorable", "large", "crash",
    "refused", "stuck", "remember refused", "remember stuck",
)  # fmt: skip


def draw(seed: int) -> Plan:
    """The plan of this seed."""
    rng = Random(seed)
    chance, uniform, pick = rng.random, rng.uniform, rng.choice
    processes = pick((1, 2, 2, 3))
    keys = pick((1, 1, 1, 2, 3))
    trouble = pick((0.0, 0.25, 0.5, 0.5, 0.8))
    kinds = [kind for kind in FAULTS if chance() < 0.5] or ["reply lost"]
    ends = ("return",) if chance() < 0.3 else _ENDS
    slow = pick((0.05, 0.3, 0.6))
    timeout = pick((0.05, 0.2, 0.3))
    main_policy = rng.randrange(len(POLICIES))
    mixed = chance() < 0.25
    moments = [uniform(0, BUSY_UNTIL) for _ in range(pick((1, 2, 3)))]

    def moment() -> float:
        if chance() < 0.6:  # together with others, or just when a lease of theirs ends
            return pick(moments) + pick((0.0, 0.0, 1.0, 2.0)) + uniform(0, 0.03)
        return uniform(0, BUSY_UNTIL)

    def behaviour() -> Behaviour:
        span = uniform(0.001, 0.05)
        if chance() < slow:
            span = uniform(0.2, 0.95) if chance() < 0.5 else uniform(0.95, 4.0)
        return Behaviour(round(span, 4), pick((0.0, 0.5, 1.0)), pick(ends), chance() < 0.3)

    def faults() -> tuple[Fault, ...]:
        if chance() >= trouble:
            return ()
        return tuple(
            Fault(nth, pick(kinds), round(pick((0.01, 0.3, 1.1, 2.5)) * uniform(0.5, 1.1), 4))
            for nth in range(pick((1, 2, 4)))
            if chance() < 0.6
        )

    def cancelled() -> tuple[float, ...]:
        return tuple(round(uniform(0.001, 1.5), 4) for _ in range(pick((1, 1, 2))))

    deliveries = []
    for _ in range(pick((3, 4, 6, 8, 12))):
        many = chance() < 0.15
        chosen = [rng.randrange(keys) for _ in range(pick((2, 3)) if many else 1)]
        policy = rng.randrange(len(POLICIES)) if mixed else main_policy
        deliveries.append(
            Delivery(
                round(moment(), 4),
                rng.randrange(processes),
                tuple(chosen),
                tuple(behaviour() for _ in chosen),
                policy,
                pick((0, 1, 1, 2)) if mixed else pick((0, 1)),
                cancelled() if chance() < 0.08 * (trouble > 0) else (),
                faults(),
            )
        )
    incidents = []
    if trouble:
        wanted = [kind for kind in INCIDENTS if kind != "transaction" and chance() < 0.35]
        for _ in range(pick((0, 1, 2, 4, 6)) if wanted else 0):
            kind = pick(wanted)
            seconds = uniform(0.2, 2.8)
            if kind == "jump":
                seconds = pick((-3600.0, -5.0, -0.7, 0.7, 5.0, 3600.0))
            whom = processes if kind in ("pause", "crash") else keys
            incidents.append(
                Incident(
                    round(moment() + uniform(0, 1.2), 4),
                    kind,
                    rng.randrange(whom),
                    round(seconds, 4),
                )
            )
        apart = Random(f"transaction/{seed}")  # so that older seeds tell the same story
        if apart.random() < 0.25:
            at, seconds = round(apart.uniform(0, BUSY_UNTIL), 4), round(apart.uniform(0.2, 2.8), 4)
            incidents.append(Incident(at, "transaction", apart.randrange(keys), seconds))
    return Plan(
        seed,
        keys,
        tuple(chance() < 0.5 for _ in range(processes)),
        tuple(pick((1.0, 1.0, 0.98, 1.02)) for _ in range(processes)),
        chance() < 0.5,
        timeout,
        tuple(round(uniform(0.0002, 0.004), 5) for _ in range(13)),
        tuple(sorted(deliveries, key=lambda delivery: delivery.at)),
        tuple(sorted(incidents, key=lambda incident: incident.at)),
        tuple(
            Fault(nth, pick(kinds), round(uniform(0.01, 1.5), 4))
            for nth in range(6)
            if chance() < trouble * 0.4
        ),
    )
