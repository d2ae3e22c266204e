"""Stores that let a stale owner write: no owner, no fence, or half of the check."""

from __future__ import annotations

import threading
from typing import Any

from msgspec.structs import replace

from tests.conformance.broken.base import Broken, Misled
from twicesafe._core import lifecycle
from twicesafe._core.protocol import Ack
from twicesafe._values.records import State


class CompletesForAnyone(Misled):
    """No fence, no owner: a stale commit wins (exactly-once)."""

    rejected_by = "test_after_a_takeover_the_old_owner_can_do_nothing[complete]"

    def complete(self, ask):
        row = self.row(ask)
        return self.right.perform(replace(ask, owner=row.owner, fence=row.fence) if row else ask)


class RenewsForAnyone(Misled):
    rejected_by = "test_after_a_takeover_the_old_owner_can_do_nothing[renew]"

    def renew(self, ask):
        row = self.row(ask)
        return self.right.perform(replace(ask, owner=row.owner, fence=row.fence) if row else ask)


class RenewsWhatItReadBefore(Broken):
    """Reads, and writes later: the old owner's row goes over the new one's."""

    rejected_by = "test_a_late_renewal_and_a_takeover_do_not_both_succeed"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._taken_over = threading.Event()

    def perform(self, request):
        if request.op == "claim" and request.id in self._rows:
            answer = super().perform(request)
            self._taken_over.set()
            return answer
        if request.op != "renew":
            return super().perform(request)
        self._taken_over.clear()
        ack, row = lifecycle.renew(self._rows.get(request.id), request, self._now())
        if row is not None:
            self._taken_over.wait(10)
            self._rows[row.id] = row
        return ack


class FailsForAnyone(Misled):
    """The late owner fails and deletes the winner's record: three executions (powertools)."""

    rejected_by = "test_after_a_takeover_the_old_owner_can_do_nothing[fail]"

    def fail(self, ask):
        row = self.row(ask)
        return self.right.perform(replace(ask, owner=row.owner, fence=row.fence) if row else ask)


class AbandonsForAnyone(Misled):
    """Ownerless remove (Camel)."""

    rejected_by = "test_the_fence_alone_is_not_enough[abandon]"

    def abandon(self, ask):
        row = self.row(ask)
        return self.right.perform(replace(ask, owner=row.owner) if row else ask)


class ChecksTheOwnerOnly(Misled):
    rejected_by = "test_the_owner_alone_is_not_enough[complete]"

    def _with_fence(self, ask):
        row = self.row(ask)
        return replace(ask, fence=row.fence) if row else ask

    def complete(self, ask):
        return self.right.perform(self._with_fence(ask))

    def renew(self, ask):
        return self.right.perform(self._with_fence(ask))

    fail = renew


class ChecksTheFenceOnly(Misled):
    """ABA, as soon as a fence restarts."""

    rejected_by = "test_the_fence_alone_is_not_enough[complete]"

    def _with_owner(self, ask):
        row = self.row(ask)
        return replace(ask, owner=row.owner) if row else ask

    def complete(self, ask):
        return self.right.perform(self._with_owner(ask))

    def renew(self, ask):
        return self.right.perform(self._with_owner(ask))

    fail = renew


class ReleasesWithoutFencing(Broken):
    """The operator lets go of the key, and the old owner completes it all the same."""

    rejected_by = "test_after_a_release_the_old_owner_can_do_nothing[complete]"

    def release(self, ask):
        before = self.row(ask)
        ack = self._operate(ask)
        if ack is Ack.OK:
            self.put(self.row(ask), owner=before.owner, fence=before.fence)
        return ack

    def complete(self, ask):
        row = self.row(ask)
        if row is not None and row.state is State.RELEASED and row.owner == ask.owner:
            self.put(row, state=State.IN_PROGRESS)
        return super().complete(ask)
