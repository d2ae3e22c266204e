"""Stores that mistake what a lease is, or whose policy counts when it runs out."""

from __future__ import annotations

from msgspec.structs import replace

from tests.conformance.broken.base import Broken, Misled
from twicesafe._core.protocol import Ack
from twicesafe._values.keys import is_ahead
from twicesafe._values.records import State


class LeaseIsATtl(Broken):
    """The record goes with its lease, and the late owner's result with it."""

    rejected_by = "test_work_in_progress_outlives_its_lease"

    def perform(self, request):
        for row in list(self._rows.values()):
            if row.state is State.IN_PROGRESS and row.lease_until <= self._now():
                del self._rows[row.id]
                self._floor = max(self._floor, row.fence)
        return super().perform(request)


class RenewalShortens(Broken):
    rejected_by = "test_renewal_never_shortens"

    def renew(self, ask):
        ack = self._decide(ask)
        if ack is Ack.OK:
            self.put(self.row(ask), lease_until=self._now() + ask.lease)
        return ack


class IgnoresHold(Misled):
    """At most once, but twice."""

    rejected_by = "test_an_expired_claim_is_held_if_its_owner_wanted_that"

    def claim(self, ask):
        return self.right.perform(replace(ask, hold=False))


class LetsTheLaterClaimerDecideOnHold(Broken):
    rejected_by = "test_a_later_claimer_does_not_weaken_the_hold"

    def claim(self, ask):
        row = self._rows.get(ask.id)
        if row is not None and row.owner != ask.owner:
            self.put(row, hold=ask.hold)
        return super().claim(ask)


class AbandonCounts(Broken):
    rejected_by = "test_an_abandoned_claim_leaves_only_its_fence"

    def abandon(self, ask):
        ack = self._decide(ask)
        if ack is Ack.OK:
            self.put(self.row(ask), attempt=self.row(ask).attempt + 1)
        return ack


class CountsClaimsMadeAhead(Broken):
    """Messages of a batch that never started are parked for the one that killed their worker."""

    rejected_by = "test_a_claim_made_ahead_of_its_start_is_not_counted[one]"

    def claim(self, ask):
        row = self.row(ask)
        if row is not None and is_ahead(row.owner) and row.owner != ask.owner:
            self.put(row, owner=b"counted".ljust(16, b"."))
        return super().claim(ask)
