"""Reads a key from header fields: its value (`parse_key`), and who it belongs to (`credentials`).

The key field is an RFC 9651 String or a bare value. Anything else is refused.

    Idempotency-Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"      the draft's form
    Idempotency-Key: 8e03978e-40d5-43e8-bc93-6894a57f9324        what most clients send

Both are the same key, so a client that is upgraded between two retries causes no second effect.
Parameters after the String are parsed and ignored. A malformed field is an error: ignoring it would
run the request unprotected. Every pattern is linear in its input.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from .message import HttpRequest

__all__ = ["ANONYMOUS", "BadKey", "credentials", "field_of", "parse_key", "require_key"]

# Only single characters have possessive quantifiers: early 3.11 releases get groups wrong.
_STRING: Final = rb'"[\x20\x21\x23-\x5b\x5d-\x7e]*+(?:\\["\\][\x20\x21\x23-\x5b\x5d-\x7e]*+)*"'
_BARE_ITEM: Final = (
    rb"(?:-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}"  # decimal, integer
    rb"|" + _STRING + rb"|[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*+"  # string, token
    rb"|:[A-Za-z0-9+/=]*+:|\?[01]|@-?[0-9]{1,15}"  # octets, boolean, date
    rb'|%"[\x20\x21\x23\x24\x26-\x7e]*+(?:%[0-9a-f]{2}[\x20\x21\x23\x24\x26-\x7e]*+)*")'  # display
)
_ITEM: Final = re.compile(
    rb"(" + _STRING + rb")(?:; *+[a-z*][a-z0-9_\-.*]*+(?:=" + _BARE_ITEM + rb")?)*"
)
_BARE: Final = bytes(octet for octet in range(0x21, 0x7F) if octet not in b'",;\\')
"""The octets of a value without quotes."""
_LONGEST: Final = 4096
"""The most bytes of a field, with its parameters and escapes."""
_TEXT: Final = re.compile(r"[\x20-\x7e]++")
_ESCAPED: Final = re.compile(rb"\\(.)")


class BadKey(Exception):  # noqa: N818 - not an error of the program, a fact about the request
    """What is wrong with the key, without quoting it."""


def parse_key(lines: Sequence[bytes], *, strict: bool = False, most: int = 255) -> str:
    """The key in the lines of its field. Raises `BadKey`."""
    if len(lines) > 1:
        raise BadKey("the field must be sent once, and was sent more than once")
    if len(lines[0]) > _LONGEST:  # before anything parses it
        raise BadKey(
            f"the field is longer than {_LONGEST} octets, and a key than {most} characters"
        )
    text = lines[0].strip(b" \t")
    if not text:
        raise BadKey("the field is empty")
    if text.startswith(b'"'):
        item = _ITEM.fullmatch(text)
        if item is None:
            raise BadKey(
                "the value is not one String of RFC 9651: printable ASCII in double quotes, with a "
                "backslash before each quote and backslash inside"
            )
        key = _ESCAPED.sub(rb"\1", item[1][1:-1])
    elif strict:
        raise BadKey("the value must be a String of RFC 9651: put it into double quotes")
    elif text.translate(None, _BARE):
        raise BadKey(
            "a value without quotes is printable ASCII without blank, quote, comma, semicolon and "
            "backslash; put others into double quotes"
        )
    else:
        key = text
    if not 1 <= len(key) <= most:
        raise _wrong_size(len(key), most)
    return key.decode("ascii")


def field_of(key: str, *, strict: bool = False) -> str:
    """The field value for a key: bare if possible, because most servers expect that."""
    if key and not strict and not key.encode("utf-8", "replace").translate(None, _BARE):
        return key
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _wrong_size(size: int, most: int) -> BadKey:
    return BadKey(f"the key is longer than {most} characters" if size else "the key is empty")


def require_key(key: str, most: int) -> str:
    """Check a key from any source and return it unchanged. Raises `BadKey`."""
    if not 1 <= len(key) <= most:
        raise _wrong_size(len(key), most)
    if _TEXT.fullmatch(key) is None:
        raise BadKey("the key has characters outside printable ASCII")
    return key


# --- who it belongs to -----------------------------------------------------------------------

_DOMAIN: Final = b"twicesafe.http.scope.1\0"
ANONYMOUS: Final = "anonymous"


def credentials(request: HttpRequest, names: Iterable[str], secret: bytes) -> str:
    """A keyed hash of these fields (or ``cookie:NAME``), or `ANONYMOUS` if all are absent."""
    framed: list[bytes] = []
    empty = True
    for name in names:
        if name.startswith("cookie:"):
            cookie = request.cookie(name.removeprefix("cookie:"))
            values = [] if cookie is None else [cookie.encode("latin-1")]
        else:
            wanted, values = name.lower().encode(), []
            for found, value in request.headers:
                if found == wanted:
                    values.append(value)
        empty = empty and not values
        framed.append(len(values).to_bytes(4, "big"))
        for value in values:
            framed += len(value).to_bytes(8, "big"), value
    if empty:
        return ANONYMOUS
    mac = _begun(secret).copy()
    mac.update(b"".join(framed))
    return mac.hexdigest()


@lru_cache(8)
def _begun(secret: bytes) -> hmac.HMAC:
    """Cached, because starting with the secret takes longer than the rest."""
    return hmac.new(secret, _DOMAIN, "sha256")
