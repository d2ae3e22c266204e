"""Can this handler be called with these arguments? Answered before the claim, from its signature.

Only plain functions, methods and partials of them are checked. A wrapper is checked by its own
parameters, not by those of the function that it wraps, because it may pass other arguments on. Any
other callable is called without a check, and raises its own error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import FunctionType, MethodType
from typing import Any, Final

from .._values.policy import Policy
from ..errors import UsageError

__all__ = ["name_of", "positional_counts", "refuse_misfit"]

_ANY: Final = (0, 1 << 30)
_NONE: Final = (1, 0)

_OPTIONS: Final = ("policy", "scope", "fingerprint")
_POLICY: Final = frozenset(field.name for field in fields(Policy))


def positional_counts(handler: Callable[..., Any]) -> tuple[int, int]:
    """The fewest and the most positional arguments, without keywords; (1, 0): it needs keywords."""
    function: Any = handler
    bound = 0
    if type(handler) is MethodType:
        function, bound = handler.__func__, 1
    if not _is_judged(function):
        return _ANY
    code = function.__code__
    if code.co_kwonlyargcount > len(function.__kwdefaults__ or ()):
        return _NONE
    most = code.co_argcount
    least = most - len(function.__defaults__ or ())
    variable = code.co_flags & inspect.CO_VARARGS
    return max(0, least - bound), _ANY[1] if variable else most - bound


def refuse_misfit(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: str
) -> None:
    """Raise `UsageError` if a plain function cannot be called with these arguments."""
    inner: Any = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not _is_judged(inner.__func__ if type(inner) is MethodType else inner):
        return
    signature = inspect.signature(handler, follow_wrapped=False)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = name_of(handler)
        for keyword in kwargs:
            if keyword in signature.parameters:
                continue
            if keyword in _POLICY or keyword in _OPTIONS:
                setting = f"{keyword}=…" if keyword in _OPTIONS else f"policy=Policy({keyword}=…)"
                raise UsageError(
                    f"{name} has no parameter {keyword!r}, and process passes all keywords to the handler; "
                    f"to change this setting for one call, use {owner}.options({setting}).process(…)"
                ) from None
        raise UsageError(
            f"{name}{signature} cannot be called like this: {error}; nothing was run"
        ) from error


def _is_judged(function: Any) -> bool:
    return type(function) is FunctionType and not hasattr(function, "__signature__")


def name_of(handler: Any) -> str:
    inner = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    return getattr(inner, "__qualname__", None) or type(inner).__qualname__
