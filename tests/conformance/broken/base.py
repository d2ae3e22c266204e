"""What every broken store is: the memory store, and the name of the test that must reject it."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from twicesafe.records import Row
from twicesafe.stores.memory import MemoryStore

BROKEN: list[type[Broken]] = []


class Broken(MemoryStore):
    rejected_by: ClassVar[str]

    def __init_subclass__(cls) -> None:
        BROKEN.append(cls)

    def row(self, ask: Any) -> Row | None:
        return self._rows.get(ask.id)

    def put(self, row: Row | None, **changes: Any) -> None:
        if row is not None:
            self._rows[row.id] = replace(row, **changes)
