"""The upstream's address, from its URL."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigurationError
from ..stores._urls import mask

__all__ = ["UpstreamAddress"]


class UpstreamAddress(msgspec.Struct, frozen=True):
    """The upstream's address, parsed from its URL."""

    secure: bool
    host: str
    port: int
    named: bytes
    """The Host field of requests that have none."""
    prefix: bytes
    """The path prefix of every request."""

    @classmethod
    def of(cls, url: str) -> Self:
        remedy = "use one like http://127.0.0.1:9000"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigurationError(
                f"upstream={mask(url)!r} is not valid: it has no host and port; {remedy}"
            ) from None
        plain = all("!" <= character <= "~" for character in url)  # allowed in a request line
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain or port == 0:
            raise ConfigurationError(f"upstream={mask(url)!r} is not valid: {remedy}")
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(
                f"upstream on {parts.hostname} has more than host, port and path: {remedy}"
            )
        secure = parts.scheme == "https"
        return cls(
            secure,
            parts.hostname,
            port or (443 if secure else 80),
            parts.netloc.encode(),
            parts.path.rstrip("/").encode(),
        )
