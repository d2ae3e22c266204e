"""`assert_idempotent`: is *your* handler safe to deliver twice, also when its process dies?

    def test_charge(ledger):
        assert_idempotent(charge, order, snapshot=ledger.lines, setup=ledger.clear)

It delivers the call through a receiver: once, twice, three times, many at once. Then, from a clean
start each time, it lets the process die when the handler starts, at each `crash_point("…")`, and when
the handler has ended but nothing is recorded yet, and delivers again. The recorded result must be equal
and of the same type, and the ``snapshot`` must be as after one clean run. If not, the AssertionError
has a table that names the point where the effect is repeated or lost.

What it cannot show: crashes where there is no point, effects that the snapshot does not see, and
threads that the handler starts (a point there does nothing).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from .._core.driving import drive, drive_async
from .._core.handler_call import name_of
from .._core.handler_profile import profile_of
from .._runtime.event_loop import running_loop
from .._values.codecs import resolve_return_type
from .._values.keys import Key, KeyLike
from .._values.outcomes import Outcome
from .._values.policy import Policy
from .._values.settings import seconds
from ..errors import ConfigurationError, HeldError, ParkedError, ResultError, UsageError
from ..receiver import AsyncReceiver, Receiver
from ..stores.memory import AsyncMemoryStore, MemoryStore
from ._clock import FakeClock
from ._comparison import Trial, copied, difference, plain_copy, refuse_unseen, same, table
from ._crash import Life, _AsyncBoundStore, _BoundStore, crash_point
from ._trial_keys import TrialKey

__all__ = ["assert_idempotent", "assert_idempotent_async"]

START: Final = "handler starts"
END: Final = "handler ended, nothing recorded"
BRIEF: Final = 0.5
"""The lease in seconds on your own receiver: a retry after a crash really waits for it."""


def assert_idempotent(
    handler: Callable[..., Any],
    /,
    *args: Any,
    receiver: Receiver | None = None,
    key: KeyLike | None = None,
    snapshot: Callable[[], Any] | None = None,
    setup: Callable[[], Any] | None = None,
    concurrent: int = 4,
    crashes: bool = True,
    **kwargs: Any,
) -> None:
    """Raise an AssertionError, with a table of all trials, if this call is not safe to repeat.

    ``snapshot`` returns the effect, as a value to compare. ``setup`` restores the initial state;
    without it there are no crash trials, because each needs a clean start. ``receiver``: use its store
    and policy (default: a store in memory); ``key`` is the key of the first trial. With
    ``takeover="hold"`` a key that waits for an operator after a crash counts as safe.
    """
    if profile_of(handler).problem == "async":
        raise UsageError(
            f"{name_of(handler)} is an async function: write `await assert_idempotent_async(…)`"
        )
    clock = None if receiver is not None else FakeClock()
    used = receiver or Receiver(MemoryStore(now=clock))

    def run() -> Any:
        given, named = plain_copy((args, kwargs))
        return handler(*given, **named)

    trials = _Trials(handler, used, key, snapshot, setup, concurrent, crashes, clock)
    drive(trials.all(), _Blocking(trials, run).perform)


async def assert_idempotent_async(
    handler: Callable[..., Awaitable[Any]],
    /,
    *args: Any,
    receiver: AsyncReceiver | None = None,
    key: KeyLike | None = None,
    snapshot: Callable[[], Any] | None = None,
    setup: Callable[[], Any] | None = None,
    concurrent: int = 4,
    crashes: bool = True,
    **kwargs: Any,
) -> None:
    """The async version of `assert_idempotent`. ``snapshot`` and ``setup`` may be async too."""
    running_loop()
    clock = None if receiver is not None else FakeClock()
    used = receiver or AsyncReceiver(AsyncMemoryStore(MemoryStore(now=clock)))

    def run() -> Any:
        given, named = plain_copy((args, kwargs))
        return handler(*given, **named)

    trials = _Trials(handler, used, key, snapshot, setup, concurrent, crashes, clock)
    await drive_async(trials.all(), _Async(trials, run).perform)


# --- the trials, once for blocking and async: they yield what to do ------------------


@dataclass(frozen=True)
class _Ask:
    """Call one of the user's functions. Reply: what it returned."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class _Deliver:
    """Deliver the call `count` times at once. Reply: an outcome or an error for each."""

    key: Key
    life: Life = field(default_factory=Life)
    count: int = 1


_Steps: TypeAlias = Generator[_Ask | _Deliver, Any, Any]


@dataclass
class _Trials:
    handler: Callable[..., Any]
    receiver: Any
    key: KeyLike | None
    snapshot: Callable[[], Any] | None
    setup: Callable[[], Any] | None
    concurrent: int
    crashes: bool
    clock: FakeClock | None
    starts: list[str] = field(default_factory=list)
    """One entry per start of the handler in the present trial."""
    ended: list[Trial] = field(default_factory=list)

    @property
    def name(self) -> str:
        return getattr(self.handler, "__qualname__", repr(self.handler))

    def all(self) -> _Steps:
        first, points = yield from self._once()
        key = points.key
        for name in ("twice", "three times"):
            yield from self._again(name, _Deliver(key), first)
        yield from self._at_once(key, first)
        if self.crashes:
            yield from self._crashes(points.life.passed, first)
        wrong = sum(bool(trial.fault) for trial in self.ended)
        if wrong:
            title = f"{self.name} is not idempotent: {wrong} of {len(self.ended)} trials went wrong"
            raise AssertionError(f"{title}\n{table(self.ended)}")

    def _once(self) -> _Steps:
        """The clean run, which all trials are compared with."""
        yield from self._clean_start()
        before = yield from self._state()
        delivery = _Deliver(self._fresh_key() if self.key is None else self.receiver.key(self.key))
        (answer,) = yield delivery
        trial = yield from self._look("once", [answer])
        if trial.fault:
            raise AssertionError(f"the first, clean run failed\n{table([trial])}") from trial.error
        if self.snapshot is not None and self.setup is not None:
            refuse_unseen(self.name, before, trial.state)
        return trial, delivery

    def _state(self) -> _Steps:
        return copied((yield _Ask(self.snapshot))) if self.snapshot is not None else None

    def _again(self, name: str, delivery: _Deliver, first: Trial) -> _Steps:
        answers = yield delivery
        trial = yield from self._look(name, answers)
        if not trial.fault and not same(first.value, trial.value):
            trial.fault = f"result: {difference(first.value, trial.value)}"
        self._compare_state(trial, first)

    def _at_once(self, key: Key, first: Trial) -> _Steps:
        if self.concurrent < 2:
            return
        name = f"{self.concurrent} at once"
        if self.setup is None:  # without a clean start, they all get a recorded key
            yield from self._again(name, _Deliver(key, count=self.concurrent), first)
            return
        yield from self._clean_start()
        answers = yield _Deliver(self._fresh_key(), count=self.concurrent)
        trial = yield from self._look(name, answers)
        self._compare_state(trial, first)

    def _crashes(self, points: list[str], first: Trial) -> _Steps:
        if self.setup is None:
            named = [point for point in points if point not in (START, END)]
            if named:
                raise ConfigurationError(
                    f"the handler has crash points ({', '.join(named)}), but every crash trial "
                    "needs a clean start: pass setup=…, or crashes=False"
                )
            return
        for number, point in enumerate(points, 1):
            yield from self._crash(number, point, first)

    def _crash(self, number: int, point: str, first: Trial) -> _Steps:
        """Die at this point, then deliver again: the snapshot must be as after one clean run."""
        yield from self._clean_start()
        death = _Deliver(self._fresh_key(), Life(number))
        yield death
        if self.clock is not None:
            self.clock.advance(seconds(self.receiver.policy.lease) + 1)
        (answer,) = yield _Deliver(death.key)
        trial = yield from self._look(f"crash: {point}", [answer], retried=True)
        if death.life.died_at != point:
            trial.fault = (
                f"not reached again ({death.life.died_at}): it passes other points in each run"
            )
        elif isinstance(answer, (HeldError, ParkedError)):
            trial.fault, trial.note = "", "waits for an operator"
        self._compare_state(trial, first)

    def _look(self, name: str, answers: list[Any], retried: bool = False) -> _Steps:
        """The outcome of this trial, before it is compared with the first."""
        state = yield from self._state()
        trial = Trial(name, len(self.starts), state=state)
        self.ended.append(trial)
        errors = [answer for answer in answers if not isinstance(answer, Outcome)]
        if errors:
            trial.error, trial.fault = errors[0], _shown(errors[0])
            return trial
        trial.value = answers[0].value
        odd = [answer.value for answer in answers if not same(trial.value, answer.value)]
        if odd:
            trial.fault = f"two results: {difference(trial.value, odd[0])}"
        elif trial.starts != 1 and not retried:
            trial.fault = "the handler did not start exactly one time"
        return trial

    def _compare_state(self, trial: Trial, first: Trial) -> None:
        if not trial.fault and not trial.note and not same(first.state, trial.state):
            trial.fault = f"state: {difference(first.state, trial.state)}"

    def _clean_start(self) -> _Steps:
        if self.setup is not None:
            yield _Ask(self.setup)
        self.starts.clear()

    def _fresh_key(self) -> Key:
        return TrialKey(self.receiver.key("the call" if self.key is None else self.key))

    @property
    def policy(self) -> Policy:
        policy: Policy = self.receiver.policy
        if self.clock is not None:
            return policy
        return policy.replace(lease=BRIEF, in_flight="wait", wait=10.0)

    def dress(self, wrapper: Any) -> Any:
        """Give it the handler's name and return type, so that results are decoded the same way."""
        functools.update_wrapper(wrapper, self.handler, ("__name__", "__qualname__"))
        wrapper.__annotations__ = {"return": resolve_return_type(self.handler)}
        return wrapper


def _shown(error: BaseException) -> str:
    what = "the result cannot be replayed: " if isinstance(error, ResultError) else ""
    return f"{what}{type(error).__name__}: {error}"


# --- blocking and async ----------------------------------------------------------------------


class _Blocking:
    """Concurrent deliveries are threads."""

    def __init__(self, trials: _Trials, run: Callable[[], Any]) -> None:
        def handler() -> Any:
            trials.starts.append(START)
            crash_point(START)
            value = run()
            crash_point(END)
            return value

        self._trials = trials
        self._handler = trials.dress(handler)

    def perform(self, command: _Ask | _Deliver) -> Any:
        if isinstance(command, _Ask):
            return command.function()
        answers: list[Any] = [None] * command.count
        together = threading.Barrier(command.count)
        store = _BoundStore(command.life, self._trials.receiver.store, counted=False)
        receiver = Receiver(store, policy=self._trials.policy)

        def deliver(index: int) -> None:
            together.wait()
            try:
                answers[index] = receiver.process(command.key, self._handler)
            except Exception as error:
                answers[index] = error

        with command.life:
            threads = [
                threading.Thread(target=contextvars.copy_context().run, args=(deliver, index))
                for index in range(1, command.count)
            ]
            for thread in threads:
                thread.start()
            deliver(0)
            for thread in threads:
                thread.join()
        receiver.close()
        return answers


class _Async:
    """Concurrent deliveries are tasks."""

    def __init__(self, trials: _Trials, run: Callable[[], Any]) -> None:
        async def handler() -> Any:
            trials.starts.append(START)
            crash_point(START)
            value = run()
            if inspect.isawaitable(value):
                value = await value
            crash_point(END)
            return value

        self._trials = trials
        self._handler = trials.dress(handler)

    async def perform(self, command: _Ask | _Deliver) -> Any:
        if isinstance(command, _Ask):
            reply = command.function()
            return await reply if inspect.isawaitable(reply) else reply
        store = _AsyncBoundStore(command.life, self._trials.receiver.store, counted=False)
        receiver = AsyncReceiver(store, policy=self._trials.policy)
        answers: list[Any] = [None] * command.count

        async def deliver(index: int) -> None:
            try:
                answers[index] = await receiver.process(command.key, self._handler)
            except Exception as error:
                answers[index] = error

        with command.life:
            await asyncio.gather(*map(deliver, range(command.count)))
        await receiver.close()
        return answers
