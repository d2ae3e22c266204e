"""Transaction mode: several workers, their consumers' transactions, and all that goes wrong with them.

    plan         a seed becomes data: who gets which message when, and everything that goes wrong
    world        the workers; incidents, operators, the end
    broker       a message is delivered until it is acknowledged
    worker       a process: consumers, their handlers, and the deferred writes of failures
    fibers       stacks that a scheduler suspends in the midst of a statement
    engine       the shipped inbox, both twins, on the virtual database
    connection   statements and commits that get lost, late or cut on their way
    statements   what a session asks of the database
    sessions     open transactions, and the row locks that they hold
    database     rows, commits, one clock
    monitor      what may never happen, seen from the database
    ledger       what may never happen, seen from the handlers and their consumers
    shrinking    a plan made smaller, and a plan for a reader

Both twins of the inbox, their flow, the lifecycle, the programs that engines share and the writer of
deferred writes are the shipped code, unchanged; the engine's statements and their thread are not.
"""

from __future__ import annotations

from typing import Final

from ..study import Study
from .invariants import INVARIANTS
from .plan import ENDS, FAULTS, INCIDENTS, draw
from .shrinking import smaller, written
from .world import World

__all__ = ["STUDY"]

STUDY: Final = Study(
    name="transactions",
    about=(
        "Transaction mode. Consumers and handlers run on a virtual database, which has transactions, row "
        "locks and a clock. A scheduler can suspend them in the middle of a statement. This is the "
        "shipped code: the blocking and the async inbox, flow, lifecycle, the programs that all engines "
        "share, and the deferred writes without their thread. The simulation checks the invariants at "
        "every write, commit, start and answer."
    ),
    rules=INVARIANTS,
    draw=draw,
    run=World.run,
    smaller=smaller,
    written=written,
    wanted=(
        *(f"fault: {kind}" for kind in FAULTS),
        *(f"COMMIT: {kind}" for kind in FAULTS),
        *(f"incident: {kind}" for kind in (*INCIDENTS, "cancel")),
        *(f"end: {end}" for end in ENDS),
        # There are no leases here, and no worker rests.
        *(
            f"verdict: {name}"
            for name in ("won", "replay", "mismatch", "held", "parked", "forgotten")
        ),
        *(f"cause: {cause}" for cause in (None, "failed", "operator", "retention_expired")),
        *(
            f"note: {what}"
            for what in ("released", "parked", "failed", "found held", "nothing to add")
        ),
        *(f"lock: {what}" for what in ("waited for", "not given in time")),
        *(f"effect: committed by the {whom}" for whom in ("caller", "handler")),
    ),
    met={
        "fault": "faults on the way",
        "COMMIT": "of these, COMMITs",
        "incident": "incidents",
        "end": "ends of handlers",
        "verdict": "answers of the database",
        "cause": "causes of starts",
        "note": "notes of failures",
        "lock": "locks",
        "answer": "answers to consumers",
        "effect": "effects",
    },
    share=4,
)
