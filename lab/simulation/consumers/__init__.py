"""Consumers: their flow between one store and one broker, and all that goes wrong.

    plan        a seed becomes data: which messages, which consumers, and everything that goes wrong
    world       the consumers and their clocks; incidents, the end
    works       the messages, and what has become of each
    process     a simulated process: its flow performed as the two runtimes do, its lease keeper
    transactions  transaction mode: the handler's work and its record are committed together
    handlers    handlers that end well, fail, give up or kill their process; dead letters
    network     requests that get lost, late, doubled or overtaken on their way to the store
    broker      a queue that redelivers, or a log in partitions that are taken away
    monitor     what may never happen, seen from the store, the broker and the handlers
    shrinking   a plan made smaller, and a plan for a reader

The flow, its intake, the recovery rule, the committed prefix, lifecycle, memory store and the keeper's
rule are the shipped code, unchanged.
"""

from __future__ import annotations

from typing import Final

from ..study import Study
from .invariants import INVARIANTS
from .plan import CALLS, ENDS, FAULTS, INCIDENTS, draw
from .shrinking import smaller, written
from .world import World

__all__ = ["STUDY"]

_OUTCOMES: Final = (
    "completed", "released", "parked", "taken over", "dead-lettered", "followed the dead",
    "given back", "died", "stopped", "committed", "marked", "looked up",
    "renewed after its end", "done after it was given up",
)  # fmt: skip
_AT_THE_BROKER: Final = (
    "sent", "sent again", "settled", "redelivered", "void receipt", "revoked", "released",
)  # fmt: skip

STUDY: Final = Study(
    name="consumers",
    about=(
        "Consumers, two thirds of them in lease mode. A scheduler runs the flows of one to three consumers "
        "step by step, in virtual time, between the memory store and a broker: a queue that redelivers, or "
        "a log in partitions. This is the shipped code: the flow, its intake, the recovery rule, the "
        "committed prefix of a partition, the store, and the lease keeper without its thread. In "
        "transaction mode the inbox is a model; the study of transactions runs the shipped one. The "
        "simulation checks the invariants at every request that reaches the store or the broker, and at "
        "every start of a handler."
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
        *(f"end: {how}" for how in ENDS),
        *(f"outcome: {what}" for what in _OUTCOMES),
        *(f"broker: {what}" for what in _AT_THE_BROKER),
    ),
    met={
        "fault": "faults on the way to the store",
        "call": "faults on the way to the broker",
        "incident": "incidents",
        "verdict": "answers to claims",
        "start": "causes of starts",
        "end": "ends of handlers",
        "outcome": "outcomes",
        "broker": "at the broker",
    },
    share=10,
)
