"""Who a key belongs to, by the fields of the request that identify its sender."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from .message import HttpRequest

__all__ = ["ANONYMOUS", "credentials"]

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
    inner, outer = (begun.copy() for begun in _begun(secret))
    inner.update(b"".join(framed))
    outer.update(inner.digest())
    digest: str = outer.hexdigest()
    return digest


@lru_cache(8)
def _begun(secret: bytes) -> tuple[Any, Any]:
    """The two hashes of an HMAC, with the secret in them: `hmac` takes three times as long to copy its own."""
    secret = sha256(secret).digest() if len(secret) > 64 else secret
    inner, outer = (bytes(octet ^ pad for octet in secret.ljust(64, b"\0")) for pad in (0x36, 0x5C))
    return sha256(inner + _DOMAIN), sha256(outer)
