"""The receiver: one recorded result per key; duplicates get that result.

    receiver = Receiver.open("sqlite:///keys.db")
    outcome = receiver.process("tx-123", charge, order)     # runs charge(order)
    outcome = receiver.process("tx-123", charge, order)     # answers without running it

`AsyncReceiver` is the async version of `Receiver`, with the same names and meanings. All decisions
are made in `_core`; this module is the public interface.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from .. import events
from .._core import operations
from .._core.batch import exchange_many
from .._core.handler_profile import (
    FingerprintSetting,
    profile_of,
    refuse_async,
    refuse_generator,
)
from .._values.keys import KeyLike
from .._values.outcomes import Failure, Outcome
from .._values.policy import Policy
from .._values.records import AuditEntry, Record, State, Stats, SweepReport
from .._values.settings import Duration
from ..errors import StoreUnavailableError, UsageError
from ..stores._base import AsyncStore, Finding, Store
from ..stores._urls import default_url, open_async_store, open_store
from ._base import ReceiverBase, merged, unswept, value_or_raise, whole
from ._claim import AsyncClaim, Claim
from ._maintenance import AsyncMaintenance, Maintenance

if TYPE_CHECKING:
    from .._runtime.blocking import BlockingRuntime
    from .._runtime.event_loop import EventLoopRuntime

__all__ = ["AsyncReceiver", "Receiver"]

T = TypeVar("T")
M = TypeVar("M")
P = ParamSpec("P")


class Receiver(ReceiverBase):
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
    ) -> None:
        from .._runtime.blocking import BlockingRuntime

        notify = events.notifier(observers)
        self._configure(policy, scope, fingerprint, notify, bool(observers))
        self.store = store
        self._upkeep: list[Maintenance] = []
        self._runtime = BlockingRuntime(store, notify=notify, cache=cache)

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
    ) -> Self:
        """Open a receiver on the store at this URL; without one, SQLite in the user's data folder.

        ``cache``: how many recorded answers to cache in this process. Frequent duplicates are then
        answered without a store request.
        """
        return cls(
            open_store(default_url() if url is None else url),
            policy=policy,
            scope=scope,
            fingerprint=fingerprint,
            observers=observers,
            cache=cache,
        )

    def process(
        self, key: KeyLike | None, handler: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T]:
        """Run ``handler(*args, **kwargs)`` under this key's claim and record its answer.

        A duplicate gets the recorded answer.
        """
        profile = profile_of(handler)
        if profile.problem:
            raise (refuse_async if profile.problem == "async" else refuse_generator)(handler)
        run = functools.partial(handler, *args, **kwargs)
        call = self._call(self.key(key), run, profile, args, kwargs)
        return self._cached(call) or value_or_raise(self._runtime.run(call))

    def process_many(
        self,
        messages: Iterable[M],
        handler: Callable[[M], T],
        *,
        key: Callable[[M], KeyLike],
        concurrency: int = 1,
    ) -> list[Outcome[T] | Failure]:
        """One outcome or failure per message, in order. One failure does not affect the others."""
        profile = profile_of(handler)
        if profile.problem:
            raise (refuse_async if profile.problem == "async" else refuse_generator)(handler)
        batch = list(messages)
        calls, bad = self._calls(batch, handler, key, profile)
        flow = exchange_many(calls, whole(concurrency))
        answers = self._runtime.run(flow) if calls else []
        return merged(len(batch), calls, answers, bad)

    @overload
    def idempotent(self, function: Callable[P, T]) -> Callable[P, T]: ...
    @overload
    def idempotent(
        self,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
    def idempotent(
        self,
        function: Any = None,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
    ) -> Any:
        """Make a function safe to call twice. It returns the plain value, new or replayed.

        ``key`` is a function of the arguments, the name of a parameter, or None: the key is then
        made from all arguments. The scope is the receiver's followed by ``scope``, by default the
        function's module and name, so that neither tenants nor functions share keys.
        """
        if function is None:
            return functools.partial(
                self.idempotent, key=key, scope=scope, fingerprint=fingerprint, policy=policy
            )
        if isinstance(function, (staticmethod, classmethod)):
            again = functools.partial(
                self.idempotent, key=key, scope=scope, fingerprint=fingerprint, policy=policy
            )
            return type(function)(again(function.__func__))
        owner, profile, key_of = self._decorated(function, key, scope, fingerprint, policy)
        if profile.problem == "async":
            raise refuse_async(function)

        @functools.wraps(function)
        def receive(*args: Any, **kwargs: Any) -> Any:
            run = functools.partial(function, *args, **kwargs)
            call = owner._call(key_of(args, kwargs), run, profile, args, kwargs)
            return (owner._cached(call) or value_or_raise(owner._runtime.run(call))).value

        return receive

    def claim(
        self, key: KeyLike | None, *, fingerprint: object = None, returns: Any = Any
    ) -> Claim:
        """A manual claim: ``with receiver.claim(key) as claim: if claim.is_new: …``

        ``returns``: the type of the result, if it is not plain data.
        """
        return Claim(self, self.key(key), fingerprint, returns)

    # -- for operators ------------------------------------------------------------------------

    def record(self, key: KeyLike) -> Record | None:
        """The record of a key, or None."""
        return self._runtime.run(operations.read(self.key(key)))

    def release(self, key: KeyLike, *, by: str, why: str = "", force: bool = False) -> None:
        """Let the next delivery run. ``force``: even if the work is done; it will run again."""
        self._runtime.run(self._release(self.key(key), by, why, force))

    def resolve(
        self, key: KeyLike, value: object, *, by: str, why: str = "", returns: Any = Any
    ) -> None:
        """Record this value as the answer. ``returns``: its type, if it is not plain data.

        Kept for this receiver's retention from now, and never shorter than before.
        """
        self._runtime.run(self._resolve(self.key(key), value, by, why, returns))

    def forget(self, key: KeyLike, *, by: str = "forget", why: str = "") -> None:
        """Erase the result and the key text; a late duplicate still does not run again.

        The record is kept for this receiver's retention from now, and never shorter than before.
        """
        self._runtime.run(self._forget(self.key(key), by, why))

    def sweep(self, limit: int | None = None) -> SweepReport:
        """Remove records past their retention, in small batches; at most ``limit`` records."""
        report = self._runtime.run(operations.sweep(limit))
        self._notify(events.Swept(report.removed, report.examined))
        return report

    def park_stuck(self, older_than: Duration = 7 * 86400) -> list[Record]:
        """Park work whose lease ended this long ago without a redelivery; returns the records."""
        flow = operations.park_stuck(self._before(older_than), self._resolved.retention_ms)
        return self._tell_parked(self._runtime.run(flow))

    def maintain(
        self,
        *,
        every: Duration = 300,
        limit: int | None = None,
        park_after: Duration | None = 7 * 86400,
    ) -> Maintenance:
        """Sweep every ``every`` seconds until `close`; one node per interval runs it.

        ``limit``: remove at most this many records per round. ``park_after``: every twelfth round
        also parks work that has been stuck this long (`park_stuck`); None: never.
        """
        upkeep = Maintenance(self, every, limit, park_after)
        self._upkeep.append(upkeep)
        return upkeep

    def stats(self) -> Stats:
        """The number of records in each state."""
        return self._runtime.run(operations.survey())

    def records(
        self,
        *,
        state: State | None = None,
        scope: Iterable[str] = (),
        limit: int = 100,
        after: str = "",
    ) -> tuple[list[Record], str]:
        """A page of records, newest first, and the cursor of the next page (empty: last page)."""
        return self._runtime.run(operations.browse(state, tuple(scope), limit, after))

    def audit(self, key: KeyLike) -> list[AuditEntry]:
        """The operator actions on this key."""
        return self._runtime.run(operations.audit(self.key(key)))

    def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on, and whether records are swept."""
        return self.store.doctor() + unswept(self.stats())

    def close(self) -> None:
        """Stop the lease keeper and close the store, also for receivers made by `options`."""
        while self._upkeep:
            self._upkeep.pop().stop()
        self._runtime.keeper.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncReceiver(ReceiverBase):
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
    ) -> None:
        from .._runtime.event_loop import EventLoopRuntime

        notify = events.notifier(observers)
        self._configure(policy, scope, fingerprint, notify, bool(observers))
        self.store = store
        self._upkeep: list[AsyncMaintenance] = []
        self._runtime = EventLoopRuntime(store, notify=notify, cache=cache)

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
    ) -> Self:
        """Open a receiver on the store at this URL. Not a coroutine: it connects on first use.

        ``cache``: how many recorded answers to cache in this process. Frequent duplicates are then
        answered without a store request.
        """
        return cls(
            open_async_store(default_url() if url is None else url),
            policy=policy,
            scope=scope,
            fingerprint=fingerprint,
            observers=observers,
            cache=cache,
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

        A duplicate gets the recorded answer.
        """
        profile = profile_of(handler)
        if profile.problem == "generator":
            raise refuse_generator(handler)
        run = functools.partial(handler, *args, **kwargs)
        call = self._call(self.key(key), run, profile, args, kwargs)
        return self._cached(call) or value_or_raise(await self._runtime.run(call))

    async def process_many(
        self,
        messages: Iterable[M],
        handler: Callable[[M], Awaitable[T]],
        *,
        key: Callable[[M], KeyLike],
        concurrency: int = 1,
    ) -> list[Outcome[T] | Failure]:
        """One outcome or failure per message, in order. One failure does not affect the others."""
        profile = profile_of(handler)
        if profile.problem == "generator":
            raise refuse_generator(handler)
        batch = list(messages)
        calls, bad = self._calls(batch, handler, key, profile)
        flow = exchange_many(calls, whole(concurrency))
        answers = await self._runtime.run(flow) if calls else []
        return merged(len(batch), calls, answers, bad)

    @overload
    def idempotent(
        self, function: Callable[P, Awaitable[T]]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def idempotent(
        self,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]: ...
    def idempotent(
        self,
        function: Any = None,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
    ) -> Any:
        """Make a function safe to call twice. It returns the plain value, new or replayed.

        ``key`` is a function of the arguments, the name of a parameter, or None: the key is then
        made from all arguments. The scope is the receiver's followed by ``scope``, by default the
        function's module and name, so that neither tenants nor functions share keys.
        """
        if function is None:
            return functools.partial(
                self.idempotent, key=key, scope=scope, fingerprint=fingerprint, policy=policy
            )
        if isinstance(function, (staticmethod, classmethod)):
            again = functools.partial(
                self.idempotent, key=key, scope=scope, fingerprint=fingerprint, policy=policy
            )
            return type(function)(again(function.__func__))
        owner, profile, key_of = self._decorated(function, key, scope, fingerprint, policy)
        if profile.problem != "async":
            raise UsageError("AsyncReceiver decorates async functions; use Receiver for this one")

        @functools.wraps(function)
        async def receive(*args: Any, **kwargs: Any) -> Any:
            run = functools.partial(function, *args, **kwargs)
            call = owner._call(key_of(args, kwargs), run, profile, args, kwargs)
            return (owner._cached(call) or value_or_raise(await owner._runtime.run(call))).value

        return receive

    def claim(
        self, key: KeyLike | None, *, fingerprint: object = None, returns: Any = Any
    ) -> AsyncClaim:
        """A manual claim: ``async with receiver.claim(key) as claim: if claim.is_new: …``

        ``returns``: the type of the result, if it is not plain data.
        """
        return AsyncClaim(self, self.key(key), fingerprint, returns)

    # -- for operators ------------------------------------------------------------------------

    async def record(self, key: KeyLike) -> Record | None:
        """The record of a key, or None."""
        return await self._runtime.run(operations.read(self.key(key)))

    async def release(self, key: KeyLike, *, by: str, why: str = "", force: bool = False) -> None:
        """Let the next delivery run. ``force``: even if the work is done; it will run again."""
        await self._runtime.run(self._release(self.key(key), by, why, force))

    async def resolve(
        self, key: KeyLike, value: object, *, by: str, why: str = "", returns: Any = Any
    ) -> None:
        """Record this value as the answer. ``returns``: its type, if it is not plain data.

        Kept for this receiver's retention from now, and never shorter than before.
        """
        await self._runtime.run(self._resolve(self.key(key), value, by, why, returns))

    async def forget(self, key: KeyLike, *, by: str = "forget", why: str = "") -> None:
        """Erase the result and the key text; a late duplicate still does not run again.

        The record is kept for this receiver's retention from now, and never shorter than before.
        """
        await self._runtime.run(self._forget(self.key(key), by, why))

    async def sweep(self, limit: int | None = None) -> SweepReport:
        """Remove records past their retention, in small batches; at most ``limit`` records."""
        report = await self._runtime.run(operations.sweep(limit))
        self._notify(events.Swept(report.removed, report.examined))
        return report

    async def park_stuck(self, older_than: Duration = 7 * 86400) -> list[Record]:
        """Park work whose lease ended this long ago without a redelivery; returns the records."""
        flow = operations.park_stuck(self._before(older_than), self._resolved.retention_ms)
        return self._tell_parked(await self._runtime.run(flow))

    def maintain(
        self,
        *,
        every: Duration = 300,
        limit: int | None = None,
        park_after: Duration | None = 7 * 86400,
    ) -> AsyncMaintenance:
        """Sweep every ``every`` seconds until `close`; one node per interval runs it.

        ``limit``: remove at most this many records per round. ``park_after``: every twelfth round
        also parks work that has been stuck this long (`park_stuck`); None: never.
        """
        upkeep = AsyncMaintenance(self, every, limit, park_after)
        self._upkeep.append(upkeep)
        return upkeep

    async def stats(self) -> Stats:
        """The number of records in each state."""
        return await self._runtime.run(operations.survey())

    async def records(
        self,
        *,
        state: State | None = None,
        scope: Iterable[str] = (),
        limit: int = 100,
        after: str = "",
    ) -> tuple[list[Record], str]:
        """A page of records, newest first, and the cursor of the next page (empty: last page)."""
        return await self._runtime.run(operations.browse(state, tuple(scope), limit, after))

    async def audit(self, key: KeyLike) -> list[AuditEntry]:
        """The operator actions on this key."""
        return await self._runtime.run(operations.audit(self.key(key)))

    async def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on, and whether records are swept."""
        return await self.store.doctor() + unswept(await self.stats())

    async def close(self) -> None:
        """Stop the lease keeper and close the store, also for receivers made by `options`."""
        while self._upkeep:
            await self._upkeep.pop().stop()
        self._runtime.keeper.close()
        await self.store.close()

    async def __aenter__(self) -> Self:
        """Connects. If the store is unavailable, the first call raises, not this."""
        refused = await self._runtime.connect()
        if refused is not None and not isinstance(refused, StoreUnavailableError):
            raise refused
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
