"""Regions: two of them, a register, a follower, operators, and everything that goes wrong between them.

    plan        a seed becomes data: what is delivered where, what operators do, and what goes wrong
    scenes      plans about one key, whose steps come in one order and close together
    world       the stores, the workers of both regions, the follower, the operators, the end
    flow_run    runs a flow over a network that loses, delays and cuts
    ledger      what may never happen: starts, fences, answers, copies, epochs
    shrinking   a plan made smaller, and a plan for a reader

Claims in regions, following, failing over, switching, settling, lifecycle and memory store are the shipped
code, unchanged. Workers are the lab's: they claim, start, and complete.
"""

from __future__ import annotations

from typing import Final

from ..study import Study
from .ledger import INVARIANTS
from .plan import ACTS, FAULTS, INCIDENTS, LATE_CLAIMS, draw
from .shrinking import smaller, written
from .world import World

__all__ = ["STUDY"]

STUDY: Final = Study(
    name="regions",
    about=(
        "Regions. Workers of two regions get the same messages, and a follower copies with a lag. Up to two "
        "operators at a time fail over, switch and settle, and their processes may die halfway. Regions are cut "
        "off from the register and from each other, and workers of old epochs continue. This is the shipped code: "
        "claims in a region, following, failover, lifecycle, memory store. The simulation checks the invariants "
        "after every request that reaches a store, and at every start and answer."
    ),
    rules=INVARIANTS,
    draw=draw,
    run=World.run,
    smaller=smaller,
    written=written,
    wanted=(
        *(f"fault: {kind}" for kind in FAULTS),
        *(f"incident: {kind}" for kind in (*INCIDENTS, LATE_CLAIMS)),
        *(f"act: {kind} {end}" for kind in ACTS for end in ("done", "refused", "no answer")),
        *(f"doubt: {what}" for what in ("held", "ran", "done elsewhere")),
        *(f"settled: {what}" for what in ("learned", "twice")),
        *(f"answer: {what}" for what in ("won", "replay", "busy", "held", "not home", "no store")),
        *(f"start: {what}" for what in ("first", "again in its epoch", "in a later epoch")),
    ),
    met={
        "fault": "faults of the network",
        "incident": "incidents",
        "act": "what operators did",
        "doubt": "keys in doubt",
        "settled": "what settling found",
        "answer": "answers to claims",
        "start": "starts of handlers",
        "end": "states at the end",
    },
    share=8,
)
