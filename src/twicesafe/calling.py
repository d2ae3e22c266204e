"""Calling: from a function, its arguments and a key to the `Call` that the core understands.

What depends on the function alone (its return type, its parameters, whether it can be run at all)
is worked out once and remembered.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from .codecs import resolve_return_type
from .errors import ConfigurationError, UsageError
from .fingerprint import field_names, fingerprint

__all__ = ["FingerprintSetting", "Profile", "profile_of"]

FingerprintSetting: TypeAlias = Literal[True] | bytes | Callable[..., object] | None


class Profile:
    """What there is to know about a handler before it is called."""

    __slots__ = ("_defaults", "_names", "_plain", "_signature", "_skip", "declared", "problem")

    def __init__(self, handler: Callable[..., Any], method: bool) -> None:
        self.declared = resolve_return_type(handler)
        self.problem = _problem_of(handler)
        try:
            self._signature: inspect.Signature | None = inspect.signature(handler)
        except (TypeError, ValueError):
            self._signature = None
        parameters = list(self._signature.parameters.values()) if self._signature else []
        self._skip = 1 if method and parameters and parameters[0].name in ("self", "cls") else 0
        self._plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        self._names = [p.name for p in parameters]
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    @property
    def parameters(self) -> list[str]:
        return self._names[self._skip :]

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, defaults included: positional or keyword makes no difference."""
        if self._signature is None:
            return {"args": list(args), **kwargs}
        if self._plain and len(args) + len(kwargs) <= len(self._names):
            bound = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
        else:
            arguments = self._signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            bound = dict(arguments.arguments)
        if self._skip:
            bound.pop(self._names[0], None)
        return bound

    def content(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What equal calls have in common. One argument alone stands for itself, so that a
        mismatch can name *its* fields."""
        bound = self.named(args, kwargs)
        if len(self.parameters) == 1 and len(bound) == 1:
            (alone,) = bound.values()
            return alone
        return bound

    def fingerprint(
        self, setting: FingerprintSetting, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[bytes | None, Callable[[], Sequence[str]] | None]:
        """The fingerprint of a call, and a way to name its fields if it differs."""
        if setting is None:
            return None, None
        if isinstance(setting, bytes):
            return setting, None
        content = self.content(args, kwargs) if setting is True else setting(*args, **kwargs)
        if content is None and setting is not True:
            return None, None
        if isinstance(content, bytes) and setting is not True:
            return content, None
        return fingerprint(content), functools.partial(field_names, content)


_profiles: dict[Any, Profile] = {}
_MOST_PROFILES = 4096


def profile_of(handler: Callable[..., Any], method: bool = False) -> Profile:
    """The profile of a handler. Functions made again and again from one source share theirs."""
    source = getattr(handler, "__code__", None)
    # Annotations may differ between closures of one source only through their own objects.
    mark: Any = (source, method, id(getattr(handler, "__annotations__", None) or None))
    if source is None:
        return Profile(handler, method)
    found = _profiles.get(mark)
    if found is None:
        if len(_profiles) >= _MOST_PROFILES:
            _profiles.clear()
        found = _profiles[mark] = Profile(handler, method)
    return found


def check_setting(setting: Any) -> FingerprintSetting:
    if setting is None or setting is True or isinstance(setting, bytes) or callable(setting):
        return setting  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"fingerprint={setting!r} makes no sense: use None (no check), True (the arguments), "
        "bytes, or a callable of the arguments"
    )


def scope_of_function(function: Callable[..., Any]) -> tuple[str, ...]:
    """Module and qualified name: two functions never share keys by accident."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    if name.endswith("<lambda>"):
        raise ConfigurationError("a lambda has no name of its own: give scope=(…) explicitly")
    return (f"{getattr(inner, '__module__', '') or '?'}.{name}",)


def _problem_of(handler: Callable[..., Any]) -> str:
    """Empty, 'async' or 'generator'."""
    inner: Any = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner) and not inspect.isclass(inner):
        inner = getattr(inner, "__call__", inner)  # noqa: B004 - the method, not whether it is there
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return "generator"
    return "async" if inspect.iscoroutinefunction(inner) else ""


def refuse_generator(handler: Any) -> UsageError:
    return UsageError(
        f"{_name(handler)} is a generator: its work happens after it returned, so it cannot be "
        "recorded; collect the items and return them"
    )


def refuse_async(handler: Any) -> UsageError:
    return UsageError(
        f"{_name(handler)} is an async function: use AsyncReceiver (the same names, awaited)"
    )


def _name(handler: Any) -> str:
    return getattr(handler, "__qualname__", None) or type(handler).__qualname__
