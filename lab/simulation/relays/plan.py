"""A plan: one schedule as plain data. The seed makes the plan; the plan alone makes the run.

Nothing is drawn at random while a plan runs, so a seed replays bit for bit, and a failing plan
can be made smaller by leaving things out. Every plan draws its own taste for trouble first.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from twicesafe._core.outbox.requests import Awake, Fetch, Heartbeat, OutboxRequest, Settle

from ..plans import Fault, Incident

__all__ = [
    "CALLS", "FAULTS", "INCIDENTS", "LEASE", "POISON", "QUIET", "Plan", "Post", "Seat", "StoreFault",
    "draw", "name_of",
]  # fmt: skip

LEASE: Final = 1.5
QUIET: Final = 3.2
"""Virtual seconds after which nothing new goes wrong; only poison is refused as before."""

POISON: Final = 1_000
"""Refused so often: until the broker is repaired."""

FAULTS: Final = (
    "request lost", "refused", "reply lost", "request late", "reply late", "crash before",
    "crash after", "crash at reply",
)  # fmt: skip
"""Of requests to the store."""
CALLS: Final = (
    "away", "answer lost", "torn", "broken", "silent", "part", "slow", "split", "crash in call",
)  # fmt: skip
"""What happens to calls of the publisher."""
INCIDENTS: Final = ("crash", "pause", "cut off", "jump", "stop", "outage", "retry", "skip")
"""Cut off: of one relay's requests, those of the keeper are lost for a while."""


def name_of(request: type[OutboxRequest[Any]]) -> str:
    """Short, and the request's own: under another name no fault would ever meet it."""
    return request.op.removeprefix("outbox_")


_OPS: Final = {
    name_of(Heartbeat): 16,
    name_of(Fetch): 30,
    name_of(Settle): 6,
    name_of(Settle) + " ": 3,
    "listen": 6,
    name_of(Awake): 3,
}
"""What is asked of the store, and how many of it may go wrong; settlements go wrong most."""


class Post(msgspec.Struct, frozen=True):
    """A message, added in a transaction that lasts."""

    at: float
    key: int
    """-1: none."""
    lasts: float = 0.0
    """So long after the number was drawn it is committed: others overtake it meanwhile."""
    rolled_back: bool = False
    refused: int = 0
    """So often the broker refuses it."""
    unheard: bool = False
    """The wake-up that announces it is lost."""
    chokes: bool = False
    """The broker does not say that it refuses it: it hangs up, as if it were away."""


class Seat(msgspec.Struct, frozen=True):
    """Where relays run, one after the other: a dead one is followed by the next."""

    start: float = 0.0
    rate: float = 1.0
    """How fast its clock runs."""
    group: int = 2
    concurrency: int = 1
    threads: bool = False
    """With one call at once, a thread publishes where it stands; an event loop never does."""
    keeps_order: bool = False
    """Its publisher accepts nothing of a key after a failure; others take any part of a call."""


class StoreFault(Fault, frozen=True, kw_only=True):
    """What happens to the nth request of this kind, numbered over all relays."""

    op: str


class Plan(msgspec.Struct, frozen=True):
    seed: int
    batch: int
    max_attempts: int
    wakes: bool
    """Does the store wake relays that sleep?"""
    timeout: float
    """Seconds after which a relay no longer waits for a reply."""
    latencies: tuple[float, ...]
    seats: tuple[Seat, ...]
    posts: tuple[Post, ...]
    faults: tuple[StoreFault, ...] = ()
    calls: tuple[Fault, ...] = ()
    incidents: tuple[Incident, ...] = ()
    attentive: float = 0.0
    """So long after a lane was parked an operator looks; 0: not before the end."""
    skips: bool = False
    """What he says then: skip, or retry."""
    checks: bool = False
    """Can the publisher ask whether the broker is there?"""


def draw(seed: int) -> Plan:
    """The plan of this seed."""
    rng = Random(seed)
    chance, uniform, pick = rng.random, rng.uniform, rng.choice
    trouble = pick((0.0, 0.3, 0.6, 0.6, 1.0))
    fault_kinds = [kind for kind in FAULTS if chance() < 0.4] or ["reply lost"]
    call_kinds = [kind for kind in CALLS if chance() < 0.4] or ["answer lost"]
    incident_kinds = [kind for kind in INCIDENTS if chance() < 0.5] or ["crash"]
    poison = pick((0.0, 0.0, 0.1, 0.3))
    late = pick((0.0, 0.3))
    keys = pick((1, 2, 4))
    checks = chance() < 0.6
    moments = [uniform(0, 1.8) for _ in range(pick((1, 2, 3)))]

    def moment() -> float:
        at = pick(moments) + uniform(0, 0.02) if chance() < 0.6 else uniform(0, 1.8)
        return round(at, 4)

    def seconds() -> float:
        return round(pick((0.02, 0.3, 1.6, 2.2)) * uniform(0.5, 1.1), 4)

    def post() -> Post:
        return Post(
            moment(),
            rng.randrange(keys) if chance() < 0.8 else -1,
            round(uniform(0.01, 1.2), 4) if chance() < late else 0.0,
            chance() < 0.05,
            pick((1, 2, POISON, POISON)) if chance() < poison else 0,
            chance() < 0.2 * trouble,
            chance() < 0.5,
        )

    seats = tuple(
        Seat(
            pick((0.0, moment(), round(uniform(0, 1.5), 4))) if number else 0.0,
            pick((1.0, 1.0, 0.98, 1.02)),
            pick((1, 2, 6)),
            pick((1, 1, 3)),
            chance() < 0.5,
            chance() < 0.5,
        )
        for number in range(pick((1, 2, 2, 3)))
    )
    posts = sorted((post() for _ in range(pick((2, 4, 8, 14)))), key=lambda one: one.at)
    faults = [
        StoreFault(rng.randrange(most), pick(fault_kinds), seconds(), op=op.strip())
        for op, most in _OPS.items()
        for _ in range(2)
        if chance() < trouble * 0.35
    ]
    calls = [
        Fault(nth, pick(call_kinds), seconds() * pick((1, 2)))
        for nth in range(8)
        if chance() < trouble * 0.25
    ]
    incidents = []
    for _ in range(pick((0, 1, 2, 4)) if trouble else 0):
        kind = pick(incident_kinds)
        span = uniform(0.3, 2.5)
        if kind == "jump":
            span = pick((-3600.0, -5.0, -0.7, 0.7, 5.0, 3600.0))
        target = rng.randrange(len(seats))
        incidents.append(Incident(round(uniform(0.05, 2.6), 4), kind, target, round(span, 4)))
    # Coincidences that chance alone brings too seldom:
    if trouble and chance() < 0.06:  # slots are lost and won back while a call is under way
        calls = [Fault(0, "slow", round(uniform(2.5, 6.0), 4)), *calls]
        at = round(posts[0].at + uniform(0.02, 0.4), 4)
        incidents.append(Incident(at, "cut off", 0, round(uniform(1.6, 2.4), 4)))
        posts = [replace(one, key=min(one.key, 0)) for one in posts]  # one long lane
    if trouble and chance() < 0.06:  # slots are to be given back while settlements fail
        faults += [StoreFault(nth, "refused", op="settle") for nth in range(rng.randrange(1, 6))]
    return Plan(
        seed,
        pick((3, 6, 6)),
        pick((1, 2, 2, 3)),
        chance() < 0.5,
        pick((0.05, 0.2)),
        tuple(round(uniform(0.0002, 0.004), 5) for _ in range(13)),
        seats,
        tuple(posts),
        tuple(
            sorted({(one.op, one.nth): one for one in faults}.values(), key=lambda f: (f.op, f.nth))
        ),
        tuple({one.nth: one for one in reversed(calls)}.values())[::-1],
        tuple(sorted(incidents, key=lambda one: one.at)),
        pick((0.0, 0.01, 0.1, 0.5)) if trouble else 0.0,
        chance() < 0.5,
        checks,
    )
