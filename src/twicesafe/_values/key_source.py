"""Where a key file is read from: ``env:NAME`` or ``file:/path``, with options like ``?name=value``.

    source = KeySource.of("file:/run/secrets/keys?plaintext=read", {"plaintext"}, "encryption")
    source.entries()                # [(1, "2026-11", "…")]

One entry per line, or separated by commas; ``#`` starts a comment. An error never shows the text.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import parse_qsl

from ..errors import ConfigurationError

__all__ = ["KeySource"]


class KeySource(NamedTuple):
    """Where keys are, and what was said about them."""

    kind: str
    name: str
    options: dict[str, str]

    @classmethod
    def of(cls, source: str, options: Collection[str], setting: str) -> KeySource:
        place, _, query = source.partition("?")
        kind, _, name = place.partition(":")
        given = dict(parse_qsl(query, keep_blank_values=True))
        if kind not in ("env", "file") or not name or not set(given) <= set(options):
            known = " and ".join(f"?{option}=…" for option in options)
            more = f", optionally with {known}" if known else ""
            raise ConfigurationError(f"{setting} must be env:NAME or file:/path{more}")
        return cls(kind, name, given)

    @property
    def place(self) -> str:
        return f"{self.kind}:{self.name}"

    def entries(self, what: str) -> list[tuple[int, str, str]]:
        """Number, id and key of each entry, every id once. ``what``: what the text is, for errors."""
        lines = [
            line.partition("#")[0].strip()
            for line in self.text(what).replace(",", "\n").splitlines()
        ]
        found: dict[str, tuple[int, str, str]] = {}
        for number, line in enumerate(filter(None, lines), 1):
            id_, colon, key = line.partition(":")
            if not colon or not id_ or id_ in found:
                raise ConfigurationError(
                    f"entry {number} of {what} in {self.place} must be id:key, with a unique id"
                )
            found[id_] = number, id_, key
        if not found:
            raise ConfigurationError(f"{what} in {self.place} is empty")
        return list(found.values())

    def text(self, what: str) -> str:
        """What is there. ``what``: what it is, for errors."""
        if self.kind == "env":
            found = os.environ.get(self.name)
            if not found:
                raise ConfigurationError(f"the variable {self.name} for {what} is not set")
            return found
        try:
            with open(self.name, encoding="ascii") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise ConfigurationError(
                f"the file {self.name} for {what} cannot be read: {why}"
            ) from None
