"""The fingerprint of a request: method, path, query, media type and the whole body.

    b"H" | scheme (1 byte) | SHA-256 over length-prefixed parts

Equal requests have equal fingerprints, so a store only compares bytes. Insignificant differences do not
count: query and form parameters are sorted by name (`parameters`; ``t=a&t=b`` is not ``t=b&t=a``), JSON
is compared by value (`json_form`), and multipart bodies by their parts, with any boundary. A body that
parsers may read in two ways is compared byte by byte, together with its labels. No other header field
counts, unless a setting names it.

The labels are the media type, its parameters and the encodings. A label that all parsers understand alike
is parsed; any other is compared as it was sent. ``charset=utf-8`` and a multipart boundary do not count.
These count: another charset, any other parameter, a second Content-Type line (parsers differ on which one
applies), a repeated parameter, and each Content-Encoding.

Every key records its scheme, and golden vectors pin both schemes. Scheme 2 is for requests that scheme 1
could confuse with others: those with significant labels, and those with unusual parameter names. All
others keep scheme 1, so an upgrade does not turn stored keys into mismatches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Any, Final, Literal, NoReturn, TypeAlias

import msgspec

from ..._values.fingerprint import fingerprint as fingerprint_of
from .message import HttpRequest
from .parameters import ordered

__all__ = ["FingerprintHow", "canonical_print", "http_fingerprint", "json_form"]

_length = Struct(">Q").pack
_LENGTHS: Final = [_length(size) for size in range(256)]
"""Of short parts: to look one up costs less than to make it."""

SCHEME_1: Final = b"H\x01"
SCHEME_2: Final = b"H\x02"

FingerprintHow: TypeAlias = (
    Literal["canonical", "octets"] | Callable[[HttpRequest], object] | bool | None
)
"""None and True: canonical. False: no check."""


def http_fingerprint(
    request: HttpRequest, how: FingerprintHow = "canonical", extra: Iterable[str] = ()
) -> bytes | None:
    """The fingerprint, or None if the setting says not to compare this request.

    A callable returns what to compare besides method and path: bytes or any plain value.
    """
    if how is False:
        return None
    if how is None or how is True:
        how = "canonical"
    if how not in ("canonical", "octets"):
        assert callable(how)
        return _chosen(request, how(request))
    content = content_of(request)
    query, is_plain = request.query, True
    if b"&" in query:
        query, is_plain = ordered(query)
    kind, body, labels, is_first = _body(request.body, content, how == "canonical")
    parts = [request.method.encode(), request.target, query, content.media, kind, body]
    scheme = SCHEME_1
    if labels or not (is_plain and is_first):
        scheme = SCHEME_2
        parts += [len(labels).to_bytes(4, "big"), *labels]
    for name in extra:
        values = request.values(name)
        parts += [name.lower().encode(), len(values).to_bytes(4, "big"), *values]
    return scheme + sha256(_framed(parts)).digest()


def canonical_print(request: HttpRequest) -> bytes:
    found = http_fingerprint(request)
    assert found is not None
    return found


def _chosen(request: HttpRequest, chosen: object) -> bytes | None:
    if chosen is None:
        return None
    if isinstance(chosen, (bytes, bytearray, memoryview)):
        kind, value = b"b", bytes(chosen)
    else:
        kind, value = b"v", fingerprint_of(chosen)
    parts = [request.method.encode(), request.target, kind, value]
    return SCHEME_1 + sha256(_framed(parts)).digest()


def _framed(parts: list[bytes]) -> bytes:
    framed: list[bytes] = []
    for part in parts:
        size = len(part)
        framed += _LENGTHS[size] if size < len(_LENGTHS) else _length(size), part
    return b"".join(framed)


def _body(
    body: bytes, content: Content, is_canonical: bool
) -> tuple[bytes, bytes, tuple[bytes, ...], bool]:
    """How the body is compared (one letter), what is compared, the labels that count, and whether
    scheme 1 compared the same."""
    labels = content.marks
    if not body:
        return b"o", b"", labels, True
    kind = content.kind if is_canonical else b"o"
    if kind == b"f":
        text, is_first = ordered(body)
        return kind, text, labels, is_first
    if kind != b"o":
        form = json_form(body) if kind == b"j" else _parts(body, content.boundary)
        if form is not None:
            return kind, form, labels, True
    if content.boundary:  # the same octets have other parts with another boundary
        labels = (*labels, b"boundary", content.boundary)
    return b"o", body, labels, True


def _parts(body: bytes, boundary: bytes) -> bytes | None:
    """The parts of a multipart body without its boundary; None if it is not strictly well-formed.

    The boundary may occur only in delimiters. Otherwise a parser that accepts a bare LF before a
    delimiter would see other parts.
    """
    dashed = b"--" + boundary
    before, *parts = (b"\r\n" + body).split(b"\r\n" + dashed)
    if before or not parts or len(parts) != body.count(dashed):
        return None
    if parts.pop() not in (b"--", b"--\r\n"):
        return None
    framed = []
    for part in parts:
        head, blank, content = part.partition(b"\r\n\r\n")
        if not blank or not part.startswith(b"\r\n"):
            return None
        framed += [head, content]
    return _framed(framed)


# --- the form of a JSON body -----------------------------------------------------------------------

_pack = msgspec.msgpack.Encoder(order="deterministic").encode


def json_form(body: bytes) -> bytes | None:
    """The canonical form of a JSON text, or None if parsers may read it in two ways.

    Different values have different forms. Numbers are compared as written: ``1``, ``1.0`` and ``1e0``
    differ, and large integers and long decimals keep every digit. ``1``, ``"1"`` and ``true`` differ,
    absent differs from null, arrays keep their order, and text is not normalised.

    Text that is not strict JSON or nests too deep has no form, nor has an object with two members of one
    name: parsers take the first or the last. Some ignore case (Go, .NET), so ``a`` and ``A`` are one name,
    and for some a NUL ends a name.

    The form is MessagePack: an object is a map with sorted keys, and a number is the bytes of its
    literal. One pass makes it, so its cost grows with the length of the text, not with its depth.
    """
    if b"\\u0000" in body:
        return None
    try:
        text = body.decode("utf-8").strip(" \t\n\r")
        value, end = _scan(text, 0)
        return _pack(value) if end == len(text) else None
    except (StopIteration, ValueError, RecursionError):
        return None  # no JSON, not UTF-8, a lone surrogate, too deep


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(set(map(str.casefold, members))) != len(pairs):
        raise ValueError("two members have the same name")
    return members


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder: Any = json.JSONDecoder(
    object_pairs_hook=_members,
    parse_int=str.encode,
    parse_float=str.encode,
    parse_constant=_refuse,
)
_scan = _decoder.scan_once


# --- the labels of a body ------------------------------------------------------------------------

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
    kind: bytes = b"o"
    """How the body is read: JSON (j), a form (f), multipart (m), or octets (o). Octets, too, if
    applications may read it in different ways."""


def content_of(request: HttpRequest) -> Content:
    lines: tuple[bytes, ...] = ()
    encodings: list[bytes] = []
    for name, value in request.headers:
        if name == b"content-type":
            lines += (bytes(value),)
        elif name == b"content-encoding":
            encodings.append(value.strip(b" \t").lower())
    content = _labelled(lines)
    if not encodings:
        return content
    marks = (*content.marks, b"content-encoding", *encodings)
    return Content(content.media, content.boundary, marks)


@lru_cache(64)
def _labelled(lines: tuple[bytes, ...]) -> Content:
    """Cached, because an application gets few different labels."""
    if not lines:
        return Content(b"")
    media = lines[0].partition(b";")[0].strip(b" \t").lower()
    parameters = _parameters(lines[0]) if len(lines) == 1 else None
    if parameters is None:
        return Content(media, marks=(b"content-type", *lines))
    is_foreign = parameters.get(b"charset", b"utf-8").lower() not in _UTF_8
    if not is_foreign:
        parameters.pop(b"charset", None)
    is_multipart = media.startswith(b"multipart/")
    boundary = parameters.pop(b"boundary", b"") if is_multipart else b""
    marks = [part for pair in sorted(parameters.items()) for part in pair]
    return Content(media, boundary, tuple(marks), b"o" if is_foreign else _kind(media, boundary))


def _kind(media: bytes, boundary: bytes) -> bytes:
    if media == b"application/json" or media.endswith(b"+json"):
        return b"j"
    if media == b"application/x-www-form-urlencoded":
        return b"f"
    return b"m" if boundary else b"o"


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
