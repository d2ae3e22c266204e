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

from .._values.lazy_annotations import signature_of
from .._values.policy import Policy
from .._values.settings import suggestion
from ..errors import ConfigurationError, UsageError

__all__ = ["expect_shape", "name_of", "positional_counts", "refuse_misfit"]

_ANY: Final = (0, 1 << 30)
_NONE: Final = (1, 0)

_OPTIONS: Final = ("policy", "scope", "fingerprint")
_STEP_OPTIONS: Final = ("attempts", "backoff", "timeout", "probe")
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


def expect_shape(function: Callable[..., Any], name: str, *given: str) -> None:
    """Refuse a plain function of a setting that does not take these arguments: each call of it would fail."""
    least, most = positional_counts(function)
    if not least <= len(given) <= most:
        raise ConfigurationError(
            f"{name} is called with ({', '.join(given)}), and {name_of(function)} does not take these arguments"
        )


def refuse_misfit(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: str
) -> None:
    """Raise `UsageError` if a plain function cannot be called with these arguments."""
    inner: Any = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not _is_judged(inner.__func__ if type(inner) is MethodType else inner):
        return
    signature = signature_of(handler, follow_wrapped=False)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name, reason = name_of(handler), str(error)
        for keyword in kwargs:
            if keyword in signature.parameters:
                continue
            instead = _setting_for_one_call(keyword, owner)
            if instead:
                raise UsageError(
                    f"{name} has no parameter {keyword!r}, and it gets all keywords of the call; to change "
                    f"this setting for one call, use {instead}"
                ) from None
            if "positional" not in reason:
                hint = suggestion(keyword, signature.parameters, "see its parameters")
                reason = f"got an unexpected keyword argument {keyword!r} ({hint})"
        raise UsageError(
            f"{name}{signature} cannot be called like this: {reason}; nothing was run"
        ) from error


def _setting_for_one_call(keyword: str, owner: str) -> str:
    """The call that has this setting; empty: it is no setting. ``owner``: receiver, inbox or steps."""
    if owner == "steps":
        return f"steps.options({keyword}=…).run(…)" if keyword in _STEP_OPTIONS else ""
    if keyword in _OPTIONS:
        return f"{owner}.options({keyword}=…).process(…)"
    return f"{owner}.options(policy=Policy({keyword}=…)).process(…)" if keyword in _POLICY else ""


def _is_judged(function: Any) -> bool:
    return type(function) is FunctionType and not hasattr(function, "__signature__")


def name_of(handler: Any) -> str:
    inner = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    return getattr(inner, "__qualname__", None) or type(inner).__qualname__
