"""Steps: what a store keeps about the parts of a durable run, and what callers may see of them.

`Step` is the full row, results included, for stores and `_core`. `StepRecord` is one entry of
``record.steps``: never a result, never arguments. Times are milliseconds of the store's clock.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Final

import msgspec

__all__ = ["SIGNAL", "Step", "StepRecord", "StepState", "moment"]

SIGNAL: Final = "twicesafe:signal:"
"""A wait and its signal are recorded under this prefix and their name. A signal may come before a
step of the same name has run, so the two must not share a record."""


_LAST: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, and of `datetime`."""


def moment(milliseconds: int) -> datetime:
    """A store's time as a datetime. The time of a damaged record may be any number, and must hide no other."""
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LAST) / 1000, UTC)


class StepState(enum.StrEnum):
    """The state of a recorded step."""

    DONE = "done"
    """Its result is recorded, and is the answer on every resume."""
    STARTED = "started"
    """It began and has no result: only steps with a probe, or under ``takeover="hold"``, record this."""
    WAITING = "waiting"
    """It sleeps, or waits for a signal."""

    __hash__ = str.__hash__


class Step(msgspec.Struct, gc=False):
    """One step of one run. Only the decisions in `_core.durable.run_lifecycle` change it."""

    name: str
    kind: str
    """run, capture, sleep, wait, transact, undo or failure."""
    state: StepState
    fence: int
    """Of the claim that wrote it; 0: a signal that came before its run."""
    attempt: int
    """How many tries its result took."""
    position: int
    """Its place among the recorded steps of the run: undoing goes backwards."""
    undo: bool
    """It was recorded with an undo."""
    created_at: int
    changed_at: int
    due_at: int = 0
    """Waiting: the end of the sleep, or of the wait; 0: no end."""
    fingerprint: bytes = b""
    result: bytes | None = None
    """None of a step that is done: its result could not be kept."""

    def view(self) -> StepRecord:
        waits = self.state is StepState.WAITING and self.due_at
        return StepRecord(
            name=self.name.removeprefix(SIGNAL),
            kind=self.kind,
            state=self.state,
            attempt=self.attempt,
            undo=self.undo,
            created_at=moment(self.created_at),
            changed_at=moment(self.changed_at),
            due_at=moment(self.due_at) if waits else None,
        )


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one step of a durable run, without its result."""

    name: str
    """Its name in the run."""
    kind: str
    """run, capture, sleep, wait, transact, undo or failure."""
    state: StepState
    """Its present state."""
    attempt: int
    """How many tries its result took."""
    undo: bool
    """It was recorded with an undo."""
    created_at: datetime
    """When it was first recorded."""
    changed_at: datetime
    """When it got its present state."""
    due_at: datetime | None
    """When its sleep or its wait ends; None: it does neither, or has no end."""
