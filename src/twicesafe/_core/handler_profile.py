"""Handler profiles: what the receiver needs to know about a function to make a `Call`.

What depends on the function alone (its return type, its parameters, whether it can be run at all)
is computed once and cached.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

from .._values.codecs import resolve_return_type
from .._values.fingerprint import field_names, fingerprint, stated
from .._values.lazy_annotations import signature_of
from ..errors import ConfigurationError, UsageError
from .handler_call import positional_counts, refuse_misfit
from .handler_kind import expect_callable, problem_of

__all__ = [
    "FingerprintSetting",
    "HandlerProfile",
    "claimed_content",
    "content_of",
    "profile_of",
    "without_defaults",
]

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
        "_no_arguments",
        "_plain",
        "_positional",
        "_returning",
        "_signature",
        "_skip",
        "declared",
        "least",
        "most",
        "problem",
    )

    declared: Any
    """The type that the return annotation names."""

    def __init__(self, handler: Callable[..., Any], method: bool) -> None:
        expect_callable(handler)
        self._returning = _annotated(handler)
        declared = resolve_return_type(handler)
        if declared is not Any:
            self.declared = declared
        self.problem = problem_of(handler)
        self._home = getattr(handler, "__globals__", None)  # kept alive: `_source_of` uses its id
        # A partial's own arguments are part of the call: charge("EUR", 5) is not charge("USD", 5).
        self._bound: functools.partial[Any] | None = None
        if isinstance(handler, functools.partial):
            self._bound, handler = handler, handler.func
        try:
            self._signature: inspect.Signature | None = signature_of(handler)
        except (TypeError, ValueError):
            self._signature = None
        parameters = list(self._signature.parameters.values()) if self._signature else []
        self._skip = 1 if method and parameters and parameters[0].name in ("self", "cls") else 0
        self._plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        self._names = [p.name for p in parameters]
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._defaults |= {p.name: () for p in parameters if p.kind is p.VAR_POSITIONAL}
        self._defaults |= {p.name: {} for p in parameters if p.kind is p.VAR_KEYWORD}
        self._positional: _Positional | None = None
        self.least, self.most = positional_counts(self._bound or handler)
        self._fitting: set[tuple[Any, ...]] = set()
        self._no_arguments: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        """`declared`, at its first use, if it could not be resolved before: a function is often
        decorated before the classes that its annotation names are defined, such as the class of a
        method."""
        if name != "declared":
            raise AttributeError(name)
        function = self._returning()
        self.declared = Any if function is None else resolve_return_type(function)
        return self.declared

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

    def of_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The fingerprint of all arguments by name, except those that are equal to their defaults. All calls
        without arguments have the same one."""
        if args or kwargs or self._defaults or self._bound is not None:
            return fingerprint(without_defaults(self.named(args, kwargs), self._defaults))
        if self._no_arguments is None:
            self._no_arguments = fingerprint(self.named((), {}))
        return self._no_arguments

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
        """Raise `UsageError` if the handler cannot be called like this: before the claim, so that
        no attempt is used up. Needed only if there are keywords, or fewer arguments than ``least``
        or more than ``most``. The result depends only on the shape of the call, so it is cached.
        """
        shape = (len(args), *kwargs)
        if shape in self._fitting:
            return
        refuse_misfit(handler, args, kwargs, owner)
        if len(self._fitting) < 64:
            self._fitting.add(shape)

    def content(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The content that identifies a call."""
        return content_of(self.named(args, kwargs), self._defaults, self.parameters)

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
        if type(content) is bytes:  # a digest, for example: it has no fields
            return fingerprint(content), None
        return fingerprint(content), functools.partial(field_names, content)


def without_defaults(named: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What a caller said. If the next version has another parameter, with a default, nothing changes here."""
    said = defaults.keys() & named.keys()
    if not said:
        return named
    usual = {name for name in said if _equal(named[name], defaults[name])}
    return {name: value for name, value in named.items() if name not in usual}


def content_of(
    named: dict[str, Any], defaults: Mapping[str, Any], parameters: Sequence[str]
) -> Any:
    """What a caller said. If that is only the first argument, and it has fields, it is used
    directly, so that a mismatch names *them*; but not if they could be the arguments of another
    call: ship({"order": 1, "gift": 2}) is not ship(1, 2).
    """
    said = without_defaults(named, defaults)
    if len(said) != 1 or not parameters or parameters[0] not in said:
        return said
    alone = said[parameters[0]]
    fields, required = set(field_names(alone)), said.keys() - defaults.keys()
    return said if not fields or required <= fields <= set(parameters) else alone


def _equal(value: Any, default: Any) -> bool:
    if value is default:
        return True
    try:
        return fingerprint(value) == fingerprint(default)
    except UsageError:  # a default that cannot be compared, for example a mark for "not given"
        return False


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
    try:
        code, declared = function.__code__, function.__annotations__.get("return")
    except Exception:  # annotations are lazy here, and a name in one is not defined
        return None
    if isinstance(declared, str):
        if code.co_freevars and any(name in declared for name in code.co_freevars):
            return None  # the same word may mean another class in the next closure
        return code, declared, id(function.__globals__)  # or in another module, of equal code
    try:
        hash(declared)
    except TypeError:
        return None
    return code, declared


def _annotated(handler: Any) -> Callable[[], FunctionType | None]:
    """The function that has a handler's annotations. Weak, because a profile is kept by its function."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not isinstance(handler, (FunctionType, MethodType)):
        handler = getattr(type(handler), "__call__", handler)  # noqa: B004 - its annotations
    function = getattr(handler, "__func__", handler)
    return weakref.ref(function) if isinstance(function, FunctionType) else lambda: None


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
    """What to compare for a delivery without arguments: its own content, else the receiver's bytes.

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
        parameters = signature_of(handler, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return 0, (), 0
    keyless = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    usual = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = sum(p.default is p.empty for p in (*keyless, *usual))
    return required, [p.name for p in (*keyless, *usual)], len(keyless)
