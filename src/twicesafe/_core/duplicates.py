"""Duplicates: the outcome, or the error, for a delivery that does not run the handler."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import msgspec

from .. import events as ev
from .._values.cipher import MARK
from .._values.codecs import unreadable
from .._values.context import active
from .._values.fingerprint import fields_that_differ
from .._values.keys import Key
from .._values.outcomes import Outcome
from .._values.records import State, moment
from ..errors import (
    CompensatedError,
    CorruptRecordError,
    FingerprintMismatchError,
    HeldError,
    ParkedError,
    RememberedFailureError,
    ResultUnavailableError,
    StillInProgressError,
    SuspendedError,
    TooManyWaitersError,
    TwicesafeError,
)
from .call import Call
from .durable.run_requests import FOREVER
from .encrypting import readable, without_answer
from .observing import replayed
from .protocol import Claimed, Verdict
from .transitions import NEVER_FINISHED

__all__ = [
    "outcome_of",
    "refusal",
    "refuse_busy",
    "refuse_mismatch",
    "refuse_own_wait",
    "refuse_suspended",
    "refuse_waiter",
]


_FAILED = State.FAILED
_MARK = MARK[:1]

ENDLESS: Final = FOREVER // 2
"""Milliseconds. A longer suspension counts as one without an end."""


def outcome_of(call: Call, answer: Claimed, cached: bool = False) -> Outcome[Any]:
    """The outcome, or the error, that a duplicate gets for a recorded answer."""
    result = answer.result
    if result is not None and (call.policy.cipher is not None or result[:1] == _MARK):
        result = readable(call, answer)
    if call.observed:
        replayed(call, answer, cached, result)
    if answer.state is _FAILED:
        if result is None:
            raise RememberedFailureError(
                "the first delivery failed permanently; the store refused to keep the error",
                key=call.key,
            )
        try:
            failure = msgspec.json.decode(result, type=dict[str, str])
        except (ValueError, msgspec.MsgspecError) as error:
            problem = CorruptRecordError(
                "the stored failure cannot be read; the work is not run again",
                key=call.key,
            )
            raise without_answer(call, answer, problem) from error
        name, message = failure.get("type", "?"), failure.get("message", "")
        if name == CompensatedError.__name__:
            raise compensated(call.key, message)
        raise RememberedFailureError(
            f"the first delivery failed permanently with {name}: {message}",
            key=call.key,
            type_name=name,
            original_message=message,
        )
    if result is None:
        raise ResultUnavailableError(
            "the work of this key is done, but its result was not kept (too large, not storable, "
            "or refused by the store); it is not run again",
            key=call.key,
        )
    try:
        value = call.policy.codec.decode(result, call.declared)
    except Exception as error:
        raise without_answer(call, answer, unreadable(error)) from error.__cause__ or error
    return Outcome(value, True, answer.attempt, call.key, answer.fence)


_DIED: Final = "its worker stopped without an answer"
_STOPPED: Final = "the worker stopped mid-run (takeover='hold')"
_UNKNOWN: Final = (
    f"{_STOPPED}, the handler committed part of the work itself, or another region may have done it "
    "before a failover"
)


LONGEST: Final = 200
"""Characters of a recorded reason in an error message."""


def _quoted(text: str) -> str:
    """On one line: a reason may quote what a sender sent, with line breaks and escapes."""
    return repr(text if len(text) <= LONGEST else text[:LONGEST] + "…")


def refusal(call: Call, answer: Claimed) -> NoReturn:
    """Raise the error that says why this delivery neither runs nor replays."""
    if answer.closes:
        closed = ev.Held if answer.verdict is Verdict.HELD else ev.Parked
        call.notify(closed(call.key, answer.reason or _DIED))
    match answer.verdict:
        case Verdict.MISMATCH:
            refuse_mismatch(call, answer.fingerprint, known=True)
        case Verdict.HELD:
            if answer.closes:
                why = f": {answer.reason or _STOPPED}"
            else:
                said = answer.reason
                why = f"; its record says {_quoted(said)}" if said else f": {_UNKNOWN}"
            _refuse(
                call,
                HeldError(
                    f"outcome unknown{why}; an operator must find out what was done, then resolve or "
                    "release the key"
                ),
            )
        case Verdict.PARKED:
            last = f" (last error: {_quoted(answer.reason)})" if answer.reason else ""
            if answer.reason == NEVER_FINISHED or (answer.closes and not last):
                last = f" ({_DIED})"
            _refuse(
                call,
                ParkedError(
                    f"this key has used up its attempts (max_attempts={call.policy.max_attempts}){last}; "
                    "an operator must release or resolve it"
                ),
            )
        case Verdict.FORGOTTEN:
            _refuse(
                call,
                ResultUnavailableError(
                    "the work of this key is done, but its result was forgotten: an operator had it "
                    "erased; it is not run again"
                ),
            )
    refuse_busy(call, answer, waited=False)


def refuse_busy(call: Call, answer: Claimed | None, waited: bool = True) -> NoReturn:
    """`waited`: this delivery has waited as long as its policy says, unless the policy rejects."""
    if answer is not None and answer.verdict is Verdict.RESTING:
        hint = answer.wait / 1000
        text = f"the last attempt failed; the next one may start in {hint:.1f} s"
    else:
        if answer is None or not answer.locked:
            refuse_own_wait(call)
        # The lease is renewed while the handler runs, so its end is not a useful hint.
        hint = 0.5 if answer is None else min(1.0, answer.wait / 1000)
        text = "another delivery of this key is in progress"
        if answer is not None and answer.locked:
            text = "an open transaction holds this key (or, on SQLite, the database)"
        if waited and not call.policy.rejects:
            text += f" and did not end within wait={call.policy.wait:g} s"
    _refuse(call, _of_run(call, StillInProgressError(f"{text}; retry later", retry_after=hint)))


def compensated(key: Key, reason: str) -> CompensatedError:
    return CompensatedError(
        f"the run failed ({reason}), and what it had done was undone; it does not run again: use a new "
        "key for a new try",
        key=key,
        reason=reason,
    )


def refuse_suspended(call: Call, answer: Claimed) -> NoReturn:
    until = answer.now + answer.wait
    _refuse(call, _of_run(call, suspended(None if answer.wait >= ENDLESS else until)))


def suspended(until: int | None) -> SuspendedError:
    """`until`: by the store's clock; None: a signal ends it."""
    if until is None:
        return SuspendedError(
            "the run waits for a signal; send it with receiver.signal, then call again, or leave the "
            "run to the completer"
        )
    resume_at = moment(until)
    return SuspendedError(
        f"the run sleeps or waits until {resume_at:%Y-%m-%d %H:%M:%S} UTC; call again then, or leave "
        "it to the completer",
        resume_at=resume_at,
    )


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


def refuse_own_wait(call: Call, lease: float | None = None) -> None:
    """``lease``: of the claims that count; None: all do. A task that a handler left running has its claim still."""
    claim = active.get()
    while claim is not None:
        if claim.key.id == call.key.id and not claim._has_ended() and lease in (None, claim.lease):
            _refuse(
                call,
                StillInProgressError(
                    "the handler already runs under this key, and would wait for itself; for calls "
                    "inside the handler use current_key().derive(step)"
                ),
            )
        claim = claim.outer


def _of_run(
    call: Call, error: SuspendedError | StillInProgressError
) -> SuspendedError | StillInProgressError:
    """A durable function that called this one waits for it, and is not tried again."""
    if call.durable is not None:
        error._run = call.durable.home, call.key.id
    return error


def _refuse(call: Call, error: TwicesafeError) -> NoReturn:
    if call.observed:
        call.notify(ev.Refused(call.key, type(error).__name__))
    try:
        raise error.about(call.key)
    finally:
        # Its traceback holds this frame: together they would wait for the garbage collector.
        del error


def refuse_waiter(call: Call) -> NoReturn:
    _refuse(
        call,
        TooManyWaitersError(
            f"{call.policy.max_waiters} callers in this process already wait for this key "
            "(max_waiters); retry later"
        ),
    )
