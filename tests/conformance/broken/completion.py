"""Stores that lose, cut, overwrite or invent a result."""

from __future__ import annotations

from msgspec.structs import replace

from tests.conformance.broken.base import Broken, Misled
from twicesafe._core.protocol import Ack
from twicesafe._values.records import Row, State


class MakesTheMissingRow(Broken):
    """An upsert where an update belongs."""

    rejected_by = "test_a_missing_row_is_not_created[complete]"

    def complete(self, ask):
        if self.row(ask) is None:
            now = self._now()
            row = Row(ask.id, (), "", State.COMPLETED, ask.fence, 1, ask.owner, 0, now, now)
            self.put(row, expires_at=now + ask.retention, result=ask.result)
            return Ack.OK
        return super().complete(ask)


class LosesFalsyResults(Misled):
    """`if response` (powertools)."""

    rejected_by = "test_a_result_comes_back_byte_for_byte[empty]"

    def complete(self, ask):
        return self.right.perform(replace(ask, result=ask.result or None))


class CutsResults(Misled):
    """A column that is too narrow, and a server that does not mind (MySQL without strict mode)."""

    rejected_by = "test_a_result_comes_back_byte_for_byte[2049]"

    def complete(self, ask):
        return self.right.perform(replace(ask, result=ask.result and ask.result[:2048]))


class CompletesOverAndOver(Broken):
    rejected_by = "test_completing_again_is_ok_and_changes_nothing[completed]"

    def complete(self, ask):
        ack = super().complete(ask)
        if ack is Ack.OK:
            self.put(self.row(ask), result=ask.result, state=ask.state)
        return ack


class RefusesTheLateOwner(Broken):
    """No worker took over, the effect is there, and its result is thrown away."""

    rejected_by = "test_a_late_owner_completes_if_there_was_no_takeover"

    def complete(self, ask):
        row = self.row(ask)
        if row is not None and row.state is State.IN_PROGRESS and row.lease_until <= self._now():
            return Ack.LOST
        return super().complete(ask)


class RefusesTheOwnersWordOnHeld(Broken):
    rejected_by = "test_the_owner_completes_a_held_or_parked_key[held]"

    def complete(self, ask):
        row = self.row(ask)
        if row is not None and row.state is State.HELD:
            return Ack.LOST
        return super().complete(ask)


class RetentionFromTheClaim(Broken):
    """A long handler's answer is gone before anybody asked for it."""

    rejected_by = "test_retention_counts_from_completion"

    def complete(self, ask):
        row = self.row(ask)
        ack = super().complete(ask)
        if row is not None and self.row(ask).state is not row.state:
            self.put(self.row(ask), expires_at=row.changed_at + ask.retention)
        return ack
