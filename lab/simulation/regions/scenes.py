"""Scenes: plans about one key, whose steps must come in one order and close together to show a certain bug.

Drawn at random, such an order is met once in tens of thousands of plans. Here only the moments differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from ..plans import Incident

if TYPE_CHECKING:
    from .plan import Delivery, Plan

__all__ = ["scene"]

EU, US = 0, 1
"""Regions, and one worker of each."""

Deliver = Callable[..., "Delivery"]


def scene(plan: Plan, deliver: Deliver, chance: random.Random) -> Plan:
    """The same faults and clocks, and other deliveries, passes and moves."""
    at = chance.uniform(1.2, 2.0)
    deliveries, passes, incidents, more = chance.choice(SCENES)(at, deliver, chance)
    return replace(
        plan,
        **{"unknown": "run", **more},
        deliveries=tuple(sorted(deliveries, key=lambda each: each.at)),
        passes=((at - 1.0, False), *passes),
        incidents=tuple(sorted(incidents, key=lambda each: each.at)),
    )


_Drawn = tuple[list[Any], list[tuple[float, bool]], list[Incident], dict[str, Any]]


def _copied_back_before_the_cut(at: float, deliver: Deliver, chance: random.Random) -> _Drawn:
    """A key fails in the new region, is copied back, and comes to a worker of the old region that has just asked the
    register."""
    again = at + chance.uniform(0.12, 0.26)
    deliveries = [
        deliver(at - 0.01, 1, EU, 0.0),
        deliver(at + 0.05, 0, US, 0.0, True),
        deliver(again, 0, EU, 0.01),
    ]
    return deliveries, [(at + 0.09, False)], [Incident(at, "fail over", US)], {}


def _again_when_the_keys_are_back(at: float, deliver: Deliver, chance: random.Random) -> _Drawn:
    """The work of the old region never ends, that of the new one fails; after settling, the key comes again."""
    deliveries = [
        deliver(at - 0.05, 0, EU, 1.2),
        deliver(at + 0.05, 0, US, 0.0, True),
        deliver(at + 3.0, 0, EU, 0.01),
    ]
    incidents = [
        Incident(at, "fail over", US),
        Incident(at, "crash", EU),
        Incident(at + 0.7, "settle", EU),
        Incident(at + 1.3, "switch", EU),
    ]
    return deliveries, [], incidents, {}


def _settled_by_one_who_dies(at: float, deliver: Deliver, chance: random.Random) -> _Drawn:
    """Both regions work on a key. The operator who settles that dies before he gets the report."""
    settles = at + 1.4
    deliveries = [deliver(at - 0.05, 0, EU, 1.0), deliver(at + 0.05, 0, US, 1.2)]
    incidents = [
        Incident(at, "fail over", US),
        Incident(at + 0.15, "crash", US),
        Incident(settles, "settle", US),
        Incident(settles + chance.uniform(0.0, 0.1), "operator dies", 0),
    ]
    return deliveries, [], incidents, {}


def _late_claim_after_a_switch(at: float, deliver: Deliver, chance: random.Random) -> _Drawn:
    """A claim reaches the old region when the new one is at work on its key. Perhaps the operator has died before he
    could say in the new region's store that it serves."""
    deliveries = [deliver(at - 0.01, 0, EU, 0.1), deliver(at + 0.9, 0, US, 1.2)]
    incidents = [
        Incident(at - 0.05, "late claims", EU, 1.4),
        Incident(at, "switch", US),
    ]
    if chance.random() < 0.75:
        incidents.append(Incident(at + chance.uniform(0.4, 0.75), "operator dies", 0))
    passes = [(at + 1.5, True), (at + 1.7, True)]
    return deliveries, passes, incidents, {"timed": (True, True)}


SCENES: Final = (
    _copied_back_before_the_cut,
    _again_when_the_keys_are_back,
    _settled_by_one_who_dies,
    _late_claim_after_a_switch,
)
