"""What `Inbox` and `AsyncInbox` share: settings, and how a message becomes a `Call`. No I/O."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Self, TypeAlias

from .. import events
from .._core import inbox_flow as core
from .._core.call import Call
from .._core.commands import Invoke, Raised, Reply, Returned
from .._core.handler_profile import FingerprintSetting, HandlerProfile, unfinished
from .._engines.sql.in_transaction import InTransaction
from .._runtime.deferred_writes import DeferredWrites
from .._values.clocks import since_boot
from .._values.context import active, scope_of_context
from .._values.fingerprint import stated
from .._values.keys import Key, KeyLike, as_key
from .._values.policy import Policy
from ..errors import AtomicityBrokenError, ConfigurationError, UnsupportedByStoreError, UsageError
from ..receiver._base import ReceiverBase
from ..stores._base import Program, Store

__all__ = ["InboxBase", "Results", "claim_of", "invoked", "invoked_async"]

Results: TypeAlias = Literal["required", "optional"]

_UNUSED: Final = (
    "lease", "max_lease", "max_waiters", "takeover", "backoff", "timeout", "outage",
)  # fmt: skip
"""Receiver settings that have no effect in an inbox: there the transaction holds the key."""


class _Clock:
    """The parts of a runtime that `ReceiverBase` uses."""

    clock = staticmethod(since_boot)
    cache = None


class InboxBase(ReceiverBase):
    """Settings, and how a message becomes a call. No I/O."""

    _store: Store
    _deferred: Any = None

    def _set_up(
        self,
        consumer: str,
        policy: Policy | None,
        scope: Iterable[str],
        fingerprint: FingerprintSetting,
        results: Results,
        observers: Sequence[events.Observer],
    ) -> None:
        if results not in ("required", "optional"):
            raise ConfigurationError(f"results={results!r} is not valid: use required or optional")
        self._runtime = _Clock
        self._statements: dict[str, InTransaction] = {}
        self._must_keep = results == "required"
        _refuse_unused(policy)
        self._consumer = (consumer,) if consumer else ()
        self._configure(policy, scope, fingerprint, events.notifier(observers), bool(observers))
        Key("-", self.scope)  # checked as any scope is

    def _use(self, store: Store) -> None:
        if not store.capabilities.transactions:
            raise UnsupportedByStoreError(
                f"{store.url} cannot share a transaction with your data: an inbox needs "
                "sqlite:///…, postgresql://… or mysql://…; for other stores use a Receiver"
            )
        self._store = store

        @functools.cache  # made with the first deferred write: a store may open late
        def ours() -> InTransaction:
            style = "?" if store.url.startswith("sqlite:") else "%s"
            statements: InTransaction = store.in_transaction(style)
            return statements

        self._deferred = DeferredWrites(
            lambda deferred: store.own_transaction(lambda: ours().note(deferred))
        )

    def _place(self) -> str:
        store: Any = getattr(self, "_async_store", None) or self._store
        return str(store.url)

    def _is_ready(self) -> bool:
        return self._deferred is not None

    def options(
        self,
        *,
        policy: Policy | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting | Any = ...,
    ) -> Self:
        """An inbox with other settings in the same database. Cheap; this inbox is not changed."""
        _refuse_unused(policy)
        return super().options(policy=policy, scope=scope, fingerprint=fingerprint)

    @property
    def scope(self) -> tuple[str, ...]:
        """The scope that every key of this inbox starts with: the consumer, then its own scope."""
        return (*self._consumer, *self._scope)

    def key(self, key: KeyLike | None) -> Key:
        """The full key of a message. Unless the key is absolute, it includes the consumer: two
        consumers of one message both run."""
        return as_key(key, (*scope_of_context(), *self.scope))

    # -- from messages to calls ---------------------------------------------------------------

    def _plain_call(self, id_: KeyLike, content: object) -> Call:
        """A call without a handler: `accept`."""
        key = self.key(id_)
        return Call(
            *(key, _nothing, self._resolved, Any, stated(content), None),
            *(since_boot, self._notify, self._observed),
        )

    def _message_call(
        self,
        key: Key,
        run: Callable[[], Any],
        profile: HandlerProfile,
        connection: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call:
        """The call for a message; the fingerprint leaves the connection out."""
        if self._fingerprint is True:
            args = tuple(None if arg is connection else arg for arg in args)
            kwargs = {name: None if arg is connection else arg for name, arg in kwargs.items()}
        return self._call(key, run, profile, args, kwargs)

    def _decorated_with(
        self,
        function: Any,
        key: Callable[..., KeyLike] | str | None,
        scope: Iterable[str] | None,
        fingerprint: FingerprintSetting,
        policy: Policy | None,
    ) -> tuple[Self, HandlerProfile, Callable[..., Key]]:
        if key is None:
            raise ConfigurationError(
                "an inbox needs the message's id: pass key=, for example "
                "key=lambda connection, message: message.id"
            )
        _refuse_unused(policy)
        return self._decorated(function, key, scope, fingerprint, policy)

    def _connection_of(
        self, profile: HandlerProfile, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The first argument, after ``self`` if there is one."""
        named = profile.named(args, kwargs)
        if not profile.parameters or profile.parameters[0] not in named:
            raise UsageError("the first argument of an inbox function must be a connection")
        return named[profile.parameters[0]]

    @staticmethod
    def _first_of_each(calls: Iterable[Call]) -> list[Call]:
        return list({call.key.id: call for call in reversed(list(calls))}.values())[::-1]

    @staticmethod
    def _verdicts(
        calls: list[Call], asks: list[core.Enter], entered: list[core.Entered]
    ) -> list[bool]:
        """An id that occurs twice in one batch is new only once."""
        answers = {ask.id: got.answer for ask, got in zip(asks, entered, strict=True)}
        seen: set[bytes] = set()
        verdicts = []
        for call in calls:
            verdicts.append(core.accept(call, answers[call.key.id]) and call.key.id not in seen)
            seen.add(call.key.id)
        return verdicts

    # -- programs for the caller's transaction ------------------------------------------------

    def _in_transaction(self, transaction: Any) -> InTransaction:
        known = self._statements.get(transaction.style)
        if known is None:
            scheme = self._store.url.partition(":")[0].partition("+")[0]
            ours = {"mariadb": "mysql", "postgres": "postgresql"}.get(scheme, scheme)
            if ours != transaction.dialect:
                raise UsageError(
                    f"this inbox is on {ours}, but the connection is {transaction.dialect}: "
                    "open the inbox on the database of your connection"
                )
            known = self._statements[transaction.style] = self._store.in_transaction(
                transaction.style
            )
        return known

    def _enter(self, transaction: Any, asks: list[core.Enter]) -> Program[list[core.Entered]]:
        wait = 0.0 if self._resolved.rejects else self._resolved.wait
        statements = self._in_transaction(transaction)
        try:
            return (yield from statements.enter(asks, wait))
        except AtomicityBrokenError as error:  # it was already broken when it got here
            raise UsageError(
                f"the transaction on this connection accepts no statements: {error.message}; roll "
                "it back and start a new one"
            ) from error

    def _leave(self, transaction: Any, ask: core.Leave) -> Program[bool]:
        return self._in_transaction(transaction).leave(ask)


def _nothing() -> None:
    return None


def _refuse_unused(policy: Policy | None) -> None:
    if not isinstance(policy, Policy):
        return
    usual = Policy()
    for name in _UNUSED:
        if getattr(policy, name) != getattr(usual, name):
            raise ConfigurationError(
                f"{name}= has no effect in an inbox, because your transaction holds the key; "
                "remove it (only receivers use it)"
            )


# --- running the handler, in the caller's own thread or task -----------------------------------


@contextlib.contextmanager
def claim_of(command: Invoke) -> Iterator[None]:
    claim = command.claim
    assert claim is not None
    claim.outer = active.get()
    token = active.set(claim)
    try:
        yield
    finally:
        active.reset(token)


def invoked(command: Invoke) -> Reply:
    try:
        value = command.run()
    except Exception as error:
        return Raised(error)
    undone = unfinished(value)
    return Returned(value) if undone is None else Raised(undone)


async def invoked_async(command: Invoke) -> Reply:
    with claim_of(command):
        try:
            value = command.run()
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:
            return Raised(error)
    undone = unfinished(value)
    return Returned(value) if undone is None else Raised(undone)
