"""What an owner writes on MariaDB and MySQL: complete, fail and renew, each for one request or for many.

Many requests are one UPDATE that joins a table of their values. That table leads the join
(`row_lookup`), so that the statement locks the rows of these keys and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from string import Formatter
from typing import Any, Final

from ..._core.protocol import Complete, Fail, Renew
from ..sql.commands import Change, number_of

__all__ = [
    "DONE",
    "OwnerUpdate",
    "owner_updates",
    "owner_values",
    "placeholders",
    "table_of_values",
]

DONE: Final = {"complete": "(1, 2)", "fail": "(3, 4, 5)", "renew": "(0)"}
"""States of a record on which the request was done, now or earlier."""

# The columns of a request, in the order of `owner_values`.
_COMPLETE: Final = ("id", "owner", "fence", "retention", "result", "state", "error")
_FAIL: Final = (
    "id", "owner", "fence", "delay", "max_attempts", "retention", "error", "hold",
)  # fmt: skip
_RENEW: Final = ("id", "owner", "fence", "lease")


def owner_updates(records: str, table: str, now: str) -> dict[str, OwnerUpdate]:
    """By operation. `now` is SQL for the server's clock."""
    released = "NOT {hold} AND r.attempt < {max_attempts}"
    return {
        "complete": OwnerUpdate(
            records,
            table,
            _COMPLETE,
            "r.state = {state}, r.result = {result}, r.error = {error}, r.lease_until = 0,"
            f" r.changed_at = {now}, r.expires_at = {now} + {{retention}}",
            "r.state IN (0, 4, 5)",
        ),
        "fail": OwnerUpdate(
            records,
            table,
            _FAIL,
            f"r.error = {{error}}, r.changed_at = {now}, r.cause = IF({released}, 1, r.cause),"
            f" r.lease_until = IF({released}, {now} + {{delay}}, 0),"
            f" r.expires_at = IF({released}, {now} + {{retention}}, 0),"
            f" r.state = IF({{hold}}, 4, IF({released}, 3, 5))",
            "r.state = 0",
        ),
        "renew": OwnerUpdate(
            records,
            table,
            _RENEW,
            f"r.lease_until = GREATEST(r.lease_until, {now} + {{lease}})",
            "r.state = 0",
        ),
    }


class OwnerUpdate:
    """One kind of change: `{name}` stands for a column of the request."""

    def __init__(
        self, records: str, table: str, names: Sequence[str], changes: str, state: str
    ) -> None:
        mine = "r.owner = {owner} AND r.fence = {fence} AND " + state
        one = f"UPDATE {records} r SET {changes} WHERE r.id = {{id}} AND {mine}"
        fields = [field for _, field, _, _ in Formatter().parse(one) if field]
        self._order = tuple(names.index(field) for field in fields)
        self._one = one.format(**dict.fromkeys(names, "%s"))
        self._names = names
        theirs = {name: f"a.{name}" for name in names}
        # The values lead: a statement that waited for the row of another key would delay all of them.
        self._head = "UPDATE ("
        self._tail = (
            f") AS a STRAIGHT_JOIN {records} r FORCE INDEX ({table}_identity) ON r.id = a.id"
            f" SET {changes} WHERE {mine}"
        ).format(**theirs)

    def one(self, values: tuple[Any, ...]) -> Change:
        return Change(self._one, tuple(values[place] for place in self._order))

    def many(self, asks: list[tuple[Any, ...]]) -> Change:
        sql = self._head + table_of_values(self._names, len(asks)) + self._tail
        return Change(sql, tuple(value for values in asks for value in values))


def owner_values(ask: Complete | Fail | Renew, id_: bytes) -> tuple[Any, ...]:
    """`id_`: the key's id, as it is stored."""
    if type(ask) is Complete:
        return (
            *(id_, ask.owner, ask.fence, index(ask.retention), ask.result),
            *(number_of(ask.state), ask.error),
        )
    if type(ask) is Fail:
        return (
            *(id_, ask.owner, ask.fence, index(ask.delay), ask.max_attempts),
            *(index(ask.retention), ask.error, ask.hold),
        )
    assert type(ask) is Renew
    return id_, ask.owner, ask.fence, index(ask.lease)


def table_of_values(names: Sequence[str], rows: int) -> str:
    """SQL for a table of this many rows; its first row names the columns."""
    first = ", ".join(f"%s AS {name}" for name in names)
    other = f" UNION ALL SELECT {', '.join(['%s'] * len(names))}"
    return f"SELECT {first}{other * (rows - 1)}"


def placeholders(count: int) -> str:
    return f"({', '.join(['%s'] * count)})"
