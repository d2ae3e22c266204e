"""Stores that keep the dead alive, or sweep the living."""

from __future__ import annotations

from msgspec.structs import replace

from tests.conformance.broken.base import Broken, Misled
from twicesafe._core import lifecycle
from twicesafe._values.records import State, SweepReport


class FenceRestartsAfterSweep(Broken):
    """The mutant let zombies complete in 11 % of schedules."""

    rejected_by = "test_fences_keep_increasing_after_a_sweep[completed]"

    def sweep(self, ask):
        answer = super().sweep(ask)
        self._floor = 0
        return answer


class FenceRestartsAfterExpiry(Broken):
    rejected_by = "test_expired_records_are_gone_before_any_sweep[completed]"

    def claim(self, ask):
        row = self._rows.get(ask.id)
        if row is not None and lifecycle.is_expired(row, self._now()):
            self.put(row, fence=0)
        return super().claim(ask)


class TrustsTheSweeper(Broken):
    """Expiry is not compared on read; TTL deletes "typically within two days" (DynamoDB)."""

    rejected_by = "test_expired_records_are_gone_before_any_sweep[completed]"

    def claim(self, ask):
        row = self._rows.get(ask.id)
        if row is not None and lifecycle.is_expired(row, self._now()):
            return lifecycle.look(row, ask, self._now()) or super().claim(ask)
        return super().claim(ask)


class ReadsTheDead(Broken):
    rejected_by = "test_retention_ends_to_the_millisecond"

    def read(self, ask):
        return self._rows.get(ask.id)


class SweepsWorkInProgress(Broken):
    """By age alone."""

    rejected_by = "test_unfinished_work_never_expires[in_progress]"

    def sweep(self, ask):
        for row in list(self._rows.values()):
            if row.state is State.IN_PROGRESS and row.lease_until <= self._now():
                del self._rows[row.id]
        return super().sweep(ask)


class SweepsWhatIsHeld(Broken):
    rejected_by = "test_unfinished_work_never_expires[held]"

    def sweep(self, ask):
        for row in list(self._rows.values()):
            if row.state in (State.HELD, State.PARKED):
                del self._rows[row.id]
        return super().sweep(ask)


class SweepsWithoutBounds(Misled):
    """An unbounded delete blocks traffic (NServiceBus, Wolverine)."""

    rejected_by = "test_a_sweep_works_in_steps_and_resumes"

    def sweep(self, ask):
        return self.right.perform(replace(ask, limit=10**9, after=""))


class SweepsMoreThanItMay(Misled):
    """A sweep of at most a few records finds all of a bite gone."""

    rejected_by = "test_a_sweep_that_may_remove_few_still_looks_at_many"

    def sweep(self, ask):
        return self.right.perform(replace(ask, most=10**9))


class SweepStopsAtTheLiving(Broken):
    """The first bite without a dead record is taken for the end."""

    rejected_by = "test_a_sweep_gets_past_records_that_stay"

    def sweep(self, ask):
        report, after = super().sweep(ask)
        if not report.removed:
            return SweepReport(removed=0, examined=report.examined, more=False), ""
        return report, after
