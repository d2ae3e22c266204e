"""The ledger: handler starts and answers, as handlers and their consumers see them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from twicesafe._core.commands import Raised
from twicesafe._values.context import ActiveClaim
from twicesafe._values.outcomes import Outcome
from twicesafe._values.records import State
from twicesafe.errors import (
    FingerprintMismatchError,
    HeldError,
    NotStorableError,
    ParkedError,
    RememberedFailureError,
    ResultUnavailableError,
    TooLargeError,
)

from .invariants import broken
from .monitor import Monitor, differs
from .policies import FINGERPRINTS

if TYPE_CHECKING:
    from .worker import Job, Worker

__all__ = ["Ledger"]

_ACKNOWLEDGED = (RememberedFailureError, ResultUnavailableError, FingerprintMismatchError)
_OPERATORS = (HeldError, ParkedError)

_DONE: dict[State | None, tuple[type, ...]] = {
    State.COMPLETED: (Outcome, bool, ResultUnavailableError),
    State.FAILED: (RememberedFailureError, bool),
    State.FORGOTTEN: (ResultUnavailableError, bool),
    State.IN_PROGRESS: (HeldError,),
    State.HELD: (HeldError,),
    State.PARKED: (ParkedError,),
}
"""What a consumer may be answered while a record is, and stays, so."""


class Ledger:
    def __init__(self, monitor: Monitor, seen: Counter[Any]) -> None:
        self._monitor = monitor
        self._seen = seen
        self._failures: Counter[tuple[Worker, bytes]] = Counter()
        self.said: set[tuple[Worker, bytes, str]] = set()
        """Failures that are the answer, as the process knows that met them."""

    def started(self, job: Job, claim: ActiveClaim | None) -> None:
        """A handler starts in the transaction of this job."""
        self._seen["end", job.how.end] += 1
        session = job.connection.session
        opened = session.opened
        if session.over or (opened is not None and opened.failed):
            return  # the server ended it, and no process here knows yet: its work will be rolled back
        id_ = job.id if claim is None else claim.key.id
        row = None if opened is None else opened.rows.get(id_)
        if opened is None or row is None:
            broken("only winners start", "its record is not in this transaction")
            return
        looked, now = opened.based[id_]
        truth = looked.at(now)
        if truth.state not in (None, State.RELEASED):
            broken("closed keys stay closed", f"a handler starts, and it is {truth.state}")
        if claim is None:
            return
        self._seen["cause", str(claim.cause)] += 1
        if (row.owner, row.fence) != (claim.owner, claim.fence):
            broken("only winners start", "its record is another's")
        if claim.cause is not truth.cause:
            broken("every start has a cause", f"{claim.cause} said, {truth.cause} is true")
        known = job.worker.notes.known(job.id)
        # A deferred write whose COMMIT was cut is in the store, and its process cannot know.
        surely = [note for note in known if note.claim.owner not in self._monitor.counted]
        first = truth.attempts + 1
        if not first + len(surely) <= claim.attempt <= first + len(known):
            broken("poison parks", f"attempt {claim.attempt} after {truth.attempts} failures")
        if claim.attempt > job.max_attempts:
            broken("poison parks", f"attempt {claim.attempt} of {job.max_attempts}")

    def answered(self, job: Job, answer: Any, now: int) -> str:
        """A consumer has its answer. What does it tell its broker: done, again, or ask an operator?"""
        error = answer.error if isinstance(answer, Raised) else None
        told = type(answer if error is None else error)
        self._seen["answer", _named(answer, told)] += 1
        mine = error is job.failed or isinstance(error, (NotStorableError, TooLargeError))
        if error is not None and mine and not job.delivery.accepts:
            self._failures[job.worker, job.id] += 1
        final = error is None or isinstance(error, (*_ACKNOWLEDGED, *_OPERATORS))
        if not final:
            return "again"
        self._is_true(job, told, now)
        if isinstance(error, _OPERATORS):
            return "ask"
        if error is None:
            self._was_committed(job, answer)
        elif isinstance(error, RememberedFailureError):
            self._was_remembered(job, error)
        self._was_done(job, error)
        return "done"

    def _is_true(self, job: Job, told: type, now: int) -> None:
        """What did not change while the consumer was at work must be what it was answered."""
        (before, then), after = job.began, self._monitor.truth(job.id)
        if before is after and not after.is_over(then) and not after.is_over(now):
            if differs(after.fingerprint, FINGERPRINTS[job.delivery.fingerprint]):
                if told is not FingerprintMismatchError:
                    broken("mismatch first", f"another fingerprint is kept: {told.__name__}")
            elif after.state in _DONE and told not in _DONE[after.state]:
                what = (
                    "replays are exact" if after.result is not None else "waiting answers are true"
                )
                broken(what, f"it is {after.state}, and {told.__name__} was said")
        if told is ParkedError:
            looked, when = job.connection.session.looked or job.began
            counts = before.at(then), looked.at(when), after.at(now)
            if not any(
                one.state is State.PARKED or one.attempts + job.known >= job.max_attempts
                for one in counts
            ):
                broken(
                    "waiting answers are true",
                    f"parked after {counts[1].attempts + job.known} failures",
                )

    def _was_committed(self, job: Job, answer: Any) -> None:
        ran = answer is True or (isinstance(answer, Outcome) and not answer.replayed)
        if ran and job.run not in self._monitor.runs:
            broken("answers were committed", "acknowledged, and its effect is not there")
        if isinstance(answer, Outcome) and answer.replayed:
            payload = f'j"{answer.value}"'.encode()
            if payload not in self._monitor.results:
                broken("answers were committed", f"{answer.value!r} never was")

    def _was_remembered(self, job: Job, error: RememberedFailureError) -> None:
        message = error.original_message
        payload = msgspec.json.encode({"type": error.type_name, "message": message})
        known = (job.worker, job.id, message) in self.said
        if not known and payload not in self._monitor.results:
            broken("answers were committed", f"the failure {message!r} never was")

    def _was_done(self, job: Job, error: BaseException | None) -> None:
        whose = job.delivery.consumer, job.delivery.message
        refused = isinstance(error, (FingerprintMismatchError, RememberedFailureError))
        ran = error is None and job.run in self._monitor.runs
        if not refused and not ran and whose not in self._monitor.ended:
            broken("two consumers both run", "acknowledged, and nothing was done for this one")

    def counted(self, worker: Worker) -> None:
        """In the end: every failure of a worker that lives has reached the store."""
        for (whose, id_), failures in self._failures.items():
            if whose is worker and self._monitor.noted[worker, id_] < failures:
                broken("poison parks", f"{failures} failures, not all of them noted")


def _named(answer: Any, told: type) -> str:
    if isinstance(answer, Outcome):
        return "replayed" if answer.replayed else "ran"
    if isinstance(answer, bool):
        return "accepted" if answer else "a repeat"
    return told.__name__
