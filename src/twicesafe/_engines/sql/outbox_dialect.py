"""One engine's SQL for the outbox: its clock, its locks, and how it writes lists and upserts.

Statements are written once, when the outbox is made (`outbox_statements`). Only those with a list are
finished at each request (`among`, `not_among`), because most engines have no arrays.

Time is read once per statement (`instant`). If it were read once per row, a back-off could end between
two rows of a lane. The first would be skipped, and the second published before it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, Final

from ..._core.outbox.requests import Added, gate_of, slot_of
from .commands import Change, upsert
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
    "lanes_inlined",
    "values_of",
]

WRITTEN: Final = "slot, lane, id, aggregatetype, aggregateid, type, headers, payload"
"""The columns that `add` writes, in the order of `values_of`; the time is written too."""

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
    """Rows that are set aside or returned in one transaction: few enough for any time-out."""

    def __init__(
        self, schema: Schema, mark: Callable[[str], str], now: str, migrates: bool
    ) -> None:
        self.schema = schema
        self.t = schema.table
        self.audit = f"{schema.table.removesuffix('_outbox')}_audit"
        """Of the records, which are in the same database."""
        self.mark = mark
        self.now = now
        """The store's time in milliseconds, as SQL. It may differ for each row: see `instant`."""
        self.migrates = migrates
        """Create its tables if they are missing."""
        self.in_trouble = f"LEFT JOIN {self.t}_troubles t ON t.lane = o.lane"

    def instant(self) -> str:
        """The store's time as SQL, one value for the whole statement: a subquery is evaluated once."""
        return f"(SELECT {self.now})"

    def noted(self, text: str) -> Any:
        """An operator's name or reason, in the type of the audit's columns."""
        return text

    def may_go(self) -> str:
        """The condition under which row ``o``, joined with its blocked lane ``t``, may be published."""
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

    upsert = staticmethod(upsert)

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
    """Sorted, so that two writers never deadlock."""
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
    """Numbers written into the statement, for engines without arrays."""
    return f"{column} IN ({','.join(map(int.__repr__, numbers)) or 'NULL'})", ()


def lanes_inlined(column: str, lanes: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
    """The same for lanes: builds of SQLite differ in how many placeholders they allow."""
    texts = ",".join([f"X'{lane.hex()}'" for lane in lanes])
    return f"{column} NOT IN ({texts})", ()
