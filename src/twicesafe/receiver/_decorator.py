"""The decorator: a function that is safe to call twice.

@receiver.idempotent(key="order_id")                    returns the plain value
def charge(order_id: str) -> Receipt: ...

@receiver.idempotent(key="order_id", outcome=True)      returns an Outcome[Receipt]
def charge(order_id: str) -> Receipt: ...
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, overload

from .._core.handler_profile import FingerprintSetting
from .._values.keys import Key, KeyLike
from .._values.lazy_annotations import annotations_of
from .._values.outcomes import Outcome
from .._values.policy import Policy

__all__ = ["AsyncDecorator", "Decoration", "Decorator"]

T = TypeVar("T")
P = ParamSpec("P")


class Decoration(NamedTuple):
    """What `idempotent` was given for one function."""

    key: Callable[..., KeyLike] | str | None
    scope: tuple[str, ...] | None
    fingerprint: FingerprintSetting
    policy: Policy | None


def _parts(scope: Iterable[str] | None) -> tuple[str, ...] | None:
    """The scope as a tuple, because several functions may use it; checked like any scope."""
    return None if scope is None else Key("-", scope).scope


class _Decorator:
    """The steps that are the same for blocking and async functions."""

    def _decorate(self, given: Decoration, outcome: bool, function: Any) -> Any:
        if function is None:
            return functools.partial(self._decorate, given, outcome)
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self._decorate(given, outcome, function.__func__))
        receive = functools.wraps(function)(
            self._receiving(self._answering(function, given), outcome)
        )
        if outcome:  # the wrapper has its function's annotations, but another return type
            receive.__annotations__ = {**annotations_of(receive), "return": Outcome[Any]}
        return receive

    def _answering(self, function: Any, given: Decoration) -> Callable[..., Any]:
        """From the arguments of a call, as ``(args, kwargs)``, to its outcome."""
        raise NotImplementedError

    def _receiving(self, answer: Callable[..., Any], outcome: bool) -> Any:
        """The function that callers get: it returns the value, or the outcome."""
        raise NotImplementedError


class Decorator(_Decorator):
    """The decorator of `Receiver` and `Inbox`."""

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
        outcome: Literal[False] = False,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
    @overload
    def idempotent(
        self,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
        outcome: Literal[True],
    ) -> Callable[[Callable[P, T]], Callable[P, Outcome[T]]]: ...
    def idempotent(
        self,
        function: Any = None,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
        outcome: bool = False,
    ) -> Any:
        """Make a function safe to call twice. It returns the plain value, new or replayed.

        ``key`` is a function of the arguments, the name of a parameter, or None: the key is then
        made from all arguments. The scope is the receiver's followed by ``scope``, by default the
        function's module and name, so that neither tenants nor functions share keys. With
        ``outcome=True`` it returns the `Outcome`, which also says whether the value was replayed.
        A function of an inbox takes the connection first, and needs ``key``.
        """
        return self._decorate(
            Decoration(key, _parts(scope), fingerprint, policy), outcome, function
        )

    def _receiving(self, answer: Callable[..., Outcome[Any]], outcome: bool) -> Any:
        def receive(*args: Any, **kwargs: Any) -> Any:
            return answer(args, kwargs).value

        def receive_outcome(*args: Any, **kwargs: Any) -> Any:
            return answer(args, kwargs)

        return receive_outcome if outcome else receive


class AsyncDecorator(_Decorator):
    """The decorator of `AsyncReceiver` and `AsyncInbox`."""

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
        outcome: Literal[False] = False,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]: ...
    @overload
    def idempotent(
        self,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
        outcome: Literal[True],
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, Outcome[T]]]]: ...
    def idempotent(
        self,
        function: Any = None,
        *,
        key: Callable[..., KeyLike] | str | None = None,
        scope: Iterable[str] | None = None,
        fingerprint: FingerprintSetting = None,
        policy: Policy | None = None,
        outcome: bool = False,
    ) -> Any:
        """Make a function safe to call twice. It returns the plain value, new or replayed.

        ``key`` is a function of the arguments, the name of a parameter, or None: the key is then
        made from all arguments. The scope is the receiver's followed by ``scope``, by default the
        function's module and name, so that neither tenants nor functions share keys. With
        ``outcome=True`` it returns the `Outcome`, which also says whether the value was replayed.
        A function of an inbox takes the connection first, and needs ``key``.
        """
        return self._decorate(
            Decoration(key, _parts(scope), fingerprint, policy), outcome, function
        )

    def _receiving(self, answer: Callable[..., Awaitable[Outcome[Any]]], outcome: bool) -> Any:
        async def receive(*args: Any, **kwargs: Any) -> Any:
            return (await answer(args, kwargs)).value

        async def receive_outcome(*args: Any, **kwargs: Any) -> Any:
            return await answer(args, kwargs)

        return receive_outcome if outcome else receive
