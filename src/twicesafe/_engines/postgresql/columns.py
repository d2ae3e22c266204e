"""How the columns of a record are written and read, in the wide table and in the narrow one.

In the narrow table an id is a `uuid`: 16 bytes without a header, and a quarter less in its index than
`bytea`. A column without a value is NULL, which takes no space (0002_narrow.sql lists these columns).
Statements get the SQL for both tables here, so each statement is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..._values.records import Row
from ..sql.commands import COLUMNS, TEXT_OR_RESULT
from ..sql.layouts import Layout

__all__ = ["Columns", "NarrowColumns", "columns_of"]

MOST_ATTEMPTS: Final = 32767
"""The most attempts that the narrow table can count."""


class Columns:
    """The wide table: every column has its value, unchanged."""

    id_type = "bytea"

    def id_bytes(self, sql: str) -> str:
        """SQL for the bytes of an id."""
        return sql

    def read(self, name: str, of: str = "") -> str:
        """SQL for the value of a column; `of`: the name of its table, with a dot."""
        return of + name

    def seen(self, name: str) -> str:
        """SQL for the value that an answer needs of the record ``r``."""
        value = self.read(name, "r.")
        if name == "result":
            return TEXT_OR_RESULT.format(of="r.", error=self.read("error", "r."), result=value)
        return value

    def kept(self, name: str, value: str) -> str:
        """SQL for the stored form of this value."""
        return value

    def new_created_at(self, now: str) -> str:
        """SQL for the `created_at` of a record that is created now."""
        return now

    def changes(self, values: Mapping[str, str]) -> str:
        """The SET clause of an UPDATE of ``r``."""
        return ", ".join(f"{name} = {self.kept(name, value)}" for name, value in values.items())

    def values(self, row: Row, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values to bind for a whole row, from those of `SqlPrograms.values`."""
        return values

    @property
    def all(self) -> str:
        """The columns of `COLUMNS`."""
        return ", ".join(self.read(name) for name in COLUMNS.split(", "))


_NO_NUMBER: Final = {"lease_until", "expires_at", "cause"}
_NO_BYTES: Final = {"owner", "scope", "value", "error"}


class NarrowColumns(Columns):
    id_type = "uuid"

    def id_bytes(self, sql: str) -> str:
        return f"uuid_send({sql})"

    def read(self, name: str, of: str = "") -> str:
        column = of + name
        if name == "id":
            return self.id_bytes(column)
        if name == "created_at":
            return f"coalesce({column}, {of}changed_at)"
        if name in _NO_NUMBER:
            return f"coalesce({column}, 0)"
        return f"coalesce({column}, '')" if name in _NO_BYTES else column

    def kept(self, name: str, value: str) -> str:
        if name in _NO_NUMBER:
            return "NULL" if value == "0" else f"nullif({value}, 0)"
        if name in _NO_BYTES:
            return "NULL" if value == "''" else f"nullif({value}, '')"
        if name == "awaited":
            return "NULL" if value == "false" else f"nullif({value}, false)"
        return f"least({value}, {MOST_ATTEMPTS})" if name == "attempt" and value != "1" else value

    def new_created_at(self, now: str) -> str:
        return "NULL"

    def changes(self, values: Mapping[str, str]) -> str:
        if "changed_at" in values and "created_at" not in values:
            values = {**values, "created_at": "coalesce(r.created_at, r.changed_at)"}
        return super().changes(values)

    def values(self, row: Row, values: tuple[Any, ...]) -> tuple[Any, ...]:
        state, fence, attempt, owner, lease, created, changed, expires, hold, cause, *rest = values
        scope, value, error, print_, result, id_ = rest
        return (
            *(state, fence, min(attempt, MOST_ATTEMPTS), owner or None, lease or None),
            *(None if created == changed else created, changed, expires or None, hold),
            *(cause or None, scope or None, value or None, error or None, print_, result, id_),
        )


_WIDE, _NARROW = Columns(), NarrowColumns()


def columns_of(layout: Layout) -> Columns:
    return _NARROW if layout.width == 16 else _WIDE
