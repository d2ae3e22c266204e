"""What `Receiver` and `AsyncReceiver` share: settings, and how a delivery becomes a `Call`. No I/O.

The two differ only in how they run the flows that are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from copy import copy
from functools import partial
from typing import Any, NoReturn, Self

from .. import events
from .._core.call import Call
from .._core.commands import Raised
from .._core.duplicates import outcome_of
from .._core.handler_kind import refuse_generator
from .._core.handler_profile import (
    FingerprintSetting,
    HandlerProfile,
    check_setting,
    claimed_content,
    profile_of,
)
from .._core.handler_scope import scope_of_function
from .._core.protocol import Verdict
from .._core.resolved_policy import ResolvedPolicy
from .._values.context import scope_of_context
from .._values.fingerprint import field_names, stated
from .._values.hidden_keys import HiddenKeys
from .._values.keys import Key, KeyLike, as_key
from .._values.outcomes import Outcome
from .._values.policy import Policy
from .._values.settings import shown, suggestion
from .._values.signed_key import require_signature
from ..errors import ConfigurationError, stays_here
from ..events._notifying import CarefulTracer, checked
from ..stores._base import AsyncStore, Store
from ..stores._urls import mask
from ._decorator import Decoration

__all__ = [
    "ReceiverBase",
    "check_key",
    "check_receiver",
    "expect_parameter",
    "value_or_raise",
]


_REPLAY = Verdict.REPLAY


class ReceiverBase:
    """Settings, and how a delivery becomes a call. No I/O."""

    _runtime: Any
    store: Any
    _upkeep: list[Any]
    _consumer: tuple[str, ...] = ()
    """Of an inbox: in front of its scope, so that two consumers of one message both run."""
    _front: tuple[str, ...]
    """What every key starts with, unless it is absolute."""
    _observed: Any
    """The observers, in a list that all receivers made by `options` share."""
    _tracer: CarefulTracer | None = None
    _activity: Any = None
    """What `health` looks at; only if there are observers."""
    _breaker: _BreakerObserver
    _fallback: Any = None
    _hidden: HiddenKeys | None = None
    """Hides the text of keys, if the store says so."""
    _durables: dict[str, dict[tuple[str, ...], Any]]
    """The durable functions by name and scope, for the completer; shared by all receivers made by `options`."""

    def _configure(
        self,
        policy: Policy | None,
        scope: Iterable[str],
        fingerprint: FingerprintSetting,
        notify: Callable[[events.Event], None],
        observed: Sized,
    ) -> None:
        if policy is not None and not isinstance(policy, Policy):
            raise ConfigurationError(f"policy must be a Policy(…), not {type(policy).__name__}")
        self.policy = policy or Policy()
        self._resolved = ResolvedPolicy(self.policy)
        self._trusts_all = self.policy.signatures is None
        self._scope = Key("-", scope).scope  # a scope is checked like any other
        self._front = (*self._consumer, *self._scope)
        self._fingerprint = check_setting(fingerprint)
        self._notify = notify
        self._observed = observed

    def _notifier(self, observers: Sequence[events.Observer]) -> Callable[[events.Event], None]:
        self._breaker = _BreakerObserver()
        self._durables = {}
        self._observed = list(checked(observers))
        notify = events.notifier([*self._observed, self._breaker])
        if self._observed:
            self._tracer = events.tracer_of(self._observed)
            self._count_activity(notify)
        return notify

    def _count_activity(self, notify: Any) -> None:
        from ..observers._activity import Activity

        self._activity = Activity()
        self._activity.renewed = notify.renew
        notify.add(self._activity)

    def _observe(self, observer: events.Observer) -> None:
        """One more observer, for a command that gets a receiver already made. Every receiver that
        was made from it by `options` reports to it, too."""
        self._notify.add(observer)  # type: ignore[attr-defined]
        self._observed.append(observer)
        if self._activity is None:
            self._count_activity(self._notify)

    def __repr__(self) -> str:
        """Where it is and what differs from the default. Scopes name tenants, so they are counted."""
        words = [type(self).__name__, self._place()]
        if self.scope:
            words.append(f"scope: {len(self.scope)} part{'s' * (len(self.scope) > 1)}")
        if self.policy != Policy():
            words.append(repr(self.policy))
        return f"<{' '.join(words)}>"

    def _place(self) -> str:
        url: str = self.store.url
        return url

    def __reduce__(self) -> NoReturn:
        raise stays_here(self)

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def options(
        self,
        *,
        policy: Policy | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
    ) -> Self:
        """A receiver with other settings on the same store. Cheap; this receiver is not changed.

        None keeps what this receiver has; ``fingerprint=False`` turns the check off.
        """
        other = copy(self)
        other._configure(
            policy or self.policy,
            self._scope if scope is None else scope,
            self._fingerprint if fingerprint is None else fingerprint,
            self._notify,
            self._observed,
        )
        return other

    @property
    def scope(self) -> tuple[str, ...]:
        """The scope that every key starts with, unless the key is absolute. An inbox has its consumer first."""
        return self._front

    def key(self, key: KeyLike | None) -> Key:
        """The full key: the scope of the context, `scope`, then the key's own scope."""
        around = scope_of_context()
        scope = (*around, *self._front) if around else self._front
        return as_key(key, scope) if self._hidden is None else self._full_key(key, scope)

    def _full_key(self, key: KeyLike | None, scope: tuple[str, ...]) -> Key:
        full = as_key(key, scope)
        hidden = self._hidden
        if hidden is None:
            return full
        return hidden.returned(full) if full is key else hidden.key(full)

    def _delivered_key(self, key: KeyLike | None) -> Key:
        """The full key of a delivery; raises `UntrustedKeyError` if the policy requires a signature."""
        if not self._trusts_all:
            assert self.policy.signatures is not None
            require_signature(self.policy.signatures, key)
        return self.key(key)

    def _call(self, key: Key, run: Callable[[], Any], *rest: Any) -> Call:
        """A call that is ready to run. `rest`: as for `_unbound_call`."""
        call = self._unbound_call(key, run, *rest)
        if self._tracer is not None:
            call.run = partial(self._tracer.run, key, run)
        return call

    def _unbound_call(
        self,
        key: Key,
        run: Callable[..., Any],
        profile: HandlerProfile,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        connection: Any = None,
    ) -> Call:
        """A call that `_bind` must complete before it runs. `connection`: an argument that the
        fingerprint leaves out."""
        setting, print_, names = self._fingerprint, None, None
        if setting is not None:
            if connection is not None and setting is True:
                args, kwargs = _without(connection, args, kwargs)
            print_, names = profile.fingerprint(setting, args, kwargs)
        return Call(
            key,
            run,
            self._resolved,
            profile.declared,
            print_,
            names,
            self._runtime.clock,
            self._notify,
            self._observed,
        )

    def _bind(
        self,
        call: Call,
        handler: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Give the handler its arguments. A repeat whose answer is known does not get here."""
        run = partial(handler, *args, **kwargs)
        call.run = run if self._tracer is None else partial(self._tracer.run, call.key, run)

    def _compared(self, fingerprint: object) -> tuple[bytes | None, Any]:
        """The fingerprint of a manual claim, and a function that returns its field names."""
        content = claimed_content(fingerprint, self._fingerprint)
        if content is None or isinstance(content, bytes):
            return stated(content), None
        return stated(content), lambda: field_names(content)

    def _known(self, call: Call) -> Outcome[Any] | None:
        """The recorded answer, if it can be read without a claim; None: deliver the call."""
        cache, recall = self._runtime.cache, self._runtime.recall  # `close` removes both
        if cache is not None:
            answer = cache.get(call.key.id)
            # Otherwise the store compares: it may have a fingerprint that the cache lacks.
            if answer is not None and call.fingerprint in (None, answer.fingerprint):
                return outcome_of(call, answer, cached=True)
        if recall is None:
            return None
        flights = self._runtime.flights.table
        if flights and call.key.id in flights:
            return None  # another caller in this process works on the key: wait for its answer
        answer = recall(call.key.id)
        if answer is None:
            call.looked = True
        elif answer.verdict is _REPLAY and call.fingerprint in (None, answer.fingerprint):
            return outcome_of(call, answer)
        return None

    # -- decorating ---------------------------------------------------------------------------

    def _decorated(
        self, function: Any, given: Decoration
    ) -> tuple[Self, HandlerProfile, Callable[..., Key]]:
        """The receiver, profile and key maker of one decorated function."""
        key, scope, fingerprint, policy = given
        check_key(key, named=True)
        if not callable(function):
            raise ConfigurationError(f"idempotent must decorate a function, not {function!r}")
        inner = scope_of_function(function, key is not None) if scope is None else scope
        owner = self.options(
            policy=policy,
            scope=(*self._scope, *inner),
            fingerprint=fingerprint,
        )
        name = getattr(function, "__qualname__", "")
        profile = profile_of(function, method="." in name.rpartition("<locals>.")[2])
        if profile.problem == "generator":
            raise refuse_generator(function)
        if key is None and profile.is_method:
            raise ConfigurationError(
                f"{name} is a method, so its arguments alone do not identify the call: "
                "pass key=, for example key=lambda self, order: order.id"
            )

        def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
            if key is None:
                return owner.key(Key.from_content(profile.content(args, kwargs)))
            if isinstance(key, str):
                return owner._delivered_key(profile.named(args, kwargs).get(key))
            return owner._delivered_key(key(*args, **kwargs))

        if isinstance(key, str):
            expect_parameter(key, name, profile.parameters, "it has no parameters")
        return owner, profile, key_of

    def _registered(self, durable: Any) -> Any:
        """For the completer. If two have the same name and scope, the last one counts: a module may
        be loaded again.
        """
        named = self._durables.setdefault(durable.name, {})
        known = named.get(durable._scope)
        if known is not None and durable._is_mistaken_for(known):
            raise ConfigurationError(
                f"{known._function_name} and {durable._function_name} are both named {durable.name!r} by their "
                "scope, so the completer would run one instead of the other; give each of them its own name="
            )
        named[durable._scope] = durable
        return durable

    def _durable_of(self, name: str, key: Key) -> Any:
        """The durable function of a stored run; None: this process has none. Of several, the one whose scope
        is in the key: they may have other policies."""
        hidden, named = self._hidden, self._durables.get(name)

        def fits(scope: tuple[str, ...]) -> int:
            parts = scope if hidden is None else hidden.asked(None, scope)[1]
            size = len(parts)
            places = range(len(key.scope) - size + 1)
            return size if any(key.scope[at : at + size] == parts for at in places) else -1

        return named[max(reversed(named), key=fits)] if named else None


def _without(
    connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """These arguments, with None in place of the connection."""
    return (
        tuple(None if arg is connection else arg for arg in args),
        {name: None if arg is connection else arg for name, arg in kwargs.items()},
    )


def check_key(key: object, *, named: bool = False) -> None:
    """Raise if ``key=`` is neither a function nor None. ``named``: it may also be the name of a parameter."""
    if key is None or callable(key) or (named and isinstance(key, str)):
        return
    form = "the name of one parameter, or a function" if named else "a function"
    raise ConfigurationError(
        f"key={shown(key)} is not valid: use {form}, such as key=lambda order: order['id']; a Key with a "
        "scope has several parts"
    )


def expect_parameter(key: str, function: str, names: Sequence[str], none: str) -> None:
    """Refuse a ``key=`` that names no parameter of its function; ``none``: what to say if it has none."""
    if key not in names:
        hint = suggestion(key, names, f"use one of {', '.join(names)}") if names else none
        raise ConfigurationError(f"key={key!r} is not a parameter of {function}; {hint}")


def check_receiver(given: object, wanted: type[ReceiverBase], where: str) -> None:
    """Raise if a layer that needs a receiver got a URL, a store, or a receiver of the other kind."""
    if isinstance(given, wanted):
        return
    name = wanted.__name__
    if isinstance(given, str):
        fix = f"this is a URL: use receiver={name}.open({mask(given)!r})"
    elif isinstance(given, (Store, AsyncStore)):
        fix = f"this is a store: use receiver={name}(store)"
    else:
        fix = f"this is {type(given).__name__}: use receiver={name}.open(URL)"
    raise ConfigurationError(f"{where} needs {'an' if name[0] in 'AI' else 'a'} {name}, and {fix}")


class _BreakerObserver:
    """Counts failed deliveries for the circuit breaker, if there is one. It is made after the notifier."""

    guard: Any = None

    def __init__(self) -> None:
        self.subscriptions = {events.StoreFailed: self, events.RenewalFailed: self}

    def __call__(self, event: events.Event) -> None:
        if self.guard is not None:
            self.guard.delivery_failed()


def value_or_raise(answer: Outcome[Any] | Raised) -> Outcome[Any]:
    if type(answer) is Raised:
        answer.throw()
    return answer
