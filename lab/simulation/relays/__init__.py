"""The outbox relay: slot keepers and publishing flows on one store and one broker, and all that goes wrong.

    plan        a seed becomes data: which messages, which relays, and everything that goes wrong
    world       the relays and their clocks; incidents, operators
    ending      once faults stop: what must be reached, and by when
    writers     messages in transactions, which commit late
    table       the store
    network     requests that get lost or late on their way to it
    relay       a simulated relay: its two flows, performed as the two runtimes do
    broker      takes, refuses, is away, answers late or not at all
    monitor     what may never happen, seen from the store and from the broker
    shrinking   a plan made smaller, and a plan for a reader

Both flows and the programs of the SQLite outbox are the shipped code, unchanged.
"""

from __future__ import annotations

from typing import Final

from ..study import Study
from .invariants import INVARIANTS
from .plan import CALLS, FAULTS, INCIDENTS, draw
from .shrinking import smaller, written
from .world import World

__all__ = ["STUDY"]

_OUTCOMES: Final = (
    "published", "repeated", "refused, and rests", "refusal not noted", "parked", "committed late",
    "rolled back", "woken", "wake-up lost", "taken over", "gave back", "left", "died", "stopped",
    "hung up", "checked, and away", "checked, and there",
)  # fmt: skip

STUDY: Final = Study(
    name="relays",
    about=(
        "The outbox relay. A scheduler runs the lease and publish flows of one to three relays step by "
        "step, in virtual time, between a store and a broker. This is the shipped code: both flows, and "
        "the SQL programs of the SQLite outbox on a database in memory. Some rows with lower numbers "
        "arrive late, as on the other engines. The simulation checks the invariants at every request that "
        "reaches the store, and at every call that reaches the broker."
    ),
    rules=INVARIANTS,
    draw=draw,
    run=World.run,
    smaller=smaller,
    written=written,
    wanted=(
        *(f"fault: {kind}" for kind in FAULTS),
        *(f"call: {kind}" for kind in CALLS),
        *(f"incident: {kind}" for kind in INCIDENTS),
        *(f"outcome: {what}" for what in _OUTCOMES),
    ),
    met={
        "fault": "faults on the way to the store",
        "call": "faults of the broker",
        "incident": "incidents",
        "outcome": "outcomes",
    },
    share=5,
)
