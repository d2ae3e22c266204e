"""What the page of failures shows: errors of last attempts, how many keys have each, and the
newest. Pure; see `_pages`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from .._core.failure_groups import FAILED, failure_groups
from .._edges.readable import shortened, visible
from .._values.records import Record
from ._access import Access
from ._filters import AGES, LONGEST, Filters
from ._pages import Facet, When

__all__ = ["READ", "FailuresPage", "failed_keys", "failures_page"]

READ: Final = 10_000
"""Failed keys that are read, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    count: str
    operation: str
    """Empty: the keys have no scope, or the visitor may not see it."""
    error: str
    newest: When
    path: str
    """All keys with this error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresPage:
    rows: tuple[FailureRow, ...]
    ages: tuple[Facet, ...]
    read: str
    """How many keys were read, if not all."""
    has_operations: bool


def failed_keys(asked: Filters) -> Filters:
    """The keys to count; of what was asked, only the age and the scope matter."""
    return Filters(states=FAILED, since=asked.since, scope=asked.scope, problem=asked.problem)


def failures_page(
    filters: Filters, records: Sequence[Record], more: str, access: Access, now: datetime
) -> FailuresPage:
    groups = failure_groups(records, by_operation=access.show_keys)
    return FailuresPage(
        rows=tuple(
            FailureRow(
                count=f"{group.keys:,}",
                operation=shortened(group.operation, 60),
                error=visible(group.error),
                newest=When.of(group.newest, now),
                path=f"keys{filters.url(error=group.error[:LONGEST])}",
            )
            for group in groups
        ),
        ages=tuple(
            Facet(
                words=words,
                path=f"failures{filters.url(states=(), since=since)}",
                is_on=filters.since == since,
            )
            for words, since, older_than in AGES
            if not older_than
        ),
        read=f"{len(records):,}" if more else "",
        has_operations=access.show_keys,
    )
