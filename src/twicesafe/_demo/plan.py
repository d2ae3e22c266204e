"""The plan of a run, generated from a seed: the same seed gives the same deliveries and kills.

The timing of the processes still differs from run to run, as in production.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["MOST_REPEATS", "DemoPlan", "Payment", "Stage"]

MOST_REPEATS: Final = 10
"""A payment is delivered 1 to this many times."""

Stage: TypeAlias = Literal["before", "after"]
"""When a worker is killed: before the charge, or after it and before the record."""


@dataclass(frozen=True, slots=True)
class Payment:
    id: str
    cents: int


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Payments, and the order in which their deliveries arrive (indexes into ``payments``)."""

    seed: int
    payments: tuple[Payment, ...]
    deliveries: tuple[int, ...]
    strikes: tuple[Stage, ...]
    """The stage of the first, second, … kill."""
    kill_every: int
    """One kill per this many deliveries; 0: none."""

    @classmethod
    def draw(cls, seed: int, payments: int, kill_every: int) -> DemoPlan:
        chance = random.Random(seed)
        drawn = tuple(
            Payment(f"pay-{number:05d}", chance.randrange(100, 50_000))
            for number in range(1, payments + 1)
        )
        deliveries = [
            index for index in range(payments) for _ in range(chance.randint(1, MOST_REPEATS))
        ]
        chance.shuffle(deliveries)
        due = len(deliveries) // kill_every if kill_every else 0
        # A crash after the charge is the critical case, so it is more frequent.
        stages: tuple[Stage, ...] = ("before", "after", "after")
        strikes = tuple(chance.choice(stages) for _ in range(due))
        return cls(seed, drawn, tuple(deliveries), strikes, kill_every)
