"""A seed becomes a plan: plain data, from which alone the run follows."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from ..plans import Fault, Incident
from .scenes import scene

__all__ = [
    "ACTS",
    "FAULTS",
    "INCIDENTS",
    "KEYS",
    "LATE_CLAIMS",
    "LEASE",
    "QUIET",
    "REGIONS",
    "SKEW",
    "WINDOW",
    "Delivery",
    "Plan",
    "draw",
]

REGIONS: Final = ("eu", "us")
FAULTS: Final = ("request lost", "reply lost", "late", "answered late")
INCIDENTS: Final = (
    "crash", "pause", "no register", "no other region", "operator dies", "damaged record", "no replies",
    "follower frozen",
)  # fmt: skip
LATE_CLAIMS: Final = "late claims"
ACTS: Final = ("fail over", "switch", "settle", "give up")
KEYS: Final = 4
WORKERS: Final = 2
"""In each region."""
QUIET: Final = 6.0
"""Seconds after which nothing more goes wrong."""
LEASE: Final = 0.3
SKEW: Final = 0.1
FENCES: Final = (
    (False, False), (False, False), (True, True), (True, True), (True, False), (False, True),
)  # fmt: skip
"""In which of the two stores fences are times."""
LATE_CLAIMS_EVERY: Final = 4
"""One plan of this many has claims that are under way while keys are moved."""
THERE_AND_BACK_EVERY: Final = 8
"""One plan of this many moves the keys away, and back, and away again."""
SCENE_EVERY: Final = 16
"""One plan of this many is a scene about one key."""
WINDOW: Final = 0.4
"""Seconds of such a plan in which all claims of a region are late."""
SLOW_EVERY: Final = 8
"""One plan of this many has operators who act on what they saw some time ago."""
LATE: Final = (0.02, 0.4, 0.4, 1.1, 2.5)
"""Seconds by which a request or its reply is late: also longer than a cut, than the lease of a claim, and than
all passes between two moves."""


class Delivery(msgspec.Struct, frozen=True):
    at: float
    key: int
    worker: int
    """The even ones are in the first region."""
    seconds: float
    """How long the handler works."""
    fails: bool = False


class Plan(msgspec.Struct, frozen=True):
    seed: int
    unknown: str
    deliveries: tuple[Delivery, ...]
    passes: tuple[tuple[float, bool], ...]
    """When the follower copies: from the region that serves to the other one, or back."""
    incidents: tuple[Incident, ...]
    """What goes wrong, and what operators do."""
    faults: tuple[Fault, ...]
    rates: tuple[float, ...]
    """How fast the clocks of workers run."""
    timed: tuple[bool, bool]
    """In which stores fences are times, as on Redis, DynamoDB and MongoDB."""
    time_limit: float
    """Seconds after which a request without a reply has failed: also longer than leases and cuts."""
    offsets: tuple[int, ...]
    """By how many milliseconds the clocks of the two stores, the register, the senders, two operators and the
    follower are wrong."""


def _slow_operators(moves: list[Incident], chance: random.Random) -> list[Incident]:
    """Before each move another operator looks which region serves, and acts on that when the move is over."""
    return [
        Incident(
            round(max(0.0, move.at - 0.3 * chance.random()), 3),
            "switch",
            chance.randrange(2),
            chance.choice((0.7, 1.2, 2.0)),
        )
        for move in moves
    ]


def _late_claims(
    moves: list[Incident], chance: random.Random
) -> tuple[list[Incident], list[Delivery]]:
    """A key is at work for a lease when it is moved. It comes again, and its claim arrives late, or its reply is lost.
    Then it comes to both regions."""
    troubles, deliveries = [], []
    for move in moves:
        key = chance.randrange(KEYS)
        frozen = round(max(0.0, move.at - chance.random()), 3)
        troubles.append(Incident(frozen, "follower frozen", 0, round(chance.random(), 3)))
        if chance.random() < 0.5:  # its work never ends
            at = round(move.at + chance.choice((-0.3, 0.0)), 3)
            troubles += [Incident(max(0.0, at), "crash", number) for number in range(2 * WORKERS)]
        for region in range(len(REGIONS)):
            at, kind, seconds = (
                move.at - 0.1,
                LATE_CLAIMS,
                chance.choice((0.25, 0.7, 1.0, 1.4, 2.0)),
            )
            if chance.random() < 0.4:
                at, kind, seconds = (
                    move.at + chance.choice((0.0, 0.5)),
                    "no replies",
                    chance.random(),
                )
            troubles.append(Incident(round(max(0.0, at), 3), kind, region, round(seconds, 3)))
            for lag, seconds in (
                (-1.05, 1.2),
                (0.2 * chance.random(), 0.1),
                (1.0 + chance.random(), 1.2),
            ):
                worker = region + len(REGIONS) * chance.randrange(WORKERS)
                at = round(max(0.0, move.at + lag), 3)
                deliveries.append(Delivery(at, key, worker, seconds, chance.random() < 0.3))
    return troubles, deliveries


def _there_and_back(chance: random.Random) -> list[Incident]:
    """An operator gives up what was not copied, moves back, and finds it after all."""
    at = chance.uniform(0.6, 1.2)
    acts = (("fail over", 1), ("give up", 1), ("switch", 0), ("switch", 1), ("switch", 0))
    moves = []
    for kind, to in acts[: chance.choice((4, 5))]:
        moves.append(Incident(round(at, 3), kind, to))
        at += chance.uniform(0.7, 1.3)
    return moves


def draw(seed: int) -> Plan:
    chance = random.Random(f"regions {seed}")
    workers = len(REGIONS) * WORKERS
    times = sorted(round(chance.uniform(0.4, QUIET), 3) for _ in range(chance.randint(1, 5)))
    moves = [
        Incident(at, chance.choices(ACTS, (10, 6, 5, 1))[0], (turn + (chance.random() < 0.8)) % 2)
        for turn, at in enumerate(times)
    ]
    if seed % THERE_AND_BACK_EVERY == 3:
        moves = _there_and_back(random.Random(f"there and back {seed}"))
        times = [moves[0].at]
    if seed % SLOW_EVERY == 0:
        moves += _slow_operators(moves, random.Random(f"slow operators {seed}"))
    deliveries = []
    failing = chance.choice((0.15, 0.15, 0.6))
    for key in range(KEYS):  # around a move, and after it
        first = max(0.0, chance.choice(times) + chance.uniform(-0.8, 0.2))
        for _ in range(chance.randint(2, 6)):
            at = first + chance.choice((0.0, 0.01, 0.2, 0.6, 1.5)) * chance.random()
            length = chance.choice((0.0, 0.01, 0.1, 0.6, 1.2))
            fails = chance.random() < failing
            deliveries.append(Delivery(round(at, 3), key, chance.randrange(workers), length, fails))
    troubles = [
        Incident(
            round(chance.uniform(0, QUIET), 3),
            chance.choice(INCIDENTS),
            chance.randrange(workers),
            round(chance.choice((0.05, 0.3, 1.0, 2.0)) * chance.random(), 3),
        )
        for _ in range(chance.randint(0, 5))
    ]
    faults = [
        Fault(chance.randrange(250), chance.choice(FAULTS), chance.choice(LATE))
        for _ in range(chance.randint(0, 12))
    ]
    back = 0.25
    every = chance.choice((0.1, 0.4, 1.5))
    if seed % LATE_CLAIMS_EVERY == 1:
        late, more = _late_claims(moves, random.Random(f"late claims {seed}"))
        troubles += late
        deliveries += more
        back, every = 0.5, min(every, 0.4)
    passes = tuple(
        (round(n * every + chance.uniform(0, every), 3), chance.random() < back)
        for n in range(int(QUIET / every))
    )
    plan = Plan(
        seed,
        chance.choice(("hold", "hold", "run", "ask")),
        tuple(sorted(deliveries, key=lambda each: each.at)),
        passes,
        tuple(sorted([*moves, *troubles], key=lambda each: each.at)),
        tuple({fault.nth: fault for fault in faults}.values()),
        tuple(chance.choice((0.98, 1.0, 1.02)) for _ in range(workers)),
        chance.choice(FENCES),
        chance.choice((0.25, 0.25, 3.0)),
        tuple(chance.choice((-40, 0, 40)) for _ in range(7)),
    )
    if seed % SCENE_EVERY == 6:
        return scene(plan, Delivery, random.Random(f"scenes {seed}"))
    return plan
