"""The programs that search all keys of a Redis store: browse, count, survey, and the audit log.

Redis keeps no order and no index that a claim would not pay for, so each search is one scan over
all keys (`record_scan`), which answers all questions of a screen (`scan_questions`). A scan may see
a key twice while the server's table grows; a page shows it once, a count may count it twice. Keys
that move to another node meanwhile are on the page (`moved_slots`); a count may miss them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ..._core.protocol import AuditLog, Browse, Count, Page, Survey
from ..._values.records import AuditEntry, Row, Stats
from ...errors import ConfigurationError, StoreError
from ...stores._base import Program
from .key_scans import KeyScans
from .moved_slots import TOGETHER, keys_in, placement
from .record_scan import RecordScan, ScanQuestion
from .routed_commands import ScriptCall
from .scan_questions import QUESTIONS, rows_of

__all__ = ["KeySearch"]


class KeySearch(KeyScans):
    """The base class of `RedisPrograms`."""

    def browse(self, ask: Browse) -> Program[Page]:
        return (yield from self.search([ask]))[0]  # type: ignore[no-any-return]

    def count(self, ask: Count) -> Program[int]:
        return (yield from self.search([ask]))[0]  # type: ignore[no-any-return]

    def survey(self, ask: Survey) -> Program[Stats]:
        return (yield from self.search([ask]))[0]  # type: ignore[no-any-return]

    def audit_log(self, ask: AuditLog) -> Program[list[AuditEntry]]:
        return (yield from self.search([ask]))[0]  # type: ignore[no-any-return]

    def search(self, asks: Sequence[Any]) -> Program[list[Any]]:
        """Answer all these questions with one scan."""
        questions = [QUESTIONS[ask.op](ask) for ask in asks]
        pages = [one for one in questions if one.misses_none]
        before = None
        if self.apart and pages:
            # It stays None if this user may not ask, or this server does not say.
            with suppress(StoreError, ConfigurationError):
                before = yield from placement()
        scan, more = RecordScan(self, questions), True
        while more and not all(one.is_enough for one in questions):
            more = yield from scan.step()
            unsure, scan.unsure = scan.unsure, []
            for whose, names in unsure:
                yield from self._read_again(whose, names)
        if before is not None:
            after = yield from placement()
            slots = before.moved_until(after)
            for start in range(0, len(slots), TOGETHER):
                names = yield from keys_in(slots[start : start + TOGETHER], len(after.slots))
                yield from self._read_again(pages, self.records_among(names))
        found: list[Any] = []
        for one in questions:
            found += [(yield from one.answer(self))]
        return found

    def _read_again(self, whose: Sequence[ScanQuestion], names: list[bytes]) -> Program[None]:
        unreadable: dict[str, None] = {}
        rows = yield from self._peek([name[-33:-1] for name in names], unreadable)
        for one in whose:
            one.take_rows(rows)
            one.unreadable |= unreadable

    def _peek(
        self, ids: list[bytes], unreadable: dict[str, None]
    ) -> Program[list[tuple[int, Row]]]:
        """Read these records one by one, each from its own node, without their results."""
        if not ids:
            return []
        replies = yield [ScriptCall(self.scripts.peek, (self.key(id_),), ()) for id_ in ids]
        return list(rows_of(ids, replies, unreadable))

    def read_all(self, page: list[Row]) -> Program[tuple[list[bytes], list[Any]]]:
        """Read those rows of the page whose results the scan left out (`peek`): they are empty."""
        ids = [row.id for row in page if row.result == b""]
        if not ids:
            return [], []
        return ids, (yield [ScriptCall(self.scripts.read, (self.key(id_),), ()) for id_ in ids])

    def with_keys(self, entries: list[AuditEntry]) -> Program[list[AuditEntry]]:
        rows = yield from self._peek(sorted({entry.id for entry in entries}), {})
        keys = {row.id: row for _, row in rows}
        return [
            replace(entry, scope=keys[entry.id].scope, value=keys[entry.id].value)
            if entry.id in keys
            else entry
            for entry in entries
        ]
