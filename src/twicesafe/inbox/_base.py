"""What `Inbox` and `AsyncInbox` share: settings, and how a message becomes a `Call`. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, Self, TypeAlias

from .. import events
from .._core.call import Call
from .._core.handler_profile import FingerprintSetting, HandlerProfile, claimed_content
from .._values.fingerprint import stated
from .._values.keys import Key, KeyLike
from .._values.policy import Policy
from ..errors import ConfigurationError, UnsupportedByStoreError, UsageError
from ..receiver._base import ReceiverBase
from ..receiver._decorator import Decoration

__all__ = ["InboxBase", "Results"]

Results: TypeAlias = Literal["required", "optional"]

_UNUSED: Final = (
    "lease", "max_lease", "max_waiters", "takeover", "backoff", "timeout", "outage",
)  # fmt: skip
"""Receiver settings that have no effect in an inbox: there the transaction holds the key."""


class InboxBase(ReceiverBase):
    """Settings, and how a message becomes a call. No I/O."""

    def _set_up(
        self,
        store: Any,
        consumer: str,
        policy: Policy | None,
        scope: Iterable[str],
        fingerprint: FingerprintSetting,
        results: Results,
        observers: Sequence[events.Observer],
    ) -> None:
        capabilities = store.capabilities
        if not capabilities.transactions:
            raise UnsupportedByStoreError(
                f"{store.url} cannot share a transaction with your data: an inbox needs "
                "sqlite:///…, postgresql://… or mysql://…; for other stores use a Receiver"
            )
        if results not in ("required", "optional"):
            raise ConfigurationError(f"results={results!r} is not valid: use required or optional")
        self.store, self._hidden = store, store.hidden_keys
        self._must_keep = results == "required"
        self._waits = not capabilities.single_writer
        _refuse_unused(policy)
        self._consumer = (consumer,) if consumer else ()
        self._configure(policy, scope, fingerprint, events.notifier(observers), observers)
        self._tracer = events.tracer_of(observers)
        Key("-", self.scope)  # a scope is checked like any other

    def options(
        self,
        *,
        policy: Policy | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
    ) -> Self:
        """An inbox with other settings in the same database. Cheap; this inbox is not changed."""
        _refuse_unused(policy)
        return super().options(policy=policy, scope=scope, fingerprint=fingerprint)

    # -- from messages to calls ---------------------------------------------------------------

    def _plain_call(self, id_: KeyLike, content: object) -> Call:
        """A call without a handler: `accept`."""
        key, content = self._delivered_key(id_), claimed_content(content, self._fingerprint)
        return Call(
            *(key, _nothing, self._resolved, Any, stated(content), None),
            *(self._runtime.clock, self._notify, self._observed),
        )

    def _plain_calls(self, ids: Iterable[KeyLike]) -> list[Call]:
        if isinstance(ids, (str, bytes)):
            raise UsageError(
                f"accept_many takes a list of ids, not {type(ids).__name__}; for one id use accept"
            )
        return [self._plain_call(id_, None) for id_ in ids]

    def _decorated(
        self, function: Any, given: Decoration
    ) -> tuple[Self, HandlerProfile, Callable[..., Key]]:
        if given.key is None:
            raise ConfigurationError(
                "an inbox needs the message's id: pass key=, for example "
                "key=lambda connection, message: message.id"
            )
        _refuse_unused(given.policy)
        return super()._decorated(function, given)

    def _connection_of(
        self, profile: HandlerProfile, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The first argument, after ``self`` if there is one."""
        named = profile.named(args, kwargs)
        if not profile.parameters or profile.parameters[0] not in named:
            raise UsageError("the first argument of an inbox function must be a connection")
        return named[profile.parameters[0]]


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
