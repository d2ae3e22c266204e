"""The decorator: a function that is safe to call twice.

@receiver.idempotent(key="order_id")                    returns the plain value
def charge(order_id: str) -> Receipt: ...

@receiver.idempotent(key="order_id", outcome=True)      returns an Outcome[Receipt]
def charge(order_id: str) -> Receipt: ...
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, ParamSpec, TypeVar, overload

from .._core.handler_profile import FingerprintSetting
from .._values.keys import KeyLike
from .._values.outcomes import Outcome
from .._values.policy import Policy

__all__ = ["AsyncDecorator", "Decorator"]

T = TypeVar("T")
P = ParamSpec("P")


class Decorator:
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
        again = functools.partial(
            self.idempotent,
            key=key,
            scope=scope,
            fingerprint=fingerprint,
            policy=policy,
            outcome=outcome,
        )
        if function is None:
            return again
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(again(function.__func__))
        answer = self._answering(function, key, scope, fingerprint, policy)

        @functools.wraps(function)
        def receive(*args: Any, **kwargs: Any) -> Any:
            return answer(args, kwargs).value

        @functools.wraps(function)
        def receive_outcome(*args: Any, **kwargs: Any) -> Any:
            return answer(args, kwargs)

        return returning_outcome(receive_outcome) if outcome else receive

    def _answering(
        self,
        function: Any,
        key: Callable[..., KeyLike] | str | None,
        scope: Iterable[str] | None,
        fingerprint: FingerprintSetting,
        policy: Policy | None,
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], Outcome[Any]]:
        """From the arguments of a call to its outcome."""
        raise NotImplementedError


class AsyncDecorator:
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
        again = functools.partial(
            self.idempotent,
            key=key,
            scope=scope,
            fingerprint=fingerprint,
            policy=policy,
            outcome=outcome,
        )
        if function is None:
            return again
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(again(function.__func__))
        answer = self._answering(function, key, scope, fingerprint, policy)

        @functools.wraps(function)
        async def receive(*args: Any, **kwargs: Any) -> Any:
            return (await answer(args, kwargs)).value

        @functools.wraps(function)
        async def receive_outcome(*args: Any, **kwargs: Any) -> Any:
            return await answer(args, kwargs)

        return returning_outcome(receive_outcome) if outcome else receive

    def _answering(
        self,
        function: Any,
        key: Callable[..., KeyLike] | str | None,
        scope: Iterable[str] | None,
        fingerprint: FingerprintSetting,
        policy: Policy | None,
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], Awaitable[Outcome[Any]]]:
        """From the arguments of a call to its outcome."""
        raise NotImplementedError


def returning_outcome(receive: Any) -> Any:
    """The wrapper has its function's annotations, but another return type."""
    receive.__annotations__ = {**receive.__annotations__, "return": Outcome[Any]}
    return receive
