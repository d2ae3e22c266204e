"""The receiver: one recorded result per key; duplicates get that result.

    receiver = Receiver.open("sqlite:///keys.db")
    outcome = receiver.process("tx-123", charge, order)     # runs charge(order)
    outcome = receiver.process("tx-123", charge, order)     # answers without running it

`AsyncReceiver` is the async version of `Receiver`, with the same names and meanings. All decisions
are made in `_core`; this module is the public interface.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from .. import events
from .._core.batch import deliver_many
from .._core.handler_kind import refuse_async, refuse_generator
from .._core.handler_profile import FingerprintSetting, profile_of
from .._values.breaker import Breaker
from .._values.keys import KeyLike
from .._values.outcomes import Failure, Outcome
from .._values.policy import Policy
from ..errors import ConfigurationError, StoreUnavailableError, UsageError
from ..stores._base import AsyncStore, Store
from ..stores._urls import check_store, default_url, mask, open_async_store, open_store
from ._base import value_or_raise
from ._batches import calls_of, checked_concurrency, merged
from ._claim import AsyncClaim, Claim
from ._completion import AsyncCompletes, Completes
from ._decorator import AsyncDecorator, Decoration, Decorator
from ._durable import AsyncDurables, Durables
from ._fallback import async_fallback_of, fallback_of
from ._inspection import AsyncInspection, Inspection
from ._operators import AsyncOperators, Operators
from ._run_operators import AsyncRunOperators, RunOperators

if TYPE_CHECKING:
    from .._runtime.blocking import BlockingRuntime
    from .._runtime.event_loop import EventLoopRuntime

__all__ = ["AsyncReceiver", "Receiver", "check_any_receiver"]

T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M")
P = ParamSpec("P")


class Receiver(Decorator, Durables, Completes, RunOperators, Inspection, Operators):
    """The blocking receiver. Thread-safe; one per process and store is enough."""

    _runtime: BlockingRuntime
    store: Store

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy | None = None,
        scope: Iterable[str] = (),
        fingerprint: FingerprintSetting = None,
        observers: Sequence[events.Observer] = (),
        cache: int = 0,
        breaker: Breaker | None = None,
    ) -> None:
        from .._runtime.blocking import BlockingRuntime

        check_store(self, store)
        notify = self._notifier(observers)
        self._configure(policy, scope, fingerprint, notify, self._observed)
        self.store, self._hidden = store, store.hidden_keys
        self._upkeep = []
        self._runtime = BlockingRuntime(store, notify=notify, cache=cache)
        if breaker is not None:
            self._fallback = fallback_of(self, breaker)
            self._breaker.guard = self._runtime.break_circuit(breaker, self._fallback)

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        policy: Policy | None = None,
        scope: Iterable[str] = (),
        fingerprint: FingerprintSetting = None,
        observers: Sequence[events.Observer] = (),
        cache: int = 0,
        breaker: Breaker | None = None,
    ) -> Self:
        """Open a receiver on the store at this URL; without one, SQLite in the user's data folder.

        ``cache``: how many recorded answers to cache in this process. Frequent duplicates are then
        answered without a store request. ``breaker``: stop asking a store that fails, for a while.
        """
        return cls(
            open_store(default_url() if url is None else url),
            policy=policy,
            scope=scope,
            fingerprint=fingerprint,
            observers=observers,
            cache=cache,
            breaker=breaker,
        )

    def process(
        self, key: KeyLike | None, handler: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T]:
        """Run ``handler(*args, **kwargs)`` under this key's claim and record its answer.

        A duplicate gets the recorded answer. All keywords are the handler's; for other settings in
        one call use ``receiver.options(policy=Policy(lease=60)).process(…)``. Arguments that do not
        fit the handler are refused before the claim.
        """
        profile = profile_of(handler)
        if profile.problem:
            raise (refuse_async if profile.problem == "async" else refuse_generator)(handler)
        if kwargs or not profile.least <= len(args) <= profile.most:
            profile.check(handler, args, kwargs)
        full = self.key(key) if self._trusts_all else self._delivered_key(key)
        call = self._unbound_call(full, handler, profile, args, kwargs)
        known = self._known(call)
        if known is not None:
            return known
        self._bind(call, handler, args, kwargs)
        answer = self._runtime.run(call)
        return answer if type(answer) is Outcome else value_or_raise(answer)

    def process_many(
        self,
        messages: Iterable[M],
        handler: Callable[[M], T],
        *,
        key: Callable[[M], KeyLike],
        concurrency: int = 1,
    ) -> list[Outcome[T] | Failure]:
        """Handle many messages; returns one outcome or failure per message, in order. A failure
        does not affect the others.
        """
        profile = profile_of(handler)
        if profile.problem:
            raise (refuse_async if profile.problem == "async" else refuse_generator)(handler)
        if not profile.least <= 1 <= profile.most:
            profile.check(handler, (None,), {})
        batch = list(messages)
        calls, bad = calls_of(self, batch, handler, key, profile)
        flow = deliver_many(calls, checked_concurrency(concurrency))
        answers = self._runtime.run(flow) if calls else []
        return merged(len(batch), calls, answers, bad)

    @overload
    def claim(
        self, key: KeyLike | None, *, fingerprint: object = None, returns: type[R]
    ) -> Claim[R]: ...
    @overload
    def claim(
        self, key: KeyLike | None, *, fingerprint: object = None, returns: Any = Any
    ) -> Claim[Any]: ...
    def claim(
        self, key: KeyLike | None, *, fingerprint: object = None, returns: Any = Any
    ) -> Claim[Any]:
        """A manual claim: ``with receiver.claim(key) as claim: if claim.is_new: …``

        ``returns``: the type of the result, if it is not plain data; ``claim.result`` has this type.
        """
        return Claim(self, self._delivered_key(key), *self._compared(fingerprint), returns)

    def close(self) -> None:
        """Stop the lease keeper and close the store, also for receivers made by `options`.

        A handler that is still running can record its end, but its lease is no longer renewed. Every
        further call raises `UsageError`, unless a ``with`` block opens the receiver again.
        """
        while self._upkeep:
            self._upkeep.pop().stop()
        self._runtime.shut().close()
        if self._fallback is not None:
            self._fallback.close()

    def __enter__(self) -> Self:
        self._runtime.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._runtime.leave()
        self.close()

    def _answering(self, function: Any, given: Decoration) -> Callable[..., Outcome[Any]]:
        owner, profile, key_of = self._decorated(function, given)
        if profile.problem == "async":
            raise refuse_async(function)

        def answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome[Any]:
            if kwargs or not profile.least <= len(args) <= profile.most:
                profile.check(function, args, kwargs)
            call = owner._unbound_call(key_of(args, kwargs), function, profile, args, kwargs)
            known = owner._known(call)
            if known is not None:
                return known
            owner._bind(call, function, args, kwargs)
            answered = owner._runtime.run(call)
            return answered if type(answered) is Outcome else value_or_raise(answered)

        return answer


class AsyncReceiver(
    AsyncDecorator,
    AsyncDurables,
    AsyncCompletes,
    AsyncRunOperators,
    AsyncInspection,
    AsyncOperators,
):
    """Async version of `Receiver`. One per process and store is enough, for any number of tasks."""

    _runtime: EventLoopRuntime
    store: AsyncStore

    def __init__(
        self,
        store: AsyncStore,
        *,
        policy: Policy | None = None,
        scope: Iterable[str] = (),
        fingerprint: FingerprintSetting = None,
        observers: Sequence[events.Observer] = (),
        cache: int = 0,
        breaker: Breaker | None = None,
    ) -> None:
        from .._runtime.event_loop import EventLoopRuntime

        check_store(self, store)
        notify = self._notifier(observers)
        self._configure(policy, scope, fingerprint, notify, self._observed)
        self.store, self._hidden = store, store.hidden_keys
        self._upkeep = []
        self._runtime = EventLoopRuntime(store, notify=notify, cache=cache)
        if breaker is not None:
            self._fallback = async_fallback_of(self, breaker)
            self._breaker.guard = self._runtime.break_circuit(breaker, self._fallback)

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        policy: Policy | None = None,
        scope: Iterable[str] = (),
        fingerprint: FingerprintSetting = None,
        observers: Sequence[events.Observer] = (),
        cache: int = 0,
        breaker: Breaker | None = None,
    ) -> Self:
        """Open a receiver on the store at this URL. Not a coroutine: it connects on first use.

        ``cache``: how many recorded answers to cache in this process. Frequent duplicates are then
        answered without a store request. ``breaker``: stop asking a store that fails, for a while.
        """
        return cls(
            open_async_store(default_url() if url is None else url),
            policy=policy,
            scope=scope,
            fingerprint=fingerprint,
            observers=observers,
            cache=cache,
            breaker=breaker,
        )

    async def process(
        self,
        key: KeyLike | None,
        handler: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Outcome[T]:
        """Run ``handler(*args, **kwargs)`` under this key's claim and record its answer.

        A duplicate gets the recorded answer. All keywords are the handler's; for other settings in
        one call use ``receiver.options(policy=Policy(lease=60)).process(…)``. Arguments that do not
        fit the handler are refused before the claim.
        """
        profile = profile_of(handler)
        if profile.problem == "generator":
            raise refuse_generator(handler)
        if kwargs or not profile.least <= len(args) <= profile.most:
            profile.check(handler, args, kwargs)
        full = self.key(key) if self._trusts_all else self._delivered_key(key)
        call = self._unbound_call(full, handler, profile, args, kwargs)
        known = self._known(call)
        if known is not None:
            return known
        self._bind(call, handler, args, kwargs)
        answer = await self._runtime.run(call)
        return answer if type(answer) is Outcome else value_or_raise(answer)

    async def process_many(
        self,
        messages: Iterable[M],
        handler: Callable[[M], Awaitable[T]],
        *,
        key: Callable[[M], KeyLike],
        concurrency: int = 1,
    ) -> list[Outcome[T] | Failure]:
        """Handle many messages; returns one outcome or failure per message, in order. A failure
        does not affect the others.
        """
        profile = profile_of(handler)
        if profile.problem == "generator":
            raise refuse_generator(handler)
        if not profile.least <= 1 <= profile.most:
            profile.check(handler, (None,), {})
        batch = list(messages)
        calls, bad = calls_of(self, batch, handler, key, profile)
        flow = deliver_many(calls, checked_concurrency(concurrency))
        answers = await self._runtime.run(flow) if calls else []
        return merged(len(batch), calls, answers, bad)

    @overload
    def claim(
        self, key: KeyLike | None, *, fingerprint: object = None, returns: type[R]
    ) -> AsyncClaim[R]: ...
    @overload
    def claim(
        self, key: KeyLike | None, *, fingerprint: object = None, returns: Any = Any
    ) -> AsyncClaim[Any]: ...
    def claim(
        self, key: KeyLike | None, *, fingerprint: object = None, returns: Any = Any
    ) -> AsyncClaim[Any]:
        """A manual claim: ``async with receiver.claim(key) as claim: if claim.is_new: …``

        ``returns``: the type of the result, if it is not plain data; ``claim.result`` has this type.
        """
        return AsyncClaim(self, self._delivered_key(key), *self._compared(fingerprint), returns)

    async def close(self) -> None:
        """Stop the lease keeper and close the store, also for receivers made by `options`.

        A handler that is still running can record its end, but its lease is no longer renewed. Every
        further call raises `UsageError`, unless an ``async with`` block opens the receiver again.
        """
        while self._upkeep:
            await self._upkeep.pop().stop()
        await self._runtime.shut().close()
        if self._fallback is not None:
            await self._fallback.close()

    async def __aenter__(self) -> Self:
        """Connects. If the store is unavailable, the first call raises, not this."""
        from .._runtime.event_loop import running_loop

        running_loop()
        self._runtime.enter()
        try:
            refused = await self._runtime.connect()
            if refused is not None and not isinstance(refused, StoreUnavailableError):
                raise refused
        except BaseException:
            await self.__aexit__()  # Python calls it only if the block begins
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._runtime.leave()
        await self.close()

    def _answering(
        self, function: Any, given: Decoration
    ) -> Callable[..., Awaitable[Outcome[Any]]]:
        owner, profile, key_of = self._decorated(function, given)
        if profile.problem != "async":
            raise UsageError("AsyncReceiver decorates async functions; use Receiver for this one")

        async def answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome[Any]:
            if kwargs or not profile.least <= len(args) <= profile.most:
                profile.check(function, args, kwargs)
            call = owner._unbound_call(key_of(args, kwargs), function, profile, args, kwargs)
            known = owner._known(call)
            if known is not None:
                return known
            owner._bind(call, function, args, kwargs)
            answered = await owner._runtime.run(call)
            return answered if type(answered) is Outcome else value_or_raise(answered)

        return answer


def check_any_receiver(given: object, where: str) -> None:
    """Raise if a layer that takes both kinds of receivers got something else."""
    if not isinstance(given, Receiver | AsyncReceiver):
        found = (
            f"a URL: use Receiver.open({mask(given)!r})"
            if isinstance(given, str)
            else type(given).__name__
        )
        raise ConfigurationError(
            f"{where} needs a Receiver or an AsyncReceiver, and this is {found}"
        )
