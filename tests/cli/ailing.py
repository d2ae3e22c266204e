"""A store that the doctor refuses, and one that never answers: reached by URL, as any other."""

from __future__ import annotations

from typing import Any, Self

from twicesafe.errors import StoreUnavailableError
from twicesafe.stores._base import Finding
from twicesafe.stores.memory import MemoryStore


class AilingStore(MemoryStore):
    def doctor(self) -> list[Finding]:
        return [
            Finding("ok", "it answers"),
            Finding("warn", "it is slow \x1b[31m", "feed it"),
            Finding("refuse", "it evicts live records", "set maxmemory-policy noeviction"),
        ]


class SilentStore(MemoryStore):
    @classmethod
    def open(cls, url: str) -> Self:
        return cls(url="silent://server")

    def perform(self, request: Any) -> Any:
        raise StoreUnavailableError("the server did not answer within 5 s")
