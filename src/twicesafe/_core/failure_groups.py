"""Keys whose last attempt failed, counted by operation and error: which handler fails most.

The operation is the last part of the scope: a function, a task, a consumer's queue. HTTP requests are one
operation, because what follows "http" in their scope is the caller. The command line and the dashboard
both show these groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from .._values.records import Record, State

__all__ = ["FAILED", "FailureGroup", "failure_groups"]

FAILED: Final = (State.RELEASED, State.PARKED, State.HELD, State.FAILED)
"""States in which a record may have an error of its last attempt."""

HTTP: Final = "http"
"""What `HttpRules.scope` puts in front of the caller."""


@dataclass(slots=True)
class FailureGroup:
    operation: str
    """Empty: these keys have no scope, or the caller does not group by operation."""
    error: str
    keys: int
    newest: datetime


def failure_groups(records: Iterable[Record], *, by_operation: bool = True) -> list[FailureGroup]:
    """The groups, largest first; groups of equal size in the order of their first records."""
    found: dict[tuple[str, str], FailureGroup] = {}
    for record in records:
        if not record.error:
            continue
        operation = _operation(record.scope) if by_operation else ""
        group = found.setdefault(
            (operation, record.error), FailureGroup(operation, record.error, 0, record.changed_at)
        )
        group.keys += 1
        group.newest = max(group.newest, record.changed_at)
    return sorted(found.values(), key=lambda group: -group.keys)


def _operation(scope: tuple[str, ...]) -> str:
    if HTTP in scope:
        return HTTP
    return scope[-1] if scope else ""
