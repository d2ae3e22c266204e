"""The life cycle of a record: the decisions based on the table of `transitions`.

This module *is* the protocol. The memory store applies it to a dict and SQLite to rows. Stores that
decide in the server (SQL statement, Lua script) are checked against it by the conformance suite.
Every function takes the current row (or None), a request and the store's time, and returns the
answer with the row to write, or None if nothing changes.

A request's `op` is the name of its function here: ``getattr(lifecycle, request.op)``. What a claim and
its owner may do is decided in this file; what operators and copies may do, in `operator_lifecycle`.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from .._values.keys import is_ahead
from .._values.records import Cause, Row, State
from .operator_lifecycle import (
    ORDER,
    adopt,
    discard,
    forget,
    release,
    resolve,
    restart,
    rewrite,
)
from .protocol import Abandon, Ack, Claimed, ClaimRequest, Complete, Fail, Renew, Verdict
from .transitions import NEVER_FINISHED, TRANSITIONS, RecordEvent, is_expired, move

__all__ = [
    "ASK",
    "ORDER",
    "abandon",
    "adopt",
    "claim",
    "complete",
    "discard",
    "fail",
    "fail_run",
    "forget",
    "is_answer",
    "is_expired",
    "look",
    "move",
    "recall",
    "recorded",
    "release",
    "renew",
    "resolve",
    "restart",
    "rewrite",
]


# Used by every delivery, so looked up once: accessing an enum member costs as much as a call.
_IN_PROGRESS, _COMPLETED, _FAILED = State.IN_PROGRESS, State.COMPLETED, State.FAILED
_WON, _REPLAY, _OK = Verdict.WON, Verdict.REPLAY, Ack.OK


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
        error = row.error or NEVER_FINISHED
        return Claimed(Verdict.PARKED, closes=True), move(row, RecordEvent.PARK, now, error=error)
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
        return recall(row, now)
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
    return Claimed(_CLOSED[state], reason=row.error)


def _counted(row: Row) -> int:
    """The attempts so far. A claim that was made before its handler could start, and never ended, does not count."""
    uncounted = row.state is State.IN_PROGRESS and is_ahead(row.owner)
    return row.attempt - 1 if uncounted else row.attempt


def recall(row: Row, now: int) -> Claimed:
    """The recorded answer, for a caller that has made no claim; or `ASK`."""
    return recorded(
        row.state,
        row.fence,
        row.attempt,
        row.cause,
        row.result,
        row.fingerprint,
        row.changed_at,
        row.expires_at,
        now,
    )


def recorded(
    state: State,
    fence: int,
    attempt: int,
    cause: Cause | None,
    result: bytes | None,
    fingerprint: bytes | None,
    changed_at: int,
    expires_at: int,
    now: int,
) -> Claimed:
    """`recall`, for a store that has read no more of a row than this."""
    if (state is _COMPLETED or state is _FAILED) and not 0 < expires_at <= now:
        age, left = now - changed_at, expires_at - now
        return Claimed(_REPLAY, fence, attempt, cause, 0, state, result, fingerprint, age, left)
    return ASK


ASK: Final = Claimed(Verdict.BUSY)
"""In place of a recorded answer: there is a record, and only a claim can tell what it means."""


def is_answer(recalled: Claimed, ask: ClaimRequest) -> bool:
    """Whether this claim would get what was recalled."""
    return recalled.verdict is _REPLAY and ask.fingerprint in (None, recalled.fingerprint)


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
    return _OK, replace(
        row,
        state=ask.state,
        lease_until=0,
        changed_at=now,
        expires_at=now + ask.retention,
        result=ask.result,
        error=ask.error,
    )


for _from in (_IN_PROGRESS, State.HELD, State.PARKED):
    # What `complete` does is in the table. Checked once: a lookup for every call would be slow.
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
