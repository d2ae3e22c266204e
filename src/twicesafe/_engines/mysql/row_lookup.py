"""Find rows by their numbers on MariaDB and MySQL, without waiting for any other row.

By default the server scans a small table instead of looking up each number, and waits for every row
on the way that another session locks. So where rows are locked, changed or deleted, the numbers are
a table that leads the join (``STRAIGHT_JOIN``), and the rows are found by an index that the server
must use (``FORCE INDEX``). The order of the join alone is not enough. A table that is small, or was
small when statistics were last collected, would be scanned once per number. A lookup by a unique
index locks only the rows found.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["numbered"]


def numbered(table: str, alias: str, column: str, numbers: Iterable[int]) -> str:
    """The rows of a table, under this alias, whose primary key is one of the numbers."""
    first, *rest = numbers
    others = "".join(f" UNION ALL SELECT {number:d}" for number in rest)
    return (
        f"(SELECT {first:d} AS {column}{others}) AS these STRAIGHT_JOIN {table} {alias}"
        f" FORCE INDEX (PRIMARY) ON {alias}.{column} = these.{column}"
    )
