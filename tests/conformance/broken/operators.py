"""Stores that report an operator's action as done and did not do it."""

from __future__ import annotations

from msgspec.structs import replace

from tests.conformance.broken.base import Broken, Misled
from twicesafe._core.protocol import Ack


class RecallsWhatItOnceSaw(Broken):
    """It keeps answers to save a look, and an erased one is replayed."""

    rejected_by = "test_recall_does_not_return_what_an_operator_took_back[forget]"

    def recall(self, id):  # noqa: A002
        seen = vars(self).setdefault("seen", {})
        return seen.setdefault(id, super().recall(id))


class MatchesEightDigits(Misled):
    """Another record is released than the one that was meant."""

    rejected_by = "test_a_record_by_the_first_digits_of_its_id"

    def browse(self, ask):
        return self.right.perform(replace(ask, digits=ask.digits[:8]))


class ForgetsTheTombstone(Broken):
    """A late duplicate of an erased key runs again."""

    rejected_by = "test_forgetting_erases_the_data_and_keeps_the_tombstone[small]"

    def forget(self, ask):
        ack = self._operate(ask)
        if ack is Ack.OK:
            self._floor = max(self._floor, self._rows.pop(ask.id).fence)
        return ack


class ForgetsTheKeyOnly(Broken):
    """The result of an erased key is still there."""

    rejected_by = "test_forgetting_erases_the_data_and_keeps_the_tombstone[small]"

    def forget(self, ask):
        before = self.row(ask)
        ack = self._operate(ask)
        if ack is Ack.OK:
            self.put(self.row(ask), result=before.result, fingerprint=before.fingerprint)
        return ack


class ForgetsSooner(Broken):
    """An operator whose retention is short gives the repeat a new life."""

    rejected_by = "test_an_action_that_closes_a_key_never_shortens_its_retention[forget completed]"

    def forget(self, ask):
        ack = self._operate(ask)
        if ack is Ack.OK:
            self.put(self.row(ask), expires_at=self.row(ask).changed_at + ask.retention)
        return ack


class ReleasesWithoutATrace(Broken):
    rejected_by = "test_every_action_is_kept_with_who_why_and_when"

    def release(self, ask):
        return self._decide(ask)


class ReleasesWhatWasRenewed(Misled):
    """A fence alone does not tell: a renewal raises none."""

    rejected_by = "test_a_decision_about_a_stuck_run_spares_one_that_was_renewed[release]"

    def release(self, ask):
        return self.right.perform(replace(ask, unless_running=False))


class DiscardsWithoutATrace(Broken):
    rejected_by = "test_a_discarded_dead_letter_is_only_in_the_audit_trail[parked]"

    def discard(self, ask):
        return self._decide(ask)


class ReleasesWhatIsDone(Misled):
    """Without force."""

    rejected_by = "test_a_completed_key_is_released_only_by_force"

    def release(self, ask):
        return self.right.perform(replace(ask, force=True))
