"""Moving answers to an archive: which ones, and how each is erased in the store afterwards.

In each round the caller writes what `page` returns to the archive, and then runs `erase`. An answer is
erased only if its record still has the fence that was written, so one that was recorded meanwhile
stays. A crash at any point leaves an answer in the store, in the archive, or in both.
"""

from __future__ import annotations

from typing import Final

from .._values.own_records import is_own
from .._values.records import ArchiveReport, Row, State
from .commands import Flow
from .durable.run_requests import TidyRuns
from .operations import check_limit, check_operator, page_of
from .protocol import Ack, Browse, Forget, Survey

__all__ = ["Archiving"]

ROWS: Final = 50
"""Records that are read and written at once: each may have a large result."""


class Archiving:
    """One run over the store, newest first, in rounds."""

    def __init__(
        self,
        before: int | None,
        limit: int | None,
        after: str,
        by: str,
        why: str,
        keeps_steps: bool,
    ) -> None:
        if limit is not None:
            check_limit(limit)
        check_operator(None, by, why)
        self._by, self._why = by, why
        self._before, self._limit, self._after = before, limit, after
        self._keeps_steps = keeps_steps
        self._archived = self._changed = self._unreadable_count = 0
        self._unreadable: dict[str, None] = {}
        self.is_over = False

    def page(self) -> Flow[list[Row]]:
        """The next answers to write. Records of twicesafe itself stay: the store needs them."""
        left = ROWS if self._limit is None else min(ROWS, self._limit - self._archived)
        found = yield from page_of(
            Browse(
                left,
                (State.COMPLETED, State.FAILED),
                changed_before=self._before,
                after=self._after,
            )
        )
        self._after = found.after
        self.is_over = not found.after
        self._unreadable |= dict.fromkeys(found.unreadable)
        if self.is_over:  # a search by state need not find a record whose state cannot be read
            stats = yield Survey()
            self._unreadable_count = max(stats.unreadable, len(self._unreadable))
        return [row for row in found.rows if not is_own(row.scope)]

    def erase(self, rows: list[Row]) -> Flow[None]:
        """Erase what is durable in the archive now."""
        for row in rows:
            ask = Forget(row.id, self._by, self._why, 1, row.fence)
            done = (yield ask) is Ack.OK
            self._archived, self._changed = self._archived + done, self._changed + (not done)
            if done and self._keeps_steps:
                yield TidyRuns(1, only=ask.id)
        if self._limit is not None and self._archived >= self._limit:
            self.is_over = True

    def report(self) -> ArchiveReport:
        return ArchiveReport(
            archived=self._archived,
            changed=self._changed,
            after=self._after,
            unreadable=tuple(self._unreadable),
            unreadable_count=max(self._unreadable_count, len(self._unreadable)),
        )
