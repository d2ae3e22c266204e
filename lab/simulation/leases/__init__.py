"""Lease mode: several processes, one store, and everything that goes wrong between them.

    plan        a seed becomes data: who delivers what when, and everything that goes wrong
    world       the store, the processes and their clocks; incidents, operators, the end
    network     requests that get lost, late, doubled or overtaken on their way to the store
    process     a simulated process: its shared flights, its lease keeper, its flow runs
    flow_run    performs what a flow asks for, as the two runtimes do
    fast_delivery  the fast path, suspended at each command like a flow
    launching   the handlers of a batch
    running     handlers that return, fail, hang, are cancelled or kill their process
    monitor     what may never happen, seen from the store
    ledger      what may never happen, seen from the handlers and their callers
    shrinking   a plan made smaller, and a plan for a reader

Flows, lifecycle, memory store, flights and the keeper's rule are the shipped code, unchanged.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from twicesafe._core.protocol import Verdict
from twicesafe._core.transitions import TRANSITIONS
from twicesafe._values.records import Cause, State

from ..study import Study
from .invariants import INVARIANTS
from .plan import FAULTS, INCIDENTS, draw
from .shrinking import smaller, written
from .world import World

__all__ = ["STUDY"]

STUDY: Final = Study(
    name="leases",
    about=(
        "Lease mode. A scheduler runs the flows of workers step by step, on a virtual network, in "
        "virtual time, against the memory store. This is the shipped code: flows, lifecycle, store, "
        "single flights, and the lease keeper without its thread. The simulation checks the invariants "
        "after every request that reaches the store, and at every start, effect and answer."
    ),
    rules=INVARIANTS,
    draw=draw,
    run=World.run,
    smaller=smaller,
    written=written,
    wanted=(
        # Durable functions are not part of this study, so nothing is suspended.
        *(
            f"transition: {state}: {event}"
            for (state, event), to in TRANSITIONS.items()
            if State.SUSPENDED not in (state, to)
        ),
        *(f"verdict: {verdict.name.lower()}" for verdict in Verdict),
        "verdict: locked",
        *(f"fault: {kind}" for kind in FAULTS),
        *(f"incident: {kind}" for kind in (*INCIDENTS, "cancel")),
        *(f"result: not kept: {end}" for end in ("refused", "stuck", "remember stuck")),
        # The simulated store loses nothing, so it never has to say that it did.
        *(
            f"cause: {cause}"
            for cause in (None, *Cause)
            if cause not in (Cause.RECORD_LOST, Cause.RESUMED)
        ),
    ),
    ways={"flow": lambda plan: replace(plan, fast=False)},
    met={
        "fault": "faults of the network",
        "incident": "incidents",
        "verdict": "answers to claims",
        "cause": "causes of starts",
        "transition": "transitions",
        "answer": "answers to callers",
        "effect": "effects",
        "result": "results",
    },
)
