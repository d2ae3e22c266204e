"""Stores whose claims go wrong: two winners, retries that are strangers, questions mixed up."""

from __future__ import annotations

import threading
from typing import Any

from msgspec.structs import replace

from tests.conformance.broken.base import Broken, Misled
from twicesafe._core import lifecycle
from twicesafe._core.protocol import Claimed, Verdict
from twicesafe._values.records import Cause, State


class ChecksThenActs(Broken):
    """Two steps where there must be one (Brighter, Camel, django-idempotency-key)."""

    rejected_by = "test_a_storm_of_claims_has_one_winner"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._second_checker = threading.Event()
        self._checkers = 0

    def perform(self, request):
        if request.op != "claim" or request.id in self._rows:
            return super().perform(request)
        if threading.current_thread() is not threading.main_thread():
            self._checkers += 1
            if self._checkers == 2:
                self._second_checker.set()
            self._second_checker.wait(0.1)  # until another has looked as well
        answer, row = lifecycle.claim(None, request, self._now(), self._floor)
        self._rows[row.id] = row
        return answer


class ForgetsItsOwner(Misled):
    """A retried claim waits for itself."""

    rejected_by = "test_a_retry_of_the_claim_gets_the_same_answer"

    def claim(self, ask):
        row = self.row(ask)
        if row is not None and row.state is State.IN_PROGRESS and row.owner == ask.owner:
            return Claimed(Verdict.BUSY, wait=1000)
        return self.right.perform(ask)


class WinsAnewOnRetry(Broken):
    """A retried claim is a second claim, and fences off the first answer."""

    rejected_by = "test_a_storm_of_retries_is_one_claim"

    def claim(self, ask):
        row = self._rows.get(ask.id)
        if row is not None and row.state is State.IN_PROGRESS and row.owner == ask.owner:
            self.put(row, lease_until=0, owner=b"")
        return super().claim(ask)


class WinsWithoutARow(Broken):
    """A purge race in the field handed out claims with no row behind them."""

    rejected_by = "test_the_first_claim_wins_and_its_row_is_there"

    def claim(self, ask):
        answer = super().claim(ask)
        if answer.attempt == 1 and answer.cause is None:
            self._rows.pop(ask.id, None)
        return answer


class MismatchAfterBusy(Misled):
    """The second sender waits for an answer that is not to its question."""

    rejected_by = "test_another_fingerprint_is_a_mismatch_in_every_state[in_progress]"

    def claim(self, ask):
        row = self.row(ask)
        if row is not None and row.state is State.IN_PROGRESS:
            return self.right.perform(replace(ask, fingerprint=None))
        return self.right.perform(ask)


class DropsTheFingerprint(Broken):
    """At completion, so that honest duplicates raise and others replay (powertools on Redis)."""

    rejected_by = "test_the_fingerprint_outlives_the_work[completed]"

    def complete(self, ask):
        ack = super().complete(ask)
        self.put(self.row(ask), fingerprint=None)
        return ack


class TakesOverWithTheSameFence(Broken):
    rejected_by = "test_a_takeover_is_a_new_attempt_with_a_higher_fence"

    def claim(self, ask):
        before = self._rows.get(ask.id)
        answer = super().claim(ask)
        if answer.cause is Cause.LEASE_EXPIRED and before.owner != ask.owner:
            self.put(self._rows[ask.id], fence=before.fence)
            return replace(answer, fence=before.fence)
        return answer


class LosesTheCause(Misled):
    rejected_by = "test_every_later_start_has_its_cause"

    def claim(self, ask):
        return replace(self.right.perform(ask), cause=None)
