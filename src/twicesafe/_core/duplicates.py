"""Answers: what a delivery that does not run gets, as an outcome or as the error that says why."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from .. import events as ev
from .._values.context import active
from .._values.fingerprint import fields_that_differ
from .._values.outcomes import Outcome
from .._values.records import State
from ..errors import (
    CorruptRecordError,
    FingerprintMismatchError,
    HeldError,
    ParkedError,
    RememberedFailureError,
    ResultUnavailableError,
    StillInProgressError,
    TooManyWaitersError,
    TwicesafeError,
)
from .call import Call
from .protocol import Claimed, Verdict

__all__ = [
    "outcome_of",
    "refusal",
    "refuse_busy",
    "refuse_crowd",
    "refuse_mismatch",
    "refuse_own_wait",
]


def outcome_of(call: Call, answer: Claimed, cached: bool = False) -> Outcome[Any]:
    """A recorded answer as the outcome, or the error, that a duplicate gets."""
    if call.observed:
        call.notify(ev.Replayed(call.key, answer.age / 1000, cached))
    if answer.state is State.FAILED:
        if answer.result is None:
            raise RememberedFailureError(
                "the first delivery failed for good; the store refused to keep how it failed",
                key=call.key,
            )
        try:
            failure = msgspec.json.decode(answer.result, type=dict[str, str])
        except (ValueError, msgspec.MsgspecError) as error:
            raise CorruptRecordError(
                "the stored failure is not what was written; the work is not run again",
                key=call.key,
            ) from error
        name, message = failure.get("type", "?"), failure.get("message", "")
        raise RememberedFailureError(
            f"the first delivery failed for good with {name}: {message}",
            key=call.key,
            type_name=name,
            original_message=message,
        )
    if answer.result is None:
        raise ResultUnavailableError(
            "the work of this key is done, but its result was not kept (too large, not storable, or "
            "refused by the store); it is not run again",
            key=call.key,
        )
    try:
        value = call.terms.codec.decode(answer.result, call.declared)
    except TwicesafeError as error:
        raise error.about(call.key) from error.__cause__
    return Outcome(value, True, answer.attempt, call.key, answer.fence)


def refusal(call: Call, answer: Claimed) -> NoReturn:
    if answer.closes:
        closed = ev.Held if answer.verdict is Verdict.HELD else ev.Parked
        call.notify(closed(call.key, "its worker stopped without an answer"))
    """The error that says why this delivery neither runs nor replays."""
    match answer.verdict:
        case Verdict.MISMATCH:
            refuse_mismatch(call, answer.fingerprint, known=True)
        case Verdict.HELD:
            _refuse(
                call,
                HeldError(
                    "the work began and how far it came is not known: a worker died in mid-work "
                    "under takeover='hold', or a handler committed a part by itself; an operator "
                    "must find out and say resolve or release"
                ),
            )
        case Verdict.PARKED:
            _refuse(
                call,
                ParkedError(
                    f"{call.terms.max_attempts} attempts (max_attempts) did not finish this key; an "
                    "operator must look at it and say release or resolve"
                ),
            )
        case Verdict.FORGOTTEN:
            _refuse(
                call,
                ResultUnavailableError(
                    "the work of this key is done and its result was forgotten on request; it is not "
                    "run again"
                ),
            )
    refuse_busy(call, answer)


def refuse_busy(call: Call, answer: Claimed | None) -> NoReturn:
    if answer is not None and answer.verdict is Verdict.RESTING:
        hint = answer.wait / 1000
        text = f"the last attempt failed a moment ago; the next one may start in {hint:.1f} s"
    else:
        # The lease is renewed while the handler lives: its end is no promise. Half a second is.
        hint = 0.5 if answer is None else min(1.0, answer.wait / 1000)
        text = "another delivery of this key is being worked on"
        if answer is not None and answer.locked:
            text = "an open transaction holds this key (or, on SQLite, the database)"
        if not call.terms.rejects:
            text += f", and did not end within wait={call.terms.wait:g} s"
    _refuse(call, StillInProgressError(f"{text}; come back later", retry_after=hint))


def refuse_mismatch(call: Call, stored: bytes | None, known: bool = False) -> None:
    asked = call.fingerprint
    if not known and (stored is None or asked is None or stored == asked):
        return
    names = call.field_names() if call.field_names is not None else ()
    fields = fields_that_differ(stored, asked, names) if stored and asked else ()
    which = f" (differs in: {', '.join(fields)})" if fields else ""
    _refuse(
        call,
        FingerprintMismatchError(
            f"this key was first used for a different request{which}; the sender must use a new key",
            fields=fields,
        ),
    )


def refuse_own_wait(call: Call) -> None:
    claim = active.get()
    while claim is not None:
        if claim.key.id == call.key.id:
            _refuse(
                call,
                StillInProgressError(
                    "a handler called the receiver again with the key it runs under and would wait "
                    "for itself; use current_key().derive(step) for inner calls"
                ),
            )
        claim = claim.outer


def _refuse(call: Call, error: TwicesafeError) -> NoReturn:
    if call.observed:
        call.notify(ev.Refused(call.key, type(error).__name__))
    raise error.about(call.key)


def refuse_crowd(call: Call) -> NoReturn:
    _refuse(
        call,
        TooManyWaitersError(
            f"{call.terms.max_waiters} callers of this process already wait for this key "
            "(max_waiters); come back later"
        ),
    )
