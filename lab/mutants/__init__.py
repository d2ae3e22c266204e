"""Mutants: the protocol with one bug each. The simulation must find every one of them.

A lab that finds nothing may be blind. Each mutant is a mistake that was made in the field, or that
a change could make here tomorrow; it is patched into the running core, and the simulation looks
for the first seed that breaks an invariant. A mutant that survives 5,000 schedules fails the run.

    write_access        who may renew, complete, fail and abandon
    claims              who wins a claim, with which fence, attempt and cause
    retention           fingerprints, retention, sweeps, operators
    worker_flow         what a worker does with an answer, or without one; the lease keeper
    batches             which claims of a batch count, and what starts beside what
    inbox_transactions  the inbox: record and effect, marks, locks, what is kept
    inbox_failures      the inbox: failures that outlive their transaction
    relay_slots         the relay: who holds a slot, and what the store records about lanes
    relay_publishing    the relay: which messages are published when, and what their answers cause
    consuming           the consumers: what is started, counted, recorded, acknowledged, dead-lettered
    durable_steps       durable functions: steps, suspensions, signals, the completer, undoing
    regions             regions: copies, who may start, what is in doubt, how epochs change
"""

from __future__ import annotations

from . import (
    batches,
    claims,
    consuming,
    durable_steps,
    inbox_failures,
    inbox_transactions,
    regions,
    relay_publishing,
    relay_slots,
    retention,
    worker_flow,
    write_access,
)
from .registry import LIMIT, MUTANTS, Mutant, mutated

__all__ = [
    "LIMIT",
    "MUTANTS",
    "Mutant",
    "batches",
    "claims",
    "consuming",
    "durable_steps",
    "inbox_failures",
    "inbox_transactions",
    "mutated",
]
__all__ += [
    "regions",
    "relay_publishing",
    "relay_slots",
    "retention",
    "worker_flow",
    "write_access",
]
