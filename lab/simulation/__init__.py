"""Deterministic simulation: the real core, on a virtual network, under virtual time.

leases        the exchange of lease mode: claims, leases, results, operators
transactions  the inbox of transaction mode: commits, rollbacks, deferred writes, operators
relays        the outbox relay: slots, lanes, refusals, operators, a broker
consumers     consumers: attempts, lanes, suspects, dead letters, a broker that redelivers
steps         durable functions: steps, undos, sleeps, signals, the completer
regions       regions: claims, copies, failovers, switches, zombies of old epochs

virtual       virtual time, and one run of one plan
plans         what plans of all studies are made of
study         what a campaign must know of a part that is simulated
campaign      many seeds, on all cores, counted
shrinking     a failing plan made small enough to read
violations    what may never happen, by name
"""

from __future__ import annotations

from typing import Final

from . import consumers, leases, regions, relays, steps, transactions
from .study import Study

__all__ = ["STUDIES"]

STUDIES: Final[dict[str, Study]] = {
    each.name: each
    for each in (
        *(leases.STUDY, transactions.STUDY, relays.STUDY, consumers.STUDY, steps.STUDY),
        regions.STUDY,
    )
}
