"""The verdict on a delivery: acknowledge it, try it again, or send it to the dead letters.

    ran, or a repeat of what is done                       ack
    in progress elsewhere, or here after its time-out;     retry; nothing is counted
    the claim was lost; no store
    failed, attempts are left                              retry after the back-off
    failed for good; no usable key; another payload        dead_letter
    under a known id; parked, held

A repeat whose recorded answer cannot be read is a repeat of what is done, or of what failed for good. If
it were tried again until the record expires, the work would run again.

The verdict is `ack` only if the record is durable. An error that is not in the table is a failure for
good: an unknown state must not loop.
"""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from ..._values.outcomes import Outcome
from ...errors import (
    BrokerUnavailableError,
    CorruptRecordError,
    InvalidKeyError,
    LeaseLostError,
    MissingKeyError,
    ResultError,
    ResultUnavailableError,
    StillInProgressError,
    StoreError,
    TooManyWaitersError,
    UsageError,
)
from ..commands import StillRunningError
from .recovery import Retry

__all__ = ["Action", "Verdict", "is_counted", "is_repeat", "verdict_of"]

T = TypeVar("T")

Action: TypeAlias = Literal["ack", "retry", "dead_letter"]

SOON: Final = 0.5
"""Seconds until the next try if the error does not say when."""

OUTAGE: Final = 2.0
"""Seconds until the next try while the store does not answer."""


class Verdict(msgspec.Struct, Generic[T], frozen=True):
    """What to tell the broker about one delivery, and why."""

    action: Action
    retry_after: float | None = None
    """Seconds, for `retry`."""
    outcome: Outcome[T] | None = None
    """The recorded answer, for `ack`; None: the work is done, but its result was not kept."""
    error: Exception | None = None


_WAITS: Final[tuple[tuple[type[Exception], float], ...]] = (
    (StillInProgressError, SOON),
    (StillRunningError, SOON),
    (TooManyWaitersError, SOON),
    (LeaseLostError, SOON),
    (StoreError, OUTAGE),
    (BrokerUnavailableError, OUTAGE),
    (UsageError, OUTAGE),  # a closed receiver, for example
)
"""Errors that say nothing about the message."""

_NO_KEY: Final = (InvalidKeyError, MissingKeyError)


def verdict_of(answer: Outcome[Any] | Exception) -> Verdict[Any]:
    """The verdict on the outcome of a delivery, or on the error that it ended with."""
    if isinstance(answer, Outcome):
        return Verdict("ack", outcome=answer)
    if isinstance(answer, ResultError) and answer.done:
        return Verdict("ack", error=answer)  # only its result cannot be had
    if isinstance(answer, CorruptRecordError) and answer.done is not None:
        return Verdict("ack" if answer.done else "dead_letter", error=answer)
    if isinstance(answer, Retry):
        return Verdict("retry", SOON if answer.after is None else answer.after, error=answer)
    for kind, wait in _WAITS:
        if isinstance(answer, kind) and not isinstance(answer, _NO_KEY):
            hint = getattr(answer, "retry_after", None)
            return Verdict("retry", wait if hint is None else hint, error=answer)
    return Verdict("dead_letter", error=answer)


def is_repeat(verdict: Verdict[Any]) -> bool:
    """Whether acknowledged work was done by an earlier delivery."""
    if verdict.outcome is not None:
        return verdict.outcome.replayed
    return isinstance(verdict.error, (ResultUnavailableError, CorruptRecordError))


def is_counted(verdict: Verdict[Any]) -> bool:
    """Whether a retry follows a failed attempt of the handler."""
    return isinstance(verdict.error, Retry)
