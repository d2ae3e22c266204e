"""What a session asks of the virtual database: statements as data; and how a driver says no."""

from __future__ import annotations

import msgspec

from twicesafe._core.inbox_requests import Enter, Leave
from twicesafe._values.records import Row

__all__ = [
    "Commit",
    "DriverError",
    "Effect",
    "Finish",
    "Floor",
    "Insert",
    "Load",
    "Rollback",
    "Save",
    "Write",
    "Wrong",
]


class DriverError(Exception):
    """As a driver for PostgreSQL raises it: `_transactions.driver_errors` knows the states."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class Insert(msgspec.Struct):
    """Insert-first. Reply: (now, transaction, fence or None, the row that was seen or None)."""

    ask: Enter
    wait: float


class Load(msgspec.Struct):
    """``SELECT … FOR UPDATE``. Reply: (row or None, now)."""

    id: bytes


class Floor(msgspec.Struct):
    """The highest fence that was swept."""


class Save(msgspec.Struct):
    row: Row
    new: bool


class Finish(msgspec.Struct):
    """``UPDATE … WHERE owner, fence and transaction are what they were``. Reply: was it so?"""

    leave: Leave


class Effect(msgspec.Struct, frozen=True):
    """A row of the business: what a handler does to the database."""

    consumer: int
    message: int
    run: int


class Write(msgspec.Struct):
    effect: Effect


class Wrong(msgspec.Struct):
    """A statement with a mistake in it."""


class Commit(msgspec.Struct):
    by: str = "caller"


class Rollback(msgspec.Struct):
    pass
