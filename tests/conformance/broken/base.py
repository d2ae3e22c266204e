"""What every broken store is: a right one with one thing wrong, and the name of the test that must
reject it.

A `Broken` store is broken in its rows, so it is the memory store. A `Misled` one is broken in what it
makes of requests and answers, so it stands in front of any store: it is tried on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from twicesafe._core.protocol import Read, Request
from twicesafe._values.records import Row
from twicesafe.stores._base import Store
from twicesafe.stores.memory import MemoryStore

BROKEN: list[type[Broken | Misled]] = []


class Broken(MemoryStore):
    rejected_by: ClassVar[str]

    def __init_subclass__(cls) -> None:
        BROKEN.append(cls)

    def row(self, ask: Any) -> Row | None:
        return self._rows.get(ask.id)

    def put(self, row: Row | None, **changes: Any) -> None:
        if row is not None:
            self._rows[row.id] = replace(row, **changes)


class Misled(Store):
    """A method per kind of request that it gets wrong; all others go through as they are."""

    rejected_by: ClassVar[str]

    def __init_subclass__(cls) -> None:
        BROKEN.append(cls)

    def __init__(self, store: Store | None = None, now: Callable[[], int] | None = None) -> None:
        self.right = MemoryStore(now=now) if store is None else store
        self.url = self.right.url
        self.capabilities = self.right.capabilities

    @classmethod
    def open(cls, url: str) -> Self:
        raise NotImplementedError

    def row(self, ask: Any) -> Row | None:
        return self.right.perform(Read(ask.id))

    def perform(self, request: Request) -> Any:
        return getattr(self, request.op, self.right.perform)(request)

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for request in requests:
            try:
                answers.append(self.perform(request))
            except Exception as error:
                answers.append(error)
        return answers

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        self.right.watch(id, seconds)

    def close(self) -> None:
        self.right.close()
