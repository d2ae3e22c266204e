"""Patterns of methods and paths, for settings that apply to some requests.

    "POST"                every POST
    "/charges"            this path, any method
    "POST /charges/*"     `*` is one whole segment
    "/internal/**"        `**` at the end is any number of segments

Patterns match the decoded path, as routers do, so `/ch%61rges` is `/charges`. If the application is
mounted, or its server has a root path, they match with this part of the path, and without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ...errors import ConfigurationError

__all__ = ["Routes"]

_METHOD: Final = re.compile(r"[A-Z][A-Z-]*+")


class Routes:
    """Compiled patterns. Falsy if there are none."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Iterable[str], name: str = "routes") -> None:
        self._patterns = tuple(_compiled(pattern, name) for pattern in patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, method: str, path: str, mount: str = "") -> bool:
        if not self._patterns:
            return False
        paths = [path.split("/")]
        if mount:
            paths.append(path.removeprefix(mount).split("/"))
        return any(
            (wanted is None or wanted == method)
            and (shape is None or any(_fits(shape, rest, segments) for segments in paths))
            for wanted, shape, rest in self._patterns
        )


def _compiled(pattern: object, name: str) -> tuple[str | None, list[str] | None, bool]:
    if not isinstance(pattern, str):
        raise ConfigurationError(f"{name}: a route is text like 'POST /charges/*', not {pattern!r}")
    method, _, path = pattern.rpartition(" ")
    if not method and _METHOD.fullmatch(path):
        return path, None, False
    if (method and not _METHOD.fullmatch(method)) or not path.startswith("/"):
        raise ConfigurationError(
            f"{name}: the route {pattern!r} is not valid: write 'POST', '/path' or 'POST /path'"
        )
    shape = path.split("/")
    rest = shape[-1] == "**"
    if rest:
        shape.pop()
    if any("*" in segment and segment != "*" for segment in shape):
        raise ConfigurationError(
            f"{name}: in the route {pattern!r} a * must be a whole segment, and ** the last segment"
        )
    return method or None, shape, rest


def _fits(shape: list[str], rest: bool, segments: list[str]) -> bool:
    if len(segments) != len(shape) and not (rest and len(segments) > len(shape)):
        return False
    return all(wanted in ("*", found) for wanted, found in zip(shape, segments, strict=False))
