"""A plan: one schedule as plain data. The seed makes the plan; the plan alone makes the run.

Nothing is drawn at random while a plan runs, so a seed replays bit for bit, and a failing plan
can be made smaller by leaving things out. Every plan draws its own taste for trouble first.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from ..plans import Fault, Incident

__all__ = [
    "CALLS", "ENDS", "FAULTS", "INCIDENTS", "LEASE", "QUIET", "OpFault", "Plan", "Post", "Seat", "draw",
]  # fmt: skip

LEASE: Final = 1.5
QUIET: Final = 4.0
"""Virtual seconds after which nothing new goes wrong; only poison kills as before."""

FAULTS: Final = (
    "request lost", "refused", "reply lost", "request late", "reply late", "ghost", "twice", "part lost",
    "crash before", "crash after", "crash at reply",
)  # fmt: skip
"""Of requests to the store."""
CALLS: Final = ("refused", "answer lost", "late", "crash before", "crash after")
"""What happens to requests to the broker."""
INCIDENTS: Final = (
    "crash", "pause", "stop", "outage", "broker away", "dead letters away", "rebalance",
)  # fmt: skip
ENDS: Final = ("ok", "fail", "retry", "retry later", "dead", "kill")

_OPS: Final = {"claim": 8, "complete": 4, "fail": 3, "abandon": 3, "lanes": 3}
_BROKER_OPS: Final = {
    "commit": 4,
    "fetch": 10, "acknowledge": 5, "give back": 2, "extend": 4, "release": 2, "publish": 3,
}  # fmt: skip
"""What is asked, and how many of it may go wrong."""


class Post(msgspec.Struct, frozen=True):
    """A message, and how its handler ends: the nth start in the nth way, later ones in the last."""

    at: float
    key: int = -1
    """The ordering key; -1: none."""
    seconds: float = 0.01
    ends: tuple[str, ...] = ("ok",)
    again: float = 0.0
    """So much later its producer sends it again, with the same id; 0: never."""


class Seat(msgspec.Struct, frozen=True):
    """Where consumers run, one after the other: a dead or stopped one is followed by the next."""

    start: float = 0.0
    rate: float = 1.0
    """How fast its clock runs."""
    concurrency: int = 2
    batch: int = 4


class OpFault(Fault, frozen=True, kw_only=True):
    """What happens to the nth request of this kind, numbered over all consumers."""

    op: str


class Plan(msgspec.Struct, frozen=True):
    seed: int
    partitions: int
    """Of a log; 0: a queue, which redelivers what is not settled in time."""
    ordered: bool
    max_attempts: int
    ack_wait: float
    can_delay: bool
    most_held: int
    timeout: float
    """Seconds after which a consumer no longer waits for the store's reply."""
    latencies: tuple[float, ...]
    seats: tuple[Seat, ...]
    posts: tuple[Post, ...]
    faults: tuple[OpFault, ...] = ()
    calls: tuple[OpFault, ...] = ()
    renewals: tuple[Fault, ...] = ()
    """What happens to the nth round of the lease keepers."""
    incidents: tuple[Incident, ...] = ()
    transactions: bool = False
    """Transaction mode: a handler's work and its record are committed together."""


def draw(seed: int) -> Plan:
    """The plan of this seed."""
    rng = Random(seed)
    chance, uniform, pick = rng.random, rng.uniform, rng.choice
    trouble = pick((0.0, 0.3, 0.6, 0.6, 1.0))
    fault_kinds = [kind for kind in FAULTS if chance() < 0.4] or ["reply lost"]
    call_kinds = [kind for kind in CALLS if chance() < 0.5] or ["answer lost"]
    incident_kinds = [kind for kind in INCIDENTS if chance() < 0.5] or ["crash"]
    failing = pick((0.0, 0.2, 0.5))
    poison = pick((0.0, 0.0, 0.1, 0.25))
    dead = pick((0.0, 0.0, 0.15))
    repeats = pick((0.0, 0.2))
    slow = pick((0.05, 0.3, 1.2))
    keys = pick((1, 2, 4))
    keyed = pick((0.0, 0.7, 1.0))
    partitions = pick((0, 1, 2, 3))
    moments = [uniform(0, 2.0) for _ in range(pick((1, 2, 3)))]

    def moment() -> float:
        at = pick(moments) + uniform(0, 0.02) if chance() < 0.7 else uniform(0, 2.5)
        return round(at, 4)

    def seconds() -> float:
        return round(pick((0.02, 0.3, 1.6, 2.2)) * uniform(0.5, 1.1), 4)

    def ends() -> tuple[str, ...]:
        if chance() < poison:
            return ("kill",)
        bad = [
            pick(("fail", "fail", "retry", "retry later")) for _ in range(3) if chance() < failing
        ]
        if chance() < dead:
            return (*bad[:1], "dead", *(["ok"] if chance() < 0.5 else []))
        if chance() < failing * 0.3:
            return ("fail",)
        return (*bad, "ok")

    def post() -> Post:
        return Post(
            moment(),
            rng.randrange(keys) if chance() < keyed else -1,
            round(slow * uniform(0.02, 1.5), 4),
            ends(),
            round(uniform(0.01, 1.5), 4) if chance() < repeats else 0.0,
        )

    seats = tuple(
        Seat(
            pick((0.0, moment())) if number else 0.0,
            pick((1.0, 1.0, 0.98, 1.02)),
            pick((1, 2, 2, 4)),
            pick((1, 3, 6)),
        )
        for number in range(pick((1, 1, 2, 3)))
    )
    posts = sorted((post() for _ in range(pick((1, 3, 6, 10)))), key=lambda one: one.at)
    faults = [
        OpFault(rng.randrange(most), pick(fault_kinds), seconds(), op=op)
        for op, most in _OPS.items()
        for _ in range(2)
        if chance() < trouble * 0.35
    ]
    calls = [
        OpFault(rng.randrange(most), pick(call_kinds), seconds(), op=op)
        for op, most in _BROKER_OPS.items()
        for _ in range(2)
        if chance() < trouble * 0.35
    ]
    renewals = [
        Fault(nth, pick(fault_kinds), seconds()) for nth in range(6) if chance() < trouble * 0.1
    ]
    incidents = []
    for _ in range(pick((0, 1, 2, 4)) if trouble else 0):
        at, kind = round(uniform(0.05, 3.2), 4), pick(incident_kinds)
        span = round(uniform(0.3, 3.5), 4)
        incidents.append(Incident(at, kind, rng.randrange(len(seats)), span))
    # Coincidences that chance alone brings too seldom:
    if trouble and chance() < 0.04:  # a worker gives up on a message that another has taken over
        seats = (*seats[:1], *(seats[1:] or (Seat(),)))
        late = replace(posts[0], seconds=0.4, ends=("dead", "ok"), again=0.5)
        posts = [late, *posts[1:]]
        at = round(late.at + uniform(0.05, 0.6), 4)
        incidents.append(Incident(at, "pause", rng.randrange(len(seats)), 3.5))
    if trouble and chance() < 0.08:  # no claim is answered while it is repeated
        faults += [OpFault(nth, "reply lost", 0.0, op="claim") for nth in range(6)]
    plan = Plan(
        seed,
        partitions,
        chance() < 0.6,
        pick((1, 2, 2, 3)),
        0.0 if partitions else round(uniform(0.9, 3.0), 3),
        partitions == 0 and chance() < 0.6,
        pick((2, 6, 100)),
        pick((0.05, 0.2)),
        tuple(round(uniform(0.0002, 0.004), 5) for _ in range(13)),
        seats,
        tuple(posts),
        tuple(sorted({(f.op, f.nth): f for f in faults}.values(), key=lambda f: (f.op, f.nth))),
        tuple(sorted({(f.op, f.nth): f for f in calls}.values(), key=lambda f: (f.op, f.nth))),
        tuple(renewals),
        tuple(sorted(incidents, key=lambda one: one.at)),
        chance() < 0.35,
    )
    return _ended_in_outage(plan, rng) if trouble and chance() < 0.04 else plan


def _ended_in_outage(plan: Plan, rng: Random) -> Plan:
    """A handler ends in an outage longer than its lease. Meanwhile its message goes to another worker, which may
    give up on it, and whose dead letter has to wait."""
    late = replace(plan.posts[0], seconds=0.4, ends=("ok",))
    at, span = round(late.at + rng.uniform(0.1, 0.39), 4), round(rng.uniform(2.0, 3.0), 4)
    incidents = (Incident(at, "outage", 0, span), Incident(at, "dead letters away", 0, span + 1.0))
    return replace(
        plan,
        partitions=0,
        ack_wait=0.9,
        max_attempts=rng.choice((1, 1, 2)),
        seats=(*plan.seats[:1], *(plan.seats[1:] or (Seat(),))),
        posts=(late, *plan.posts[1:]),
        incidents=tuple(sorted((*plan.incidents, *incidents), key=lambda one: one.at)),
        faults=(*plan.faults, OpFault(0, rng.choice(FAULTS), 0.3, op="renew")),
        transactions=False,
    )
