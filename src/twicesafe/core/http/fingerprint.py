"""The fingerprint of a request: method, path, query, media type and the whole body.

    b"H" | scheme (1 byte) | SHA-256 over length-prefixed parts

Equal requests give equal bytes, so a store only compares. Noise does not count: query and form
parameters are sorted by name (stably: ``t=a&t=b`` is not ``t=b&t=a``), JSON is compared by value
(`json_form`), multipart bodies by their parts, whatever the boundary. What cannot be read is
compared octet by octet, and so is a body with a Content-Encoding. No other field counts, unless a
setting names it.

The scheme is recorded with every key and pinned by golden vectors: a later one gets a new number, and
asks under the old one too before it says "mismatch".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from ...fingerprint import fingerprint as fingerprint_of
from .json_form import json_form
from .message import HttpRequest

__all__ = ["FingerprintHow", "canonical_print", "http_fingerprint", "media_type"]

SCHEME: Final = b"H\x01"

FingerprintHow: TypeAlias = Literal["canonical", "octets"] | Callable[[HttpRequest], object] | None

_BOUNDARY: Final = re.compile(
    rb';[ \t]*+boundary=(?:"([^"\\\r\n]{1,70})"|([^\s;",]{1,70}))', re.IGNORECASE
)


def http_fingerprint(
    request: HttpRequest, how: FingerprintHow = "canonical", extra: Iterable[str] = ()
) -> bytes | None:
    """The fingerprint; None: the setting says that this request is not to be compared.

    A callable chooses what counts besides method and path: bytes, or any plain value.
    """
    media = media_type(request)
    if how == "canonical":
        kind, body = _body(request, media)
    elif how == "octets":
        kind, body = b"o", request.body
    elif how is None:
        return None
    else:
        chosen = how(request)
        if chosen is None:
            return None
        if isinstance(chosen, (bytes, bytearray, memoryview)):
            kind, body = b"b", bytes(chosen)
        else:
            kind, body = b"v", fingerprint_of(chosen)
        return _digest([request.method.encode(), request.target, kind, body])
    parts = [
        request.method.encode(),
        request.target,
        _sorted_by_name(request.query),
        media,
        kind,
        body,
    ]
    for name in extra:
        values = request.values(name)
        parts += [name.lower().encode(), len(values).to_bytes(4, "big"), *values]
    return _digest(parts)


def canonical_print(request: HttpRequest) -> bytes:
    found = http_fingerprint(request)
    assert found is not None
    return found


def media_type(request: HttpRequest) -> bytes:
    """type/subtype in lower case, without parameters."""
    for name, value in request.headers:
        if name == b"content-type":
            return value.partition(b";")[0].strip().lower()
    return b""


def _digest(parts: list[bytes]) -> bytes:
    return SCHEME + sha256(_framed(parts)).digest()


def _framed(parts: list[bytes]) -> bytes:
    return b"".join([len(part).to_bytes(8, "big") + part for part in parts])


def _body(request: HttpRequest, kind: bytes) -> tuple[bytes, bytes]:
    """How the body is compared, in one letter, and what is compared."""
    body = request.body
    if not body:
        return b"o", b""
    form: bytes | None = None
    letter = b"o"
    for name, _ in request.headers:
        if name == b"content-encoding":
            return letter, body
    if kind == b"application/json" or kind.endswith(b"+json"):
        letter, form = b"j", json_form(body)
    elif kind == b"application/x-www-form-urlencoded":
        letter, form = b"f", _sorted_by_name(body)
    elif kind.startswith(b"multipart/"):
        letter, form = b"m", _parts(request)
    return (b"o", body) if form is None else (letter, form)


def _sorted_by_name(text: bytes) -> bytes:
    if b"&" not in text:
        return text
    return b"&".join(sorted(text.split(b"&"), key=lambda part: bytes(part).partition(b"=")[0]))


def _parts(request: HttpRequest) -> bytes | None:
    """The parts of a multipart body without its boundary; None if it is not quite well-formed."""
    line = b"".join(request.values("content-type")[:1])
    found = _BOUNDARY.search(line)
    if found is None:
        return None
    delimiter = b"\r\n--" + (found[1] or found[2])
    before, *parts = (b"\r\n" + request.body).split(delimiter)
    if before or not parts or parts.pop() not in (b"--", b"--\r\n"):
        return None
    framed = []
    for part in parts:
        head, blank, content = part.partition(b"\r\n\r\n")
        if not blank or not part.startswith(b"\r\n"):
            return None
        framed += [head, content]
    return _framed(framed)
