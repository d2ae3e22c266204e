"""Durable runs: several processes, one store, and everything that goes wrong between them.

    plan        a seed becomes data: what the functions do, who runs them when, and what goes wrong
    policies    the policies and keys that plans choose from
    world       the store, the processes, operators, signals, the end
    process     a simulated process: it calls, submits and completes runs
    runtime     performs what flows ask for, in fibres
    functions   durable functions that follow a script, through the shipped `Steps`
    network     the network of `leases`, under this study's monitor
    monitor     what may never happen, seen from the store
    ledger      what may never happen, seen from the steps, their functions and their callers
    shrinking   a plan made smaller, and a plan for a reader

Flows, driver, steps, undoing, completing, lifecycle, memory store, operators and the lease keeper's rule
are the shipped code, unchanged.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from twicesafe._values.records import State

from ..study import Study
from .invariants import INVARIANTS
from .plan import FAULTS, INCIDENTS, draw
from .shrinking import smaller, written
from .world import World

__all__ = ["STUDY"]

STUDY: Final = Study(
    name="steps",
    about=(
        "Durable functions. Processes call, submit and complete runs, whose functions have steps, undos, "
        "sleeps, waits, branches and failures. Processes die before and after every effect and request. "
        "Callers are cancelled at any time, by others and by their own steps. Operators act and signals "
        "arrive at any time. This is the shipped code: steps, run, undoing, completing, lifecycle, memory "
        "store, and the lease keeper without its thread. The simulation checks the invariants after every "
        "request that reaches the store, and at every start, reply and answer."
    ),
    rules=INVARIANTS,
    draw=draw,
    run=World.run,
    smaller=smaller,
    written=written,
    wanted=(
        *(f"fault: {kind}" for kind in FAULTS),
        *(f"incident: {kind}" for kind in (*INCIDENTS, "cancel", "cancels itself")),
        *(f"state: {state}" for state in State),
        *(f"repeat: {why}" for why in ("raised", "interrupted")),
        *(f"effect: {what}" for what in ("step", "undo", "died beside it", "cancelled beside it")),
        *(f"signal: {how}" for how in (
            "before its run", "before its wait", "during its wait", "wakes", "refused",
        )),
        *(f"suspended: {why}" for why in ("sleeps", "its signal came")),
        *(f"wait: {end}" for end in ("timed out", "signalled")),
        *(f"probe: {found}" for found in ("happened", "did not happen", "raised")),
        *(f"look: {what}" for what in ("found", "dropped")),
        *(f"cause: {why}" for why in (
            "None", "failed", "lease_expired", "operator", "resumed", "retention_expired",
        )),
        *(f"answer: {name}" for name in (
            "completed", "replayed", "CompensatedError", "CompensationFailedError", "SuspendedError",
            "HeldError", "ParkedError", "StepMismatchError", "LeaseLostError", "CancelledError",
        )),
    ),
    ways={"flow": lambda plan: replace(plan, fast=False)},
    met={
        "fault": "faults of the network",
        "incident": "incidents",
        "effect": "effects",
        "repeat": "repeats, by the end of the execution before",
        "cause": "causes of attempts",
        "suspended": "suspensions",
        "signal": "signals",
        "wait": "ends of waits",
        "probe": "answers of probes",
        "look": "runs that the completer looked at",
        "state": "states reached",
        "answer": "answers to callers",
        "end": "states at the end",
    },
    share=16,
)  # fmt: skip
