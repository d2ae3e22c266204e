"""The state of one attempt of a durable run: what was recorded, and what its steps have asked for.

All threads and tasks of the run share it. Single operations on its dicts are atomic, which is all that
they rely on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sized
from functools import lru_cache
from typing import Any, Final

import msgspec

from ... import _forking
from ... import events as ev
from ..._values.branches import branch
from ..._values.clocks import WorkerClock
from ..._values.context import ActiveClaim, active
from ..._values.keys import Key
from ..._values.policy import Backoff
from ..._values.steps import SIGNAL, Step, StepState
from ...errors import LeaseLostError, StepMismatchError, TwicesafeError, UsageError
from ..resolved_policy import ResolvedPolicy
from .run_requests import RecordStep

__all__ = [
    "FAILURE",
    "INNER",
    "OUTER",
    "UNDO",
    "RunState",
    "StepCall",
    "StepClaim",
    "StepOptions",
    "Suspending",
    "Undo",
    "Unwind",
    "checked_name",
    "is_within",
    "parts_of",
]

FAILURE: Final = "twicesafe:failure"
"""The step that records why a run is undone."""

INNER: Final = "twicesafe:inner:"
"""A run that called a suspended one waits for the signal of this name, followed by the id of that run."""

OUTER: Final = "twicesafe:outer:"
"""The suspended run keeps a signal of this name, followed by the id of its caller: its end wakes it."""

UNDO: Final = "undo:"
"""An undo is recorded under this, followed by the name of its step."""

LONGEST_NAME: Final = 200
"""Bytes of a step's name."""


class Unwind(BaseException):
    """Ends the user's function: the run is suspended, aborted or being undone.

    Not an `Exception`, so that a function's own ``except Exception`` does not catch it.
    """


class Suspending(Unwind):
    """Ends the user's function because the run sleeps or waits, which is no failure."""


def parts_of(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, for example of a `TaskGroup`; or this one."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from parts_of(each)
    else:
        yield error


class StepOptions(msgspec.Struct, frozen=True):
    """How a step is tried."""

    attempts: int = 1
    backoff: Backoff = Backoff()
    timeout: float | None = None
    probe: Callable[..., Any] | None = None
    """Of a step's arguments: did it happen? None: no. Else a 1-tuple with its result."""


class StepCall(msgspec.Struct):
    """One step, as the user's function asks for it."""

    name: str
    kind: str
    run: Callable[[], Any]
    fingerprint: bytes = b""
    declared: Any = Any
    undo: Callable[[Any], Any] | None = None
    options: StepOptions = StepOptions()
    probe: Callable[[], Any] | None = None
    transaction: Any = None
    """The step runs in this transaction (`_runtime.step_transaction`)."""


class StepClaim(ActiveClaim, kw_only=True):
    """The claim of a run, as one of its steps sees it: under the key of the step."""

    of_run: ActiveClaim
    step: str
    derived: Key | None = None

    @property  # type: ignore[misc]
    def key(self) -> Key:  # type: ignore[override]
        """Derived when it is asked for: most steps do not ask."""
        if self.derived is None:
            self.derived = self.of_run.key.derive(self.step)
        return self.derived

    @property
    def lost(self) -> bool:
        return self.of_run.lost

    def _has_ended(self) -> bool:
        return self.of_run._has_ended()

    @property
    def deadline(self) -> float:
        return self.of_run.deadline


def is_within(runs: Container[bytes]) -> bool:
    """Whether one of these runs, by id, called this code: also in a task of it, or in a step in another thread."""
    claim = active.get()
    while claim is not None:
        run = claim.of_run if isinstance(claim, StepClaim) else claim
        if run.key.id in runs and not run._has_ended():
            return True
        claim = claim.outer
    return False


class Undo(msgspec.Struct):
    """What undoes a recorded step: ``function(value)``."""

    step: str
    position: int
    function: Callable[[Any], Any]
    value: Any
    is_known: bool = True
    """False: the result of the step was not kept, so the value is missing."""
    result: bytes | None = None
    """The value as it was recorded: the run's function may change the value that it was given.
    None: only the value is known."""
    declared: Any = Any


class RunState:
    def __init__(
        self,
        claim: ActiveClaim,
        policy: ResolvedPolicy,
        holds: bool,
        recorded: Iterable[Step],
        now: int,
        notify: Callable[[ev.Event], None],
        observed: Sized | bool = False,
        tracer: Any = None,
    ) -> None:
        self.claim, self.policy, self.holds, self.notify = claim, policy, holds, notify
        self.observed = observed
        self._trace: Callable[..., Any] | None = getattr(tracer, "trace_step", None)
        self.recorded = {step.name: step for step in recorded}
        # A sleep that was over is over, although the store's clock was set back since.
        known = (max(step.created_at, step.changed_at) for step in self.recorded.values())
        self._now, self._since = max([now, *known]), claim.clock()
        self._used: dict[str, object] = {}
        self.running: dict[str, None] = {}
        """Steps that a thread or a task works on now."""
        self.resting: dict[str, None] = {}
        """Sleeps and waits that happen in place."""
        self._home, self._pid = branch(), _forking.pid
        self.ended = False
        """The function has ended: no further step starts."""
        last = max((step.position for step in self.recorded.values()), default=0)
        self.next_position = itertools.count(last + 1).__next__
        """Returns the position of the next step, which decides the order of undos."""
        self.undos: dict[str, Undo] = {}
        self.undoing = FAILURE in self.recorded
        """Nothing new runs: the function is replayed up to its failure, to learn what to undo."""
        self.suspends: dict[str, int | None] = {}
        """The steps for which the run is suspended, and when each is due: milliseconds by the store's
        clock; None: when its signal comes."""
        self.waits: dict[str, None] = {}
        """Those of them that wait for a signal."""
        self.leaving = False
        """One of them has ended the function, or its branch of it."""
        self.in_doubt: dict[str, tuple[StepCall, str]] = {}
        """Steps to undo that may have happened, and why this is unknown."""
        self.answered: set[str] = set()
        """Marked steps of which this attempt knows, or finds out, how they ended."""
        self.committing: dict[str, tuple[StepCall, RecordStep, Any]] = {}
        """Steps whose COMMIT was sent and has no answer, with what they record and their values."""
        self.aborted: str | None = None
        self.goes_on = False
        """The run is not over: it is suspended, or tried again."""
        self.is_cut = False
        """It was cancelled or interrupted, and has something to undo. As after a crash, the next
        attempt undoes it if this was the last one; it must not be parked instead."""
        self.held_by: TwicesafeError | None = None
        """Why an operator must look at this run, whatever its function does next: it may catch this error."""

    @property
    def clock(self) -> WorkerClock:
        return self.claim.clock

    def store_now(self) -> int:
        """The store's clock, by our own since the claim was answered: behind it, so that no sleep is short.
        (A claim that was asked twice is answered much later than it was first sent.)"""
        return self._now + round((self.claim.clock() - self._since) * 1000)

    def check_open(self) -> None:
        """Called before anything new starts. A step that starts is in `running` before it asks. Then
        either it sees that the function has ended, or the run sees the step and waits for it."""
        if self.ended:
            raise UsageError(
                "the run has ended, and one of its threads or tasks asked for another step; nothing was "
                "run; wait for all of them in the function",
                key=self.claim.key,
            )
        if self.undoing or self.aborted is not None:
            raise Unwind
        if self.leaving:
            raise Suspending
        if _forking.pid != self._pid:
            raise LeaseLostError(
                "this process was forked in the run; only the parent runs its steps",
                key=self.claim.key,
            )
        if self.claim.lost:
            self.claim.check()

    def refuse_inside(self, what: str) -> None:
        """A step that a step starts would be lost: on a resume the outer one is not run."""
        claim = active.get()
        while claim is not None and claim is not self.claim:
            if isinstance(claim, StepClaim) and claim.of_run is self.claim:
                raise UsageError(
                    f"{what} inside a step or an undo of the same run; nothing was run; do it in the "
                    "durable function itself, or call another durable function",
                    key=self.claim.key,
                )
            claim = claim.outer

    def enter(self, name: object, kind: str, fingerprint: bytes) -> Step | None:
        """Use a name, once per run. Returns what is recorded under it."""
        checked = checked_name(name, self.claim.key)
        if active.get() is not self.claim:
            self.refuse_inside(f"the step {checked!r} was asked for")
        token = object()
        if self._used.setdefault(checked, token) is not token:
            raise UsageError(
                f"the step {checked!r} was used twice in one run; give each use its own name, for "
                f'example f"{checked}-{{i}}"',
                key=self.claim.key,
            )
        if not self.recorded:
            return None
        known, other = self.recorded.get(checked), self.recorded.get(SIGNAL + checked)
        if kind == "wait":
            known, other = other, known
        elif other is not None and other.state is not StepState.WAITING:
            other = None  # a signal that this run did not wait for
        for one in (known, other):
            if one is not None and (one.kind != kind or one.fingerprint != fingerprint):
                raise self.mismatch(checked, one.kind, kind)
        return known

    def mismatch(self, name: str, before: str, kind: str) -> StepMismatchError:
        what = "other arguments" if before == kind else f"another kind ({before}, now {kind})"
        return StepMismatchError(
            f"the step {name!r} was recorded with {what}; nothing was run; did the code change while "
            "this run was under way? Give the new step a new name, or restart the run",
            key=self.claim.key,
            step=name,
        )

    @property
    def has_branches(self) -> bool:
        """True in a thread or a task that the function has started, and while a step of one runs."""
        return bool(self.running or self.resting) or branch() != self._home

    @property
    def used(self) -> int:
        """How many names were used so far."""
        return len(self._used)

    def traced(self, name: str, run: Callable[[], Any]) -> Callable[[], Any]:
        """The function of a step, in its own span if there is a tracer for steps."""
        return run if self._trace is None else self._trace(self.claim.key, name, run)

    def recorded_step(self, name: str, kind: str, attempt: int, began: float) -> None:
        """Tell observers."""
        if self.observed:
            took = self.clock() - began
            self.notify(ev.StepRecorded(self.claim.key, name, kind, attempt, took))

    def register(
        self,
        call: StepCall,
        position: int,
        value: Any,
        result: bytes | None,
        is_known: bool = True,
    ) -> None:
        """A step is done: remember what undoes it."""
        if call.undo is not None:
            self.undos[call.name] = Undo(
                call.name, position, call.undo, value, is_known, result, call.declared
            )

    def doubt(self, call: StepCall, why: str) -> None:
        """Whether this step happened is unknown."""
        self.answered.discard(call.name)
        if call.undo is not None:
            self.in_doubt[call.name] = call, why

    def step_claim(self, name: str) -> StepClaim:
        run = self.claim
        return StepClaim(
            run.key,
            run.owner,
            run.fence,
            run.attempt,
            run.cause,
            run.started,
            run.lease,
            run.max_lease,
            run.clock,
            run.renewed,
            run.expires,
            pid=run.pid,  # the run's lease is renewed, not the step's
            of_run=run,
            step=name,
        )

    def unregistered(self) -> list[str]:
        """Steps that were recorded with an undo, which the present code did not name again."""
        return [
            name
            for name, step in self.recorded.items()
            if step.undo and step.state is StepState.DONE and name not in self.undos
        ]

    def doubtful(self) -> dict[str, str]:
        """Steps to undo that may have happened, and why this is unknown."""
        left = {
            name: "the worker stopped in this step, and the code did not come to it again"
            for name, step in self.recorded.items()
            if step.undo and step.state is StepState.STARTED and UNDO + name not in self.recorded
        }
        left.update((name, why) for name, (_, why) in self.in_doubt.items())
        return {name: why for name, why in left.items() if name not in self.answered}


def checked_name(name: object, key: Key) -> str:
    if type(name) is str and _is_valid(name):
        return name
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError("a step needs a name: text that is not empty", key=key)
    if not _is_valid(str.__str__(name)):
        raise UsageError(
            f"{name[:60]!r} is not a valid name for a step: use valid Unicode of at most {LONGEST_NAME} bytes "
            f"that does not begin with {UNDO!r} or 'twicesafe:'",
            key=key,
        )
    return name


@lru_cache(maxsize=4096)
def _is_valid(name: str) -> bool:
    """Cached: every run of a function uses the same names."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    is_ours = name.startswith((UNDO, "twicesafe:"))
    return 0 < size <= LONGEST_NAME and "\0" not in name and not is_ours
