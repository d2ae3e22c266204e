"""The flow of one tool call, as commands. It decides; `_edges.tool_guard` performs.

    approve    only if the rule asks for it: has a person said yes to exactly these arguments? The approval
               is a separate durable run, which is suspended until the signal comes
    claim      replay | refuse | run; a held key is looked up by the rule's probe first
    run        how the tool ends decides how the key ends:

    the tool …                                          the key is                  the model gets
    returns                                             completed                   its result
    returns an error, or asks the client for input      withdrawn                   that
    raises `NotDone`                                    withdrawn                   its reason
    raises another error that means "nothing was done"  withdrawn                   that error
    raises an error that the policy remembers           failed                      that error
    raises anything else, takeover="retry"              released after a back-off   that error
    raises anything else, takeover="hold"               held, then looked up        unknown, or the result
    is cancelled or killed                              held or released, as above  nothing

To *withdraw* a claim leaves no trace of its arguments: the model may correct them, and the corrected call
is not a mismatch.

A probe's decision carries the fence of the record that it was made about. If the key was released, run or
resolved meanwhile, the store refuses the decision, and the flow looks again.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from ..._values.keys import Key
from ..._values.records import Record, State
from ..._values.settings import seconds
from ..._values.steps import StepState
from ...errors import (
    ConfigurationError,
    FingerprintMismatchError,
    HeldError,
    ResultError,
    SuspendedError,
    TwicesafeError,
    UsageError,
    text_of,
)
from ..durable.run_state import LONGEST_NAME
from ..http.flow import CompleteClaim, EnterClaim, HoldClaim, LeaveClaim, Log
from .answers import ToolAnswer, answer_to
from .identity import approval_key
from .rule import Done, NotDone, ToolCall, ToolRule
from .statements import Statement, chain_of, remembered, says_not_done

__all__ = [
    "APPROVAL",
    "REFUSED",
    "Approval",
    "Ask",
    "AskAgain",
    "CallClaim",
    "LookUp",
    "Now",
    "Open",
    "Ran",
    "ReleaseHeld",
    "ResolveHeld",
    "RunTool",
    "ToolFlow",
    "Withdraw",
    "call_tool",
]

T = TypeVar("T")
ToolFlow: TypeAlias = Generator[Any, Any, T]

BY: Final = "twicesafe probe"
"""Who decided, in the audit trail of a key that a probe resolved or released."""

APPROVAL: Final = "approval"
"""The signal by which a person says yes or no."""

REFUSED: Final = "refused"
"""A step of an approval to which a person said no, so that its record tells it."""

LOOKS: Final = 5
"""How often one call looks at a key that others change meanwhile."""

_MARK: Final = "twicesafe.tool"


class CallClaim(Protocol):
    """What the flow reads from a claim."""

    @property
    def is_new(self) -> bool: ...
    @property
    def result(self) -> Any: ...
    @property
    def key(self) -> Key: ...


# --- commands, besides those of `http.flow` --------------------------------------------------


class Open(msgspec.Struct, frozen=True):
    """Reply: a claim of the call's key; not entered yet."""


class Approval(msgspec.Struct, frozen=True):
    """Run or resume the approval: a durable run that waits for a person's signal.

    Reply: the value of the signal. Throws `SuspendedError`: no answer has come yet.
    """

    key: Key
    asked: str
    """What the person is asked; the name of the run's first step."""


class AskAgain(msgspec.Struct, frozen=True):
    """Drop an approval that is too old, if its record still has this fence."""

    key: Key
    fence: int


class RunTool(msgspec.Struct, frozen=True):
    """Call the tool. Reply: `Ran`. Throws what the tool raises."""


class Withdraw(msgspec.Struct, frozen=True):
    """Nothing was done: give the claim back, and keep nothing of what it was for."""

    claim: Any


class LookUp(msgspec.Struct, frozen=True):
    """Reply: the record of a key, or None."""

    key: Key


class Now(msgspec.Struct, frozen=True):
    """Reply: the time, as a datetime."""


class Ask(msgspec.Struct, frozen=True):
    """Ask the rule's probe. Reply: what it returns."""

    call: ToolCall


class ResolveHeld(msgspec.Struct, frozen=True):
    """Record the answer, if the record still has this fence."""

    key: Key
    fence: int
    value: Any
    by: str


class ReleaseHeld(msgspec.Struct, frozen=True):
    """Let the next call run, if the record still has this fence."""

    key: Key
    fence: int
    by: str
    why: str


class Ran(msgspec.Struct, frozen=True):
    """The tool has returned."""

    result: Any
    """The framework's own object."""
    recorded: Any
    """What is kept of it: plain data."""
    is_final: bool = True
    """False: the result says that nothing was done."""


# --- the flow --------------------------------------------------------------------------------


def call_tool(
    rule: ToolRule,
    call: ToolCall,
    states: Statement,
    remember: tuple[type[BaseException], ...] = (),
    wrappers: tuple[str, ...] = (),
) -> ToolFlow[ToolAnswer]:
    """One call, from its key to its answer. Raises what the tool raised, if nothing was done.

    ``states``: the errors by which a tool of this framework says that nothing was done.
    ``wrappers``: the packages that wrap what a tool raises.
    """
    try:
        ended = yield from _called(rule, call, states, remember, wrappers)
    except ConfigurationError:
        raise
    except TwicesafeError as error:
        return answer_to(error, call.tool)
    if isinstance(ended, Exception):
        raise ended
    return ended


def _called(
    rule: ToolRule,
    call: ToolCall,
    states: Statement,
    remember: tuple[type[BaseException], ...],
    wrappers: tuple[str, ...],
) -> ToolFlow[ToolAnswer | Exception]:
    has_run = is_approved = False
    for _ in range(LOOKS):
        if rule.approval and not is_approved and not (yield from _was_started(call)):
            refused = yield from _approval(rule, call)
            if refused is not None:
                return refused
            is_approved = True
        claim: CallClaim = yield Open()
        try:
            yield EnterClaim(claim)
        except HeldError as error:
            answer = yield from _look_up(rule, call, error, has_run=has_run)
            if answer is not None:
                return answer
            continue
        if not claim.is_new:
            return _replayed(call, claim.result)
        if rule.approval and not is_approved:  # its record ended or expired while we looked
            yield Withdraw(claim)
            continue
        ended = yield from _run(rule, call, claim, states, remember, wrappers)
        if ended is not None:
            return ended
        has_run = True
    return ToolAnswer(state="running", tool=call.tool, key=call.key, retry_after=1.0)


def _run(
    rule: ToolRule,
    call: ToolCall,
    claim: CallClaim,
    states: Statement,
    remember: tuple[type[BaseException], ...],
    wrappers: tuple[str, ...],
) -> ToolFlow[ToolAnswer | Exception | None]:
    """The tool under its claim. An error: the tool raised it. None: unknown, and the key is held."""
    unknown = ToolAnswer(state="unknown", tool=call.tool, key=call.key)
    try:
        ran: Ran = yield RunTool()
    except Exception as error:
        if says_not_done(error, (*rule.not_done, NotDone), states):
            yield Withdraw(claim)
            stated = next((one for one in chain_of(error) if isinstance(one, NotDone)), None)
            if stated is None:
                return error
            why = text_of(stated) or "it gave no reason"
            return ToolAnswer(state="not_done", tool=call.tool, key=call.key, reason=why)
        final = remembered(error, remember, wrappers)
        if rule.takeover == "retry" or final is not None:
            yield LeaveClaim(claim, final or error)
            return error
        yield Log("warning", f"{call.tool}: outcome unknown, key {call.key.short} is held", error)
        try:
            *_, first = chain_of(error)  # frameworks wrap what the tool raised
            yield HoldClaim(claim, type(first).__qualname__)
        except TwicesafeError as failed:  # its lease ends, and then it is held
            yield Log("error", f"{call.tool}: not recorded as held yet: {text_of(failed)}")
            return unknown
        return None
    done = ToolAnswer(state="done", tool=call.tool, result=ran.result, key=call.key)
    if not ran.is_final:
        yield Withdraw(claim)
        return done
    now = yield Now()
    try:
        yield CompleteClaim(claim, recorded(ran.recorded, now))
    except ResultError as error:
        yield Log("warning", f"{call.tool} is done, but repeats get no result: {text_of(error)}")
    except TwicesafeError as error:
        yield Log(
            "error", f"{call.tool} has run, and that is not on record: {text_of(error)}", error
        )
        return unknown
    yield LeaveClaim(claim)
    return done


# --- an unknown outcome ----------------------------------------------------------------------


def _look_up(
    rule: ToolRule, call: ToolCall, error: HeldError, *, has_run: bool
) -> ToolFlow[ToolAnswer | None]:
    """Verify before retry. None: it is decided, so ask the store again."""
    unknown = answer_to(error, call.tool)
    if rule.probe is None:
        return unknown
    try:
        record: Record | None = yield LookUp(call.key)
        if record is None or record.state is not State.HELD:
            return None
        found = yield Ask(call)
        now = yield Now()
        if isinstance(found, Done):
            value = recorded(found.result, now)
            yield from _decide(ResolveHeld(call.key, record.fence, value, BY))
            return None
        if not isinstance(found, NotDone):
            if found is not None:
                yield Log("warning", f"{call.tool}: {_misread(found)}")
            return unknown
        wait = seconds(rule.settles_within) - (now - record.changed_at).total_seconds()
        if wait > 0:
            unknown.retry_after = wait
            return unknown
        why = text_of(found) or "the probe says that it did not happen"
        yield from _decide(ReleaseHeld(call.key, record.fence, BY, why))
    except Exception as failed:  # of the probe, or of the store: nothing is decided
        yield Log("warning", f"{call.tool}: could not look it up: {text_of(failed)}", failed)
        return unknown
    if has_run:  # once per call: the model decides about the next one
        return ToolAnswer(state="not_done", tool=call.tool, key=call.key, reason=why)
    return None


def _misread(found: object) -> str:
    kind = found if isinstance(found, type) else type(found)
    what = "the class" if isinstance(found, type) else "a value of type"
    return (
        f"the probe returned {what} {kind.__qualname__}, so the outcome stays unknown; return Done(…), "
        "NotDone(…), or None if it is unknown"
    )


def _decide(command: ResolveHeld | ReleaseHeld | AskAgain) -> ToolFlow[None]:
    """If another decision, or the tool itself, was quicker, the store refuses: the flow looks again."""
    with suppress(UsageError):
        yield command


# --- approval --------------------------------------------------------------------------------


def _was_started(call: ToolCall) -> ToolFlow[bool]:
    """Whether the call has run or runs, so that it was approved before."""
    record: Record | None = yield LookUp(call.key)
    return record is not None and record.state is not State.RELEASED


def _approval(rule: ToolRule, call: ToolCall) -> ToolFlow[ToolAnswer | None]:
    """None: a person has said yes to exactly these arguments, not longer ago than the retention.

    Other arguments than those that a person refused are a question of their own, in the next round.
    """
    round_, looks, key = 0, 0, approval_key(call.key)
    while looks < LOOKS:
        try:
            said = yield Approval(key, _question(call))
        except SuspendedError:
            break
        except FingerprintMismatchError:
            asked: Record | None = yield LookUp(key)
            if asked is None or all(step.name != REFUSED for step in asked.steps):
                raise
            round_ += 1
            key = approval_key(call.key, round_)
            continue
        looks += 1
        # An older one may belong to a run whose record is gone: one yes is for one run.
        record: Record | None = yield LookUp(key)
        now = yield Now()
        if record is None:
            continue
        if (now - _said_at(record)).total_seconds() >= seconds(rule.retention):
            yield from _decide(AskAgain(key, record.fence))
            continue
        if said is True:
            return None
        reason = said if isinstance(said, str) and said else "no reason was given"
        return ToolAnswer(state="refused", tool=call.tool, key=key, reason=reason)
    return ToolAnswer(state="waiting", tool=call.tool, key=key)


def _question(call: ToolCall) -> str:
    """What operators see, as the name of a step: the tool and its arguments, cut if they are long."""
    try:
        shown = msgspec.json.encode(call.arguments, enc_hook=str)
    except (ValueError, TypeError):  # half a character, for example: models cut them
        try:
            shown = ascii(call.arguments).encode()
        except ValueError:  # a number of thousands of digits: the names alone
            shown = ascii(list(call.arguments)).encode()
    text = f"approve {call.tool} ".encode() + shown
    return text[:LONGEST_NAME].decode(errors="ignore")


def _said_at(record: Record) -> datetime:
    """When the signal came; or when an operator resolved the approval."""
    came = (
        step.changed_at
        for step in record.steps
        if step.name == APPROVAL and step.state is StepState.DONE
    )
    return next(came, record.changed_at)


# --- what is recorded ------------------------------------------------------------------------


def recorded(result: Any, now: datetime) -> dict[str, Any]:
    """The value of a completed key. An operator may record any other value in its place."""
    return {_MARK: 1, "at": now.astimezone(UTC).isoformat(timespec="seconds"), "result": result}


def _replayed(call: ToolCall, value: Any) -> ToolAnswer:
    answer = ToolAnswer(state="replayed", tool=call.tool, key=call.key, result=value)
    if isinstance(value, dict) and _MARK in value:
        answer.result, answer.at = value.get("result"), value.get("at")
    return answer
