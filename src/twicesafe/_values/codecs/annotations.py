"""Annotations: a handler's return type, and which classes a replay may rebuild because of it.

A stored class name only selects among the classes that the handler's annotation mentions; nothing
is imported or looked up by a stored name. Annotations are the user's code. One that cannot be
resolved (a name imported only for type checkers) is treated as missing and never raises.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

from ..lazy_annotations import annotations_of
from ..object_fields import base_of, shape_of

__all__ = ["classes_in", "resolve_parameter_types", "resolve_return_type"]

_MAX_CACHED: Final = 2048
_BUILTINS: Final = frozenset({"builtins", "typing", "collections.abc"})
_TOOLKITS: Final = frozenset({"builtins", "typing", "enum", "abc", "msgspec", "pydantic"})

# By id of the code object, which the entry keeps alive. Closures created by each call share it.
_returns: dict[int, tuple[object, object, Any]] = {}


def resolve_return_type(handler: Callable[..., Any]) -> Any:
    """The return annotation of a callable, strings resolved, awaitables unwrapped; else `Any`.

    Results are cached by the handler's code. A name that is not defined yet may be later, so that is not cached.
    """
    while isinstance(handler, functools.partial):
        handler = handler.func
    if isinstance(handler, type):
        return handler  # calling a class gives an object of it
    if not isinstance(handler, (types.FunctionType, types.MethodType)):
        handler = getattr(type(handler), "__call__", handler)  # noqa: B004 - its annotations
    function: Any = getattr(handler, "__func__", handler)
    try:
        declared = annotations_of(function)["return"]
        code = function.__code__
    except Exception:  # no annotation; or, where they are lazy, one that fails
        return Any
    known = _returns.get(id(code))
    if known is not None and known[0] is code and (known[1] is declared or known[1] == declared):
        return known[2]
    found = _unwrap_awaitable(_resolve(declared, *_namespaces(function)))
    if found is not Any and not (
        isinstance(declared, str) and any(name in declared for name in code.co_freevars)
    ):
        # Elsewhere the same code may mean another class by the same word.
        if len(_returns) >= _MAX_CACHED:
            _returns.clear()
        _returns[id(code)] = (code, declared, found)
    return found


def resolve_parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of its parameters, strings resolved; `Any` for one that cannot be resolved."""
    try:
        declared = annotations_of(function)
        spaces = _namespaces(function)
    except Exception:  # where they are lazy, one that fails
        return {}
    declared.pop("return", None)
    return {name: _resolve(annotation, *spaces) for name, annotation in declared.items()}


def classes_in(declared: Any) -> Mapping[str, type | None]:
    """The rich classes an annotation mentions, also inside their fields, by qualified name.

    None marks a name that two of them share, which is ambiguous.
    """
    try:
        return _cached_classes_in(declared)
    except TypeError:  # Annotated[…] with metadata that cannot be hashed
        return _classes_in(declared)


def _classes_in(declared: Any) -> Mapping[str, type | None]:
    found: dict[str, type | None] = {}
    seen: dict[int, Any] = {}  # keeps seen objects alive, so that no id is reused
    ahead = [declared]
    while ahead:
        item = ahead.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        ahead.extend(_parts(item))
        if isinstance(item, type) and _is_rich(item):
            name = item.__qualname__
            found[name] = item if found.get(name, item) is item else None
    return types.MappingProxyType(found)


_cached_classes_in = functools.lru_cache(maxsize=1024)(_classes_in)


def _is_rich(cls: type) -> bool:
    if cls.__module__ in _BUILTINS or typing.is_typeddict(cls):
        return False
    return shape_of(cls) is not None or base_of(cls) is not None or issubclass(cls, Enum)


def _parts(item: Any) -> Iterator[Any]:
    """The annotations inside an annotation, one level down."""
    origin = typing.get_origin(item)
    if origin is typing.Annotated:
        yield typing.get_args(item)[0]
    elif origin is typing.Literal:
        yield from (type(choice) for choice in typing.get_args(item))
    elif origin is not None:
        yield origin
        yield from typing.get_args(item)
    elif isinstance(item, list):  # the arguments of a Callable
        yield from item
    elif isinstance(item, typing.TypeVar):
        yield from (item.__bound__, *item.__constraints__)
    elif isinstance(item, typing.NewType):
        yield item.__supertype__
    elif isinstance(item, type):
        if typing.is_typeddict(item) or _is_rich(item):
            yield from _field_types(item)
    elif hasattr(item, "__value__"):  # type X = … (3.12)
        yield item.__value__


def _field_types(cls: type) -> Iterator[Any]:
    # Pydantic has resolved names that only its caller's frame knew.
    for field in getattr(cls, "__pydantic_fields__", {}).values():
        yield field.annotation
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in _TOOLKITS:
            continue
        space = vars(sys.modules.get(base.__module__, types))
        for annotation in annotations_of(base).values():
            yield _resolve(annotation, space, {cls.__name__: cls})


def _namespaces(function: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    # functools.wraps copies annotations, whose names belong to the wrapped function's module.
    inner = inspect.unwrap(function)
    if not isinstance(inner, types.FunctionType):
        inner = function
    local = {}
    for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True):
        try:
            local[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return inner.__globals__, local


def _resolve(annotation: Any, space: dict[str, Any], local: dict[str, Any]) -> Any:
    def annotated() -> None: ...

    annotated.__annotations__ = {"it": annotation}
    try:
        hints = typing.get_type_hints(annotated, space, local, include_extras=True)
    except Exception:  # evaluating an annotation may raise anything
        return Any
    return hints["it"]


def _unwrap_awaitable(declared: Any) -> Any:
    origin = typing.get_origin(declared)
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        return (typing.get_args(declared) or (Any,))[-1]
    return declared
