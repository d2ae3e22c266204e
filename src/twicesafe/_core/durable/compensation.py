"""Undoing a run: record its failure, then run every recorded undo in reverse, each until it succeeds.

Each undo is a recorded step, so after a crash the next worker continues where this one stopped. To learn
what there is to undo, it replays the function. Recorded steps answer at once and name their undos
again, and the first step that is not recorded ends the replay. No forward step runs beside an undo.

An undo has the policy's attempts. One that keeps failing parks the run; `release` continues with it. An
undo that calls a durable function that has not ended suspends the run.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

import msgspec

from ... import events as ev
from ..._values.keys import chance
from ..._values.records import State
from ..._values.steps import StepState
from ...errors import (
    CompensatedError,
    CompensationFailedError,
    LeaseLostError,
    SuspendedError,
    TwicesafeError,
    text_of,
)
from ..call import Call
from ..commands import Flow, Invoke, Raised, Reply, Sleep
from ..duplicates import compensated
from ..encrypting import encrypted, encrypted_step, readable_step
from ..observing import failed
from ..outcome_recording import OutcomeRecording, retry_until_recorded
from ..protocol import Ack, Complete
from .run_requests import FOREVER, WITHOUT_LIMIT, FailRun, RecordStep
from .run_state import FAILURE, UNDO, RunState, Undo, Unwind, parts_of
from .run_suspension import is_unfinished, suspend
from .step_records import ask_of, decoded, record
from .steps import find_out

__all__ = ["undo_all"]

EXHAUSTED: Final = "its attempts (max_attempts) were used up"


def undo_all(call: Call, state: RunState, reply: Reply) -> Flow[Raised]:
    """Undo what was done, and remember that. The reply is the error for the caller."""
    if call.observed:
        state.claim.ended = call.clock()
    astray = _astray(state, reply)
    if astray is not None and not isinstance(astray, Exception):  # the next worker continues
        yield from _fail(call, state, type(astray).__qualname__, WITHOUT_LIMIT)
        return Raised(astray)
    if astray is not None:
        text = (
            f"the code did not come to where the worker stopped ({type(astray).__qualname__}: "
            f"{text_of(astray)}), so what it was doing is unknown"
        )
        step = getattr(astray, "step", "")
        return (yield from _park(call, state, step, text, EXHAUSTED, astray))
    for doubtful, _ in list(state.in_doubt.values()):
        interrupt = yield from find_out(state, doubtful)
        if interrupt is not None:  # the next worker continues
            yield from _fail(call, state, type(interrupt).__qualname__, WITHOUT_LIMIT)
            return Raised(interrupt)
        if doubtful.name in state.in_doubt and doubtful.name not in state.recorded:
            # Marked before the failure: see `steps`.
            yield from record(state, ask_of(state, doubtful, StepState.STARTED))
    reason, cause = yield from _recorded_failure(call, state, reply)
    for step, why in state.doubtful().items():
        text = f"{why}: whether it happened is unknown; find out, then skip it, or give it a probe"
        return (yield from _park(call, state, step, text, reason, cause))
    missing = state.unregistered()
    if missing:
        text = f"the code has no undo for the recorded step {missing[0]!r}"
        return (yield from _park(call, state, missing[0], text, reason, cause))
    for undo in sorted(state.undos.values(), key=lambda each: -each.position):
        known = state.recorded.get(UNDO + undo.step)
        if known is not None and known.state is StepState.DONE:
            continue
        failure = yield from _undo(call, state, undo)
        if failure is None:
            continue
        if not isinstance(failure, Exception):
            # Cancelled or interrupted: the next worker continues.
            yield from _fail(call, state, type(failure).__qualname__, WITHOUT_LIMIT)
            return Raised(failure)
        if is_unfinished(failure):
            return (yield from suspend(call, state, [failure]))
        text = f"{type(failure).__qualname__}: {text_of(failure)}"
        return (yield from _park(call, state, undo.step, text, reason, failure))
    return (yield from _remember(call, state, reason, cause))


def _astray(state: RunState, reply: Reply) -> BaseException | None:
    """The error that ended the first replay after crashes, before it came to a step without a record."""
    if not state.undoing or FAILURE in state.recorded or not isinstance(reply, Raised):
        return None
    expected = (Unwind, SuspendedError)
    return next((p for p in parts_of(reply.error) if not isinstance(p, expected)), None)


def _recorded_failure(
    call: Call, state: RunState, reply: Reply
) -> Flow[tuple[str, BaseException | None]]:
    """Why the run is undone: the reason that was recorded first, and the error if it is this one's."""
    known, id_, cipher = state.recorded.get(FAILURE), state.claim.key.id, call.policy.cipher
    if known is not None:
        return readable_step(cipher, id_, FAILURE, known.result or b"").decode(), None
    error = reply.error if isinstance(reply, Raised) else None
    if error is not None and all(isinstance(part, Unwind) for part in parts_of(error)):
        error = None
    if state.aborted is not None:
        reason = state.aborted
    elif error is not None and not state.undoing:
        reason = f"{type(error).__qualname__}: {text_of(error)}"
    else:
        reason, error = EXHAUSTED, None
    claim = state.claim
    ask = RecordStep(claim.key.id, claim.owner, claim.fence, FAILURE, "failure")
    ask.result = encrypted_step(cipher, id_, FAILURE, reason.encode())
    ask.position = state.next_position()
    yield from record(state, ask)
    state.undoing = True
    return reason, error


def _undo(call: Call, state: RunState, undo: Undo) -> Flow[BaseException | None]:
    """None: it is undone and recorded. Else the error of the last attempt."""
    name, policy, claim = UNDO + undo.step, call.policy, state.claim
    if not undo.is_known:
        return CompensationFailedError(
            "the result of the step was not kept, so its undo lacks its argument"
        )
    attempt = 0
    while True:
        attempt += 1
        began = call.clock()
        run = state.traced(name, functools.partial(undo.function, _value_of(state, undo)))
        reply: Reply = yield Invoke(state.step_claim(name), run)
        if not isinstance(reply, Raised):
            break
        if not isinstance(reply.error, Exception) or is_unfinished(reply.error):
            return reply.error
        claim.check()  # a lost claim is not a failure of the undo: the next worker continues
        if attempt >= policy.max_attempts:
            return reply.error
        yield Sleep(policy.backoff.delay(attempt, chance(claim.owner, attempt)))
        claim.check()
    ask = RecordStep(claim.key.id, claim.owner, claim.fence, name, "undo")
    ask.attempt, ask.position, ask.result = attempt, state.next_position(), b""
    yield from record(state, ask)
    state.recorded_step(name, "undo", attempt, began)
    return None


def _value_of(state: RunState, undo: Undo) -> Any:
    """The result of the step, as a resumed run would get it."""
    if undo.result is not None:
        with contextlib.suppress(TwicesafeError):
            return decoded(state, undo.step, undo.result, undo.declared)
    return undo.value


def _remember(
    call: Call, state: RunState, reason: str, cause: BaseException | None
) -> Flow[Raised]:
    """All is undone: `CompensatedError` is the answer from now on."""
    claim, name = state.claim, CompensatedError.__name__
    payload = msgspec.json.encode({"type": name, "message": reason})
    payload = encrypted(call.policy.cipher, claim.key, State.FAILED, payload)
    claim.ending = True
    ask = Complete(
        claim.key.id,
        claim.owner,
        claim.fence,
        call.policy.retention_ms,
        payload,
        State.FAILED,
        name,
    )
    ack: Ack | None
    sent = call.clock()
    try:
        ack = yield ask
    except Exception as failure:
        recording = OutcomeRecording(claim, ask, failure, sent)
        yield from retry_until_recorded([recording], call.clock)
        ack = recording.answer(call)
    claim.settled = True
    if ack is not Ack.OK:
        call.notify(ev.LeaseLost(call.key))
        raise LeaseLostError(
            "all was undone, but another worker took the run over before this was recorded",
            key=call.key,
        )
    if call.observed:
        failed(call, claim, name, True)
        call.notify(ev.Compensated(call.key, len(state.undos)))
    error = compensated(call.key, reason)
    error.__cause__ = cause
    return Raised(error)


def _park(
    call: Call, state: RunState, step: str, text: str, reason: str, cause: BaseException | None
) -> Flow[Raised]:
    yield from _fail(call, state, CompensationFailedError.__name__, state.claim.attempt)
    call.notify(ev.Parked(call.key, CompensationFailedError.__name__))
    error = CompensationFailedError(
        f"the run failed ({reason}), and the step {step!r} could not be undone ({text}); an operator "
        "must remove the cause and release the run, which continues the undo, or resolve it",
        key=call.key,
        step=step,
        reason=reason,
    )
    error.__cause__ = cause
    return Raised(error)


def _fail(call: Call, state: RunState, error: str, max_attempts: int) -> Flow[Any]:
    claim = state.claim
    claim.over = True
    state.goes_on = max_attempts > claim.attempt
    ask = FailRun(claim.key.id, claim.owner, claim.fence, 0, max_attempts, FOREVER, error)
    try:
        yield ask
    except Exception as failure:  # the lease expires, and another worker continues
        call.notify(ev.StoreFailed(call.key, ask.op, type(failure).__name__))
    claim.settled = True
