"""The flows of sleeps and waits: short ones happen in place, under the lease; long ones suspend the run.

A sleep is due at a time by the store's clock, which is recorded when it begins. A wait ends with its signal,
which any process may send, or with its time-out.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from ..._values.context import MARGIN
from ..._values.steps import SIGNAL, Step, StepState
from ...errors import StepMismatchError, TwicesafeError
from ..commands import Flow, Raised, Reply, Returned, Sleep
from .run_requests import FOREVER, LoadRun, RecordStep, Run
from .run_state import RunState, Suspending
from .step_records import decoded, record

__all__ = ["TIMED_OUT", "others_first", "sleep", "wait"]

TIMED_OUT: Final = b""
"""The recorded result of a wait whose signal did not come. No codec returns it for a value."""

SIGNAL_POLL: Final = 0.25
"""Seconds after which a wait in place looks for its signal again; it begins with a tenth."""

BRANCH_POLL: Final = 0.02
"""Seconds for which no other branch may start a step before one that has to wait suspends the run."""


def sleep(state: RunState, name: str, seconds: float) -> Flow[Reply]:
    """Return when the sleep is over; a long one suspends the run."""
    known = state.enter(name, "sleep", b"")
    state.running[name] = None
    try:
        return (yield from _sleep(state, name, seconds, known))
    finally:
        state.running.pop(name, None)


def _sleep(state: RunState, name: str, seconds: float, known: Step | None) -> Flow[Reply]:
    due = state.store_now() + round(seconds * 1000)
    if known is None:
        yield from _open_or_last(state, name)
        yield from record(state, _waiting(state, name, "sleep", seconds))
    else:
        due = known.due_at
    left = (due - state.store_now()) / 1000
    if left <= 0:
        return Returned(None)
    yield from _open_or_last(state, name)
    if left > _longest_rest(state):
        yield from _leave(state, name, due)
    yield from _rest(state, name, left)
    return Returned(None)


def wait(state: RunState, name: str, timeout: float | None, declared: Any) -> Flow[Reply]:
    """The signal's value; None: it did not come in time. A long wait suspends the run."""
    known = state.enter(name, "wait", b"")
    name = SIGNAL + name
    state.running[name] = None
    try:
        known = yield from _wait(state, name, timeout, known)
    finally:
        state.running.pop(name, None)
    if known.result is None or known.result == TIMED_OUT:
        return Returned(None)
    try:
        return Returned(decoded(state, name, known.result, declared))
    except TwicesafeError as error:
        return Raised(error.about(state.claim.key))


def _wait(state: RunState, name: str, timeout: float | None, known: Step | None) -> Flow[Step]:
    if known is None:
        yield from _open_or_last(state, name)
        ask = _waiting(state, name, "wait", 0 if timeout is None else max(timeout, 0.001))
        known = (yield from _waited(state, ask)) or _as_step(ask, state, timeout)
    pause = SIGNAL_POLL / 10
    while known.state is not StepState.DONE:
        left = None if not known.due_at else (known.due_at - state.store_now()) / 1000
        yield from _open_or_last(state, name)
        if left is not None and left <= 0:
            over = replace(_waiting(state, name, "wait", 0), state=StepState.DONE, result=TIMED_OUT)
            return (yield from _waited(state, over)) or replace(
                known, state=StepState.DONE, result=TIMED_OUT
            )
        if left is None or left > _longest_rest(state):
            state.waits[name] = None
            yield from _leave(state, name, known.due_at or None)
        assert left is not None
        yield from _rest(state, name, min(left, pause))
        pause = min(pause * 1.5, SIGNAL_POLL)
        known = (yield from _loaded(state, name)) or known
    return known


def _longest_rest(state: RunState) -> float:
    """Seconds that the run may sleep or wait in place: its policy's `wait`, and not until its lease
    can no longer be renewed, because a lost claim would count as an attempt."""
    claim = state.claim
    end = claim.started + claim.max_lease * (1 - MARGIN)
    return min(state.policy.wait, end - claim.clock())


def _rest(state: RunState, name: str, seconds: float) -> Flow[None]:
    state.resting[name] = None
    state.running.pop(name, None)
    try:
        yield Sleep(seconds)
        state.running[name] = None
    finally:
        state.resting.pop(name, None)


def _leave(state: RunState, name: str, due: int | None) -> Flow[None]:
    """Suspend the run: end the function here, after its other branches."""
    state.suspends[name] = due
    try:
        yield from others_first(state, name)
        state.leaving = True
    finally:
        if not state.leaving:  # the function itself gave up, for example by `asyncio.timeout`
            state.suspends.pop(name, None)
            state.waits.pop(name, None)
    raise Suspending


def _open_or_last(state: RunState, name: str) -> Flow[None]:
    """`check_open`; but if the run is undone, other branches first come to what they have to undo."""
    if state.undoing:
        yield from others_first(state, name)
    state.check_open()


def others_first(state: RunState, name: str) -> Flow[None]:
    """What other branches of the function can do is done before this one ends it. Their next steps would
    have to wait, and a `TaskGroup` would cancel those that run."""
    state.running.pop(name, None)
    used = state.used if state.has_branches else None
    while used is not None and not state.leaving:
        yield Sleep(BRANCH_POLL)
        state.claim.check()  # others may have more to do, so the run must not sleep
        quiet = used == state.used and not state.running and not state.resting
        used = None if quiet else state.used


def _waiting(state: RunState, name: str, kind: str, seconds: float) -> RecordStep:
    claim = state.claim
    ask = RecordStep(claim.key.id, claim.owner, claim.fence, name, kind, StepState.WAITING)
    ask.delay = min(round(seconds * 1000), FOREVER)
    return ask


def _waited(state: RunState, ask: RecordStep) -> Flow[Step | None]:
    """Record that a wait began or ended. The step, if its signal came first."""
    try:
        yield from record(state, ask)
    except StepMismatchError:
        found = yield from _loaded(state, ask.name)
        if found is None or found.kind != ask.kind:
            raise
        return found
    return None


def _loaded(state: RunState, name: str) -> Flow[Step | None]:
    run: Run | None = yield LoadRun(state.claim.key.id)
    found = () if run is None else run.steps
    return next((step for step in found if step.name == name), None)


def _as_step(ask: RecordStep, state: RunState, timeout: float | None) -> Step:
    now = state.store_now()
    due = 0 if timeout is None else now + max(ask.delay, 1)
    return Step(ask.name, ask.kind, ask.state, ask.fence, 1, 0, False, now, now, due)
