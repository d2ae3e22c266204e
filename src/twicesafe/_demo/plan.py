"""The plan of a storm, drawn from a seed: the same seed gives the same deliveries and strikes.

What processes make of it differs from run to run, as it does in production; the plan does not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["MOST_REPEATS", "Payment", "Plan", "Stage"]

MOST_REPEATS: Final = 10
"""A payment is delivered 1 to this many times."""

Stage: TypeAlias = Literal["before", "after"]
"""Where a worker is struck: before the charge, or after it and before the record."""


@dataclass(frozen=True, slots=True)
class Payment:
    id: str
    cents: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Payments, and the order in which their deliveries arrive (indexes into ``payments``)."""

    seed: int
    payments: tuple[Payment, ...]
    deliveries: tuple[int, ...]
    strikes: tuple[Stage, ...]
    """Where the first, second, … kill strikes."""
    kill_every: int
    """A kill is due each time this many deliveries went out; 0: none."""

    @classmethod
    def draw(cls, seed: int, payments: int, kill_every: int) -> Plan:
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
        # Dying after the charge is the case that everything turns on, so it comes more often.
        stages: tuple[Stage, ...] = ("before", "after", "after")
        strikes = tuple(chance.choice(stages) for _ in range(due))
        return cls(seed, drawn, tuple(deliveries), strikes, kill_every)
