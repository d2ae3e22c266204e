"""The flows of the completer and of operators: find due runs, park those without code, send signals,
and skip a step that cannot be done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..._values.keys import Key, new_owner
from ..._values.records import Row, State
from ..._values.steps import StepState
from ...errors import StoreUnavailableError, UsageError
from ..call import Call
from ..commands import Flow
from ..delivery import ask_again
from ..operations import check_limit, check_operator, operate
from ..protocol import Claimed, Read, Release, Verdict
from ..resolved_policy import ResolvedPolicy
from .run_requests import (
    FOREVER,
    Due,
    DueRun,
    FailRun,
    FindDue,
    LoadRun,
    RecordStep,
    Run,
    Signal,
    StartRun,
    Submit,
    Suspend,
)
from .run_state import FAILURE, UNDO

__all__ = ["MOST", "find_due", "park_unusable", "send_signal", "skip_step", "submit"]

MOST: Final = 100
"""Runs that one look finds."""


def find_due(limit: int, pause: int, functions: Iterable[str]) -> Flow[list[DueRun]]:
    """Up to `limit` runs that are due. Looking moves on those that are not, so it may take several."""
    check_limit(limit)
    found: list[DueRun] = []
    known = tuple(functions)
    while len(found) < limit:
        due: Due = yield FindDue(min(MOST, limit - len(found)), pause, known)
        found += due.runs
        if not due.more:
            break
    return found


def park_unusable(run: DueRun, policy: ResolvedPolicy, why: str) -> Flow[bool]:
    """Park a run whose code is gone, or whose arguments it does not take. True: it is parked now."""
    key, owner = run.key, new_owner()
    answer: Claimed = yield StartRun(
        key,
        owner,
        policy.lease_ms,
        policy.max_attempts,
        function=run.function,
        arguments=run.arguments,
    )
    if answer.verdict is Verdict.WON:
        yield FailRun(key.id, owner, answer.fence, 0, answer.attempt, FOREVER, why[:200])
    return answer.verdict in (Verdict.WON, Verdict.PARKED)


def submit(call: Call, ask: Submit) -> Flow[Claimed]:
    sent = call.clock()
    try:
        return (yield ask)  # type: ignore[no-any-return]
    except StoreUnavailableError as error:
        return (yield from ask_again(call, ask, sent, error))


def send_signal(key: Key, name: str, value: bytes, retention: int, by: str, why: str) -> Flow[bool]:
    """`by` is an operator, or empty."""
    if by or why:
        check_operator(key, by, why)
    return (yield Signal(key.id, name, value, retention, by, why))  # type: ignore[no-any-return]


# --- skipping --------------------------------------------------------------------------------

_SKIP_LEASE: Final = 30_000
_MANY: Final = 1_000_000


def skip_step(
    key: Key, name: str, result: bytes, by: str, why: str, fence: int | None
) -> Flow[None]:
    """Record a step that cannot be done, or the undo of one, and let the run continue.

    The run is released, which is written to its audit trail, and then claimed. So a worker that still has it
    cannot record anything. If we die in between, a worker continues with the run as after a release.
    """
    check_operator(key, by, why)
    row: Row | None = yield Read(key.id)
    run: Run | None = yield LoadRun(key.id)
    if row is None or run is None or not run.function:
        raise UsageError(
            "there is no durable run of this key; check the key and its scope", key=key
        )
    if row.state not in (State.HELD, State.PARKED):
        raise UsageError(
            f"cannot skip a step of a {row.state.value} run: only of one that is held or parked",
            key=key,
        )
    ask, seen = _skipped(key, run, name, result), row.fence if fence is None else fence
    yield from operate(key, Release(key.id, by, f"skip {name}: {why}", FOREVER, False, seen))
    ask.owner = new_owner()
    answer: Claimed = yield StartRun(
        key,
        ask.owner,
        _SKIP_LEASE,
        _MANY,
        function=run.function,
        arguments=run.arguments,
        completes=bool(run.arguments),
    )
    if answer.verdict is not Verdict.WON:
        raise UsageError(
            "a worker took the run before the step was skipped; look at it again when that attempt has ended",
            key=key,
        )
    ask.fence = answer.fence
    yield ask
    yield Suspend(key.id, ask.owner, answer.fence, 0)


def _skipped(key: Key, run: Run, name: str, result: bytes) -> RecordStep:
    """What is recorded: a run that is being undone skips the undo of the step."""
    steps = {step.name: step for step in run.steps}
    position = 1 + max((step.position for step in run.steps), default=0)
    known = steps.get(name)
    ask = RecordStep(key.id, b"", 0, name, "", result=result, position=position)
    if FAILURE in steps:
        undone = steps.get(UNDO + name)
        if known is None or not known.undo or undone is not None:
            raise UsageError(
                f"the run is being undone, and {name!r} is not a step to undo", key=key
            )
        ask.name, ask.kind, ask.result = UNDO + name, "undo", b""
        return ask
    if known is None or known.state is not StepState.STARTED:
        raise UsageError(
            f"{name!r} is not a step whose outcome is unknown; release the run to try it again, or "
            "resolve the run",
            key=key,
        )
    ask.kind, ask.fingerprint = known.kind, known.fingerprint
    return ask
