"""Moving answers to an archive: which ones, and how each is erased in the store afterwards.

In each round the caller writes what `page` returns to the archive, and then runs `erase`. An answer is
erased only if its record still has the fence that was written, so one that was recorded meanwhile
stays. A crash at any point leaves an answer in the store, in the archive, or in both.
"""

from __future__ import annotations

from typing import Final

from .._values.records import ArchiveReport, Row, State
from .commands import Flow
from .durable.run_requests import TidyRuns
from .operations import check_limit, page_of
from .protocol import Ack, Browse, Forget

__all__ = ["Archiving"]

ROWS: Final = 50
"""Records that are read and written at once: each may have a large result."""


class Archiving:
    """One run over the store, newest first, in rounds."""

    def __init__(
        self, before: int | None, limit: int | None, after: str, keeps_steps: bool
    ) -> None:
        if limit is not None:
            check_limit(limit)
        self._before, self._limit, self._after = before, limit, after
        self._keeps_steps = keeps_steps
        self._archived = self._changed = 0
        self.is_over = False

    def page(self) -> Flow[list[Row]]:
        """The next answers to write."""
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
        return list(found.rows)

    def erase(self, rows: list[Row]) -> Flow[None]:
        """Erase what is durable in the archive now."""
        for row in rows:
            ask = Forget(row.id, "archive", "its answer is in the archive", 1, row.fence)
            done = (yield ask) is Ack.OK
            self._archived, self._changed = self._archived + done, self._changed + (not done)
            if done and self._keeps_steps:
                yield TidyRuns(1, only=ask.id)
        if self._limit is not None and self._archived >= self._limit:
            self.is_over = True

    def report(self) -> ArchiveReport:
        return ArchiveReport(archived=self._archived, changed=self._changed, after=self._after)
