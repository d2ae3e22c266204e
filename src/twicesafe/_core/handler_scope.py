"""The scope of a decorated function: its name, if the name alone tells two functions apart.

Two closures of one factory have one name and do different things. So a function that depends on
anything besides its arguments and its module is refused, unless the caller names a scope.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from itertools import pairwise
from types import CellType, FunctionType, MethodType
from typing import Any, Final

from ..errors import ConfigurationError

__all__ = ["module_of", "scope_of_function"]

_STARTED: Final = ("__main__", "__mp_main__")


def scope_of_function(function: Callable[..., Any], keyed: bool = True) -> tuple[str, ...]:
    """Module and qualified name: two functions never share keys by accident.

    The name does not include values bound to the function. Two closures from one factory (one per
    tenant, say) have the same name but do different things, so they need separate scopes.
    ``keyed``: the caller makes the key; else it is made from all arguments, a partial's included.
    """
    while isinstance(function, functools.partial) and not keyed:
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    bound = _bound_to(function, keyed)
    if bound:
        raise ConfigurationError(
            f"{name} depends on {bound}: another function of this name with other values would "
            "share its keys; pass scope=(…) with a value that distinguishes them"
        )
    return (f"{module_of(function)}.{name}",)


def module_of(function: Any) -> str:
    """The module of a function or class, by the name that it is imported by.

    The file that a program was started with is `__main__` there, `__mp_main__` in the processes that
    multiprocessing spawns, and has its own name for all others. Its functions must have one scope everywhere.
    """
    name: str = getattr(function, "__module__", "") or "?"
    if name not in _STARTED:
        return name
    module = sys.modules.get(name)
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:  # python -m shop.orders
        return str(spec.name)
    if not file or file == "<stdin>":
        return "__main__"
    return str(file).replace("\\", "/").rpartition("/")[2].removesuffix(".py")


def _bound_to(function: Any, keyed: bool) -> str:
    """What this function depends on besides its key and its module; empty: nothing."""
    if getattr(function, "__qualname__", "").endswith("<lambda>"):
        return "where it is defined (a lambda has no name)"
    if isinstance(function, functools.partial):
        return "the arguments of a partial"
    if isinstance(function, MethodType):
        return "" if inspect.isclass(function.__self__) else "the object that it is a method of"
    if not isinstance(function, FunctionType):
        return "" if inspect.isbuiltin(function) or inspect.isclass(function) else "its own state"
    layers = _layers_of(function)
    inner = layers[-1]
    if not isinstance(inner, FunctionType):
        return _bound_to(inner, keyed)
    module = sys.modules.get(inner.__module__)
    if inner.__globals__ is not getattr(module, "__dict__", None) and not _is_interactive(inner):
        return f"variables that are not those of the module {inner.__module__} (made by exec)"
    own = {"__class__", inner.__name__}
    free = [name for name in inner.__code__.co_freevars if name not in own]
    local = "<locals>" in inner.__qualname__
    if local and keyed:
        free += _defaults_of(inner)
    if local or _is_named(layers):  # it may be wrapped a second time
        for layer, wrapped in pairwise(layers):
            free += _bound_to_wrapper(layer, wrapped)
    return f"values of the enclosing function ({', '.join(free)})" if free else ""


def _is_interactive(function: FunctionType) -> bool:
    """Consoles, notebooks and doctests run what is typed in their own namespaces."""
    return function.__module__ in _STARTED


def _layers_of(function: Any) -> list[Any]:
    """The function and what it wraps (`functools.wraps`), the innermost last."""
    layers = [function]
    while hasattr(layers[-1], "__wrapped__") and layers[-1].__wrapped__ not in layers:
        layers.append(layers[-1].__wrapped__)
    return layers


def _defaults_of(function: FunctionType) -> list[str]:
    """Parameters of a local function whose defaults may differ the next time the function is made.

    A default of None is always the same."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = function.__defaults__ or ()
    defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
    defaults.update(function.__kwdefaults__ or {})
    return [name for name, value in defaults.items() if value is not None]


def _bound_to_wrapper(layer: Any, wrapped: Any) -> list[str]:
    """What a wrapper depends on besides the function that it wraps."""
    if not isinstance(layer, FunctionType):
        return [type(layer).__qualname__]
    cells = zip(layer.__code__.co_freevars, layer.__closure__ or (), strict=True)
    free = [name for name, cell in cells if not _holds(cell, wrapped) and not _holds(cell, layer)]
    return free + _defaults_of(layer)


def _holds(cell: CellType, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # empty: not assigned yet
        return False


def _is_named(layers: list[Any]) -> bool:
    """Whether one of these functions can be reached by its name, so that it can be wrapped again.

    While a module runs ``@wrapper def charge``, the name is not bound yet; that happens only once."""
    found: Any = sys.modules.get(layers[-1].__module__)
    for name in layers[-1].__qualname__.split("."):
        found = inspect.getattr_static(found, name, None)
    return any(found is layer for layer in layers)
