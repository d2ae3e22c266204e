"""One engine's dialect of the outbox: its clock, its locks, and how it writes lists and upserts.

Time is read once per statement (`instant`). A clock that is read for each row would let a back-off
end in the middle of a lane: its first rows would be passed over, and later ones published first.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, Final

from ..._core.outbox_requests import Added, gate_of, slot_of
from .commands import Change
from .migrations import Schema

__all__ = [
    "COLUMNS",
    "FALSE",
    "TRUE",
    "WRITTEN",
    "OutboxDialect",
    "all_values_of",
    "gates_of",
    "inlined",
    "marked",
    "values_of",
]

WRITTEN: Final = "slot, lane, id, aggregatetype, aggregateid, type, headers, payload"
"""What `add` writes besides the time: the order of `values_of`."""

COLUMNS: Final = f"n, created_at, {WRITTEN}"
TRUE: Final = "TRUE"
FALSE: Final = "FALSE"


class OutboxDialect(abc.ABC):
    """What engines write differently. ``?`` in statements become this driver's placeholders."""

    dialect: ClassVar[str]
    begin: ClassVar[str] = "BEGIN"
    share: ClassVar[str] = " FOR SHARE"
    lock: ClassVar[str] = " FOR UPDATE"
    skip: ClassVar[str] = " FOR UPDATE SKIP LOCKED"
    part: ClassVar[int] = 2000
    """Rows that are set aside, or come back, in one transaction: short enough for any time-out."""

    def __init__(self, schema: Schema, mark: Callable[[str], str], migrates: bool) -> None:
        self.schema = schema
        self.t = schema.table
        self.mark = mark
        self.migrates = migrates
        """Create its tables if they are missing."""
        self._in_trouble = f"LEFT JOIN {self.t}_troubles t ON t.lane = o.lane"
        self._columns = ", ".join(f"o.{name}" for name in COLUMNS.split(", "))

    @abc.abstractmethod
    def now(self) -> str:
        """The store's time in milliseconds, as SQL. It may differ for each row: see `instant`."""

    def instant(self) -> str:
        """The store's time as SQL, one value for the whole statement: a subquery is evaluated once."""
        return f"(SELECT {self.now()})"

    def may_go(self) -> str:
        """Of rows ``o``, joined with the troubles ``t`` of their lanes: those that may be published."""
        return (
            f"(t.lane IS NULL OR"
            f" (t.parked = {FALSE} AND o.n <= t.n AND t.not_before <= {self.instant()}))"
        )

    @abc.abstractmethod
    def among(self, column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        """`column` is one of these numbers."""

    @abc.abstractmethod
    def not_among(self, column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        """`column` is none of these lanes."""

    @abc.abstractmethod
    def upsert(self, table: str, columns: str, values: str, overwritten: Sequence[str]) -> str:
        """Insert a row; where there is one with this first column, overwrite some columns of it."""

    def deletion(self, table: str, numbers: Sequence[int]) -> Change:
        """Delete the rows with these numbers. It waits for no other row."""
        which, args = self.among("n", numbers)
        return Change(self.mark(f"DELETE FROM {table} WHERE {which}"), args)

    def copying(self, source: str, target: str, numbers: Sequence[int]) -> Change:
        """Copy the rows with these numbers. It waits for no other row."""
        which, args = self.among("n", numbers)
        copy = f"INSERT INTO {target} ({COLUMNS}) SELECT {COLUMNS} FROM {source} WHERE {which}"
        return Change(self.mark(copy), args)


def gates_of(added: Sequence[Added]) -> list[int]:
    """In one order for all writers, so that two of them never wait for each other."""
    return sorted({gate_of(one.lane) for one in added if one.ordered})


def values_of(one: Added) -> tuple[Any, ...]:
    """In the order of `WRITTEN`."""
    message = one.message
    return (
        slot_of(one.lane),
        one.lane,
        message.id,
        message.topic,
        message.key,
        one.type,
        one.headers,
        message.body,
    )


def all_values_of(added: Iterable[Added]) -> tuple[Any, ...]:
    """The values of several rows, one after the other."""
    return tuple(chain.from_iterable(map(values_of, added)))


def inlined(column: str, numbers: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
    """Numbers as part of the statement: for engines without arrays."""
    return f"{column} IN ({','.join(map(int.__repr__, numbers)) or 'NULL'})", ()


def marked(column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
    """Lanes one by one, for the same engines."""
    return f"{column} NOT IN ({','.join('?' * len(lanes))})", tuple(lanes)
