"""Mutants: the protocol with one bug each. The simulation must find every one of them.

A lab that finds nothing may be blind. Each mutant is a mistake that was made in the field, or that
somebody could make here tomorrow; it is patched into the running core, and the simulation looks
for the first seed that breaks an invariant. A mutant that survives 5,000 schedules fails the run.

    writing     who may renew, complete, fail and abandon
    claiming    who wins a claim, with which fence, attempt and cause
    keeping     fingerprints, retention, sweeps, operators
    flowing     what a worker does with an answer, or without one; the lease keeper
    transacting the inbox: record and effect, marks, locks, what is kept
    noting      the inbox: failures that outlive their transaction
    relaying    the relay: who holds a slot, and what the store notes about lanes
    carrying    the relay: which messages go when, and what becomes of the answers
"""

from __future__ import annotations

from . import carrying, claiming, flowing, keeping, noting, relaying, transacting, writing
from .registry import LIMIT, MUTANTS, Mutant, mutated

__all__ = ["LIMIT", "MUTANTS", "Mutant", "claiming", "flowing", "keeping", "mutated"]
__all__ += ["carrying", "noting", "relaying", "transacting", "writing"]
