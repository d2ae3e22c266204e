"""Rows by their numbers on MariaDB and MySQL, without waiting for any other row.

Left to itself the server reads a small table through rather than look up each number, and waits at
every row on the way that another session has locked. Where rows are locked, changed or deleted, the
numbers are therefore a table of their own that leads the join (``STRAIGHT_JOIN``), and the table of
rows follows: what is looked up by a unique index is the only thing that is locked.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["these"]


def these(name: str, numbers: Iterable[int]) -> str:
    """A table of numbers, called ``these``, with one column of this name."""
    first, *rest = numbers
    others = "".join(f" UNION ALL SELECT {number:d}" for number in rest)
    return f"(SELECT {first:d} AS {name}{others}) AS these"
