"""Who a key belongs to, by the fields of the request that identify its sender."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

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
    mac = _begun(secret).copy()
    mac.update(b"".join(framed))
    return mac.hexdigest()


@lru_cache(8)
def _begun(secret: bytes) -> hmac.HMAC:
    """To start with the secret takes longer than the rest."""
    return hmac.new(secret, _DOMAIN, "sha256")
