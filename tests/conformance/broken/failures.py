"""Stores that count, rest or park wrongly."""

from __future__ import annotations

from msgspec.structs import replace

from tests.conformance.broken.base import Broken, Misled
from twicesafe._core.protocol import Ack, Fail
from twicesafe._values.records import Cause, State


class CountsAtTheEnd(Broken):
    """A handler that kills its process is never parked."""

    rejected_by = "test_an_attempt_is_counted_when_it_starts"

    def claim(self, ask):
        before = self._rows.get(ask.id)
        answer = super().claim(ask)
        if answer.cause is Cause.LEASE_EXPIRED and before.owner != ask.owner:
            self.put(self._rows[ask.id], attempt=before.attempt)
            return replace(answer, attempt=before.attempt)
        return answer


class NeverParks(Misled):
    rejected_by = "test_a_key_that_kills_its_worker_too_often_is_parked"

    def claim(self, ask):
        return self.right.perform(replace(ask, max_attempts=10**6))


class NeverRests(Misled):
    rejected_by = "test_a_failed_key_backs_off"

    def fail(self, ask):
        return self.right.perform(replace(ask, delay=0))


class FailsTwice(Misled):
    """The repeated word of a lost answer is taken for a stranger's."""

    rejected_by = "test_failing_again_is_ok_and_changes_nothing"

    def fail(self, ask: Fail):
        row = self.row(ask)
        if row is not None and row.state is not State.IN_PROGRESS:
            return Ack.LOST
        return self.right.perform(ask)
