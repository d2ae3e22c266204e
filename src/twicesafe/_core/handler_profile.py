"""Handler profiles: what the receiver needs to know about a function to make a `Call`.

What depends on the function alone (its return type, its parameters, whether it can be run at all)
is computed once and cached.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import (
    CellType,
    CodeType,
    CoroutineType,
    FunctionType,
    MethodType,
)
from typing import Any, TypeAlias

from .._values.codecs import resolve_return_type
from .._values.fingerprint import field_names, fingerprint, stated
from ..errors import ConfigurationError, UsageError
from .handler_call import name_of, positional_counts, refuse_misfit

__all__ = ["FingerprintSetting", "HandlerProfile", "claimed_content", "profile_of"]

FingerprintSetting: TypeAlias = bool | bytes | Callable[..., object] | None
"""None: inherit the outer setting; without one, no check. False: no check. True: the arguments."""


_Positional: TypeAlias = tuple[int, Sequence[str], int]
"""How many positional parameters are required, the names of all, how many have no keyword."""


class HandlerProfile:
    """What is known about a handler before it is called."""

    __slots__ = (
        "_bound",
        "_defaults",
        "_fitting",
        "_home",
        "_names",
        "_plain",
        "_positional",
        "_signature",
        "_skip",
        "declared",
        "least",
        "most",
        "problem",
    )

    def __init__(self, handler: Callable[..., Any], method: bool) -> None:
        self.declared = resolve_return_type(handler)
        self.problem = _problem_of(handler)
        self._home = getattr(handler, "__globals__", None)  # kept alive: `_source_of` uses its id
        # A partial's own arguments are part of the call: charge("EUR", 5) is not charge("USD", 5).
        self._bound: functools.partial[Any] | None = None
        if isinstance(handler, functools.partial):
            self._bound, handler = handler, handler.func
        try:
            self._signature: inspect.Signature | None = inspect.signature(handler)
        except (TypeError, ValueError):
            self._signature = None
        parameters = list(self._signature.parameters.values()) if self._signature else []
        self._skip = 1 if method and parameters and parameters[0].name in ("self", "cls") else 0
        self._plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        self._names = [p.name for p in parameters]
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._positional: _Positional | None = None
        self.least, self.most = positional_counts(self._bound or handler)
        self._fitting: set[tuple[Any, ...]] = set()

    @property
    def is_method(self) -> bool:
        return self._skip == 1

    @property
    def parameters(self) -> list[str]:
        return self._names[self._skip :]

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, defaults included: positional or keyword makes no difference."""
        if self._bound is not None:
            args, kwargs = (*self._bound.args, *args), {**self._bound.keywords, **kwargs}
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

    def needs_one_more(
        self, handler: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """True: the call lacks exactly one positional argument, and one in front completes it.

        False for a call that is already complete, and for a callable that hides its parameters
        (``*args``, a builtin function).
        """
        if self._positional is None:
            self._positional = _positional_of(handler)
        required, names, keyless = self._positional
        given = len(args) + 1
        if not kwargs:
            return given == required
        if given > required or any(name in kwargs for name in names[keyless:given]):
            return False  # complete, or some argument would be given twice
        return all(at >= keyless and names[at] in kwargs for at in range(given, required))

    def check(
        self,
        handler: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        owner: str = "receiver",
    ) -> None:
        """A `UsageError` if the handler cannot be called like this: before the claim, so that no
        attempt is used up. Needed only if there are keywords, or fewer arguments than ``least``
        or more than ``most``. The result depends only on the shape of the call, so it is cached."""
        shape = (len(args), *kwargs)
        if shape in self._fitting:
            return
        refuse_misfit(handler, args, kwargs, owner)
        if len(self._fitting) < 64:
            self._fitting.add(shape)

    def content(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The content that identifies a call. A single argument is used directly, so that a
        mismatch can name *its* fields."""
        bound = self.named(args, kwargs)
        if len(self.parameters) == 1 and len(bound) == 1:
            (alone,) = bound.values()
            return alone
        return bound

    def fingerprint(
        self, setting: FingerprintSetting, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[bytes | None, Callable[[], Sequence[str]] | None]:
        """The fingerprint of a call, and a function that names its fields after a mismatch."""
        if setting is None or setting is False:
            return None, None
        if isinstance(setting, bytes):
            return stated(setting), None
        content = self.content(args, kwargs) if setting is True else setting(*args, **kwargs)
        if content is None and setting is not True:
            return None, None
        return fingerprint(content), functools.partial(field_names, content)


_by_source: dict[Any, HandlerProfile] = {}
_by_function: weakref.WeakKeyDictionary[Any, dict[str, HandlerProfile]] = (
    weakref.WeakKeyDictionary()
)
_MOST_PROFILES = 4096

_reference = weakref.ref
_of_lasting: dict[weakref.ref[Any], tuple[CodeType, HandlerProfile]] = {}
"""The code and the profile of functions that live as long as their module: the shortest way."""


def _forget(function: weakref.ref[Any]) -> None:
    _of_lasting.pop(function, None)


def profile_of(handler: Callable[..., Any], method: bool = False) -> HandlerProfile:
    """The profile of a handler, computed once. Functions created repeatedly from one source share
    it, if the source alone determines it."""
    if type(handler) is FunctionType and not method:
        lasting = _of_lasting.get(_reference(handler))
        if lasting is not None and lasting[0] is handler.__code__:  # else it was reloaded
            return lasting[1]
        found = _found(handler, method)
        if "<locals>" not in handler.__qualname__:  # else there may be a new one for every call
            _of_lasting[_reference(handler, _forget)] = handler.__code__, found
        return found
    return _found(handler, method)


def _found(handler: Callable[..., Any], method: bool) -> HandlerProfile:
    kind = "method" if method else "function"
    function: Any = handler
    if type(handler) is MethodType:  # has its function's code, but not its signature
        kind, function = "bound", handler.__func__
    if type(function) is not FunctionType:
        return HandlerProfile(handler, method)
    source = _source_of(function)
    if source is None:
        found = _by_function.setdefault(function, {})
        if kind not in found:
            found[kind] = HandlerProfile(handler, method)
        return found[kind]
    known = _by_source.get((source, kind))
    if known is None:
        if len(_by_source) >= _MOST_PROFILES:
            _by_source.clear()
        known = _by_source[source, kind] = HandlerProfile(handler, method)
    return known


def _source_of(function: FunctionType) -> Any:
    """The cache key that equal functions share; None if each needs its own profile."""
    if function.__dict__ or function.__defaults__ or function.__kwdefaults__:
        return None  # decorators leave __wrapped__, whose signature is the one that counts
    code, declared = function.__code__, function.__annotations__.get("return")
    if isinstance(declared, str):
        if code.co_freevars and any(name in declared for name in code.co_freevars):
            return None  # the same word may mean another class in the next closure
        return code, declared, id(function.__globals__)  # or in another module, of equal code
    try:
        hash(declared)
    except TypeError:
        return None
    return code, declared


def check_setting(setting: Any) -> FingerprintSetting:
    """The setting; None: no check."""
    if setting is None or setting is False:
        return None
    if setting is True or isinstance(setting, bytes) or callable(setting):
        return setting  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"fingerprint={setting!r} is not valid: use None (inherit), False (no check), True "
        "(the arguments), bytes, or a function of the arguments"
    )


def claimed_content(content: object, setting: FingerprintSetting) -> object:
    """What a delivery without arguments is compared by: its own content, else the receiver's bytes.

    None: no check. The receiver's True or function would need arguments.
    """
    if content is None:
        return setting if isinstance(setting, bytes) else None
    if content is True:
        raise UsageError(
            "fingerprint=True compares the arguments, and a claim has none: pass what to compare, as in "
            "claim(key, fingerprint=order)"
        )
    return None if content is False else content


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
    return (f"{getattr(function, '__module__', '') or '?'}.{name}",)


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
    return function.__module__ == "__main__"


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


def _positional_of(handler: Callable[..., Any]) -> _Positional:
    """Of the callable itself, not of what it wraps: a decorator may supply arguments."""
    function, bound = handler, 0
    if type(handler) is MethodType:
        function, bound = handler.__func__, 1
    if type(function) is FunctionType:
        code = function.__code__
        required = code.co_argcount - len(function.__defaults__ or ())
        names = code.co_varnames[bound : code.co_argcount]
        return max(0, required - bound), names, max(0, code.co_posonlyargcount - bound)
    try:
        parameters = inspect.signature(handler, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return 0, (), 0
    keyless = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    usual = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = sum(p.default is p.empty for p in (*keyless, *usual))
    return required, [p.name for p in (*keyless, *usual)], len(keyless)


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


def expect_done(value: object, what: str) -> None:
    """Refuse what a function of the user returned if its work has not run yet."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # so that it never starts
        raise UsageError(f"{what} is async, and nothing awaits it here: use a plain function")


def refuse_coroutine(value: CoroutineType[Any, Any, Any]) -> UsageError:
    """A handler that returned a coroutine has done nothing yet: the coroutine has not started. A
    generator is different: the function that returned it has run, so the record must say so, without
    a result."""
    value.close()  # so that it never starts
    return UsageError(
        "the handler returned a coroutine, whose work has not run: await it in the handler; async "
        "functions need AsyncReceiver or AsyncInbox"
    )


def refuse_generator(handler: Any) -> UsageError:
    return UsageError(
        f"{name_of(handler)} is a generator: its work would happen after it returned, so it cannot "
        "be recorded; collect the items and return them"
    )


def refuse_async(handler: Any) -> UsageError:
    return UsageError(
        f"{name_of(handler)} is an async function: use AsyncReceiver (same methods, with await)"
    )
