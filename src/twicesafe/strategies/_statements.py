"""What the strategies say in SQL, in the words of whichever connection they were given.

Programs here are written with ``?``; `said` puts in the marks of the driver. An insert that meets a
row is told from one that fails by `insert_once`, which never leaves a PostgreSQL transaction aborted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from .._engines.sql.commands import Change, Query, dollars
from .._transactions import AsyncTransaction, Dialect, Transaction
from .._transactions.base import causes
from ..errors import StoreError, TwicesafeError, UsageError
from ..stores._base import Program

__all__ = [
    "NAME",
    "Place",
    "change",
    "create",
    "held",
    "insert_once",
    "met",
    "name",
    "places",
    "query",
    "shown",
]

Place: TypeAlias = Transaction | AsyncTransaction
"""Where a program runs: it tells the dialect and the driver's marks."""

NAME: Final[dict[Dialect, str]] = {
    "sqlite": "TEXT",
    "postgresql": "text",
    "mysql": "varbinary(255)",
}
"""A column of names. MySQL's text is equal to text that is not the same; its bytes are not."""

_DUPLICATE_ENTRY: Final = 1062


def name(text: str, what: str, least: int = 1) -> str:
    given: object = text
    if not isinstance(given, str) or not least <= len(text.encode()) <= 255 or "\0" in text:
        raise UsageError(f"{what}= must be text of {least} to 255 bytes, without NUL")
    return text


def held(place: Place, text: str) -> Any:
    """A name as this database holds it."""
    return text.encode() if place.dialect == "mysql" else text


def shown(kept: Any) -> str:
    """The inverse of `held`."""
    return kept.decode() if isinstance(kept, bytes) else kept


def said(place: Place, sql: str) -> str:
    if place.style == "?":
        return sql
    if place.style == "%s":
        return sql.replace("%", "%%").replace("?", "%s")
    return dollars(sql)


def query(place: Place, sql: str, args: Sequence[Any] = ()) -> Query:
    return Query(said(place, sql), tuple(args))


def change(place: Place, sql: str, args: Sequence[Any] = ()) -> Change:
    return Change(said(place, sql), tuple(args))


def places(count: int) -> str:
    return ", ".join("?" * count)


def create(place: Place, table: str, statements: Iterable[str]) -> Program[None]:
    if place.dialect == "mysql":  # its IF NOT EXISTS is a warning, and warnings reach the caller
        there = "SELECT 1 FROM information_schema.tables"
        where = "table_schema = database() AND table_name = ?"
        if (yield query(place, f"{there} WHERE {where}", [table])):
            return
    for statement in statements:
        yield Change(statement)


def insert_once(
    place: Place, table: str, columns: Sequence[str], values: Sequence[Any], unique: Sequence[str]
) -> Program[bool]:
    """Insert, unless there is a row with the same `unique` columns. True: it was inserted now.

    Waits for another transaction that inserts the same, as the unique constraint does.
    """
    insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places(len(columns))})"
    if place.dialect != "mysql":
        on_conflict = f"{insert} ON CONFLICT ({', '.join(unique)}) DO NOTHING"
        return bool((yield change(place, on_conflict, values)))
    # MySQL's words for it hide other errors (IGNORE), or count rows as the driver pleases (ON
    # DUPLICATE KEY). A statement that fails there undoes nothing else, so it may be caught.
    try:
        yield change(place, insert, values)
    except StoreError as error:
        if not _is_duplicate(error):
            raise
    else:
        return True
    yield from met(place, table, columns, values, unique)
    return False


def met(
    place: Place, table: str, columns: Sequence[str], values: Sequence[Any], unique: Sequence[str]
) -> Program[None]:
    """MySQL does not say which unique key an insert has met: make sure that it was this one."""
    same = " AND ".join(f"{name} = ?" for name in unique)
    chosen = [values[columns.index(name)] for name in unique]
    # A locking read sees what is committed now, whatever this transaction's snapshot is.
    look = query(place, f"SELECT 1 FROM {table} WHERE {same} LOCK IN SHARE MODE", chosen)
    if not (yield look):
        raise StoreError(
            f"a row of {table} was refused by another unique key than ({', '.join(unique)})"
        )


def _is_duplicate(error: TwicesafeError) -> bool:
    return any(cause.args[:1] == (_DUPLICATE_ENTRY,) for cause in causes(error))
