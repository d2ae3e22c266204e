"""The fingerprint of a request: method, path, query, media type and the whole body.

    b"H" | scheme (1 byte) | SHA-256 over length-prefixed parts

Equal requests have equal fingerprints, so a store only compares bytes. Insignificant differences do not
count: query and form parameters are sorted by name (`parameters`; ``t=a&t=b`` is not ``t=b&t=a``), JSON
is compared by value (`json_form`), and multipart bodies by their parts, with any boundary. A body that
parsers may read in two ways is compared byte by byte, together with its labels (`content`). No other
header field counts, unless a setting names it.

Every key records its scheme, and golden vectors pin both schemes. Scheme 2 is for requests that scheme 1
could confuse with others: those with significant labels, and those with unusual parameter names. All
others keep scheme 1, so an upgrade does not turn stored keys into mismatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from ..._values.fingerprint import fingerprint as fingerprint_of
from .content import Content, content_of
from .json_form import json_form
from .message import HttpRequest
from .parameters import ordered

__all__ = ["FingerprintHow", "canonical_print", "http_fingerprint"]

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
        framed += len(part).to_bytes(8, "big"), part
    return b"".join(framed)


def _body(
    body: bytes, content: Content, is_canonical: bool
) -> tuple[bytes, bytes, tuple[bytes, ...], bool]:
    """How the body is compared (one letter), what is compared, the labels that count, and whether
    scheme 1 compared the same."""
    labels = content.marks
    if not body:
        return b"o", b"", labels, True
    media, form = content.media, None
    if is_canonical and content.readable:
        if media == b"application/json" or media.endswith(b"+json"):
            form = json_form(body)
            if form is not None:
                return b"j", form, labels, True
        elif media == b"application/x-www-form-urlencoded":
            text, is_first = ordered(body)
            return b"f", text, labels, is_first
        elif content.boundary:
            form = _parts(body, content.boundary)
            if form is not None:
                return b"m", form, labels, True
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
