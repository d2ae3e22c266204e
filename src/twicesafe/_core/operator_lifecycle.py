"""What may be done to a record from outside its work: by operators, by re-encryption, by copies.

These are the decisions of `lifecycle` that need no owner token. An operator releases, resolves, forgets
or discards; `rewrite` stores the same answer in other bytes; `adopt` takes the copy of another region.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from .._values.records import Cause, Row, State
from .protocol import Ack, Adopt, Discard, Forget, Release, Resolve, Rewrite
from .transitions import TRANSITIONS, RecordEvent, is_expired, move

__all__ = ["ORDER", "adopt", "discard", "forget", "release", "resolve", "restart", "rewrite"]


# --- operators -------------------------------------------------------------------------------
#
# The operator's retention may differ from the work's. If an operation leaves the key closed, the
# record is kept at least as long as before, so that a late duplicate finds it closed.


def release(row: Row | None, ask: Release, now: int) -> tuple[Ack, Row | None]:
    if row is None or is_expired(row, now):
        return Ack.MISSING, None
    if _moved_on(row, ask) or _is_running(row, ask, now):
        return Ack.LOST, None
    if (row.state, RecordEvent.RELEASE) not in TRANSITIONS:
        return Ack.REFUSED, None
    if row.state is State.COMPLETED and not ask.force:
        return Ack.REFUSED, None
    return Ack.OK, move(
        row,
        RecordEvent.RELEASE,
        now,
        fence=row.fence + 1,  # fences off an owner that still runs
        owner=b"",
        attempt=0,
        cause=Cause.OPERATOR,
        lease_until=now,
        result=None,
        expires_at=now + ask.retention,
    )


restart = release
"""The store also drops the steps."""


def resolve(row: Row | None, ask: Resolve, now: int) -> tuple[Ack, Row | None]:
    if row is None or is_expired(row, now):
        return Ack.MISSING, None
    if _moved_on(row, ask) or _is_running(row, ask, now):
        return Ack.LOST, None
    if (row.state, RecordEvent.RESOLVE) not in TRANSITIONS:
        return Ack.REFUSED, None
    return Ack.OK, move(
        row,
        RecordEvent.RESOLVE,
        now,
        fence=row.fence + 1,
        owner=b"",
        lease_until=0,
        result=ask.result,
        expires_at=max(row.expires_at, now + ask.retention),
    )


def _moved_on(row: Row, ask: Release | Resolve | Forget) -> bool:
    """The decision is about an earlier run: since then another run has started, or another decision was made."""
    return ask.fence is not None and row.fence != ask.fence


def _is_running(row: Row, ask: Release | Resolve, now: int) -> bool:
    """The decision is about a run that is stuck, and its worker has renewed the lease."""
    return ask.unless_running and row.state is State.IN_PROGRESS and row.lease_until > now


def forget(row: Row | None, ask: Forget, now: int) -> tuple[Ack, Row | None]:
    if row is None or is_expired(row, now):
        return Ack.MISSING, None
    if row.state is State.FORGOTTEN:
        return Ack.OK, None
    if _moved_on(row, ask):
        return Ack.LOST, None
    if (row.state, RecordEvent.FORGET) not in TRANSITIONS:
        return Ack.REFUSED, None
    return Ack.OK, move(
        row,
        RecordEvent.FORGET,
        now,
        scope=(),
        value="",
        owner=b"",
        fence=row.fence + 1,
        lease_until=0,
        result=None,
        error="",
        fingerprint=None,
        expires_at=max(row.expires_at, now + ask.retention),
    )


def discard(row: Row | None, ask: Discard, now: int) -> tuple[Ack, Row | None]:
    """Not an event of the table: the record stays where it is, only the audit trail grows."""
    if row is None or is_expired(row, now):
        return Ack.MISSING, None
    return Ack.OK, row


# --- upkeep ----------------------------------------------------------------------------------


def rewrite(row: Row | None, ask: Rewrite, now: int) -> tuple[Ack, Row | None]:
    """The same answer in other bytes. Not an event of the table: the record stays where it is."""
    if row is None or is_expired(row, now):
        return Ack.MISSING, None
    if row.state is ask.state and row.result == ask.after:
        return Ack.OK, None  # repeated: only the answer was lost
    if row.state is not ask.state or row.result != ask.before:
        return Ack.LOST, None
    return Ack.OK, replace(row, result=ask.after)


ORDER: Final = {
    State.IN_PROGRESS: 0,
    State.RELEASED: 1,
    State.SUSPENDED: 1,
    State.HELD: 2,
    State.PARKED: 2,
    State.COMPLETED: 3,
    State.FAILED: 3,
    State.FORGOTTEN: 4,
}
"""Which state of a record comes later, at the same fence. All other changes take the next fence."""


def adopt(row: Row | None, ask: Adopt, now: int) -> tuple[Ack, Row | None]:
    """The copy of another store's record. What it replaces is older, whatever the order of arrival.

    An answer stays until it has expired or an operator has released it: a region that does not know the
    answer may have begun, or held, the same work.
    """
    copy = ask.row
    if ask.over is not None and (row is None or row.fence != ask.over):
        return Ack.LOST, None
    if row is None:
        return Ack.OK, None if is_expired(copy, now) else copy
    here, there = (row.fence, ORDER[row.state]), (copy.fence, ORDER[copy.state])
    if there < here:
        return Ack.LOST, None
    answered = ORDER[row.state] == ORDER[State.COMPLETED] and not is_expired(row, now)
    if answered and ORDER[copy.state] < ORDER[State.COMPLETED] and copy.cause is not Cause.OPERATOR:
        return Ack.LOST, None
    renewed = copy.state is State.IN_PROGRESS and copy.lease_until > row.lease_until
    if there == here and not renewed:
        return Ack.OK, None
    return Ack.OK, copy if ask.over is None else replace(copy, changed_at=now)
