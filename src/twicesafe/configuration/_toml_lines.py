"""The line of each key in a TOML text that `tomllib` has accepted.

Only keys are found: headers ``[a.b]`` and ``key =`` at the beginning of a statement. Strings and brackets
are skipped as a whole, so that nothing inside a value looks like a key. Keys of inline tables have no
entry; the line of the table is close enough.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

__all__ = ["toml_lines"]

_SPACE: Final = re.compile(r"(?:\s|#[^\n]*)*")
_HEADER: Final = re.compile(r"\[\[?")
_KEY: Final = re.compile(
    r"""(?:[A-Za-z0-9_-]+ | "(?:[^"\\\n]|\\.)*" | '[^'\n]*' | [ \t]*\.[ \t]*)+""", re.VERBOSE
)
_IN_VALUE: Final = re.compile(
    r""""{3}(?:[^\\]|\\.)*?"{3,5} | '{3}.*?'{3,5} | "(?:[^"\\\n]|\\.)*" | '[^'\n]*' | \#[^\n]* | .""",
    re.VERBOSE | re.DOTALL,
)


def toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """By the path of the key; the first line counts if a table is continued."""
    text = text.replace("\r\n", "\n")
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    at = 0

    def note(names: tuple[str, ...], end: int) -> None:
        line = text.count("\n", 0, end) + 1
        for depth in range(1, len(names) + 1):
            found.setdefault(names[:depth], line)

    while (at := _after(_SPACE, text, at)) < len(text):
        header = _HEADER.match(text, at)
        start = _after(_SPACE, text, header.end()) if header else at
        key = _KEY.match(text, start)
        if key is None:  # tomllib would have refused it
            break
        names = _parts(key[0])
        if header:
            table = names
            note(table, start)
            at = text.find("\n", key.end()) + 1 or len(text)
        else:
            note((*table, *names), start)
            at = _end_of_value(text, text.index("=", key.end()) + 1)
    return found


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _parts(key: str) -> tuple[str, ...]:
    """The names of a dotted key, unquoted by the parser itself."""
    value: object = tomllib.loads(f"{key} = 0")
    names = []
    while isinstance(value, dict):
        ((name, value),) = value.items()
        names.append(name)
    return tuple(names)


def _end_of_value(text: str, at: int) -> int:
    depth = 0
    while at < len(text):
        part = _IN_VALUE.match(text, at)
        assert part is not None
        if part[0] == "\n" and depth == 0:
            return at
        depth += part[0] in ("[", "{")
        depth -= part[0] in ("]", "}")
        at = part.end()
    return at
