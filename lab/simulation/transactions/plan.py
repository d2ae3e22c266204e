"""A plan: one schedule of transaction mode as plain data. The plan alone makes the run.

Every plan draws its own taste for trouble first: some are calm, some are full of one kind of fault,
some of all. A message is delivered again until it is acknowledged; its handler may go another way
each time.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from ..plans import Fault, Incident
from .policies import CONSUMERS, KEYS, POLICIES

__all__ = [
    "ENDS",
    "FAULTS",
    "INCIDENTS",
    "QUIET",
    "Behaviour",
    "Delivery",
    "Plan",
    "draw",
]

QUIET: Final = 4.5
"""Virtual seconds after which nothing new goes wrong, and every delivery must reach its end."""

BUSY_UNTIL: Final = 2.5

FAULTS: Final = (
    "request lost", "reply lost", "request late", "reply late", "session ended", "conflict",
    "crash before", "crash after", "crash at reply",
)  # fmt: skip
INCIDENTS: Final = ("sweep", "crash", "restart", "jump", "release", "force", "resolve", "forget")
ENDS: Final = (
    "return", "fail", "remember", "cancel", "unstorable", "large", "commit", "commit and fail",
    "roll back", "swallow", "crash",
)  # fmt: skip
_PLAIN: Final = ("return", "fail", "cancel", "crash")


class Behaviour(msgspec.Struct, frozen=True):
    """How a handler goes: how long, and how it ends. Its effect is written first."""

    seconds: float = 0.01
    end: str = "return"


class Delivery(msgspec.Struct, frozen=True):
    """One message for one consumer, delivered until it is acknowledged."""

    at: float
    worker: int
    consumer: int
    message: int
    handlers: tuple[Behaviour, ...]
    """One for each delivery; the last one for all that follow."""
    policy: int
    fingerprint: int = 0
    accepts: bool = False
    """By `accept`, not by `process`."""
    cancelled: tuple[float, ...] = ()
    """So long after its first arrival its consumer is cancelled, or interrupted; perhaps twice."""
    faults: tuple[Fault, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    seed: int
    loops: tuple[bool, ...]
    """Per worker: does it run an event loop? Else threads."""
    latencies: tuple[float, ...]
    deliveries: tuple[Delivery, ...]
    incidents: tuple[Incident, ...] = ()
    notes: tuple[Fault, ...] = ()
    """Faults of the statements of deferred writes, numbered over all workers."""


def draw(seed: int) -> Plan:
    """The plan of this seed."""
    rng = Random(seed)
    chance, uniform, pick = rng.random, rng.uniform, rng.choice
    workers = pick((1, 2, 2, 3))
    messages = pick((1, 1, 1, 2))
    consumers = pick((1, 1, 2))
    trouble = pick((0.0, 0.4, 0.4, 0.8))
    kinds = [kind for kind in FAULTS if chance() < 0.5] or ["reply lost"]
    ends = ("return",) if chance() < 0.25 else ("return", *(one for one in ENDS if chance() < 0.4))
    slow = pick((0.1, 0.5))
    main_policy = rng.randrange(len(POLICIES))
    mixed = chance() < 0.25
    moments = [uniform(0, BUSY_UNTIL) for _ in range(pick((1, 2)))]

    def moment() -> float:
        if chance() < 0.7:  # together with others
            return pick(moments) + pick((0.0, 0.0, 0.2, 0.7)) + uniform(0, 0.03)
        return uniform(0, BUSY_UNTIL)

    def behaviour(accepts: bool) -> Behaviour:
        span = uniform(0.1, 1.0) if chance() < slow else uniform(0.001, 0.03)
        end = pick(ends)  # a consumer that only accepts has no handler whose end counts
        return Behaviour(round(span, 4), end if not accepts or end in _PLAIN else "return")

    def faults(most: int) -> tuple[Fault, ...]:
        if chance() >= trouble:
            return ()
        return tuple(
            Fault(rng.randrange(most), pick(kinds), round(pick((0.0, 0.05, 0.3, 1.2)), 4))
            for _ in range(pick((1, 1, 2, 3)))
        )

    def cancelled() -> tuple[float, ...]:
        return tuple(round(uniform(0.001, 0.5), 4) for _ in range(pick((1, 1, 2))))

    deliveries = []
    for _ in range(pick((1, 2, 2, 3, 4))):
        accepts = chance() < 0.12
        deliveries.append(
            Delivery(
                round(moment(), 4),
                rng.randrange(workers),
                rng.randrange(consumers),
                rng.randrange(messages),
                tuple(behaviour(accepts) for _ in range(pick((1, 2, 3)))),
                rng.randrange(len(POLICIES)) if mixed else main_policy,
                pick((0, 1, 2)) if mixed else pick((0, 1)),
                accepts,
                cancelled() if chance() < 0.1 * (trouble > 0) else (),
                faults(8),
            )
        )
    incidents = []
    if trouble:
        wanted = [kind for kind in INCIDENTS if chance() < 0.4]
        for _ in range(pick((0, 1, 2, 4)) if wanted else 0):
            kind = pick(wanted)
            seconds = pick((0.0, 0.1, 0.5, 1.5))
            if kind == "jump":
                seconds = pick((-3600.0, -0.7, 0.7, 5.0, 3600.0))
            whom = workers if kind == "crash" else len(CONSUMERS) * len(KEYS[0])
            when = moment() + uniform(0, 1.2)
            incidents.append(Incident(round(when, 4), kind, rng.randrange(whom), seconds))
    return Plan(
        seed,
        tuple(chance() < 0.5 for _ in range(workers)),
        tuple(round(uniform(0.0002, 0.004), 5) for _ in range(7)),
        tuple(sorted(deliveries, key=lambda delivery: delivery.at)),
        tuple(sorted(incidents, key=lambda incident: incident.at)),
        faults(8),
    )
