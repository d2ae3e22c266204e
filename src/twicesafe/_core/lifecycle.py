"""The life cycle of a record: the decisions based on the table of `transitions`.

This module *is* the protocol. The memory store applies it to a dict and SQLite to rows. Stores that
decide in the server (SQL statement, Lua script) are checked against it by the conformance suite.
Every function takes the current row (or None), a request and the store's time, and returns the
answer with the row to write, or None if nothing changes.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from .._values.owner_token import is_ahead
from .._values.records import Cause, Row, State
from .protocol import (
    Abandon,
    Ack,
    Adopt,
    Claimed,
    ClaimRequest,
    Complete,
    Discard,
    Fail,
    Forget,
    Release,
    Renew,
    Resolve,
    Rewrite,
    Verdict,
)
from .transitions import TRANSITIONS, RecordEvent

__all__ = [
    "ASK",
    "abandon",
    "adopt",
    "claim",
    "complete",
    "discard",
    "fail",
    "fail_run",
    "forget",
    "is_expired",
    "look",
    "move",
    "recall",
    "release",
    "renew",
    "resolve",
    "restart",
    "rewrite",
]


# Used by every delivery, so looked up once: accessing an enum member costs as much as a call.
_IN_PROGRESS, _COMPLETED, _FAILED = State.IN_PROGRESS, State.COMPLETED, State.FAILED
_WON, _REPLAY, _OK = Verdict.WON, Verdict.REPLAY, Ack.OK


def is_expired(row: Row, now: int) -> bool:
    """Is the record's retention over? Checked on every read (P8); never true of live work (P6)."""
    return 0 < row.expires_at <= now


# --- claim -----------------------------------------------------------------------------------


def claim(
    row: Row | None, ask: ClaimRequest, now: int, floor: int = 0
) -> tuple[Claimed, Row | None]:
    """Decide who runs. `floor`: fences at or below it were already issued (P3)."""
    if row is None:
        return _start(ask, None, now, fence=floor + 1, attempt=1, cause=None)
    if is_expired(row, now):
        cause = row.cause if row.state is State.RELEASED else Cause.RETENTION_EXPIRED
        return _start(ask, None, now, fence=row.fence + 1, attempt=1, cause=cause)
    answer = look(row, ask, now)
    if answer is not None:
        return answer, None
    if row.state is State.IN_PROGRESS and row.hold:
        return Claimed(Verdict.HELD, closes=True), move(row, RecordEvent.HOLD, now)
    counted = _counted(row)
    if counted >= ask.max_attempts:
        return Claimed(Verdict.PARKED, closes=True), move(row, RecordEvent.PARK, now)
    if row.state is State.IN_PROGRESS:
        event, cause = RecordEvent.TAKE_OVER, Cause.LEASE_EXPIRED
    else:
        event, cause = RecordEvent.CLAIM, row.cause  # why it was released; None: it never started
    assert (row.state, event) in TRANSITIONS
    return _start(ask, row, now, fence=row.fence + 1, attempt=counted + 1, cause=cause)


def look(row: Row, ask: ClaimRequest, now: int) -> Claimed | None:
    """The answer for an unexpired row that needs no write; None: a write is needed."""
    mine = row.owner == ask.owner
    if not mine and _differs(row.fingerprint, ask.fingerprint):  # P11: before everything else
        return Claimed(Verdict.MISMATCH, fingerprint=row.fingerprint)
    state = row.state
    if state is _COMPLETED or state is _FAILED:
        return _replay(row, now)
    if state is _IN_PROGRESS:
        if mine:  # P2: a network retry gets the same fence
            return Claimed(_WON, row.fence, row.attempt, row.cause)
        if row.lease_until > now:
            return Claimed(Verdict.BUSY, wait=row.lease_until - now)
        return None
    if state is State.RELEASED:
        if row.lease_until > now:
            return Claimed(Verdict.RESTING, wait=row.lease_until - now)
        return None
    if state is State.SUSPENDED:
        if row.lease_until > now:
            return Claimed(Verdict.RESTING, wait=row.lease_until - now, state=state, now=now)
        return None
    return Claimed(_CLOSED[state])


def _counted(row: Row) -> int:
    """The attempts so far. A claim made before its handler could start, and never ended, is none."""
    uncounted = row.state is State.IN_PROGRESS and is_ahead(row.owner)
    return row.attempt - 1 if uncounted else row.attempt


def recall(row: Row, now: int) -> Claimed:
    """The recorded answer, for a caller that has made no claim; or `ASK`."""
    recorded = row.state is _COMPLETED or row.state is _FAILED
    return _replay(row, now) if recorded and not is_expired(row, now) else ASK


ASK: Final = Claimed(Verdict.BUSY)
"""In place of a recorded answer: there is a record, and only a claim can tell what it means."""


def _replay(row: Row, now: int) -> Claimed:
    return Claimed(
        _REPLAY,
        row.fence,
        row.attempt,
        row.cause,
        0,
        row.state,
        row.result,
        row.fingerprint,
        now - row.changed_at,
        row.expires_at - now,
    )


_CLOSED = {
    State.HELD: Verdict.HELD,
    State.PARKED: Verdict.PARKED,
    State.FORGOTTEN: Verdict.FORGOTTEN,
}


def _differs(stored: bytes | None, asked: bytes | None) -> bool:
    return stored is not None and asked is not None and stored != asked


def _start(
    ask: ClaimRequest, old: Row | None, now: int, *, fence: int, attempt: int, cause: Cause | None
) -> tuple[Claimed, Row]:
    fingerprint = ask.fingerprint
    if fingerprint is None and old is not None:
        fingerprint = old.fingerprint
    key = ask.key
    row = Row(
        key.id,
        key.scope,
        key.value,
        _IN_PROGRESS,
        fence,
        attempt,
        ask.owner,
        now + ask.lease,
        now if old is None else old.created_at,
        now,
        0,
        ask.hold,
        cause,
        fingerprint,
        None,
        "" if old is None else old.error,
    )
    return Claimed(_WON, fence, attempt, cause), row


# --- what an owner may do --------------------------------------------------------------------


def renew(row: Row | None, ask: Renew, now: int) -> tuple[Ack, Row | None]:
    refused = _not_owner(row, ask)
    if refused is not None:
        return refused, None
    assert row is not None
    return Ack.OK, replace(row, lease_until=max(row.lease_until, now + ask.lease))


def complete(row: Row | None, ask: Complete, now: int) -> tuple[Ack, Row | None]:
    """Accepted once, from the owner only; repeated by the same owner and fence it is a no-op.

    The owner may be late. If no other worker took over, only the owner knows the outcome, so it may
    complete a held or parked record too.
    """
    if row is None:
        return Ack.MISSING, None
    if row.owner != ask.owner or row.fence != ask.fence:
        return Ack.LOST, None
    state = row.state
    if state is _COMPLETED or state is _FAILED:
        return _OK, None
    if state is not _IN_PROGRESS and state not in (State.HELD, State.PARKED):
        return Ack.LOST, None
    assert ask.state is _COMPLETED or ask.state is _FAILED
    return _OK, Row(
        row.id,
        row.scope,
        row.value,
        ask.state,
        row.fence,
        row.attempt,
        row.owner,
        0,
        row.created_at,
        now,
        now + ask.retention,
        row.hold,
        row.cause,
        row.fingerprint,
        ask.result,
        ask.error,
    )


for _from in (_IN_PROGRESS, State.HELD, State.PARKED):
    # What `complete` does is in the table. Checked once: to look it up for every call is slow.
    assert TRANSITIONS[_from, RecordEvent.COMPLETE] is _COMPLETED
    assert TRANSITIONS[_from, RecordEvent.REMEMBER] is _FAILED


def fail(row: Row | None, ask: Fail, now: int) -> tuple[Ack, Row | None]:
    refused = _not_owner(row, ask)
    if refused is Ack.LOST and _said_before(row, ask):
        return Ack.OK, None
    if refused is not None:
        return refused, None
    assert row is not None
    if ask.hold:
        return Ack.OK, move(row, RecordEvent.HOLD, now, error=ask.error)
    if row.attempt >= ask.max_attempts:
        return Ack.OK, move(row, RecordEvent.PARK, now, error=ask.error)
    return Ack.OK, move(
        row,
        RecordEvent.FAIL,
        now,
        cause=Cause.FAILED,
        error=ask.error,
        lease_until=now + ask.delay,
        expires_at=now + ask.retention,
    )


fail_run = fail
"""A durable run fails like any other work; the store also notes when to look at it again."""


def abandon(row: Row | None, ask: Abandon, now: int) -> tuple[Ack, Row | None]:
    """Matched by owner token only: the owner may not know its fence."""
    if row is None:
        return Ack.MISSING, None
    if row.owner != ask.owner or row.state is not State.IN_PROGRESS:
        return Ack.LOST, None
    return Ack.OK, move(
        row,
        RecordEvent.ABANDON,
        now,
        attempt=row.attempt - 1,  # it never started
        lease_until=now,
        expires_at=now + ask.retention,
    )


def _said_before(row: Row | None, ask: Fail) -> bool:
    """The same owner already failed with this fence; only the answer was lost."""
    return (
        row is not None
        and row.owner == ask.owner
        and row.fence == ask.fence
        and row.state in (State.RELEASED, State.PARKED, State.HELD)
    )


def _not_owner(row: Row | None, ask: Renew | Fail) -> Ack | None:
    if row is None:
        return Ack.MISSING
    owns = row.owner == ask.owner and row.fence == ask.fence and row.state is State.IN_PROGRESS
    return None if owns else Ack.LOST


# --- what an operator may do -----------------------------------------------------------------
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
    """The decision is about an earlier run: another one has started, or was decided on, since."""
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
    """it is not an event of the table: the record stays where it is, only the audit trail grows."""
    if row is None or is_expired(row, now):
        return Ack.MISSING, None
    return Ack.OK, row


# --- upkeep ----------------------------------------------------------------------------------


def rewrite(row: Row | None, ask: Rewrite, now: int) -> tuple[Ack, Row | None]:
    """The same answer in other bytes. it is not an event of the table: the record stays where it is."""
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
    answered = ORDER[row.state] == ORDER[_COMPLETED] and not is_expired(row, now)
    if answered and ORDER[copy.state] < ORDER[_COMPLETED] and copy.cause is not Cause.OPERATOR:
        return Ack.LOST, None
    renewed = copy.state is _IN_PROGRESS and copy.lease_until > row.lease_until
    if there == here and not renewed:
        return Ack.OK, None
    return Ack.OK, copy if ask.over is None else replace(copy, changed_at=now)


def move(row: Row, event: RecordEvent, now: int, **changes: object) -> Row:
    state = TRANSITIONS[row.state, event]
    assert state is not None
    if state in (State.HELD, State.PARKED):
        changes.setdefault("lease_until", 0)
        changes.setdefault("expires_at", 0)
    return replace(row, state=state, changed_at=now, **changes)
