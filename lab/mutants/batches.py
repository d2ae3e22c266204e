"""Mutants of batches: which claims are counted, and what starts beside what."""

from __future__ import annotations

from typing import Any

from twicesafe._core import batch, delivery, lifecycle
from twicesafe._core.batch import _Batch
from twicesafe._values.keys import is_ahead, new_owner
from twicesafe._values.records import Cause

from .registry import Patch, mutant


@mutant("a batch counts all of its claims, also those that cannot start yet")
def batches_count_claims(patch: Patch) -> None:
    patch(delivery, "new_owner_ahead", new_owner)


@mutant("a takeover counts a claim that was made ahead of its start")
def takeovers_count_claims(patch: Patch) -> None:
    patch(lifecycle, "_counted", lambda row: row.attempt)


@mutant("no takeover is counted")
def takeovers_count_nothing(patch: Patch) -> None:
    patch(lifecycle, "_counted", lambda row: row.attempt - (row.state == "in_progress"))


@mutant("a message that was tried before starts under a claim that does not count")
def the_tried_start_uncounted(patch: Patch) -> None:
    may_start = _Batch._may_start

    def trusting(self: Any, index: int, ask: Any, reply: Any) -> bool:
        return is_ahead(ask.owner) or may_start(self, index, ask, reply)

    patch(_Batch, "_may_start", trusting)


@mutant("a batch claims ahead what may start only once")
def claims_ahead_what_starts_once(patch: Patch) -> None:
    patch(batch, "_is_exact", lambda call: False)


@mutant("in a batch, a message whose last worker died starts beside others")
def suspects_beside_others(patch: Patch) -> None:
    def beside(self: Any, index: int, ask: Any, reply: Any) -> bool:
        if is_ahead(ask.owner) and (reply.cause is Cause.LEASE_EXPIRED or reply.attempt > 1):
            self.later.append(index)
            return False
        return True

    patch(_Batch, "_may_start", beside)
