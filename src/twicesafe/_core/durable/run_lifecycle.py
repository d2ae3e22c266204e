"""The decisions about durable runs: what a store does with a run's record and its steps.

Like `lifecycle`, these functions take what is there and return what to write. `SUSPENDED` and its
transitions are in the table of `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from ..._values.records import Cause, Row, State
from ..._values.steps import Step, StepState
from ..lifecycle import is_expired, look, move
from ..protocol import Ack, Claimed, ClaimRequest, Verdict
from ..transitions import NEVER_FINISHED, RecordEvent
from .run_requests import RecordStep, RewriteRun, Signal, StartRun, Submit, Suspend

__all__ = [
    "CLOSED_PAUSE",
    "DROP",
    "DUE",
    "WAIT",
    "adopt_signal",
    "claim_of",
    "judge_claim",
    "next_look",
    "record_step",
    "rewrite_run",
    "signal",
    "stale_steps",
    "submit",
    "suspend",
]

WAIT: Final = "wait"
"""The kind of a step that waits for a signal."""

CLOSED_PAUSE: Final = 60_000
"""Milliseconds after which the completer looks again at a run that waits for an operator."""

DUE: Final = -1
DROP: Final = -2


# --- claims ----------------------------------------------------------------------------------


def claim_of(ask: StartRun) -> ClaimRequest:
    """The plain claim of a run. It may be claimed as often again as its policy says, to be undone;
    `judge_claim` parks a run that has nothing to undo."""
    return ClaimRequest(
        ask.key, ask.owner, ask.lease, 2 * ask.max_attempts, ask.hold, ask.fingerprint
    )


def judge_claim(
    row: Row, ask: StartRun, answer: Claimed, steps: Iterable[Step], now: int
) -> Row | None:
    """The row to write instead, if a claim that was won must not run: its attempts are used up, and it
    has nothing to undo."""
    if answer.attempt <= ask.max_attempts or any(step.undo for step in steps):
        return None
    error = row.error or NEVER_FINISHED
    return move(replace(row, attempt=row.attempt - 1), RecordEvent.PARK, now, error=error)


def stale_steps(row: Row, steps: Iterable[Step]) -> list[Step]:
    """Steps of an earlier record of this key, whose retention is over. A signal that came before its
    run has no fence yet, so it is not one of them."""
    if row.created_at != row.changed_at:
        return []  # it is not this request that created the record
    return [s for s in steps if 0 < s.fence < row.fence and s.created_at < row.created_at]


def adopt_signal(step: Step, row: Row) -> None:
    """A signal that came before this run belongs to it from now on: no later claim may find it older than the run."""
    if step.fence == 0:
        step.fence, step.created_at = row.fence, max(step.created_at, row.created_at)


def submit(row: Row | None, ask: Submit, now: int, floor: int = 0) -> tuple[Claimed, Row | None]:
    """Record a run that is due at once. The answer is WON if there was no record."""
    fence = floor + 1
    if row is not None:
        if not is_expired(row, now):
            if row.state is State.SUSPENDED and row.attempt == 0 and row.owner == ask.owner:
                return Claimed(Verdict.WON, row.fence), None  # P2: a network retry
            found = look(row, ask, now)
            return found or Claimed(Verdict.RESTING, state=row.state), None
        fence = row.fence + 1
    key = ask.key
    new = Row(
        key.id, key.scope, key.value, State.SUSPENDED, fence, 0, ask.owner, now, now, now
    )  # fmt: skip
    new.fingerprint = ask.fingerprint
    return Claimed(Verdict.WON, fence), new


# --- steps -----------------------------------------------------------------------------------


def record_step(
    row: Row | None, known: Step | None, ask: RecordStep, now: int
) -> tuple[Ack, Step | None]:
    """Only the owner with its fence records, also a late one as long as no other took over."""
    if row is None:
        return Ack.MISSING, None
    if row.owner != ask.owner or row.fence != ask.fence or row.state is not State.IN_PROGRESS:
        return Ack.LOST, None
    created = now
    if known is not None:
        created = known.created_at
        if known.kind != ask.kind or known.fingerprint != ask.fingerprint:
            return Ack.REFUSED, None
        if known.state is StepState.DONE:
            same = known.fence == ask.fence and known.state is ask.state
            return (Ack.OK if same and known.result == ask.result else Ack.REFUSED), None
        if known.state is StepState.WAITING and ask.state is StepState.WAITING:
            return Ack.OK, None  # resumed: it is due when it was
    return Ack.OK, Step(
        ask.name,
        ask.kind,
        ask.state,
        ask.fence,
        ask.attempt,
        ask.position,
        ask.undo,
        created,
        now,
        now + ask.delay if ask.state is StepState.WAITING and ask.delay else 0,
        ask.fingerprint,
        ask.result,
    )


def suspend(
    row: Row | None, ask: Suspend, signalled: bool, now: int
) -> tuple[Ack, Row | None]:  # fmt: skip
    if row is None:
        return Ack.MISSING, None
    if row.owner != ask.owner or row.fence != ask.fence:
        return Ack.LOST, None
    if row.state is State.SUSPENDED:
        return Ack.OK, None  # its answer was lost
    if row.state is not State.IN_PROGRESS:
        return Ack.LOST, None
    return Ack.OK, move(
        row,
        RecordEvent.SUSPEND,
        now,
        attempt=row.attempt - 1,  # it did not fail
        lease_until=now if signalled else now + ask.delay,
        cause=Cause.RESUMED,
    )


def signal(
    row: Row | None, known: Step | None, ask: Signal, now: int
) -> tuple[bool, Step | None, Row | None]:
    """Whether the value is kept, the step to write, and the record to write: a waiting run is due."""
    if row is not None and is_expired(row, now):
        row = None
    if row is None and known is not None and known.fence:
        known = None  # of an earlier run, whose record is over
    if row is not None and row.state in (State.COMPLETED, State.FAILED, State.FORGOTTEN):
        return False, None, None
    if known is not None and (known.kind != WAIT or known.state is StepState.DONE):
        return False, None, None
    kept = Step(
        ask.name,
        WAIT,
        StepState.DONE,
        0 if row is None else row.fence,
        1,
        0 if known is None else known.position,
        False,
        now if known is None else known.created_at,
        now,
        0,
        b"",
        ask.result,
    )
    woken = None
    if known is not None and row is not None and row.state is State.SUSPENDED:
        woken = replace(row, lease_until=min(row.lease_until, now))
    return True, kept, woken


def rewrite_run(row: Row | None, known: bytes | None, ask: RewriteRun) -> tuple[Ack, bool]:
    """The answer, and whether to write. `known`: the payload that is there. Not while a worker has
    the run: it may repeat a step whose answer was lost, and would find other bytes than it sent."""
    if row is None or known is None:
        return Ack.MISSING, False
    if row.state is State.IN_PROGRESS:
        return Ack.REFUSED, False
    if known == ask.after:
        return Ack.OK, False  # repeated: only the answer was lost
    return (Ack.OK, True) if known == ask.before else (Ack.LOST, False)


# --- the completer ---------------------------------------------------------------------------


def next_look(row: Row | None, now: int) -> int:
    """When to look at a run again; `DUE`: it can run now; `DROP`: it is over, remove its steps."""
    if row is None or is_expired(row, now) or row.state is State.FORGOTTEN:
        return DROP
    if row.state in (State.COMPLETED, State.FAILED):
        return row.expires_at
    if row.state in (State.HELD, State.PARKED):
        return now + CLOSED_PAUSE
    return row.lease_until if row.lease_until > now else DUE
