"""Steps: what a durable function gets as its first argument. Each step is recorded once.

    payment = steps.run("charge", bank.charge, order["cents"], undo=bank.refund)
    at, token = steps.now(), steps.uuid()          # captured: the same on every resume

`AsyncSteps` is the async version of `Steps`, with the same names and meanings. The flows are in
`_core.durable.steps` and `_core.durable.waits`; this module is the public interface.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, ParamSpec, Self, TypeVar, cast, overload

from msgspec.structs import replace

from .._core.commands import Raised, Reply
from .._core.durable import waits
from .._core.durable.run_state import RunState, StepCall, StepOptions, Unwind
from .._core.handler_profile import profile_of
from .._values.keys import Key
from .._values.policy import Backoff
from .._values.records import Cause
from .._values.settings import Duration, expect, seconds
from ..errors import UsageError, stays_here, text_of
from ._step_functions import expect_fit, expect_undo, profile_of_step

__all__ = ["AsyncSteps", "Steps"]

T = TypeVar("T")
P = ParamSpec("P")

_DEFAULT: Final = StepOptions()


class _StepsBase:
    """Settings, and how a step becomes a `StepCall`. No I/O."""

    _awaits = False

    def __init__(self, runtime: Any, state: RunState, options: StepOptions = _DEFAULT) -> None:
        self._runtime, self._state, self._options = runtime, state, options

    def __repr__(self) -> str:
        claim = self._state.claim
        return f"<{type(self).__name__} {claim.key.short} attempt={claim.attempt}>"

    def __reduce__(self) -> NoReturn:
        raise stays_here(self)

    @property
    def key(self) -> Key:
        """The key of the run."""
        return self._state.claim.key

    @property
    def attempt(self) -> int:
        """The number of this attempt; suspensions do not count."""
        return self._state.claim.attempt

    @property
    def cause(self) -> Cause | None:
        """Why this attempt is not the first; None if it is."""
        return self._state.claim.cause

    def options(
        self,
        *,
        attempts: int | None = None,
        backoff: Backoff | None = None,
        timeout: Duration | None = None,
        probe: Callable[..., Any] | None = None,
    ) -> Self:
        """The same steps with other settings for `run`: ``steps.options(attempts=3).run(…)``

        ``attempts``: how often a step is tried before its error reaches your function. ``backoff``: the
        delay between two tries. ``timeout``: how long a step may run; a blocking step continues in its
        thread, and the run waits for it before it ends. ``probe``: called with the arguments of a step
        that a crash interrupted: return None if it did not happen, or a tuple with its result.
        """
        changes: dict[str, Any] = {}
        if attempts is not None:
            expect(
                type(attempts) is int and attempts >= 1,
                "attempts",
                attempts,
                "use a whole number, 1 or more",
            )
            changes["attempts"] = attempts
        if backoff is not None:
            expect(isinstance(backoff, Backoff), "backoff", backoff, "use a Backoff(…)")
            changes["backoff"] = backoff
        if timeout is not None:
            changes["timeout"] = seconds(timeout, "timeout")
            expect(changes["timeout"] > 0, "timeout", timeout, "use more than 0 seconds")
        if probe is not None:
            expect(callable(probe), "probe", probe, "use a function of the step's arguments")
            changes["probe"] = probe
        return type(self)(self._runtime, self._state, replace(self._options, **changes))

    def _call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        undo: Callable[[Any], Any] | None,
    ) -> StepCall:
        profile, probe = (
            profile_of_step(function, args, kwargs, 'run("charge"'),
            self._options.probe,
        )
        if probe is not None:
            expect_fit(profile_of(probe), probe, args, kwargs)
        if undo is not None:
            expect_undo(undo, self._awaits, self.key)
        try:
            print_ = profile.of_arguments(args, kwargs)
        except UsageError as error:
            why = str(error).rsplit(": ", 1)[0]
            raise UsageError(
                f"the arguments of the step {name!r} cannot be compared on a resume ({why}); pass plain "
                "data, and let the function get everything else itself (a method, a closure)",
                key=self.key,
            ) from error
        return StepCall(
            name,
            "run",
            functools.partial(function, *args, **kwargs) if args or kwargs else function,
            print_,
            profile.declared,
            undo,
            self._options,
            None if probe is None else functools.partial(probe, *args, **kwargs),
        )

    def _transaction(
        self,
        name: str,
        transaction: Any,
        connection: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        undo: Callable[[Any], Any] | None,
    ) -> StepCall:
        if self._options.probe is not None:
            raise UsageError(
                "probe= has no effect on steps.transact, because the effect and the record commit "
                "together; remove it",
                key=self.key,
            )
        given = (connection, *args)
        profile = profile_of_step(function, given, kwargs, 'transact("charge", connection')
        if undo is not None:
            expect_undo(undo, self._awaits, self.key)
        return StepCall(
            name,
            "transact",
            functools.partial(function, *given, **kwargs),
            profile.of_arguments((None, *args), kwargs),
            profile.declared,
            undo,
            self._options,
            transaction=transaction(self._runtime.transactions(), connection),
        )

    def _captured(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> StepCall:
        profile = profile_of_step(function, args, kwargs, 'capture("rate"')
        run = functools.partial(function, *args, **kwargs)
        return StepCall(name, "capture", run, declared=profile.declared)

    def _drawn(self, name: str, function: Callable[[], Any], declared: Any) -> StepCall:
        return StepCall(name, "capture", function, declared=declared)

    def _abort(self, reason: object) -> NoReturn:
        self._state.refuse_inside("the run was aborted")
        self._state.check_open()
        self._state.aborted = text_of(reason) or "aborted"
        raise Unwind


class Steps(_StepsBase):
    """The steps of one durable run. Use it from any thread of the function."""

    def run(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        undo: Callable[[T], Any] | None = None,
        **kwargs: Any,
    ) -> T:
        """Run ``function(*args, **kwargs)`` once and record its result. Every resume gets the recorded result.

        ``undo``: called with the result if the whole run fails. Inside the function, `current_key()` is
        derived from the run's key and the step's name.
        """
        value: T = self._take(self._call(name, function, args, kwargs, undo))
        return value

    def transact(
        self,
        name: str,
        connection: Any,
        function: Callable[..., T],
        /,
        *args: Any,
        undo: Callable[[T], Any] | None = None,
        **kwargs: Any,
    ) -> T:
        """Run ``function(connection, *args, **kwargs)`` and record the step, in one transaction.

        The connection must be idle, and connected to the receiver's database. This method begins the
        transaction, commits it, and rolls it back if the function raises. If the function itself commits
        or rolls back, this raises `AtomicityBrokenError`, and the run is held. ``undo`` works as in `run`;
        it runs outside this transaction.
        """
        from .._runtime.step_transaction import StepTransaction

        call = self._transaction(name, StepTransaction, connection, function, args, kwargs, undo)
        return cast("T", self._take(call))

    def capture(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function whose value would differ on a resume, once, and record the value."""
        captured = self._captured(name, function, args, kwargs)
        return cast("T", self._take(captured))

    def now(self, name: str = "now") -> datetime:
        """Return the time of the first call, in UTC: the same on every resume."""
        return cast("datetime", self._take(self._drawn(name, _now, datetime)))

    def uuid(self, name: str = "uuid") -> uuid.UUID:
        """Return a random UUID: the same on every resume."""
        return cast("uuid.UUID", self._take(self._drawn(name, uuid.uuid4, uuid.UUID)))

    def random(self, name: str = "random") -> float:
        """Return a random number from 0 to 1: the same on every resume."""
        from random import random

        return cast("float", self._take(self._drawn(name, random, float)))

    def sleep(self, name: str, duration: Duration) -> None:
        """Sleep this long, counted from the first call.

        A sleep longer than the policy's ``wait`` suspends the run: your function ends here, and starts
        again from its first line when the sleep is over.
        """
        _value(self._runtime.run(waits.sleep(self._state, name, seconds(duration, "duration"))))

    @overload
    def wait(self, name: str, *, timeout: None = None, returns: type[T]) -> T: ...
    @overload
    def wait(self, name: str, *, timeout: Duration, returns: type[T]) -> T | None: ...
    @overload
    def wait(self, name: str, *, timeout: Duration | None = None, returns: Any = Any) -> Any: ...
    def wait(self, name: str, *, timeout: Duration | None = None, returns: Any = Any) -> Any:
        """Wait for the value that `receiver.signal` sends under this name; None if none came within ``timeout``.

        A wait longer than the policy's ``wait`` suspends the run. ``returns``: the type of the value.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        return _value(self._runtime.run(waits.wait(self._state, name, limit, returns)))

    def abort(self, reason: str) -> NoReturn:
        """End the run: undo every step that has an ``undo``, then raise `CompensatedError`."""
        self._abort(reason)

    def _take(self, call: StepCall) -> Any:
        return _value(self._runtime.take(self._state, call))


class AsyncSteps(_StepsBase):
    """The steps of one async durable run. Use it from any task of the function."""

    _awaits = True

    async def run(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        undo: Callable[[T], Any] | None = None,
        **kwargs: Any,
    ) -> T:
        """Await ``function(*args, **kwargs)`` once and record its result. Every resume gets the recorded result.

        ``undo``: called with the result if the whole run fails. Inside the function, `current_key()` is
        derived from the run's key and the step's name.
        """
        value: T = await self._take(self._call(name, function, args, kwargs, undo))
        return value

    async def transact(
        self,
        name: str,
        connection: Any,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        undo: Callable[[T], Any] | None = None,
        **kwargs: Any,
    ) -> T:
        """Await ``function(connection, *args, **kwargs)`` and record the step, in one transaction.

        The connection must be idle, and connected to the receiver's database. This method begins the
        transaction, commits it, and rolls it back if the function raises. If the function itself commits
        or rolls back, this raises `AtomicityBrokenError`, and the run is held. ``undo`` works as in `run`;
        it runs outside this transaction.
        """
        from .._runtime.step_transaction import AsyncStepTransaction

        call = self._transaction(
            name, AsyncStepTransaction, connection, function, args, kwargs, undo
        )
        return cast("T", await self._take(call))

    async def capture(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function whose value would differ on a resume, once, and record the value."""
        captured = self._captured(name, function, args, kwargs)
        return cast("T", await self._take(captured))

    async def now(self, name: str = "now") -> datetime:
        """Return the time of the first call, in UTC: the same on every resume."""
        return cast("datetime", await self._take(self._drawn(name, _now, datetime)))

    async def uuid(self, name: str = "uuid") -> uuid.UUID:
        """Return a random UUID: the same on every resume."""
        return cast("uuid.UUID", await self._take(self._drawn(name, uuid.uuid4, uuid.UUID)))

    async def random(self, name: str = "random") -> float:
        """Return a random number from 0 to 1: the same on every resume."""
        from random import random

        return cast("float", await self._take(self._drawn(name, random, float)))

    async def sleep(self, name: str, duration: Duration) -> None:
        """Sleep this long, counted from the first call.

        A sleep longer than the policy's ``wait`` suspends the run: your function ends here, and starts
        again from its first line when the sleep is over.
        """
        flow = waits.sleep(self._state, name, seconds(duration, "duration"))
        _value(await self._runtime.run(flow))

    @overload
    async def wait(self, name: str, *, timeout: None = None, returns: type[T]) -> T: ...  # noqa: ASYNC109
    @overload
    async def wait(self, name: str, *, timeout: Duration, returns: type[T]) -> T | None: ...  # noqa: ASYNC109
    @overload
    async def wait(
        self,
        name: str,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109
        returns: Any = Any,
    ) -> Any: ...
    async def wait(
        self,
        name: str,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - it is kept with the wait, across processes
        returns: Any = Any,
    ) -> Any:
        """Wait for the value that `receiver.signal` sends under this name; None if none came within ``timeout``.

        A wait longer than the policy's ``wait`` suspends the run. ``returns``: the type of the value.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        return _value(await self._runtime.run(waits.wait(self._state, name, limit, returns)))

    async def abort(self, reason: str) -> NoReturn:
        """End the run: undo every step that has an ``undo``, then raise `CompensatedError`."""
        self._abort(reason)

    async def _take(self, call: StepCall) -> Any:
        return _value(await self._runtime.take(self._state, call))


def _now() -> datetime:
    return datetime.now(UTC)


def _value(reply: Reply) -> Any:
    if type(reply) is Raised:
        raise reply.error
    return reply.value
