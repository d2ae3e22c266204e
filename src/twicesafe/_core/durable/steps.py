"""The flow of a step that runs a function. One fenced write per step.

    recorded            the recorded result is the answer; nothing runs
    new                 run it, record it, return it
    started, no result  (a probe or ``hold``) ask the probe; without one, ``hold`` holds the run

A flow returns a reply, and its caller raises or returns it. Inside a generator a `StopIteration` of the
user's function would change its meaning.

Most steps take the fast path, `take_fast`, as in `delivery`: plain calls of the functions that the
flow calls, in the same order. A step takes it if nothing is recorded about it, and if it has no
transaction, probe, time-out or ``hold``. If its function raises, or the store does not record it,
the flow continues from there.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from ... import events as ev
from ..._values.keys import chance
from ..._values.records import Cause
from ..._values.steps import Step, StepState
from ...errors import (
    AtomicityBrokenError,
    HeldError,
    LeaseLostError,
    NotStorableError,
    ResultError,
    ResultUnavailableError,
    StoreError,
    SuspendedError,
    TwicesafeError,
    UsageError,
    text_of,
)
from ..commands import (
    AsyncPerformer,
    Detach,
    Flow,
    Invoke,
    Performer,
    Raised,
    Reply,
    Returned,
    Sleep,
)
from ..driving import drive, drive_async
from ..protocol import Ack
from ..unkept_results import because
from .run_requests import RecordStep
from .run_state import FAILURE, UNDO, RunState, StepCall
from .step_records import ask_of, decoded, encoded, record
from .transaction_step import in_transaction
from .waits import others_first

__all__ = ["find_out", "take", "take_fast", "take_fast_async"]

_OK: Final = Ack.OK
_DONE: Final = StepState.DONE

RAISED: Final = b"raised"
"""In place of the result of a step that was started and raised."""

_NO_USE: Final = (SuspendedError, LeaseLostError, UsageError, AtomicityBrokenError)
"""Errors of a step that trying it again at once cannot help."""


def take(state: RunState, call: StepCall) -> Flow[Reply]:
    """Run a step, or return its recorded result."""
    return (yield from _entered(state, call, state.enter(call.name, call.kind, call.fingerprint)))


def _entered(state: RunState, call: StepCall, known: Step | None) -> Flow[Reply]:
    if known is not None and known.state is StepState.DONE:
        return _recorded(state, call, known)
    # With a time-out the rest of a blocking step runs in a thread, which cannot be stopped. The run
    # continues when the time is over, and waits for that thread before it ends.
    if call.options.timeout is not None:
        ending = _to_its_end(state, call, known)
        return (yield Detach(ending, call.options.timeout, None))  # type: ignore[no-any-return]
    return (yield from _to_its_end(state, call, known))


def take_fast(state: RunState, call: StepCall, run: Performer) -> Reply:
    """The fast path: `drive(take(state, call), run.perform)`, in less time."""
    known = state.enter(call.name, call.kind, call.fingerprint)
    if known is not None or not _is_plain(state, call):
        return drive(_entered(state, call, known), run.perform)
    state.running[call.name] = None
    try:
        state.check_open()
        state.answered.add(call.name)
        began = state.claim.clock()
        reply = run.invoke(state.step_claim(call.name), state.traced(call.name, call.run))
        if type(reply) is Raised:
            return drive(_to_its_end(state, call, None, reply), run.perform)
        ask, problem = _prepare(state, call, reply.value, 1)
        try:
            ack = run.record(ask)
        except Exception as error:
            ack = error
        refused = None if ack is _OK else drive(record(state, ask, ack), run.perform)
        return _conclude(state, call, reply, ask, began, problem, refused)
    finally:
        state.running.pop(call.name, None)


async def take_fast_async(state: RunState, call: StepCall, run: AsyncPerformer) -> Reply:
    """The async version of `take_fast`."""
    known = state.enter(call.name, call.kind, call.fingerprint)
    if known is not None or not _is_plain(state, call):
        return await drive_async(_entered(state, call, known), run.perform)
    state.running[call.name] = None
    try:
        state.check_open()
        state.answered.add(call.name)
        began = state.claim.clock()
        reply = await run.invoke(state.step_claim(call.name), state.traced(call.name, call.run))
        if type(reply) is Raised:
            return await drive_async(_to_its_end(state, call, None, reply), run.perform)
        ask, problem = _prepare(state, call, reply.value, 1)
        try:
            ack = await run.record(ask)
        except Exception as error:
            ack = error
        refused = None if ack is _OK else await drive_async(record(state, ask, ack), run.perform)
        return _conclude(state, call, reply, ask, began, problem, refused)
    finally:
        state.running.pop(call.name, None)


def _is_plain(state: RunState, call: StepCall) -> bool:
    """A new step that needs no mark, and runs in its caller's own thread."""
    if state.undoing or state.holds or call.transaction is not None:
        return False
    return call.probe is None and call.options.timeout is None


def _to_its_end(
    state: RunState, call: StepCall, known: Step | None, raised: Raised | None = None
) -> Flow[Reply]:
    """`raised`: how the first try ended, in `take_fast`."""
    state.running[call.name] = None
    try:
        marks = call.transaction is None and (state.holds or call.probe is not None)
        if raised is None:
            if state.undoing:
                _look_back(state, call, known)
                yield from others_first(state, call.name)
            state.check_open()
            state.answered.add(call.name)  # how it ends is seen in this attempt
            if marks or (known is not None and call.transaction is None):
                found = yield from _marked(state, call, known)
                if found is not None:
                    return found
                state.check_open()  # marking took time
        attempt = 1
        while True:
            reply: Reply
            if raised is not None:
                reply, raised = raised, None
            elif call.transaction is not None:  # all of it is recorded, or none
                reply = yield from in_transaction(state, call, attempt)
                if isinstance(reply, Returned):
                    return reply
            else:
                began = state.claim.clock()
                run = state.traced(call.name, call.run)
                reply = yield Invoke(state.step_claim(call.name), run, call.options.timeout)
                if isinstance(reply, Returned):
                    return (yield from _keep(state, call, reply.value, attempt, began))
            unknown = marks and _is_unknown(reply.error)
            may_retry = _may_retry(reply.error) and not (unknown and call.probe is None)
            if attempt >= call.options.attempts or not may_retry:
                if unknown:
                    state.doubt(call, f"it ended with a {type(reply.error).__name__}")
                elif marks and isinstance(reply.error, Exception):
                    yield from _note_raised(state, call)
                return reply
            if unknown:  # also if the caller is cancelled meanwhile
                state.doubt(call, f"it ended with a {type(reply.error).__name__}")
            yield Sleep(call.options.backoff.delay(attempt, chance(state.claim.owner, attempt)))
            state.check_open()  # so did the back-off
            if unknown:
                state.in_doubt.pop(call.name, None)
                state.answered.add(call.name)
                found = yield from _asked(state, call)
                if found is not None:
                    return found
            attempt += 1
    finally:
        state.running.pop(call.name, None)


def _recorded(state: RunState, call: StepCall, known: Step) -> Reply:
    if state.observed:
        state.notify(ev.StepReplayed(state.claim.key, call.name))
    if known.result is None:
        state.register(call, known.position, None, None, is_known=False)
        return Raised(
            ResultUnavailableError(
                f"the step {call.name!r} is done, but its result was not kept; it is not run again; "
                "restart the run, or resolve it",
                key=state.claim.key,
            )
        )
    try:
        value = decoded(state, call.name, known.result, call.declared)
    except TwicesafeError as error:
        return Raised(error.about(state.claim.key))
    state.register(call, known.position, value, known.result)
    return Returned(value)


def _marked(state: RunState, call: StepCall, known: Step | None) -> Flow[Reply | None]:
    """A step with a mark of its start: did a worker die in it? Else mark it. None: run it."""
    if known is not None and known.result != RAISED:  # its worker did not record how it ended
        return (yield from _probed(state, call))
    if state.holds or call.probe is not None:  # else an earlier version of the code marked it
        yield from record(state, ask_of(state, call, StepState.STARTED))
    return None


def _look_back(state: RunState, call: StepCall, known: Step | None) -> None:
    """The run is undone, and this step has no result: may a worker have died in it, after its effect?

    A step with a probe, or under ``hold``, that has no mark was not started. After the failure is
    recorded, the same is true of every step: those in doubt were marked before.
    """
    name = call.name
    marks = state.holds or call.probe is not None or FAILURE in state.recorded
    if call.transaction is not None or state.ended or UNDO + name in state.recorded:
        return
    if marks if known is None else known.result == RAISED:
        return
    state.doubt(call, "the worker stopped in this step")


def find_out(state: RunState, call: StepCall) -> Flow[BaseException | None]:
    """Ask the probe of a step in doubt, before the run is undone. Without an answer it stays in doubt, and
    the run is parked (`compensation`). Returns an interrupt."""
    if call.probe is None:
        return None
    state.claim.check()
    reply = yield from _asked(state, call)
    if isinstance(reply, Raised) and call.name not in state.undos:
        return None if isinstance(reply.error, Exception) else reply.error
    state.in_doubt.pop(call.name)
    state.answered.add(call.name)
    return None


def _note_raised(state: RunState, call: StepCall) -> Flow[None]:
    """The step's own exception means that it failed, so the next attempt may run it."""
    try:
        yield replace(ask_of(state, call, StepState.STARTED), result=RAISED, undo=False)
    except StoreError:
        return  # its outcome stays unknown


def _is_unknown(error: BaseException) -> bool:
    """Whether the step may have happened: it was cut off by a time-out, or cancelled, for example by a
    `TaskGroup`. Any other error means that it failed."""
    return isinstance(error, (TimeoutError, LeaseLostError)) or not isinstance(error, Exception)


def _may_retry(error: BaseException) -> bool:
    """Whether to try the step again in this attempt of the run."""
    return isinstance(error, Exception) and not isinstance(error, _NO_USE)


def _probed(state: RunState, call: StepCall) -> Flow[Reply | None]:
    """Did it happen? None: it did not, run it."""
    if call.probe is None:
        if not state.holds:
            return None  # an earlier version of the code had a probe
        if state.claim.cause is Cause.OPERATOR:  # released: it did not happen, so it may run
            yield from record(state, ask_of(state, call, StepState.STARTED))
            return None
        state.held_by = HeldError(
            f"outcome unknown: the worker stopped in the step {call.name!r} (takeover='hold'); find out "
            "what was done, then release or resolve the run; or give the step a probe",
            key=state.claim.key,
        )
        raise state.held_by
    return (yield from _asked(state, call))


def _asked(state: RunState, call: StepCall) -> Flow[Reply | None]:
    """What the probe answers. None: it did not happen. Else the result, which is recorded; or its error."""
    assert call.probe is not None
    reply: Reply = yield Invoke(state.step_claim(call.name), call.probe, call.options.timeout)
    if isinstance(reply, Returned):
        found = reply.value
        if found is None:
            return None
        if isinstance(found, tuple) and len(found) == 1:
            return (yield from _keep(state, call, found[0], 1, state.clock()))
        reply = Raised(
            UsageError(
                f"the probe of the step {call.name!r} returned a {type(found).__name__}: return None if the "
                "step did not happen, or a tuple with its result: (result,)",
                key=state.claim.key,
            )
        )
    text = f"{type(reply.error).__qualname__}: {text_of(reply.error)}"
    state.doubt(call, f"its probe failed ({text})")
    return reply


def _keep(state: RunState, call: StepCall, value: Any, attempt: int, began: float) -> Flow[Reply]:
    """Record the result. One that cannot be kept is an error, although the step is done."""
    ask, problem = _prepare(state, call, value, attempt)
    refused = yield from record(state, ask)
    return _conclude(state, call, Returned(value), ask, began, problem, refused)


def _prepare(
    state: RunState, call: StepCall, value: Any, attempt: int
) -> tuple[RecordStep, ResultError | None]:
    """The request that records the step with this value; if that is impossible, without it, and the error."""
    result: bytes | None = None
    problem: ResultError | None = None
    try:
        result = encoded(state, call, value)
    except ResultError as error:
        problem = error.about(state.claim.key)
    return ask_of(state, call, _DONE, result, attempt, state.next_position()), problem


def _conclude(
    state: RunState,
    call: StepCall,
    reply: Returned,
    ask: RecordStep,
    began: float,
    problem: ResultError | None,
    refused: Exception | None,
) -> Reply:
    """The step is recorded. `problem`, `refused`: why it was recorded without its result."""
    if call.undo is not None:
        state.register(call, ask.position, reply.value, ask.result)
    if state.observed:
        state.recorded_step(call.name, call.kind, ask.attempt, began)
    if problem is None:
        if refused is None:
            return reply
        problem = NotStorableError(
            f"the result was refused by the store ({refused})",
            key=state.claim.key,
            value=reply.value,
        )
    done = f"the step {call.name!r} is done and recorded, but without its result: "
    return Raised(because(problem, done, "; it is not run again"))
