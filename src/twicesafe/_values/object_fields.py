"""Object fields: read an object of a user's class as named fields, and rebuild it from them.

Dataclasses, attrs classes, pydantic models, msgspec Structs and named tuples are all a class with
named fields. Only this module knows these five kinds. It recognises them by class attributes, so
neither attrs nor pydantic is imported here. Reading runs no user code beyond attribute access.
Rebuilding calls the class's own constructor, so ``__post_init__`` and converters run for a replayed
object as for the first one.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, Final

import msgspec

from ..errors import UsageError

__all__ = ["BASES", "Shape", "attributes_of", "base_of", "shape_of", "with_attributes"]

_ABSENT: Final = object()


class Shape:
    """Named fields of one class. Unset fields (an empty slot) are left out."""

    __slots__ = ("cls", "names")

    def __init__(self, cls: type, names: tuple[str, ...]) -> None:
        self.cls = cls
        self.names = names

    def read(self, value: Any) -> dict[str, Any]:
        found = ((name, getattr(value, name, _ABSENT)) for name in self.names)
        return {name: field for name, field in found if field is not _ABSENT}

    def state(self, value: Any) -> dict[str, Any]:
        """What equality needs in addition to the fields."""
        return {}

    def build(self, fields: dict[str, Any], state: dict[str, Any]) -> Any:
        """An object with these fields. Names that the class does not have are ignored, so that
        during a rolling deployment old code can read what the newer version wrote."""
        return self.cls(**{name: fields[name] for name in self.names if name in fields})


class _StructShape(Shape):
    __slots__ = ()

    def read(self, value: Any) -> dict[str, Any]:
        found = ((name, getattr(value, name, msgspec.UNSET)) for name in self.names)
        return {name: field for name, field in found if field is not msgspec.UNSET}


class _InitShape(Shape):
    """Dataclasses and attrs: the constructor does not take some fields, and renames others."""

    __slots__ = ("arguments",)

    def __init__(self, cls: type, arguments: dict[str, str | None]) -> None:
        super().__init__(cls, tuple(arguments))
        self.arguments = arguments

    def build(self, fields: dict[str, Any], state: dict[str, Any]) -> Any:
        built = self.cls(
            **{
                argument: fields[name]
                for name, argument in self.arguments.items()
                if argument is not None and name in fields
            }
        )
        for name, argument in self.arguments.items():
            if argument is None and name in fields:
                object.__setattr__(built, name, fields[name])  # also where the class is frozen
        return built


class _ModelShape(Shape):
    """Pydantic. Values were validated when the object was first made. Validators meant for external
    input may refuse or change them now, so the object is constructed and not validated again."""

    __slots__ = ()

    def read(self, value: Any) -> dict[str, Any]:
        held = value.__dict__  # not getattr: a deprecated field would warn
        fields = {name: held[name] for name in self.names if name in held}
        extra = value.__pydantic_extra__ or {}
        if not fields.keys().isdisjoint(extra):
            name = min(fields.keys() & extra.keys())
            raise UsageError(
                f"a {self.cls.__qualname__} has an extra value {name!r} beside its field of that name, which has an "
                "alias; one would hide the other: give the model extra='ignore' or 'forbid'"
            )
        return {**fields, **extra}

    def state(self, value: Any) -> dict[str, Any]:
        unset = [name for name in self.names if name not in value.__pydantic_fields_set__]
        private = value.__pydantic_private__ or {}
        return {**({"unset": unset} if unset else {}), **({"private": private} if private else {})}

    def build(self, fields: dict[str, Any], state: dict[str, Any]) -> Any:
        unset = state.get("unset", ())
        held = {name for name in fields if name not in unset}
        built = self.cls.model_construct(_fields_set=held, **fields)  # type: ignore[attr-defined]
        missing = [name for name in self.names if name not in built.__dict__]
        if missing:
            raise TypeError(f"missing fields: {', '.join(missing)}")
        for name, value in state.get("private", {}).items():
            if name in built.__private_attributes__:
                built.__pydantic_private__[name] = value
        return built


@lru_cache(maxsize=1024)
def shape_of(cls: type) -> Shape | None:
    """The shape of a rich class; None for every other class."""
    if issubclass(cls, tuple):
        names = getattr(cls, "_fields", None)
        return Shape(cls, names) if isinstance(names, tuple) else None
    if issubclass(cls, (BaseException, *BASES)):
        return None  # its fields would be only part of it
    if hasattr(cls, "__struct_fields__"):
        return _StructShape(cls, cls.__struct_fields__)
    if hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_construct"):
        fields = getattr(cls, "__pydantic_fields__", None) or getattr(cls, "model_fields", {})
        return _ModelShape(cls, tuple(fields))
    if hasattr(cls, "__attrs_attrs__"):
        return _InitShape(
            cls,
            {a.name: getattr(a, "alias", a.name) if a.init else None for a in cls.__attrs_attrs__},
        )
    if dataclasses.is_dataclass(cls):
        return _InitShape(
            cls, {f.name: f.name if f.init else None for f in dataclasses.fields(cls)}
        )
    return None


# How to see the builtin inside an object of a class derived from it. The builtin's own methods are
# called, because a subclass may have overridden `__str__` or `items` to say something else.
BASES: Final[dict[type, Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
}


@lru_cache(maxsize=1024)
def base_of(cls: type) -> type | None:
    """The builtin that a class derives from, if it is one of `BASES`."""
    return next((base for base in BASES if issubclass(cls, base)), None)


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object of a class derived from a builtin holds in addition to the builtin's content."""
    state = object.__getstate__(value)
    parts = state if isinstance(state, tuple) else (state,)
    return {name: held for part in parts if part for name, held in part.items()}


def with_attributes(built: Any, held: dict[str, Any]) -> Any:
    """Set these attributes, which may come from a hostile source: none with a meaning for Python."""
    for name, value in held.items():
        if name.startswith("__"):
            raise AttributeError("not an attribute of the class's own")
        object.__setattr__(built, name, value)
    return built
