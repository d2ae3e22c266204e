"""What an inbox flow asks for, and what a store decides about it, by `lifecycle`. Plain data, and pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from .._values.keys import Key
from .._values.records import Row
from . import lifecycle
from .protocol import Claimed, ClaimRequest, Complete, Fail, Verdict

__all__ = [
    "AwaitDeferred",
    "DeferredWrite",
    "Enter",
    "EnterMany",
    "Entered",
    "Leave",
    "apply_deferred",
    "decide",
]


class AwaitDeferred(msgspec.Struct, gc=False):
    """Wait until the deferred writes for this key are in the store, at most this long. Usually there
    are none.
    """

    id: bytes
    seconds: float


class Enter(msgspec.Struct, gc=False):
    """Insert the record in the caller's transaction, or read the existing one. Reply: `Entered`."""

    op: ClassVar[str] = "enter"
    key: Key
    owner: bytes
    retention: int
    max_attempts: int = 5
    fingerprint: bytes | None = None
    done: bool = False
    """Insert the record as completed (`accept`)."""
    wait: float = 0.0
    """Seconds to wait for another transaction that holds the key."""

    @property
    def id(self) -> bytes:
        return self.key.id


class EnterMany(msgspec.Struct, gc=False):
    """`Enter` for different keys in as few statements as possible. Reply: one `Entered` each."""

    asks: list[Enter]


class Entered(msgspec.Struct, gc=False):
    """The answer to `Enter`."""

    answer: Claimed
    mark: Any = None
    """Identifies this transaction among later ones on the same connection."""
    unwritten: Sequence[DeferredWrite] = ()
    """Deferred writes for this key that are not in the store. They are read after the record
    was entered. From then on they cannot be written, so they do not count twice."""


class Leave(msgspec.Struct, gc=False):
    """Record the end if this is the transaction that was entered. Reply: True if it was."""

    op: ClassVar[str] = "leave"
    ask: Complete
    mark: Any


class DeferredWrite(msgspec.Struct, gc=False):
    """The caller will roll back: count the attempt, or store the failure, in a new transaction."""

    op: ClassVar[str] = "note"
    claim: ClaimRequest
    end: Complete | Fail
    written: bool = False
    """Set before its COMMIT: a delivery that enters later finds it in the store."""


def decide(row: Row | None, ask: Enter, now: int, floor: int) -> tuple[Claimed, Row | None]:
    """Decide who runs, by `lifecycle`. A refused delivery writes nothing: its caller rolls back."""
    claim = ClaimRequest(ask.key, ask.owner, 0, ask.max_attempts, True, ask.fingerprint)
    answer, after = lifecycle.claim(row, claim, now, floor)
    if answer.verdict is not Verdict.WON:
        answer.closes = False
        return answer, None
    if ask.done:
        done = Complete(ask.id, ask.owner, answer.fence, ask.retention, None)
        _, after = lifecycle.complete(after or row, done, now)
    return answer, after


def apply_deferred(row: Row | None, ask: DeferredWrite, now: int, floor: int) -> Row | None:
    """The record after a failed attempt, as if it had been claimed; None: nothing to write."""
    if row is not None and row.owner == ask.claim.owner:
        return None  # already written: only the answer to its COMMIT was lost
    answer, after = lifecycle.claim(row, ask.claim, now, floor)
    if answer.verdict is not Verdict.WON:
        return after  # done meanwhile, or held, or parked
    ask.end.fence = answer.fence
    if isinstance(ask.end, Complete):
        return lifecycle.complete(after, ask.end, now)[1]
    after = lifecycle.fail(after, ask.end, now)[1]
    assert after is not None
    after.lease_until = 0  # an inbox has no back-off, so the clock does not matter
    return after
