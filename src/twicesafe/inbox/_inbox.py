"""The inbox: the effect and the record of it, in one transaction of yours.

    inbox = Inbox.open("postgresql://…/shop", consumer="billing")
    with pool.connection() as connection, connection.transaction():
        if inbox.accept(connection, message.id):
            book(connection, message)
        outcome = inbox.process(connection, order.id, charge, connection, order)

Your writes in this transaction and the record commit together or not at all. So the effect on that
database is applied once per key while the record is kept. Not promised: that the handler starts
only once, and anything done outside that transaction.

`AsyncInbox` is the async version of `Inbox`, with the same names and meanings. Neither of them
begins, commits or rolls back: you do. If `process` raises, roll back.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, ParamSpec, Self, TypeVar, overload

from .. import _transactions as transactions
from .. import events
from .._core import inbox_flow as core
from .._core.commands import Invoke
from .._core.driving import drive, drive_async
from .._core.handler_profile import FingerprintSetting, profile_of, refuse_async, refuse_generator
from .._forking import RenewedLock
from .._transactions import AsyncTransaction, Transaction
from .._values.keys import KeyLike
from .._values.outcomes import Outcome
from .._values.policy import Policy
from ..errors import UsageError
from ..receiver._base import value_or_raise
from ..stores._base import AsyncStore, Store
from ..stores._urls import check_store, open_async_store, open_store
from ._base import InboxBase, Results, claim_of, invoked, invoked_async

__all__ = ["AsyncInbox", "Inbox"]

T = TypeVar("T")
P = ParamSpec("P")

PATIENCE = 0.25
"""Seconds that a delivery waits for the last failure of its key to be written."""


class Inbox(InboxBase):
    """The blocking inbox. Thread-safe; one per process and database is enough."""

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
        check_store(self, store)
        self._set_up(consumer, policy, scope, fingerprint, results, observers)
        self._use(store)

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
        """True: new, and now recorded as done in your transaction. False: a duplicate."""
        call = self._plain_call(id, fingerprint)
        transaction = self._joined(connection)
        (entered,) = transaction.run(self._enter(transaction, [core.entry(call, done=True)]))
        return core.accept(call, entered.answer)

    def accept_many(self, connection: Any, ids: Iterable[KeyLike]) -> list[bool]:
        """`accept` for many ids, in one statement if the engine can; one bool per id, in order."""
        calls = [self._plain_call(id_, None) for id_ in ids]
        if not calls:
            return []
        transaction = self._joined(connection)
        asks = [core.entry(call, done=True) for call in self._first_of_each(calls)]
        return self._verdicts(calls, asks, transaction.run(self._enter(transaction, asks)))

    def process(
        self,
        connection: Any,
        key: KeyLike | None,
        handler: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Outcome[T]:
        """Run ``handler(*args, **kwargs)`` in your transaction and record its answer there.

        A duplicate gets the recorded answer.
        """
        profile = profile_of(handler)
        if profile.problem:
            raise (refuse_async if profile.problem == "async" else refuse_generator)(handler)
        run = functools.partial(handler, *args, **kwargs)
        call = self._message_call(self.key(key), run, profile, connection, args, kwargs)
        return self._receive(connection, call)

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
        """Make a function whose first argument is a connection safe to call twice.

        ``key`` is a function of the arguments, or the name of a parameter.
        """
        if function is None:
            return functools.partial(
                self.idempotent, key=key, scope=scope, fingerprint=fingerprint, policy=policy
            )
        owner, profile, key_of = self._decorated_with(function, key, scope, fingerprint, policy)
        if profile.problem == "async":
            raise UsageError("Inbox decorates blocking functions; use AsyncInbox for this one")

        @functools.wraps(function)
        def receive(*args: Any, **kwargs: Any) -> Any:
            run = functools.partial(function, *args, **kwargs)
            connection = owner._connection_of(profile, args, kwargs)
            full = key_of(args, kwargs)
            call = owner._message_call(full, run, profile, connection, args, kwargs)
            return owner._receive(connection, call).value

        return receive

    def close(self) -> None:
        """Finish deferred writes and close the inbox's own connections; yours stay open."""
        self._deferred.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _joined(self, connection: Any) -> Transaction:
        transaction = transactions.of(connection)
        transaction.check()
        return transaction

    def _receive(self, connection: Any, call: Any) -> Outcome[Any]:
        transaction = self._joined(connection)
        unwritten = functools.partial(self._deferred.unwritten, call.key.id)
        # On SQLite the caller's own transaction blocks deferred writes: waiting would not help.
        if unwritten() and transaction.dialect != "sqlite":
            self._deferred.wait(call.key.id, PATIENCE)

        def perform(command: Any) -> Any:
            kind = type(command)
            if kind is core.Enter:
                return transaction.run(self._enter(transaction, [command]))[0]
            if kind is Invoke:
                with claim_of(command):
                    return invoked(command)
            if kind is core.Leave:
                return transaction.run(self._leave(transaction, command))
            self._deferred.add(command)
            return None

        return value_or_raise(drive(core.receive(call, self._must_keep, unwritten), perform))


class AsyncInbox(InboxBase):
    """Async version of `Inbox`. One per process and database is enough, for any number of tasks."""

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
        check_store(self, store)
        self._set_up(consumer, policy, scope, fingerprint, results, observers)
        self._async_store = store
        self._opening = RenewedLock()
        if store.url.startswith("sqlite:"):
            self._use(store.blocking_store())

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
        """True: new, and now recorded as done in your transaction. False: a duplicate."""
        call = self._plain_call(id, fingerprint)
        transaction = await self._joined(connection)
        ask = core.entry(call, done=True)
        (entered,) = await transaction.run(self._enter(transaction, [ask]))
        return core.accept(call, entered.answer)

    async def accept_many(self, connection: Any, ids: Iterable[KeyLike]) -> list[bool]:
        """`accept` for many ids, in one statement if the engine can; one bool per id, in order."""
        calls = [self._plain_call(id_, None) for id_ in ids]
        if not calls:
            return []
        transaction = await self._joined(connection)
        asks = [core.entry(call, done=True) for call in self._first_of_each(calls)]
        return self._verdicts(calls, asks, await transaction.run(self._enter(transaction, asks)))

    async def process(
        self,
        connection: Any,
        key: KeyLike | None,
        handler: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Outcome[T]:
        """Run ``handler(*args, **kwargs)`` in your transaction and record its answer there.

        A duplicate gets the recorded answer.
        """
        profile = profile_of(handler)
        if profile.problem == "generator":
            raise refuse_generator(handler)
        run = functools.partial(handler, *args, **kwargs)
        call = self._message_call(self.key(key), run, profile, connection, args, kwargs)
        return await self._receive(connection, call)

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
        """Make a function whose first argument is a connection safe to call twice.

        ``key`` is a function of the arguments, or the name of a parameter.
        """
        if function is None:
            return functools.partial(
                self.idempotent, key=key, scope=scope, fingerprint=fingerprint, policy=policy
            )
        owner, profile, key_of = self._decorated_with(function, key, scope, fingerprint, policy)
        if profile.problem != "async":
            raise UsageError("AsyncInbox decorates async functions; use Inbox for this one")

        @functools.wraps(function)
        async def receive(*args: Any, **kwargs: Any) -> Any:
            run = functools.partial(function, *args, **kwargs)
            connection = owner._connection_of(profile, args, kwargs)
            full = key_of(args, kwargs)
            call = owner._message_call(full, run, profile, connection, args, kwargs)
            return (await owner._receive(connection, call)).value

        return receive

    async def close(self) -> None:
        """Finish deferred writes and close the inbox's own connections; yours stay open."""
        if self._is_ready():
            await self._in_thread(self._deferred.close)
        await self._async_store.close()

    async def __aenter__(self) -> Self:
        await self._prepare()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _prepare(self) -> None:
        from .._runtime.event_loop import running_loop

        running_loop()
        if not self._is_ready():
            await self._in_thread(self._open_blocking_store)

    async def _in_thread(self, work: Callable[..., object], *args: Any) -> None:
        """Run blocking work in a thread."""
        import asyncio

        await asyncio.to_thread(work, *args)

    def _open_blocking_store(self) -> None:
        with self._opening.now:  # only one task opens it
            if not self._is_ready():
                self._use(self._async_store.blocking_store())

    async def _joined(self, connection: Any) -> AsyncTransaction:
        await self._prepare()
        transaction = transactions.async_of(connection)
        await transaction.check()
        return transaction

    async def _receive(self, connection: Any, call: Any) -> Outcome[Any]:
        transaction = await self._joined(connection)
        unwritten = functools.partial(self._deferred.unwritten, call.key.id)
        # On SQLite the caller's own transaction blocks deferred writes: waiting would not help.
        if unwritten() and transaction.dialect != "sqlite":
            await self._in_thread(self._deferred.wait, call.key.id, PATIENCE)

        async def entered(ask: core.Enter) -> Any:
            return (await transaction.run(self._enter(transaction, [ask])))[0]

        def perform(command: Any) -> Any:
            kind = type(command)
            if kind is core.Enter:
                return entered(command)
            if kind is Invoke:
                return invoked_async(command)
            if kind is core.Leave:
                return transaction.run(self._leave(transaction, command))
            self._deferred.add(command)
            return None

        return value_or_raise(
            await drive_async(core.receive(call, self._must_keep, unwritten), perform)
        )
