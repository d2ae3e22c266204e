"""Fields: the settings of a model, read from its annotations, and the check of their values.

A model is a frozen dataclass. Each field's annotation decides its kind:

    workers: Annotated[int, Meta(ge=1, le=256)] = 1     a whole number with bounds
    grace: Seconds = 30                                 a duration: seconds, or text like "30s"
    to: Url = ""                                        a URL; its password is never shown
    trusted: tuple[str, ...] = ()                       a list; separated by commas in a variable

`check_fields` in ``__post_init__`` checks and converts all fields of a model, so a wrong value gets
the same error from Python, a file or a variable.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import Meta

from .._values.settings import Duration, expect, seconds
from ..errors import ConfigurationError
from ._kinds import (
    DURATION,
    NUMBER,
    NUMBERS,
    SECRET,
    SWITCH,
    SWITCH_OR_TEXTS,
    TEXT,
    TEXTS,
    WHOLE,
    WRONG,
    ValueKind,
    choice,
)

__all__ = ["Field", "check_fields", "fields_of", "models_in"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a model, with its kind and bounds."""

    name: str
    kind: ValueKind
    default: Any
    """MISSING: it must be given."""
    optional: bool = False
    """None is a value too."""
    bounds: Meta | None = None

    @property
    def remedy(self) -> str:
        low, high = (self.bounds.ge, self.bounds.le) if self.bounds else (None, None)
        if low is None and high is None:
            return f"use {self.kind.words}"
        return f"use {self.kind.words}, " + (
            f"{low:g} or more" if high is None else f"from {low:g} to {high:g}"
        )

    def check(self, value: Any) -> Any:
        """The value as the model keeps it; a `ConfigurationError` names the field and the fix."""
        if value is None and self.optional:
            return None
        found = self.kind.convert(value, self.name)
        shown = "…" if self.kind is SECRET else value
        expect(found is not WRONG, self.name, shown, self.remedy)
        if self.bounds is not None:
            low, high = self.bounds.ge, self.bounds.le
            inside = (low is None or found >= low) and (high is None or found <= high)
            expect(inside, self.name, shown, self.remedy)
        return found

    def read(self, text: str, variable: str) -> Any:
        """The value that a variable's text means."""
        if self.kind is DURATION:
            return seconds(text.strip(), variable)
        try:
            return self.kind.read(text)
        except ValueError:
            shown = "…" if self.kind is SECRET else repr(text[:40])
            raise ConfigurationError(f"{variable}={shown} is not valid: {self.remedy}") from None

    def schema(self) -> dict[str, Any]:
        made = dict(self.kind.schema)
        if self.bounds is not None:
            target = made["anyOf"][0] if "anyOf" in made else made
            limits = {"minimum": self.bounds.ge, "maximum": self.bounds.le}
            limited = {**target, **{k: v for k, v in limits.items() if v is not None}}
            made = {"anyOf": [limited, *made["anyOf"][1:]]} if "anyOf" in made else limited
        return made


def check_fields(model: Any) -> None:
    """Check and convert all fields of a frozen model; call it in ``__post_init__``."""
    for field in fields_of(type(model)):
        object.__setattr__(model, field.name, field.check(getattr(model, field.name)))


def fields_of(
    model: type[Any], without: Iterable[str] = (), kinds: Mapping[str, ValueKind] | None = None
) -> tuple[Field, ...]:
    """The fields of a model. ``kinds``: the kinds that the annotations do not show."""
    named = tuple((kinds or {}).items())
    return _fields(model, frozenset(without), named)  # type: ignore[arg-type]  # classes hash


@functools.cache
def _fields(
    model: Any, without: frozenset[str], kinds: tuple[tuple[str, ValueKind], ...]
) -> tuple[Field, ...]:
    given = dict(kinds)
    return tuple(
        _field(field, _hint(model, field), given.get(field.name))
        for field in dataclasses.fields(model)
        if field.name not in without and not _is_model(_hint(model, field))
    )


def _hint(model: type, field: dataclasses.Field[Any]) -> Any:
    """One annotation at a time: others may name what is imported for type checkers only."""
    holder = types.SimpleNamespace(__annotations__={field.name: field.type})
    space = vars(sys.modules[model.__module__])
    try:
        return typing.get_type_hints(holder, space, include_extras=True)[field.name]
    except NameError:
        return Any


def _is_model(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or get_origin(hint) is dict


def _field(field: dataclasses.Field[Any], hint: Any, kind: ValueKind | None) -> Field:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory
    bare, optional = _without_none(hint)
    bounds = next((m for m in getattr(bare, "__metadata__", ()) if isinstance(m, Meta)), None)
    found = kind or _kind_of(bare)
    if found is None:
        raise TypeError(f"give {field.name} a kind: none is known for {hint}")
    return Field(field.name, found, default, optional, bounds)


def _without_none(hint: Any) -> tuple[Any, bool]:
    parts = get_args(hint)
    if type(None) in parts and get_origin(hint) in (typing.Union, types.UnionType):
        left = tuple(part for part in parts if part is not type(None))
        return functools.reduce(lambda a, b: a | b, left), True
    return hint, False


def _kind_of(hint: Any) -> ValueKind | None:
    told = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, ValueKind)]
    if told:
        return told[0]
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(bare) is Literal:
        return choice(*get_args(bare))
    if set(get_args(bare)) == set(get_args(Duration)):
        return DURATION
    return _BY_HINT.get(bare)


_BY_HINT: Final[dict[Any, ValueKind]] = {
    str: TEXT,
    bytes: SECRET,
    bool: SWITCH,
    int: WHOLE,
    float: NUMBER,
    tuple[str, ...]: TEXTS,
    frozenset[str]: TEXTS,
    frozenset[int]: NUMBERS,
    bool | tuple[str, ...]: SWITCH_OR_TEXTS,
}


def models_in(model: type, without: Iterable[str] = ()) -> dict[str, Any]:
    """The fields that are models themselves, such as the back-off of a policy."""
    found = {field.name: _hint(model, field) for field in dataclasses.fields(model)}
    return {
        name: hint
        for name, hint in found.items()
        if dataclasses.is_dataclass(hint) and name not in set(without)
    }
