"""What may never happen in a durable run."""

from __future__ import annotations

from typing import Final

from ..violations import Rules

__all__ = ["INVARIANTS", "broken"]

INVARIANTS: Final = Rules(
    {
        # at the store, after every request
        "recorded steps stay": "a recorded step never changes, and is dropped only with its record",
        "only the owner records": "only the worker with the run's owner and fence records a step or suspends",
        "steps belong to one run": "a run gets no step of an earlier record of its key, and no step after a restart",
        "attempts count starts": "a suspension counts no attempt, a start counts one; only undoing starts more often",
        "the first signal stays": "a signal is refused only if there is a value already, or the run is over",
        "a signal wakes": "a run that waits for a signal is due as soon as it is there, for the completer too",
        "due runs can run": "the completer is given no run that a worker holds, that sleeps, or that is over",
        "unfinished runs are kept": "no sweep and no look drops a run that is not over, or a signal that waits for one",
        "undone means undone": "a run is recorded as compensated only after every recorded undo",
        "nothing is left in doubt": "a run is compensated only if no step is known to have died unrecorded",
        "failed runs do not complete": "a run whose failure is recorded never completes",
        "undoing comes before parking": "a run with something to undo parks only if undoing failed, not because its caller was cancelled",
        # at every start of a step, and at every answer
        "recorded steps never run again": "no step and no undo starts once it is recorded",
        "repeats have a cause": "a step starts again only after an error, a crash or a lost claim",
        "held steps are not repeated": "under hold, an interrupted step runs again only if its probe or an operator says so",
        "undoing is alone": "no step starts once the failure is recorded, and no undo starts beside a step or before it",
        "undoing goes backwards": "undos start in the reverse order of their recorded steps",
        "replies are recorded": "a step, a wait and a call return what is recorded, for the same arguments",
        "an abort stops the run": "once a run is aborted, none of its branches starts a step",
        "sleeps last": "a sleep ends when it was due, also after a resume",
        "nothing starts after the end": "no step starts once its function has ended",
        "branches go on": "a branch that waits never keeps another one from its next step",
        "unwinding stays inside": "the exception that ends the function at a suspension never reaches a caller",
        # over the whole schedule
        "every run ends": "once faults stop, every run completes, is undone, parks, is held or waits for a signal",
    }
)

broken = INVARIANTS.broken
