"""The SQL that the strategies share, for any supported connection.

Statements are written with ``?``; `with_placeholders` puts in those of the driver. `insert_once` tells an
existing row from a failed insert, and never leaves a PostgreSQL transaction aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from .._engines.sql.commands import Change, Query, dollars
from .._transactions import AsyncTransaction, Dialect, Transaction, async_of, of
from .._transactions.driver_errors import causes
from ..errors import StoreError, TwicesafeError, UsageError
from ..stores._base import Program

__all__ = [
    "NAME",
    "Place",
    "change",
    "check_conflict",
    "create",
    "insert_once",
    "name",
    "perform",
    "perform_async",
    "places",
    "query",
    "stored",
    "text_of",
]

T = TypeVar("T")

Place: TypeAlias = Transaction | AsyncTransaction
"""Where a program runs: the transaction of the caller, with its dialect and placeholders."""

NAME: Final[dict[Dialect, str]] = {
    "sqlite": "TEXT",
    "postgresql": "text",
    "mysql": "varbinary(255)",
}
"""The type of a column of names. MySQL compares text by collation, but bytes exactly."""

_DUPLICATE_ENTRY: Final = 1062


def name(text: str, what: str, least: int = 1) -> str:
    given: object = text
    try:
        size = len(text.encode()) if isinstance(given, str) and "\0" not in text else -1
    except UnicodeEncodeError:  # a lone surrogate
        size = -1
    if not least <= size <= 255:
        raise UsageError(f"{what}= must be text of {least} to 255 bytes of UTF-8, without NUL")
    return text


def stored(place: Place, text: str) -> Any:
    """A name as this database stores it."""
    return text.encode() if place.dialect == "mysql" else text


def text_of(kept: Any) -> str:
    """The inverse of `stored`."""
    return kept.decode() if isinstance(kept, bytes) else kept


def with_placeholders(place: Place, sql: str) -> str:
    if place.style == "?":
        return sql
    if place.style == "%s":
        return sql.replace("%", "%%").replace("?", "%s")
    return dollars(sql)


def query(place: Place, sql: str, args: Sequence[Any] = ()) -> Query:
    return Query(with_placeholders(place, sql), tuple(args))


def change(place: Place, sql: str, args: Sequence[Any] = ()) -> Change:
    return Change(with_placeholders(place, sql), tuple(args))


def places(count: int) -> str:
    return ", ".join("?" * count)


def perform(connection: Any, program: Callable[..., Program[T]], *args: Any) -> T:
    """Run ``program(place, *args)`` in the open transaction of this connection."""
    place = of(connection)
    place.check()
    return place.run(program(place, *args))


async def perform_async(connection: Any, program: Callable[..., Program[T]], *args: Any) -> T:
    """The async version of `perform`."""
    place = async_of(connection)
    await place.check()
    return await place.run(program(place, *args))


def create(place: Place, table: str, schema: Callable[[Dialect], Sequence[str]]) -> Program[None]:
    if place.dialect == "mysql":  # its IF NOT EXISTS causes a warning, which the caller would see
        there = "SELECT 1 FROM information_schema.tables"
        where = "table_schema = database() AND table_name = ?"
        if (yield query(place, f"{there} WHERE {where}", [table])):
            return
    for statement in schema(place.dialect):
        yield Change(statement)


def insert_once(
    place: Place, table: str, columns: Sequence[str], values: Sequence[Any], unique: Sequence[str]
) -> Program[bool]:
    """Insert, unless there is a row with the same `unique` columns. True: it was inserted.

    Waits for another transaction that inserts the same row, as the unique constraint does.
    """
    insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places(len(columns))})"
    if place.dialect != "mysql":
        on_conflict = f"{insert} ON CONFLICT ({', '.join(unique)}) DO NOTHING"
        return bool((yield change(place, on_conflict, values)))
    # In MySQL, IGNORE hides other errors, and with ON DUPLICATE KEY the row count depends on the driver.
    # A failed statement does not abort the transaction there, so we catch the error.
    try:
        yield change(place, insert, values)
    except StoreError as error:
        if not _is_duplicate(error):
            raise
    else:
        return True
    yield from check_conflict(place, table, columns, values, unique)
    return False


def check_conflict(
    place: Place, table: str, columns: Sequence[str], values: Sequence[Any], unique: Sequence[str]
) -> Program[None]:
    """Raise unless the insert failed because of this unique key: MySQL does not say which one it was."""
    same = " AND ".join(f"{name} = ?" for name in unique)
    chosen = [values[columns.index(name)] for name in unique]
    # A locking read sees the newest rows, not those of this transaction's snapshot.
    look = query(place, f"SELECT 1 FROM {table} WHERE {same} LOCK IN SHARE MODE", chosen)
    if not (yield look):
        raise StoreError(
            f"a row of {table} conflicts with another unique key than ({', '.join(unique)})"
        )


def _is_duplicate(error: TwicesafeError) -> bool:
    return any(cause.args[:1] == (_DUPLICATE_ENTRY,) for cause in causes(error))
