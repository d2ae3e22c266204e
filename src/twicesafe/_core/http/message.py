"""A request and a response as plain data, the same for every edge and every hook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["Fields", "HttpRequest", "StoredResponse", "options_in"]

Fields = Sequence[tuple[bytes, bytes]]
"""Field lines in order; names in lower case."""


def options_in(value: bytes) -> set[bytes]:
    """What a Connection field lists."""
    return {option.strip(b" \t").lower() for option in value.split(b",")}


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as hooks see it (scope, key, fingerprint, replay)."""

    method: str
    """In upper case, as most frameworks treat it."""
    path: str
    """Decoded. Route patterns match it, with `mount` and without."""
    target: bytes
    """The path as it was sent, if the server provides it."""
    query: bytes
    headers: Fields
    body: bytes = b""
    native: Any = None
    """The ASGI scope, WSGI environ or Django request, with what outer middleware stored in it."""
    mount: str = ""
    """The beginning of the path that the application's router does not see."""

    def has(self, name: bytes) -> bool:
        """Whether there is a field of this name, which is in lower case."""
        for found, _ in self.headers:  # noqa: SIM110 - a generator would cost more than the look
            if found == name:
                return True
        return False

    def values(self, name: str) -> list[bytes]:
        """Every field line of this name, in order."""
        wanted = name.lower().encode()
        return [value for found, value in self.headers if found == wanted]

    def header(self, name: str) -> str | None:
        """The value of a field, its lines joined with commas; None if there is none."""
        values = self.values(name)
        return b", ".join(values).decode("latin-1") if values else None

    def cookie(self, name: str) -> str | None:
        """The cookie of this name. Cookies that differ are joined to a value that no single cookie
        can have. Applications take the first or the last, and another host may have set one."""
        found: dict[str, None] = {}
        for line in self.values("cookie"):
            for pair in line.decode("latin-1").split(";"):
                given, _, value = pair.partition("=")
                if given.strip() == name:
                    found[value.strip()] = None
        return "; ".join(found) if found else None

    def json(self) -> Any:
        """The body parsed as JSON. Raises `ValueError`."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError("the body is not JSON") from error


class StoredResponse(msgspec.Struct, frozen=True):
    """A response that is stored and replayed: status, end-to-end fields, body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
