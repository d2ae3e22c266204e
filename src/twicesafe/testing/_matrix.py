"""`crash_matrix`: where does *your* handler double, lose or change its effect?

    report = crash_matrix(charge, order, snapshot=ledger.lines, setup=ledger.clear, lines=True)
    print(report)       # a table, the first bad interleaving, a verdict
    report.check()      # raises AssertionError with that table if anything went wrong

The call is delivered once, and again. Then, from a clean start each time, its process dies at each
point (`_simulated_process` lists them) and the message is delivered again; and two deliveries run at
once, interleaved at these points (`_interleaving`), up to a bound. After each trial, the ``snapshot``
must be as after one clean run, and every caller must get the same result.

What it cannot show: effects that the snapshot leaves out, points that are neither marked nor traced,
threads that the handler starts, and a crash within one line or statement. A simulated crash is an
exception that is not an `Exception`, so a ``finally`` still runs; `_killing` kills real processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .._values.keys import KeyLike
from .._values.outcomes import Outcome
from .._values.policy import Policy
from ..errors import ConfigurationError, HeldError, ParkedError, TwicesafeError
from ..receiver import AsyncReceiver, Receiver
from ._comparison import Trial, copied, difference, refuse_unseen, same
from ._crash import Life
from ._interleaving import Played, explore
from ._killing import kills, order_for
from ._report import Matrix
from ._simulated_process import HandlerCase, Stage, UnawaitedError, is_async_function
from ._tracing import LinesOf, LineTracer, receives_itself

__all__ = ["crash_matrix"]

MANY, FEW = 300, 12
"""The default bounds of schedules: on a clock that we move, and on a real one."""

MOST_POINTS: Final = 2000

MAY_DIFFER: Final = "(if results may differ: results=False)"

SHARED: Final = (
    "the handler changes an argument that all deliveries share here: only dicts, lists, tuples and sets are "
    "copied. If it is a message, build it inside the handler, from plain data; if it is what the handler "
    "works on, let setup restore it"
)

TRIES: Final = 3
"""A trial is repeated if the store was slower than its short lease."""


def crash_matrix(
    handler: Callable[..., Any],
    /,
    *args: Any,
    snapshot: Callable[[], Any],
    setup: Callable[[], Any],
    receiver: Receiver | AsyncReceiver | None = None,
    policy: Policy | None = None,
    key: KeyLike = "the call",
    bare: bool = False,
    later: Callable[[], Any] | None = None,
    lines: LinesOf = False,
    results: bool = True,
    interleavings: int | None = None,
    kill: bool = False,
    **kwargs: Any,
) -> Matrix:
    """Try every crash point and many interleavings of ``handler(*args, **kwargs)``; report.

    ``snapshot`` returns the effect, as a value to compare; ``setup`` restores the initial state. Both,
    and the handler, may be async: each life has its own event loop. ``lines``: every line of the
    handler's file is a point; also those of other modules, if you name them:
    ``lines=[shop, billing]``. ``results=False``: results may differ. ``receiver``: use its store and
    policy, and really wait for its leases (default: a store in memory, without waiting).
    ``bare``: the handler has its own receiver or inbox; then ``later`` lets the lease of a crashed
    claim expire. ``interleavings``: the bound; 0 for none. ``kill``: at every point also kill a real
    process; `twicesafe.testing._killing` says what handler and arguments need for that.
    """
    ours = (handler, setup, snapshot, later or setup)
    if any(map(is_async_function, ours)) and _loop_runs():
        raise ConfigurationError(
            "crash_matrix starts an event loop for async functions: call it from a plain test, not from "
            "a coroutine"
        )
    if interleavings is not None and interleavings < 0:
        raise ConfigurationError(f"interleavings={interleavings!r} is not valid: 0 is none")
    if receives_itself(handler) and not bare:
        raise ConfigurationError(
            "this handler has its own receiver or inbox, which would answer the second trial from the "
            "first: pass handler.__wrapped__; or bare=True, with a setup that empties its store"
        )
    case = HandlerCase(
        handler=handler, args=args, kwargs=kwargs, receiver=receiver, policy=policy, key=key,
        bare=bare, tracer=LineTracer.of(handler, lines), setup=setup, snapshot=snapshot, later=later,
        results=results, is_async=is_async_function(handler),
    )  # fmt: skip
    bound = interleavings if interleavings is not None else MANY if receiver is None else FEW
    return _Trials(case).all(bound, kill)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Trials:
    def __init__(self, case: HandlerCase) -> None:
        self.case = case
        self.ended: list[Trial] = []
        self.notes: list[str] = []
        self.duration = 0.0
        """Of the clean run, in seconds."""

    def all(self, bound: int, kill: bool) -> Matrix:
        if kill:
            order_for(self.case)  # raise now if another process cannot run it
        given = copied((self.case.args, self.case.kwargs))
        clean, points = self._once()
        again = self._second_run(clean)
        if again.fault:
            if not same(given, (self.case.args, self.case.kwargs)):
                self.notes.append(SHARED)
            self._find_difference(again, clean, points)
        else:
            self._again(clean)
            for number, point in enumerate(points, 1):
                self._crash(number, point, clean)
            if kill:
                self.ended += kills(self.case, clean)
            if bound:
                self._at_once(len(points), clean, bound)
        return Matrix(self.case.name, tuple(self.ended), tuple(self.notes))

    # -- deliveries ---------------------------------------------------------------------------

    def _once(self) -> tuple[Trial, list[str]]:
        """The clean run, which all trials are compared with."""
        stage, life = Stage(self.case), Life()
        before, begun = self.case.state()[0], time.monotonic()
        answer = stage.deliver(life)
        self.duration = time.monotonic() - begun
        if isinstance(answer, UnawaitedError) and not self.case.is_async:
            self.case = dataclasses.replace(self.case, is_async=True)
            return self._once()
        if isinstance(answer, Exception):
            raise AssertionError(  # noqa: TRY004
                f"the first, clean run of {self.case.name} failed: {type(answer).__name__}: {answer}"
            ) from answer
        trial = self._look("once", stage, answer)
        if trial.fault:
            raise ConfigurationError(f"after the first, clean run {trial.fault}") from trial.state
        self._refuse_useless(life.passed, before, trial)
        return trial, life.passed

    def _refuse_useless(self, points: list[str], before: Any, clean: Trial) -> None:
        tracer, name = self.case.tracer, self.case.name
        if len(points) > MOST_POINTS:
            raise ConfigurationError(
                f"{name} has {len(points)} points, more than {MOST_POINTS}: use a smaller input, or "
                "crash_point(…) instead of lines=True"
            )
        refuse_unseen(name, before, clean.state)
        files = ", ".join(sorted(Path(file).name for file in tracer.files))
        if tracer.every_line and not tracer.passed:
            raise ConfigurationError(f"{name} ran no line of {files}: name its modules, lines=[…]")
        if tracer.every_line and tracer.elsewhere:
            called = ", ".join(sorted(Path(file).name for file in tracer.elsewhere))
            self.notes.append(
                f"lines of {files} are traced; a call into {called} is one step (lines=[…] adds modules)"
            )

    def _again(self, clean: Trial) -> None:
        """The same message again, right after the first delivery ended."""
        stage = Stage(self.case)
        first = stage.deliver()
        trial = self._look("delivered again", stage, stage.deliver_again(), first)
        self._compare(trial, clean)

    def _second_run(self, clean: Trial) -> Trial:
        """Two clean runs must look the same; otherwise a run after a crash cannot be judged."""
        stage = Stage(self.case)
        trial = self._look("a second clean run", stage, stage.deliver())
        self._compare(trial, clean)
        return trial

    def _find_difference(self, again: Trial, clean: Trial, points: list[str]) -> None:
        """Find where two clean runs begin to differ: after the last point with equal snapshots."""
        self.notes.append(
            "two clean runs differ, so a retry repeats the effect with other data: derive ids, times "
            "and choices from the key or the message, or leave them out of the snapshot"
        )
        if same(again.state, clean.state):
            return
        before = "the start"
        for number, point in enumerate(points, 1):
            if not same(self._left_at(number), self._left_at(number)):
                break
            before = point
        again.fault = f"{again.fault}; the two runs are equal up to: {before}"

    def _left_at(self, number: int) -> Any:
        stage = Stage(self.case)
        stage.deliver(Life(number))
        return self.case.state()[0]

    # -- crashes ------------------------------------------------------------------------------

    def _crash(self, number: int, point: str, clean: Trial) -> None:
        """Die at this point, then deliver again: the snapshot must be as after one clean run."""
        stage, life = self._dead_at(number, point)
        stage.pass_time()
        trial = self._look(point, stage, stage.deliver_again(), kind="crash")
        if life.died_at != point:
            trial.fault = f"it passed other points this time, and died {life.died_at!r}"
            return
        if isinstance(trial.error, (HeldError, ParkedError)):
            trial.fault, trial.note = "", "waits for an operator"
            return
        self._compare(trial, clean)

    def _dead_at(self, number: int, point: str, tries: int = TRIES) -> tuple[Stage, Life]:
        stage, life = Stage(self.case), Life(number)
        stage.deliver(life)
        if life.died_at == point or tries == 1:
            return stage, life
        return self._dead_at(number, point, tries - 1)

    # -- interleavings ------------------------------------------------------------------------

    def _at_once(self, points: int, clean: Trial, bound: int) -> None:
        found = explore(lambda: Stage(self.case), points, self.duration)
        for stage, played in itertools.islice(found, bound):
            self._judge(stage, played, clean)
            if played.stuck:
                self.notes.append("interleavings: stopped after a deadlock")
                return
        if next(found, None) is not None:
            self.notes.append(f"interleavings: stopped at the bound of {bound}")

    def _judge(self, stage: Stage, played: Played, clean: Trial) -> None:
        name = " / ".join(played.pauses)
        if played.stuck:
            trial = Trial(name, len(stage.starts), fault="deadlock: they wait for each other")
            self.ended.append(trial)
        else:
            failed = [answer for answer in played.answers if isinstance(answer, Exception)]
            unexpected = [error for error in failed if not isinstance(error, TwicesafeError)]
            last = stage.deliver_again() if failed or not self.case.bare else played.answers[1]
            trial = self._look(name, stage, last, *played.answers)
            if len(unexpected) == 2:
                trial.fault = f"both fail: {type(unexpected[0]).__name__}: {unexpected[0]}"
            elif isinstance(last, (HeldError, ParkedError)):
                trial.fault, trial.note = "", "waits for an operator"
            else:
                self._compare(trial, clean)
        trial.kind, trial.story = "interleaving", played.story

    # -- looking ------------------------------------------------------------------------------

    def _look(
        self, name: str, stage: Stage, answer: Any, *others: Any, kind: str = "delivery"
    ) -> Trial:
        state, unread = self.case.state()
        trial = Trial(name, len(stage.starts), state=state, fault=unread, kind=kind)
        self.ended.append(trial)
        if isinstance(answer, Exception):
            trial.error = answer
            trial.fault = f"the last delivery fails: {type(answer).__name__}: {answer}"
            return trial
        trial.value = _value(answer)
        for other in others:
            if isinstance(other, Exception) or not self.case.results or trial.fault:
                continue
            if not same(_value(other), trial.value):
                trial.fault = f"two results: {difference(_value(other), trial.value)} {MAY_DIFFER}"
        return trial

    def _compare(self, trial: Trial, clean: Trial) -> None:
        if trial.fault:
            return
        if not same(clean.state, trial.state):
            trial.fault = difference(clean.state, trial.state)
        elif self.case.results and not same(clean.value, trial.value):
            trial.fault = f"another result: {difference(clean.value, trial.value)} {MAY_DIFFER}"


def _value(answer: Any) -> Any:
    return answer.value if isinstance(answer, Outcome) else answer
