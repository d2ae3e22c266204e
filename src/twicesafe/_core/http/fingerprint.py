"""The fingerprint of a request: method, path, query, media type and the whole body.

    b"H" | scheme (1 byte) | SHA-256 over length-prefixed parts

Equal requests give equal bytes, so a store only compares. Noise does not count: query and form
parameters are put in order (`parameters`; ``t=a&t=b`` is not ``t=b&t=a``), JSON is compared by value
(`json_form`), multipart bodies by their parts, whatever the boundary. What readers may understand in
two ways is compared octet by octet, together with the labels that say how to read it (`content`).
No other field counts, unless a setting names it.

The scheme is recorded with every key and pinned by golden vectors. Scheme 2 is for requests that scheme
1 could not tell from others: those with labels that count, and parameters whose names are not plain. All
others keep scheme 1, so that an upgrade does not turn stored keys into mismatches.
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

FingerprintHow: TypeAlias = Literal["canonical", "octets"] | Callable[[HttpRequest], object] | None


def http_fingerprint(
    request: HttpRequest, how: FingerprintHow = "canonical", extra: Iterable[str] = ()
) -> bytes | None:
    """The fingerprint; None: the setting says that this request is not to be compared.

    A callable chooses what counts besides method and path: bytes, or any plain value.
    """
    if how is None:
        return None
    if how not in ("canonical", "octets"):
        assert callable(how)
        return _chosen(request, how(request))
    content = content_of(request)
    query, is_plain = ordered(request.query)
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
    return b"".join([len(part).to_bytes(8, "big") + part for part in parts])


def _body(
    body: bytes, content: Content, is_canonical: bool
) -> tuple[bytes, bytes, tuple[bytes, ...], bool]:
    """How the body is compared, in one letter; what is compared; the labels that count; and is that
    what scheme 1 compared?"""
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
    """The parts of a multipart body without its boundary; None if it is not quite well-formed.

    The boundary is nowhere but in the delimiters: a reader that is content with a bare LF before one
    would see parts that another boundary does not make.
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
