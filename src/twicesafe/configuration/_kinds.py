"""Kinds of settings: what a value may be, how a variable's text becomes one, how it is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from .._values.settings import DURATION_PATTERN, seconds
from ..stores._urls import mask

__all__ = [
    "DURATION",
    "NUMBER",
    "NUMBERS",
    "SECRET",
    "SWITCH",
    "SWITCH_OR_TEXTS",
    "TEXT",
    "TEXTS",
    "URLS",
    "WHOLE",
    "WRONG",
    "Seconds",
    "Url",
    "ValueKind",
    "choice",
]

WRONG: Final = object()


@dataclass(frozen=True, slots=True, eq=False)
class ValueKind:
    """One kind of value."""

    words: str
    """Completes "use …" in an error."""
    convert: Callable[[Any, str], Any]
    """A value from a file or from Python, or WRONG; may raise `ConfigurationError` with better words."""
    read: Callable[[str], Any]
    """Reads the value from the text of a variable; `ValueError` if that is not possible."""
    schema: Mapping[str, Any]
    """JSON Schema."""
    shown: Callable[[Any], Any] = lambda value: value
    """For people: without secrets."""


def _is_number(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and math.isfinite(value)


def _of(accepts: Callable[[Any], bool]) -> Callable[[Any, str], Any]:
    return lambda value, _: value if accepts(value) else WRONG


def _several(item: type, into: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    def convert(value: Any, _: str) -> Any:
        listed = isinstance(value, list | tuple | frozenset | set)
        right = listed and all(type(one) is item for one in value)
        return into(value) if right else WRONG

    return convert


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _switch_or_texts(text: str) -> bool | list[str]:
    return _switch(text) if text.lower() in ("true", "false") else _split(text)


_STRINGS: Final = {"type": "array", "items": {"type": "string"}}

TEXT: Final = ValueKind("text", _of(lambda v: isinstance(v, str)), str, {"type": "string"})
SECRET: Final = ValueKind(
    "text",
    _of(lambda v: isinstance(v, str | bytes)),
    str,
    {"type": "string"},
    lambda v: "***" if v else "",
)
URL: Final = ValueKind(
    "a URL, in quotes",
    _of(lambda v: isinstance(v, str)), str, {"type": "string"}, lambda v: mask(v) if v else v,
)  # fmt: skip
SWITCH: Final = ValueKind(
    "true or false", _of(lambda v: isinstance(v, bool)), _switch, {"type": "boolean"}
)
WHOLE: Final = ValueKind(
    "a whole number",
    _of(lambda v: isinstance(v, int) and not isinstance(v, bool)), int, {"type": "integer"},
)  # fmt: skip
NUMBER: Final = ValueKind("a number", _of(_is_number), float, {"type": "number"})
DURATION: Final = ValueKind(
    "seconds, or text like '90s'",
    seconds,
    str.strip,
    {"anyOf": [{"type": "number"}, {"type": "string", "pattern": DURATION_PATTERN}]},
)
TEXTS: Final = ValueKind('a list of text, like ["a", "b"]', _several(str, tuple), _split, _STRINGS)
URLS: Final = ValueKind(
    'a list of URLs, like ["http://a", "http://b"]',
    TEXTS.convert, TEXTS.read, TEXTS.schema, lambda urls: tuple(map(mask, urls)),
)  # fmt: skip
NUMBERS: Final = ValueKind(
    "a list of whole numbers, like [429, 503]",
    _several(int, tuple),
    lambda text: [int(item) for item in _split(text)],
    {"type": "array", "items": {"type": "integer"}},
)
SWITCH_OR_TEXTS: Final = ValueKind(
    'true, false, or a list of text like ["a", "b"]',
    lambda v, name: v if isinstance(v, bool) else TEXTS.convert(v, name),
    _switch_or_texts,
    {"anyOf": [SWITCH.schema, _STRINGS]},
)


def choice(*words: str | bool) -> ValueKind:
    """One of these words; true and false among them are switches."""
    by_text = {str(word).lower(): word for word in words}

    def read(text: str) -> Any:
        if text.lower() not in by_text:
            raise ValueError(text)
        return by_text[text.lower()]

    return ValueKind(
        f"one of {', '.join(by_text)}",
        _of(lambda v: any(v == word and type(v) is type(word) for word in words)),
        read,
        {"enum": list(words)},
    )


Seconds: TypeAlias = Annotated[float, DURATION]
"""A duration: a model takes seconds, a timedelta or text, and keeps seconds."""
Url: TypeAlias = Annotated[str, URL]
"""A URL, which is shown without its password."""
