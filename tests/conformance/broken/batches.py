"""Stores whose batches and pages are not what single requests would give."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.conformance.broken.base import Broken, Misled
from twicesafe._core.protocol import Complete
from twicesafe._values.keys import Key
from twicesafe._values.records import Row


class SinksWithOneItem(Misled):
    rejected_by = "test_an_invalid_request_does_not_fail_the_others[first]"

    def perform_many(self, requests):
        return [self.perform(request) for request in requests]


class SortsItsBatches(Misled):
    """Answers in the order of the work, not of the questions."""

    rejected_by = "test_every_new_key_is_won_and_has_its_row"

    def perform_many(self, requests):
        return super().perform_many(sorted(requests, key=lambda ask: getattr(ask, "id", b"")))


class BlindToItsOwnBatch(Broken):
    """All items look at the rows as they were before the batch."""

    rejected_by = "test_equal_keys_have_one_winner"

    def perform_many(self, requests):
        before = dict(self._rows)
        answers: list[Any] = []
        after: dict[bytes, Row] = {}
        for request in requests:
            self._rows = dict(before)
            answers += super().perform_many([request])
            after |= {k: row for k, row in self._rows.items() if before.get(k) is not row}
        self._rows = before | after
        return answers


class CompletesInBatchesWithoutLooking(Misled):
    rejected_by = "test_every_completion_has_its_own_verdict"

    def perform_many(self, requests):
        asks = []
        for ask in requests:
            row = self.row(ask) if isinstance(ask, Complete) else None
            asks.append(replace(ask, owner=row.owner, fence=row.fence) if row else ask)
        return super().perform_many(asks)


class MatchesScopesByText(Misled):
    """The prefix "a" finds the tenant "ab"."""

    rejected_by = "test_rows_by_scope_prefix_of_whole_parts"

    def browse(self, ask):
        page = self.right.perform(replace(ask, scope=()))
        text = ",".join(ask.scope)
        return replace(page, rows=[r for r in page.rows if ",".join(r.scope).startswith(text)])


class FoldsCase(Misled):
    """A key column under a `_ci` collation: "abc" = "ABC" = "abc " (MySQL)."""

    rejected_by = "test_keys_that_look_alike_are_different[case]"

    def claim(self, ask):
        return self.right.perform(replace(ask, key=_folded(ask.key)))


def _folded(key: Key) -> Key:
    return Key(key.value.strip().lower() or key.value, key.scope)
