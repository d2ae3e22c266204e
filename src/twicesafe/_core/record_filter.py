"""What the conditions of a search mean. An engine with a query language expresses the same conditions in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from .._values.records import Row, State
from ..errors import CorruptRecordError, SchemaVersionError
from . import lifecycle
from .protocol import Filter

__all__ = ["cursor_of", "matches", "place_in", "readable"]

T = TypeVar("T")
R = TypeVar("R")


def readable(
    found: Iterable[T], parse: Callable[[T], R], name: Callable[[T], str], others: dict[str, None]
) -> list[R]:
    """Parse those that can be read. The names of the rest are added to ``others``: one damaged
    record hides no other."""
    parsed = []
    for each in found:
        try:
            parsed.append(parse(each))
        except (CorruptRecordError, SchemaVersionError):
            others[name(each)] = None
    return parsed


def matches(row: Row, ask: Filter, now: int) -> bool:
    """Whether the search is about this record, at this time of the store. Expired ones never match."""
    return (
        (not ask.states or row.state in ask.states)
        and row.scope[: len(ask.scope)] == ask.scope
        and (ask.value is None or row.value == ask.value)
        and (ask.error is None or row.error.startswith(ask.error))
        and (ask.changed_after is None or row.changed_at >= ask.changed_after)
        and (ask.changed_before is None or row.changed_at < ask.changed_before)
        and (not ask.stuck or (row.state is State.IN_PROGRESS and row.lease_until <= now))
        and (ask.cause is None or row.cause is ask.cause)
        and row.id.hex().startswith(ask.digits[: 2 * len(row.id)])
        and not lifecycle.is_expired(row, now)
    )


def cursor_of(row: Row) -> str:
    """Where the page after this row begins, if records are shown by creation time and id, newest first."""
    return f"{row.created_at}.{row.id.hex()}"


def place_in(cursor: str) -> tuple[int, bytes] | None:
    """The creation time and id that `cursor_of` wrote. None: the cursor is empty, so this is the first page."""
    if not cursor:
        return None
    created, _, id_ = cursor.partition(".")
    return int(created), bytes.fromhex(id_)
