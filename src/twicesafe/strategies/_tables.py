"""Writes to your own table that are safe to repeat: insert once, update at a version, set.

    orders = Table("orders", key="id")
    with connection.transaction():
        if orders.insert_once(connection, {"id": "o-1", "total": 5}):
            ...                                               # a repeat gets False
        orders.update_if_version(connection, "o-1", {"total": 6}, version=1)
        orders.put(connection, {"id": "o-1", "total": 7})     # twice is the same as once

Names of tables and columns are checked and never quoted; values are always bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError
from ..stores._base import Program
from ..stores._urls import identifier
from ._statements import (
    Place,
    change,
    check_conflict,
    insert_once,
    perform,
    perform_async,
    places,
)

__all__ = ["AsyncTable", "Table"]


class _Named:
    """The names, checked once, and the programs that the blocking and the async version share."""

    def __init__(
        self, name: str, key: str | Sequence[str] = "id", version: str = "version"
    ) -> None:
        self.name = identifier(name)
        self.key = tuple(
            identifier(each, "column") for each in ([key] if isinstance(key, str) else key)
        )
        self.version = identifier(version, "column")
        if not self.key:
            raise UsageError("key= is empty: name the unique columns")

    def _columns(self, row: Mapping[str, Any]) -> list[str]:
        # NULL equals no other NULL, so each repeat would be a new row.
        if missing := [name for name in self.key if row.get(name) is None]:
            raise UsageError(f"the row has no value for its key: {', '.join(missing)}")
        return [identifier(name, "column") for name in row]

    def _insert_once(self, place: Place, row: Mapping[str, Any]) -> Program[bool]:
        columns = self._columns(row)
        return (yield from insert_once(place, self.name, columns, [*row.values()], self.key))

    def _update_if_version(
        self, place: Place, key: Any, values: Mapping[str, Any], version: int
    ) -> Program[bool]:
        wanted = key if isinstance(key, tuple) else (key,)
        if len(wanted) != len(self.key):
            raise UsageError(f"the key of {self.name} is ({', '.join(self.key)}): give {self.key}")
        if taken := {self.version, *self.key} & set(values):
            raise UsageError(
                f"values= must not set {', '.join(sorted(taken))}: key and version are not set through values="
            )
        names = [identifier(name, "column") for name in values]
        sets = "".join(f"{name} = ?, " for name in names)
        same = "".join(f"{name} = ? AND " for name in self.key)
        sql = (
            f"UPDATE {self.name} SET {sets}{self.version} = {self.version} + 1"
            f" WHERE {same}{self.version} = ?"
        )
        return bool((yield change(place, sql, [*values.values(), *wanted, version])))

    def _put(self, place: Place, row: Mapping[str, Any]) -> Program[None]:
        columns = self._columns(row)
        others = [name for name in columns if name not in self.key]
        values = [*row.values()]
        insert = f"INSERT INTO {self.name} ({', '.join(columns)}) VALUES ({places(len(columns))})"
        if place.dialect != "mysql":
            sets = ", ".join(f"{name} = excluded.{name}" for name in others)
            what = f"UPDATE SET {sets}" if others else "NOTHING"
            sql = f"{insert} ON CONFLICT ({', '.join(self.key)}) DO {what}"
            yield change(place, sql, values)
            return
        # In MySQL the insert may conflict with any unique key, so also with another row. This form locks
        # that row for writing and does not change it. A caught error would lock it for reading, and two
        # of them could deadlock.
        same = f"{self.key[0]} = {self.name}.{self.key[0]}"
        yield change(place, f"{insert} ON DUPLICATE KEY UPDATE {same}", values)
        yield from check_conflict(place, self.name, columns, values, self.key)
        if others:
            sets = ", ".join(f"{name} = ?" for name in others)
            mine = " AND ".join(f"{name} = ?" for name in self.key)
            sql = f"UPDATE {self.name} SET {sets} WHERE {mine}"
            yield change(place, sql, [row[name] for name in (*others, *self.key)])


class Table(_Named):
    """One of your tables, for blocking connections."""

    def insert_once(self, connection: Any, row: Mapping[str, Any]) -> bool:
        """Insert the row, unless there is one with this key. Returns True if it was inserted."""
        return perform(connection, self._insert_once, row)

    def update_if_version(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, version: int
    ) -> bool:
        """Set values and raise the version by one. Returns False if the row has another version, or
        does not exist.
        """
        return perform(connection, self._update_if_version, key, values, version)

    def put(self, connection: Any, row: Mapping[str, Any]) -> None:
        """Insert the row, or overwrite the one with this key."""
        perform(connection, self._put, row)


class AsyncTable(_Named):
    """The async version of `Table`."""

    async def insert_once(self, connection: Any, row: Mapping[str, Any]) -> bool:
        """Insert the row, unless there is one with this key. Returns True if it was inserted."""
        return await perform_async(connection, self._insert_once, row)

    async def update_if_version(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, version: int
    ) -> bool:
        """Set values and raise the version by one. Returns False if the row has another version, or
        does not exist.
        """
        return await perform_async(connection, self._update_if_version, key, values, version)

    async def put(self, connection: Any, row: Mapping[str, Any]) -> None:
        """Insert the row, or overwrite the one with this key."""
        await perform_async(connection, self._put, row)
