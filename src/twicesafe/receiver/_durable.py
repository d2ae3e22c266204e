"""Durable functions: a function that dies continues where it stopped.

    @receiver.durable(key=lambda order: order["id"])
    def checkout(steps: Steps, order: dict) -> str:
        payment = steps.run("charge", bank.charge, order["cents"])
        return steps.run("ship", post.ship, order)

    label = checkout(order)         run, resume or replay

A run is a record like any other: the same claims, leases and fences, the same operators. Its arguments
are stored with it, so that the completer can run it, and fingerprinted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from .._core.call import Call
from .._core.duplicates import refuse_mismatch
from .._core.durable import run_operations
from .._core.durable.run import RunCall, run_of
from .._core.durable.run_requests import DueRun, Submit
from .._core.durable.run_state import RunState
from .._core.encrypting import encrypted_arguments, readable_arguments
from .._core.handler_call import name_of
from .._core.handler_kind import refuse_async, refuse_generator
from .._core.handler_profile import FingerprintSetting, HandlerProfile, profile_of
from .._core.handler_scope import module_of, scope_of_function
from .._core.protocol import Claimed, Verdict
from .._core.resolved_policy import ResolvedPolicy
from .._values.context import scope_of_context
from .._values.fingerprint import field_names, fingerprint, stated
from .._values.keys import Key, KeyLike, new_owner
from .._values.outcomes import Outcome
from .._values.policy import Policy
from .._values.settings import shown
from ..errors import ConfigurationError, UnsupportedByStoreError, UsageError
from ._base import ReceiverBase, check_key, expect_parameter, value_or_raise
from ._durable_arguments import DurableArguments
from ._steps import AsyncSteps, Steps

if TYPE_CHECKING:
    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncDurable", "AsyncDurables", "Durable", "Durables"]

T = TypeVar("T")
P = ParamSpec("P")


class _DurableBase(Generic[P]):
    """One durable function of one receiver. No I/O."""

    _steps: Callable[..., Any]

    def __init__(self, owner: Any, function: Callable[..., Any], given: _Given) -> None:
        if not callable(function):
            raise ConfigurationError(
                f"durable must decorate a function, not {shown(function)}: name its settings, such as key="
            )
        self._function, self._given = function, given
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self._arguments = DurableArguments(function)
        scope = scope_of_function(function) if given.scope is None else given.scope
        policy = given.policy or owner.policy
        if policy.outage == "run":
            raise ConfigurationError(
                'outage="run" cannot be used with durable functions: their steps are in the store'
            )
        self._given_policy: Policy = policy
        self._holds = policy.takeover == "hold"
        # The run itself is taken over; a step that was interrupted is held.
        self._owner = owner.options(
            policy=policy.replace(takeover="retry"), scope=(*owner.scope, *scope)
        )
        self._unchecked = self._owner.options(fingerprint=False)
        self._not_waiting = ResolvedPolicy(self._owner.policy.replace(in_flight="reject"))
        """For the completer: a run that another worker has is skipped."""
        self._profile: HandlerProfile = profile_of(function)
        if self._profile.problem == "generator":
            raise refuse_generator(function)
        check_key(given.key, named=True)
        if isinstance(given.key, str):
            none = "its first parameter gets the steps, and it has no other: def checkout(steps, order)"
            expect_parameter(given.key, name_of(function), self._arguments.names, none)
        self.name: str = given.name or ":".join(scope)
        if not owner.store.capabilities.steps:
            raise UnsupportedByStoreError(
                f"{owner.store.url} cannot keep steps: use memory://, sqlite:///…, postgresql://…, "
                "mysql://… or redis://… for durable functions"
            )

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is not None:
            raise UsageError(
                "a durable function cannot be a method: its steps are its first argument"
            )
        return self

    @property
    def _scope(self) -> tuple[str, ...]:
        """The scope of its keys; that of `key_scope` is in front of it."""
        return self._owner.scope  # type: ignore[no-any-return]

    @property
    def _function_name(self) -> str:
        function = self._function
        return f"{module_of(function)}.{name_of(function)}"

    def _is_mistaken_for(self, other: Self) -> bool:
        """Whether the completer could run this function instead of the other, because their scopes
        give them the same name.
        """
        both = (self._given, other._given)
        is_meant = any(given.name is not None or not given.complete for given in both)
        return not is_meant and self._function_name != other._function_name

    @property
    def _policy(self) -> ResolvedPolicy:
        return self._owner._resolved  # type: ignore[no-any-return]

    def _on(self, receiver: Any, key: Key, function: Callable[..., Any]) -> Self:
        """The same on another receiver, for every call under one key: for trials."""
        given = self._given
        changed = _Given(
            lambda *_, **__: key, given.name, (), given.fingerprint, None, given.complete
        )
        return type(self)(receiver, function, changed)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> Key:
        """The key of the run with these arguments, for `signal`, `record` and operators."""
        full = self._key(self._arguments.bind(args, kwargs), args, kwargs)
        return Key(full.value, full.scope, absolute=True)

    def _key(
        self,
        named: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_delivered: bool = False,
    ) -> Key:
        """`is_delivered`: to run it, so that a policy with ``signatures`` requires one."""
        key, owner = self._given.key, self._owner
        if key is None:
            return owner.key(Key.from_content(self._arguments.said(named)))  # type: ignore[no-any-return]
        full: Callable[[Any], Key] = owner._delivered_key if is_delivered else owner.key
        return full(named.get(key) if isinstance(key, str) else key(*args, **kwargs))

    def _call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: DueRun | None = None,
        around: tuple[str, ...] = (),
    ) -> Call:
        """`run`: it is stored, so that nothing about it is made again from its arguments."""
        named = self._arguments.bind(args, kwargs)
        full = self._key(named, args, kwargs, is_delivered=True) if run is None else run.key
        stored = b"" if run is None else run.arguments
        if run is None and self._given.complete:
            stored = self._arguments.encode(named, scope_of_context(), self._policy.codec)
            stored = encrypted_arguments(self._policy.cipher, full.id, self.name, stored)

        def invoke(state: RunState) -> Any:
            return self._function(self._steps(self._owner._runtime, state), *args, **kwargs)

        owner = self._owner
        call: Call = self._unchecked._call(full, invoke, self._profile, args, kwargs)
        if run is None:
            call.fingerprint, call.field_names = self._fingerprint(named, args, kwargs)
        else:
            call.fingerprint, call.policy = run.fingerprint, self._not_waiting
        call.durable = RunCall(
            self.name,
            stored,
            self._given.complete,
            self._holds,
            invoke,
            owner._tracer,
            id(owner._runtime),
            around,
        )
        call.run = run_of(call)
        if owner._tracer is not None:
            call.run = functools.partial(owner._tracer.run, call.key, call.run)
        return call

    def _resumed(self, run: DueRun) -> Call:
        """The call of a stored run. `CorruptRecordError`: its arguments cannot be used."""
        cipher, codec = self._policy.cipher, self._policy.codec
        stored = readable_arguments(cipher, run.key.id, run.function, run.arguments)
        args, kwargs, around = self._arguments.decode(stored, codec)
        return self._call(args, kwargs, run, around)

    def _submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Submit]:
        if not self._given.complete:
            raise UsageError(
                f"{self.name} has complete=False, so no completer would run what is submitted"
            )
        call, policy = self._call(args, kwargs), self._policy
        durable: RunCall = call.durable
        return call, Submit(
            call.key,
            new_owner(),
            policy.lease_ms,
            policy.max_attempts,
            False,
            call.fingerprint,
            function=durable.function,
            arguments=durable.arguments,
        )

    def _fingerprint(
        self, named: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes | None, Any]:
        """Of all arguments but the defaults, unless the decorator says otherwise."""
        setting = self._given.fingerprint
        if setting is False:
            return None, None
        if setting is None or setting is True:
            content: Any = self._arguments.content(named)
            return fingerprint(content), functools.partial(field_names, content)
        content = setting(*args, **kwargs) if callable(setting) else setting
        return stated(content), functools.partial(field_names, content)


class _Given:
    """What `durable` was given for one function."""

    __slots__ = ("complete", "fingerprint", "key", "name", "policy", "scope")

    def __init__(
        self,
        key: Callable[..., KeyLike] | str | None,
        name: str | None,
        scope: Iterable[str] | None,
        fingerprint: FingerprintSetting,
        policy: Policy | None,
        complete: bool,
    ) -> None:
        self.key, self.name, self.fingerprint, self.policy = key, name, fingerprint, policy
        self.scope = None if scope is None else Key("-", scope).scope
        self.complete = complete


class Durable(_DurableBase[P], Generic[P, T]):
    """A durable function: call it to run, resume or replay."""

    _owner: Receiver
    _steps = Steps

    def __init__(
        self, owner: Receiver, function: Callable[Concatenate[Steps, P], T], given: _Given
    ) -> None:
        super().__init__(owner, function, given)
        if self._profile.problem == "async":
            raise refuse_async(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._answer(self._call(args, kwargs)).value  # type: ignore[no-any-return]

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Key:
        """Record the run and return its key; a completer runs it. Submitting it again changes nothing."""
        call, ask = self._submission(args, kwargs)
        _check_submitted(call, self._owner._runtime.run(run_operations.submit(call, ask)))
        return Key(call.key.value, call.key.scope, absolute=True)

    def _answer(self, call: Call) -> Outcome[Any]:
        owner = self._owner
        return value_or_raise(owner._known(call) or owner._runtime.run(call))


class AsyncDurable(_DurableBase[P], Generic[P, T]):
    """An async durable function: await it to run, resume or replay."""

    _owner: AsyncReceiver
    _steps = AsyncSteps

    def __init__(
        self,
        owner: AsyncReceiver,
        function: Callable[Concatenate[AsyncSteps, P], Coroutine[Any, Any, T]],
        given: _Given,
    ) -> None:
        super().__init__(owner, function, given)
        if self._profile.problem != "async":
            raise UsageError("AsyncReceiver decorates async functions; use Receiver for this one")

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return (await self._answer(self._call(args, kwargs))).value  # type: ignore[no-any-return]

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Key:
        """Record the run and return its key; a completer runs it. Submitting it again changes nothing."""
        call, ask = self._submission(args, kwargs)
        _check_submitted(call, await self._owner._runtime.run(run_operations.submit(call, ask)))
        return Key(call.key.value, call.key.scope, absolute=True)

    async def _answer(self, call: Call) -> Outcome[Any]:
        owner = self._owner
        return value_or_raise(owner._known(call) or await owner._runtime.run(call))


def _check_submitted(call: Call, answer: Claimed) -> None:
    """Only other arguments under the key are an error: every other record is this run."""
    if answer.verdict is Verdict.MISMATCH:
        refuse_mismatch(call, answer.fingerprint, known=True)


class Durables(ReceiverBase):
    """`Receiver.durable`."""

    @overload
    def durable(self, function: Callable[Concatenate[Steps, P], T]) -> Durable[P, T]: ...
    @overload
    def durable(
        self,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        name: str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
        complete: bool = True,
    ) -> Callable[[Callable[Concatenate[Steps, P], T]], Durable[P, T]]: ...
    def durable(
        self,
        function: Any = None,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        name: str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
        complete: bool = True,
    ) -> Any:
        """Make a function durable: its first argument is its `Steps`.

        ``key`` is a function of the other arguments, the name of one, or None: the key is then made
        from all of them. ``name``: the name under which the completer finds the function; set it
        before you rename or move the function. ``fingerprint``: what to compare; by default all
        arguments, False for none. ``complete=False``: its arguments are not stored, and only
        callers run it.
        """
        given = _Given(key, name, scope, fingerprint, policy, complete)

        def decorate(function: Any) -> Any:
            return self._registered(Durable(self, function, given))  # type: ignore[arg-type]

        return decorate if function is None else decorate(function)


class AsyncDurables(ReceiverBase):
    """`AsyncReceiver.durable`."""

    @overload
    def durable(
        self, function: Callable[Concatenate[AsyncSteps, P], Coroutine[Any, Any, T]]
    ) -> AsyncDurable[P, T]: ...
    @overload
    def durable(
        self,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        name: str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
        complete: bool = True,
    ) -> Callable[
        [Callable[Concatenate[AsyncSteps, P], Coroutine[Any, Any, T]]], AsyncDurable[P, T]
    ]: ...
    def durable(
        self,
        function: Any = None,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        name: str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
        complete: bool = True,
    ) -> Any:
        """Make a function durable: its first argument is its `AsyncSteps`.

        ``key`` is a function of the other arguments, the name of one, or None: the key is then made
        from all of them. ``name``: the name under which the completer finds the function; set it
        before you rename or move the function. ``fingerprint``: what to compare; by default all
        arguments, False for none. ``complete=False``: its arguments are not stored, and only
        callers run it.
        """
        given = _Given(key, name, scope, fingerprint, policy, complete)

        def decorate(function: Any) -> Any:
            return self._registered(AsyncDurable(self, function, given))  # type: ignore[arg-type]

        return decorate if function is None else decorate(function)
