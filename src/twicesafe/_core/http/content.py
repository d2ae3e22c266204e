"""The labels of a body: its media type, the parameters that change its meaning, its encodings.

A label that all parsers understand alike is parsed; any other is compared as it was sent.
``charset=utf-8`` and a multipart boundary do not count. These count: another charset, any other
parameter, a second Content-Type line (parsers differ on which one applies), a repeated parameter, and
each Content-Encoding.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from .message import HttpRequest

__all__ = ["Content", "content_of"]

_PARAMETER: Final = re.compile(
    rb"[ \t]*+;[ \t]*+"
    rb"(?:([!#$%&'+\-.^_`|~0-9A-Za-z]++)=(?:\"([^\"\\\r\n]*+)\"|([^\s;\",\\]++)))?"
)
"""One parameter, or none after its semicolon. Only some parsers read a name with ``*`` (RFC 2231)."""
_UTF_8: Final = frozenset((b"utf-8", b"utf8"))


class Content(msgspec.Struct, frozen=True):
    """The labels of a body that the fingerprint compares."""

    media: bytes
    """type/subtype in lower case, without parameters; empty if there is none."""
    boundary: bytes = b""
    """Of a multipart body."""
    marks: tuple[bytes, ...] = ()
    """What is compared besides the media type; empty for most requests."""
    readable: bool = True
    """False: applications may read this body in different ways, so its bytes are compared."""


def content_of(request: HttpRequest) -> Content:
    lines: tuple[bytes, ...] = ()
    encodings: list[bytes] = []
    for name, value in request.headers:
        if name == b"content-type":
            lines += (value,)
        elif name == b"content-encoding":
            encodings.append(value.strip(b" \t").lower())
    content = _labelled(lines)
    if not encodings:
        return content
    marks = (*content.marks, b"content-encoding", *encodings)
    return Content(content.media, content.boundary, marks, readable=False)


@lru_cache(64)
def _labelled(lines: tuple[bytes, ...]) -> Content:
    """Cached, because an application gets few different labels."""
    if not lines:
        return Content(b"")
    media = lines[0].partition(b";")[0].strip(b" \t").lower()
    parameters = _parameters(lines[0]) if len(lines) == 1 else None
    if parameters is None:
        return Content(media, marks=(b"content-type", *lines), readable=False)
    if not parameters:
        return Content(media)
    is_foreign = parameters.get(b"charset", b"utf-8").lower() not in _UTF_8
    if not is_foreign:
        parameters.pop(b"charset", None)
    is_multipart = media.startswith(b"multipart/")
    boundary = parameters.pop(b"boundary", b"") if is_multipart else b""
    marks = [part for pair in sorted(parameters.items()) for part in pair]
    return Content(media, boundary, tuple(marks), readable=not is_foreign)


def _parameters(line: bytes) -> dict[bytes, bytes] | None:
    """Names in lower case and their values; None if parsers may differ about them."""
    found: dict[bytes, bytes] = {}
    line = line.rstrip(b" \t")
    at = line.find(b";")
    while 0 <= at < len(line):
        one = _PARAMETER.match(line, at)
        if one is None:
            return None
        at = one.end()
        if one[1] is None:
            continue
        name = one[1].lower()
        if name in found:
            return None
        found[name] = one[3] if one[2] is None else one[2]
    return found
