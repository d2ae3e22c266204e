"""Compares the bank's charges with the plan after a run. No I/O.

A payment charged more than once is *doubled*. It is *explained* if every charge after the first was
made under its own claim with a recorded reason (P12): the previous worker had died or lost its
lease. Anything else is *unexplained* and breaks the guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .bank import Charge
from .plan import DemoPlan
from .storm import Traffic

__all__ = ["DemoTally", "count"]


@dataclass(frozen=True, slots=True)
class DemoTally:
    """The counts of one run; ``--json`` prints these field names."""

    deliveries: int
    payments: int
    replays: int
    kills: int
    takeovers: int
    charges: int
    absorbed: int
    """Repeats that the bank itself answered with the existing charge."""
    doubled: int
    explained: int
    lost: int
    different_answers: int
    """Payments whose deliveries were not all answered with the same receipt."""
    overcharged_cents: int
    seconds: float

    @property
    def unexplained(self) -> int:
        return self.doubled - self.explained


def count(
    plan: DemoPlan, traffic: Traffic, charges: Sequence[Charge], attempts: Mapping[str, int]
) -> DemoTally:
    """`attempts`: per payment, the attempts in its record (empty without twicesafe)."""
    by_payment: dict[str, list[Charge]] = {payment.id: [] for payment in plan.payments}
    for charge in charges:
        by_payment[charge.payment].append(charge)
    doubled = {name: made for name, made in by_payment.items() if len(made) > 1}
    lost = sum(
        not {charge.receipt for charge in made} & traffic.receipts.get(name, set())
        for name, made in by_payment.items()
    )
    return DemoTally(
        deliveries=traffic.handed_out,
        payments=len(plan.payments),
        replays=traffic.replays,
        kills=traffic.kills,
        takeovers=traffic.takeovers,
        charges=len(charges),
        absorbed=sum(charge.repeats for charge in charges),
        doubled=len(doubled),
        explained=sum(is_explained(made, attempts.get(name, 0)) for name, made in doubled.items()),
        lost=lost,
        different_answers=sum(len(receipts) > 1 for receipts in traffic.receipts.values()),
        overcharged_cents=sum(
            sum(charge.cents for charge in made[1:]) for made in doubled.values()
        ),
        seconds=round(traffic.seconds, 2),
    )


def is_explained(made: Sequence[Charge], attempts: int) -> bool:
    """Each charge has its own fence, each re-run a recorded cause, and no charge is unrecorded."""
    fences = {charge.fence for charge in made}
    without_cause = sum(not charge.cause for charge in made)
    return len(fences) == len(made) and without_cause <= 1 and len(made) <= attempts
