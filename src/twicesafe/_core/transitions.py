"""The table of a record's life: its states, what can happen to it, and the state that follows.

`lifecycle` holds the decisions that are based on it. The page of states in the docs, the simulation and
the conformance suite read the same table.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec.structs import replace

from .._values.records import Row, State

__all__ = ["NEVER_FINISHED", "TRANSITIONS", "RecordEvent", "is_expired", "move"]

NEVER_FINISHED: Final = "never finished"
"""The error of a record that is parked because its workers stopped without an answer: there was no failure."""


class RecordEvent(enum.StrEnum):
    """What can happen to a record."""

    CLAIM = "claim"
    """A delivery starts work that has no owner."""
    TAKE_OVER = "take over"
    """A delivery starts work whose owner's lease expired."""
    HOLD = "hold"
    """The outcome is unknown and the policy is at most once."""
    PARK = "park"
    """Started too often without finishing."""
    RENEW = "renew"
    """The owner continues working."""
    COMPLETE = "complete"
    """The owner has a value, which is the answer from now on."""
    REMEMBER = "remember"
    """The failure is the answer."""
    FAIL = "fail"
    """The attempt failed; another may follow after the back-off."""
    ABANDON = "abandon"
    """The owner releases a claim under which nothing was started."""
    EXPIRE = "expire"
    """Retention is over: the next claim treats the key as new; the sweep removes the record."""
    RELEASE = "release"
    """An operator lets the next delivery run; a completed record only with ``force``."""
    RESOLVE = "resolve"
    """An operator records the answer by hand."""
    SUSPEND = "suspend"
    """A durable run sleeps, or waits for a signal: no worker holds it until it is due."""
    FORGET = "forget"
    """An operator erases the result and the key text; the tombstone stays."""


_S, _E = State, RecordEvent

TRANSITIONS: Final[dict[tuple[State | None, RecordEvent], State | None]] = {
    (None, _E.CLAIM): _S.IN_PROGRESS,
    (_S.IN_PROGRESS, _E.RENEW): _S.IN_PROGRESS,
    (_S.IN_PROGRESS, _E.COMPLETE): _S.COMPLETED,
    (_S.IN_PROGRESS, _E.REMEMBER): _S.FAILED,
    (_S.IN_PROGRESS, _E.FAIL): _S.RELEASED,
    (_S.IN_PROGRESS, _E.ABANDON): _S.RELEASED,
    (_S.IN_PROGRESS, _E.TAKE_OVER): _S.IN_PROGRESS,
    (_S.IN_PROGRESS, _E.HOLD): _S.HELD,
    (_S.IN_PROGRESS, _E.PARK): _S.PARKED,
    (_S.IN_PROGRESS, _E.RELEASE): _S.RELEASED,
    (_S.IN_PROGRESS, _E.RESOLVE): _S.COMPLETED,
    (_S.IN_PROGRESS, _E.SUSPEND): _S.SUSPENDED,
    (_S.SUSPENDED, _E.CLAIM): _S.IN_PROGRESS,
    (_S.SUSPENDED, _E.PARK): _S.PARKED,
    (_S.SUSPENDED, _E.RELEASE): _S.RELEASED,
    (_S.SUSPENDED, _E.RESOLVE): _S.COMPLETED,
    (_S.RELEASED, _E.CLAIM): _S.IN_PROGRESS,
    (_S.RELEASED, _E.PARK): _S.PARKED,
    (_S.RELEASED, _E.RELEASE): _S.RELEASED,
    (_S.RELEASED, _E.RESOLVE): _S.COMPLETED,
    (_S.RELEASED, _E.FORGET): _S.FORGOTTEN,
    (_S.RELEASED, _E.EXPIRE): None,
    (_S.HELD, _E.COMPLETE): _S.COMPLETED,
    (_S.HELD, _E.REMEMBER): _S.FAILED,
    (_S.HELD, _E.RELEASE): _S.RELEASED,
    (_S.HELD, _E.RESOLVE): _S.COMPLETED,
    (_S.HELD, _E.FORGET): _S.FORGOTTEN,
    (_S.PARKED, _E.COMPLETE): _S.COMPLETED,
    (_S.PARKED, _E.REMEMBER): _S.FAILED,
    (_S.PARKED, _E.RELEASE): _S.RELEASED,
    (_S.PARKED, _E.RESOLVE): _S.COMPLETED,
    (_S.PARKED, _E.FORGET): _S.FORGOTTEN,
    (_S.COMPLETED, _E.EXPIRE): None,
    (_S.COMPLETED, _E.RELEASE): _S.RELEASED,
    (_S.COMPLETED, _E.FORGET): _S.FORGOTTEN,
    (_S.FAILED, _E.EXPIRE): None,
    (_S.FAILED, _E.RELEASE): _S.RELEASED,
    (_S.FAILED, _E.RESOLVE): _S.COMPLETED,
    (_S.FAILED, _E.FORGET): _S.FORGOTTEN,
    (_S.FORGOTTEN, _E.EXPIRE): None,
}
"""(state, event) → next state; None is "no record". No other transition exists."""


def move(row: Row, event: RecordEvent, now: int, **changes: object) -> Row:
    """The row after this event. A held or parked one has no lease and does not expire."""
    state = TRANSITIONS[row.state, event]
    assert state is not None
    if state in (State.HELD, State.PARKED):
        changes.setdefault("lease_until", 0)
        changes.setdefault("expires_at", 0)
    return replace(row, state=state, changed_at=now, **changes)


def is_expired(row: Row, now: int) -> bool:
    """Is the record's retention over? Checked on every read (P8); never true of live work (P6)."""
    return 0 < row.expires_at <= now
