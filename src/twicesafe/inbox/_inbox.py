"""The inbox: your effect and its record commit together, in your own transaction.

    inbox = Inbox.open("postgresql://…/shop", consumer="billing")
    with pool.connection() as connection, connection.transaction():
        if inbox.accept(connection, message.id):
            book(connection, message)
        outcome = inbox.process(connection, order.id, charge, order)

Your writes in this transaction and the record commit together or not at all. So the effect on that
database is applied once per key while the record is kept. Not promised: that the handler starts
only once, and anything done outside that transaction.

`AsyncInbox` is the async version of `Inbox`, with the same names and meanings. Neither of them
begins, commits or rolls back: you do. If `process` raises, roll back.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload

from .. import events
from .._core import inbox_flow as core
from .._core.handler_kind import refuse_async, refuse_generator
from .._core.handler_profile import FingerprintSetting, profile_of
from .._values.keys import KeyLike
from .._values.outcomes import Outcome
from .._values.policy import Policy
from ..errors import UsageError
from ..receiver._base import value_or_raise
from ..receiver._decorator import AsyncDecorator, Decoration, Decorator
from ..stores._base import AsyncStore, Store
from ..stores._urls import check_store, open_async_store, open_store
from ._base import InboxBase, Results

if TYPE_CHECKING:
    from .._runtime.transaction import AsyncTransactionRuntime, TransactionRuntime

__all__ = ["AsyncInbox", "Inbox"]

C = TypeVar("C")
T = TypeVar("T")
P = ParamSpec("P")


class Inbox(Decorator, InboxBase):
    """The blocking inbox. Thread-safe; one per process and database is enough."""

    _runtime: TransactionRuntime

    def __init__(
        self,
        store: Store,
        *,
        consumer: str = "",
        policy: Policy | None = None,
        scope: Iterable[str] = (),
        fingerprint: FingerprintSetting = None,
        results: Results = "required",
        observers: Sequence[events.Observer] = (),
    ) -> None:
        from .._runtime.transaction import TransactionRuntime

        check_store(self, store)
        self._set_up(store, consumer, policy, scope, fingerprint, results, observers)
        self._runtime = TransactionRuntime(store)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        consumer: str = "",
        policy: Policy | None = None,
        scope: Iterable[str] = (),
        fingerprint: FingerprintSetting = None,
        results: Results = "required",
        observers: Sequence[events.Observer] = (),
    ) -> Self:
        """Open the inbox in the database at this URL, which must be the one you connect to.

        ``consumer``: the name of the consumer; two consumers of one message both run. ``results``:
        what to do if a result cannot be stored. "required" raises, so that you roll back and
        nothing is applied; "optional" records the work as done without a result.
        """
        store = open_store(url)
        try:
            return cls(
                store,
                consumer=consumer,
                policy=policy,
                scope=scope,
                fingerprint=fingerprint,
                results=results,
                observers=observers,
            )
        except BaseException:
            store.close()
            raise

    def accept(self, connection: Any, id: KeyLike, *, fingerprint: object = None) -> bool:  # noqa: A002
        """Return True if the id is new, and record it as done in your transaction; False if it is a duplicate."""
        return self._runtime.run(connection, core.accept(self._plain_call(id, fingerprint)))

    def accept_many(self, connection: Any, ids: Iterable[KeyLike]) -> list[bool]:
        """`accept` for many ids, in one statement if the engine can; one bool per id, in order."""
        calls = self._plain_calls(ids)
        return self._runtime.run(connection, core.accept_many(calls)) if calls else []

    @overload
    def process(
        self,
        connection: Any,
        key: KeyLike | None,
        handler: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Outcome[T]: ...
    @overload
    def process(
        self,
        connection: C,
        key: KeyLike | None,
        handler: Callable[Concatenate[C, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Outcome[T]: ...
    def process(
        self,
        connection: Any,
        key: KeyLike | None,
        handler: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Outcome[Any]:
        """Run ``handler(connection, *args, **kwargs)`` in your transaction and record its answer there.

        A duplicate gets the recorded answer. The connection is passed only if the handler needs one
        more positional argument than you give.
        """
        profile = profile_of(handler)
        if profile.problem:
            raise (refuse_async if profile.problem == "async" else refuse_generator)(handler)
        if profile.needs_one_more(handler, args, kwargs):
            args = (connection, *args)
        if kwargs or not profile.least <= len(args) <= profile.most:
            profile.check(handler, args, kwargs, "inbox")
        run = functools.partial(handler, *args, **kwargs)
        call = self._call(self._delivered_key(key), run, profile, args, kwargs, connection)
        flow = core.receive(call, self._must_keep, self._waits)
        return value_or_raise(self._runtime.run(connection, flow))

    def _answering(self, function: Any, given: Decoration) -> Callable[..., Outcome[Any]]:
        owner, profile, key_of = self._decorated(function, given)
        if profile.problem == "async":
            raise UsageError("Inbox decorates blocking functions; use AsyncInbox for this one")

        def answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome[Any]:
            if kwargs or not profile.least <= len(args) <= profile.most:
                profile.check(function, args, kwargs, "inbox")
            run = functools.partial(function, *args, **kwargs)
            connection = owner._connection_of(profile, args, kwargs)
            full = key_of(args, kwargs)
            call = owner._call(full, run, profile, args, kwargs, connection)
            flow = core.receive(call, owner._must_keep, owner._waits)
            return value_or_raise(owner._runtime.run(connection, flow))

        return answer

    def close(self) -> None:
        """Finish deferred writes and close the inbox's own connections; yours stay open.

        Every further call raises `UsageError`, also of inboxes made by `options`, unless a ``with`` block
        opens the inbox again.
        """
        self._runtime.close()

    def __enter__(self) -> Self:
        self._runtime.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._runtime.leave()
        self.close()


class AsyncInbox(AsyncDecorator, InboxBase):
    """Async version of `Inbox`. One per process and database is enough, for any number of tasks."""

    _runtime: AsyncTransactionRuntime

    def __init__(
        self,
        store: AsyncStore,
        *,
        consumer: str = "",
        policy: Policy | None = None,
        scope: Iterable[str] = (),
        fingerprint: FingerprintSetting = None,
        results: Results = "required",
        observers: Sequence[events.Observer] = (),
    ) -> None:
        from .._runtime.transaction import AsyncTransactionRuntime

        check_store(self, store)
        self._set_up(store, consumer, policy, scope, fingerprint, results, observers)
        self._runtime = AsyncTransactionRuntime(store)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        consumer: str = "",
        policy: Policy | None = None,
        scope: Iterable[str] = (),
        fingerprint: FingerprintSetting = None,
        results: Results = "required",
        observers: Sequence[events.Observer] = (),
    ) -> Self:
        """Open the inbox in the database at this URL, which must be the one you connect to.

        Not a coroutine: the inbox's own connection opens on first use, or by ``async with``. A
        SQLite file opens now, because it cannot be prepared while your transaction writes to it.
        ``consumer`` and ``results`` as in `Inbox.open`.
        """
        return cls(
            open_async_store(url),
            consumer=consumer,
            policy=policy,
            scope=scope,
            fingerprint=fingerprint,
            results=results,
            observers=observers,
        )

    async def accept(self, connection: Any, id: KeyLike, *, fingerprint: object = None) -> bool:  # noqa: A002
        """Return True if the id is new, and record it as done in your transaction; False if it is a duplicate."""
        return await self._runtime.run(connection, core.accept(self._plain_call(id, fingerprint)))

    async def accept_many(self, connection: Any, ids: Iterable[KeyLike]) -> list[bool]:
        """`accept` for many ids, in one statement if the engine can; one bool per id, in order."""
        calls = self._plain_calls(ids)
        return await self._runtime.run(connection, core.accept_many(calls)) if calls else []

    @overload
    async def process(
        self,
        connection: Any,
        key: KeyLike | None,
        handler: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Outcome[T]: ...
    @overload
    async def process(
        self,
        connection: C,
        key: KeyLike | None,
        handler: Callable[Concatenate[C, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Outcome[T]: ...
    async def process(
        self,
        connection: Any,
        key: KeyLike | None,
        handler: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Outcome[Any]:
        """Run ``handler(connection, *args, **kwargs)`` in your transaction and record its answer there.

        A duplicate gets the recorded answer. The connection is passed only if the handler needs one
        more positional argument than you give.
        """
        profile = profile_of(handler)
        if profile.problem == "generator":
            raise refuse_generator(handler)
        if profile.needs_one_more(handler, args, kwargs):
            args = (connection, *args)
        if kwargs or not profile.least <= len(args) <= profile.most:
            profile.check(handler, args, kwargs, "inbox")
        run = functools.partial(handler, *args, **kwargs)
        call = self._call(self._delivered_key(key), run, profile, args, kwargs, connection)
        flow = core.receive(call, self._must_keep, self._waits)
        return value_or_raise(await self._runtime.run(connection, flow))

    def _answering(
        self, function: Any, given: Decoration
    ) -> Callable[..., Awaitable[Outcome[Any]]]:
        owner, profile, key_of = self._decorated(function, given)
        if profile.problem != "async":
            raise UsageError("AsyncInbox decorates async functions; use Inbox for this one")

        async def answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome[Any]:
            if kwargs or not profile.least <= len(args) <= profile.most:
                profile.check(function, args, kwargs, "inbox")
            run = functools.partial(function, *args, **kwargs)
            connection = owner._connection_of(profile, args, kwargs)
            full = key_of(args, kwargs)
            call = owner._call(full, run, profile, args, kwargs, connection)
            flow = core.receive(call, owner._must_keep, owner._waits)
            return value_or_raise(await owner._runtime.run(connection, flow))

        return answer

    async def close(self) -> None:
        """Finish deferred writes and close the inbox's own connections; yours stay open.

        Every further call raises `UsageError`, also of inboxes made by `options`, unless a ``with`` block
        opens the inbox again.
        """
        await self._runtime.close()

    async def __aenter__(self) -> Self:
        self._runtime.enter()
        await self._runtime.prepare()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._runtime.leave()
        await self.close()
