"""Checking settings: one wording for a wrong name, a wrong value and a duration.

    @suggesting("policy setting")                       Policy(leese=3): there is no policy setting …
    refuse_unknown(given, known, "policy setting")      there is no … 'leese'; did you mean 'lease'?
    expect(value > 0, "wait", value, "use 0 or more seconds")
    seconds("1h30m", "retention")                       5400.0

A duration is seconds, a timedelta, or text: a number of seconds (``"90"``), or numbers with units from
the largest to the smallest (``"7d"``, ``"1h30m"``, ``"250ms"``). Files, URLs, variables and the command
line use the same text. Rates, shares and sizes are in `quantities`.
"""

from __future__ import annotations

import functools
import math
import re
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

from ..errors import ConfigurationError

__all__ = [
    "DURATION_PATTERN",
    "Duration",
    "check_methods",
    "expect",
    "is_whole",
    "refuse_unknown",
    "seconds",
    "shown",
    "suggesting",
    "suggestion",
]

T = TypeVar("T")

Duration: TypeAlias = float | int | timedelta | str

_CENTURY: Final = 100 * 365.25 * 86400
"""Longer than any useful duration, and within the range of clocks and databases."""

_UNITS: Final = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_PLAIN: Final = re.compile(_NUMBER, re.ASCII)
_WITH_UNITS: Final = re.compile(
    "".join(rf"(?:{_NUMBER}{unit}{'(?!s)' if unit == 'm' else ''})?" for unit in _UNITS), re.ASCII
)
DURATION_PATTERN: Final = f"^(?=.)(?:{_PLAIN.pattern}|{_WITH_UNITS.pattern})$"
"""For JSON Schema: what a duration is as text."""
_LONGER: Final = {
    "weeks": "w", "days": "d", "hours": "h", "hrs": "h", "minutes": "m", "mins": "m",
    "seconds": "s", "secs": "s", "milliseconds": "ms", "millis": "ms", "msec": "ms",
}  # fmt: skip
_LONGEST_TEXT: Final = 40


_shown: Final = reprlib.Repr()
_shown.maxlevel = 2
_shown.maxlist = _shown.maxtuple = _shown.maxdict = _shown.maxset = _shown.maxfrozenset = 6
_shown.maxstring = _shown.maxother = _shown.maxlong = 200


def shown(value: object) -> str:
    """A wrong value, shortened for an error. A short YAML file can hold millions of references to
    one list, whose whole text would take minutes to write.
    """
    return _shown.repr(value)


def expect(holds: object, name: str, value: object, remedy: str) -> None:
    """A `ConfigurationError` that names the setting and the fix, unless this holds."""
    if not holds:
        raise ConfigurationError(f"{name}={shown(value)} is not valid: {remedy}")


def check_methods(given: object, name: str, methods: tuple[str, ...]) -> None:
    """Refuse an object that lacks one of these methods. It is not shown: it may hold a secret."""
    fine = given is None or all(callable(getattr(given, method, None)) for method in methods)
    kind = given if isinstance(given, type) else type(given).__qualname__
    expect(fine, name, kind, f"use None or an object with {' and '.join(methods)}")


def is_whole(value: object, least: int = 1, most: float = math.inf) -> TypeGuard[int]:
    """Whether this is an int in this range. True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Say which name is unknown, and which one may have been meant."""
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigurationError(
                f"there is no {what} {name[:_LONGEST_TEXT]!r}; {suggestion(name, names)}"
            )


def suggesting(what: str) -> Callable[[type[T]], type[T]]:
    """Decorates a dataclass of settings: a misspelt name gets a suggestion instead of Python's TypeError."""

    def decorate(settings: type[T]) -> type[T]:
        build: Any = settings.__init__
        names = [field.name for field in fields(settings)]  # type: ignore[arg-type]

        @functools.wraps(build)
        def init(self: T, *args: Any, **given: Any) -> None:
            refuse_unknown(given, names, what)
            build(self, *args, **given)

        settings.__init__ = init  # type: ignore[assignment,method-assign]
        return settings

    return decorate


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """What may have been meant by an unknown name; ``otherwise`` these words, or all that are known."""
    names = list(known)
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(name[:_LONGEST_TEXT], names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return otherwise or f"known: {', '.join(names) or 'none'}"


def seconds(value: object, name: str = "duration") -> float:
    """A duration in seconds, or a `ConfigurationError` that names the setting."""
    given = value
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, str):
        value = _read(value, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ConfigurationError(
            f"{name} must be seconds, a timedelta or text like '90s', not {shown(value)}"
        )
    expect(abs(value) <= _CENTURY, name, given, "use at most 100 years")
    return float(value)


def _read(text: str, name: str) -> float:
    found = _parsed(text)
    if found is None:
        meant = _meant(text)
        hint = (
            f"did you mean {meant!r}?"
            if meant
            else "use seconds ('90'), or numbers with the units w, d, h, m, s and ms ('7d', '1h30m')"
        )
        raise ConfigurationError(
            f"{name}={text[:_LONGEST_TEXT]!r} is not a duration: {hint}"
        ) from None
    return found


def _parsed(text: str) -> float | None:
    if not text or len(text) > _LONGEST_TEXT:
        return None
    if _PLAIN.fullmatch(text):
        return float(text)
    match = _WITH_UNITS.fullmatch(text)
    if match is None:
        return None
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    return math.fsum(float(number) * unit for number, unit in parts if number)


def _meant(text: str) -> str:
    """The duration that this text most likely means; empty: unknown."""
    written = re.sub(r"\s+|,|and", "", text[: 2 * _LONGEST_TEXT].lower())
    pieces = re.findall(r"([\d.]+)([a-z]*)", written)
    if "".join(number + unit for number, unit in pieces) != written:
        return ""
    units = []
    for number, unit in pieces:
        full = next((short for long, short in _LONGER.items() if unit and _is_cut(unit, long)), "")
        units.append((number, unit if unit in _UNITS else full))
    order = list(_UNITS)
    if not units or any(not unit for _, unit in units):
        return ""
    units.sort(key=lambda part: order.index(part[1]))
    fixed = "".join(number + unit for number, unit in units)
    return fixed if _parsed(fixed) is not None else ""


def _is_cut(word: str, long: str) -> bool:
    """``min`` and ``minute`` are beginnings of ``minutes``; a single letter is not enough."""
    return len(word) > 1 and long.startswith(word)
