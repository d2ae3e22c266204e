"""High-water marks: for each producer, the highest sequence number that was processed.

    marks = HighWaterMarks(consumer="billing")
    with connection.transaction():
        if marks.advance(connection, "orders/partition-3", message.offset):
            apply(connection, message)

There is one row per producer, for any number of messages, and it never expires. It is correct only for
a source that delivers in order. A message that comes after a higher sequence number counts as a
repeat, even if it is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .._transactions import Dialect
from ..errors import UsageError
from ..stores._base import Program
from ..stores._urls import identifier
from ._statements import (
    NAME,
    Place,
    change,
    create,
    insert_once,
    name,
    perform,
    perform_async,
    query,
    stored,
)

__all__ = ["AsyncHighWaterMarks", "HighWaterMarks"]

_MOST: Final = 2**63 - 1


class _Marks:
    """The programs that the blocking and the async version share."""

    def __init__(self, consumer: str = "", table: str = "twicesafe_marks") -> None:
        self.consumer = name(consumer, "consumer", least=0)
        self.table = identifier(table)

    def schema(self, dialect: Dialect) -> Sequence[str]:
        """The statements that create the table, for your own migrations."""
        text = NAME[dialect]
        table = (
            f"CREATE TABLE IF NOT EXISTS {self.table} (consumer {text} NOT NULL,"
            f" producer {text} NOT NULL, sequence bigint NOT NULL,"
            " PRIMARY KEY (consumer, producer))"
        )
        return (table,)

    def _advance(self, place: Place, producer: str, sequence: int) -> Program[bool]:
        name(producer, "producer")
        if type(sequence) is not int or not -_MOST <= sequence <= _MOST:
            raise UsageError(f"sequence={sequence!r} is not valid: use an int of 64 bits")
        who = [stored(place, self.consumer), stored(place, producer)]
        raised = change(
            place,
            f"UPDATE {self.table} SET sequence = ?"
            " WHERE consumer = ? AND producer = ? AND sequence < ?",
            [sequence, *who, sequence],
        )
        if (yield raised):
            return True
        columns = ["consumer", "producer", "sequence"]
        if (yield from insert_once(place, self.table, columns, [*who, sequence], columns[:2])):
            return True
        return bool((yield raised))  # another consumer inserted the first mark meanwhile

    def _at(self, place: Place, producer: str) -> Program[int | None]:
        rows = yield query(
            place,
            f"SELECT sequence FROM {self.table} WHERE consumer = ? AND producer = ?",
            [stored(place, self.consumer), stored(place, producer)],
        )
        return rows[0][0] if rows else None


class HighWaterMarks(_Marks):
    """High-water marks, for blocking connections."""

    def create(self, connection: Any) -> None:
        """Create the table if it is missing. (MySQL commits when a table is created.)"""
        perform(connection, create, self.table, self.schema)

    def advance(self, connection: Any, producer: str, sequence: int) -> bool:
        """Return True if this is new, and raise the mark to it; False if it was done before."""
        return perform(connection, self._advance, producer, sequence)

    def at(self, connection: Any, producer: str) -> int | None:
        """Return the highest sequence that was done; None: none yet."""
        return perform(connection, self._at, producer)


class AsyncHighWaterMarks(_Marks):
    """The async version of `HighWaterMarks`."""

    async def create(self, connection: Any) -> None:
        """Create the table if it is missing. (MySQL commits when a table is created.)"""
        await perform_async(connection, create, self.table, self.schema)

    async def advance(self, connection: Any, producer: str, sequence: int) -> bool:
        """Return True if this is new, and raise the mark to it; False if it was done before."""
        return await perform_async(connection, self._advance, producer, sequence)

    async def at(self, connection: Any, producer: str) -> int | None:
        """Return the highest sequence that was done; None: none yet."""
        return await perform_async(connection, self._at, producer)
