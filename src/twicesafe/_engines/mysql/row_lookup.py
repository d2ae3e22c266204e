"""Rows by their numbers on MariaDB and MySQL, without waiting for any other row.

Left to itself the server reads a small table through rather than look up each number, and waits at
every row on the way that another session has locked. Where rows are locked, changed or deleted, the
numbers are therefore a table of their own that leads the join (``STRAIGHT_JOIN``), and the table of
rows follows by an index that the server may not pass over (``FORCE INDEX``). The order of the join is
not enough: a table of a few rows, or one that had a few when the server last counted, is read through
for each number. What is looked up by a unique index is the only thing that is locked.
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
