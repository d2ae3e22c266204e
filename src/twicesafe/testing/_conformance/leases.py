"""Leases: a claim lives while it is renewed; then another delivery takes over, and the old owner is fenced.

The lease is a field, not a TTL (P6). The store's clock decides when it expires (P5). A takeover raises
the fence (P3). With ``takeover="hold"`` the key is held instead.
"""

from __future__ import annotations

from typing import Any, Final

from ..._core.protocol import Ack, Claimed, Sweep, Verdict
from ..._values.records import Cause, State
from .bench import Advance, KeeperStore, Script
from .requests import AHEAD, HOUR, KEY, A, B, C, Mine, claim, read, release, unchanged, won
from .rules import StoreRules, rule

__all__ = ["LeaseRules"]

ZOMBIE: Final[dict[str, Any]] = {
    "renew": lambda mine: mine.renew(),
    "complete": lambda mine: mine.complete(b"zombie"),
    "remember": lambda mine: mine.remember(b"zombie"),
    "fail": lambda mine: mine.fail(),
    "hold": lambda mine: mine.fail(hold=True),
    "park": lambda mine: mine.fail(max_attempts=1),
    "abandon": lambda mine: mine.abandon(),
}
"""What an owner that lost its claim may still try."""

FENCED: Final = {name: ask for name, ask in ZOMBIE.items() if name != "abandon"}
"""All but `abandon`, which needs no fence."""


class LeaseRules(StoreRules):
    @rule("P5", "P6", exact_time=True)
    def test_a_lease_ends_to_the_millisecond(self) -> Script[None]:
        yield claim(A, lease=1000)
        yield Advance(999)
        assert (yield claim(B)) == Claimed(Verdict.BUSY, wait=1)
        yield Advance(1)
        assert (yield claim(B)).verdict is Verdict.WON

    @rule("P3", "P12")
    def test_a_takeover_is_a_new_attempt_with_a_higher_fence(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        began = (yield read()).created_at
        yield Advance(self.tick)
        answer = yield claim(B)
        assert answer == Claimed(Verdict.WON, answer.fence, 2, Cause.LEASE_EXPIRED)
        assert answer.fence > mine.fence
        row = yield read()
        assert (row.owner, row.fence, row.attempt) == (B, answer.fence, 2)
        assert row.state is State.IN_PROGRESS
        assert row.lease_until == row.changed_at + HOUR
        assert row.created_at == began, "created_at is when the key was first seen"

    @rule("P3", "P4", cases=ZOMBIE)
    def test_after_a_takeover_the_old_owner_can_do_nothing(self, case: Any) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        yield from won(B)
        yield from unchanged(case(mine), Ack.LOST)

    @rule("P3", "P4", cases=ZOMBIE)
    def test_after_a_takeover_completed_the_old_owner_can_do_nothing(
        self, case: Any
    ) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        new = yield from won(B)
        yield new.complete(b"new")
        yield from unchanged(case(mine), Ack.LOST)
        assert (yield claim(C)).result == b"new"

    @rule("P3", "P4", cases=ZOMBIE)
    def test_after_a_release_the_old_owner_can_do_nothing(self, case: Any) -> Script[None]:
        mine = yield from won(A)
        yield release()
        yield from unchanged(case(mine), Ack.LOST)

    @rule("P3", cases=FENCED)
    def test_the_owner_alone_is_not_enough(self, case: Any) -> Script[None]:
        mine = yield from won(A)
        yield from unchanged(case(mine.replace(fence=mine.fence + 1)), Ack.LOST)
        yield from unchanged(case(mine.replace(fence=mine.fence - 1)), Ack.LOST)

    @rule("P3", cases=ZOMBIE)
    def test_the_fence_alone_is_not_enough(self, case: Any) -> Script[None]:
        mine = yield from won(A)
        yield from unchanged(case(mine.replace(owner=B)), Ack.LOST)
        yield from unchanged(case(mine.replace(owner=b"")), Ack.LOST)

    @rule("P4", cases=ZOMBIE)
    def test_a_missing_row_is_not_created(self, case: Any) -> Script[None]:
        missing = Mine(KEY.id, A, 1, Claimed(Verdict.WON))
        yield from unchanged(case(missing), Ack.MISSING)
        assert (yield claim(B)).attempt == 1

    # -- renewal ------------------------------------------------------------------------------

    @rule("P6")
    def test_a_renewed_lease_lasts_longer(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        assert (yield mine.renew()) is Ack.OK
        yield Advance(self.tick)
        assert (yield claim(B)).verdict is Verdict.BUSY

    @rule("P5", exact_time=True)
    def test_renewal_counts_from_the_stores_time(self) -> Script[None]:
        mine = yield from won(A, lease=1000)
        before = yield read()
        yield Advance(600)
        yield mine.renew(1000)
        row = yield read()
        assert row.lease_until == before.lease_until + 600
        row.lease_until = before.lease_until
        assert row == before, "renewal changes the lease and nothing else"

    @rule("P6")
    def test_renewal_never_shortens(self) -> Script[None]:
        mine = yield from won(A)
        yield from unchanged(mine.renew(self.tick), Ack.OK)

    @rule("P6")
    def test_a_late_renewal_is_accepted_if_there_was_no_takeover(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        assert (yield mine.renew()) is Ack.OK
        assert (yield claim(B)).verdict is Verdict.BUSY

    @rule("P6")
    def test_the_keepers_store_renews_the_same_claims(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        assert (yield KeeperStore(mine.renew())) is Ack.OK
        yield Advance(self.tick)
        assert (yield claim(B)).verdict is Verdict.BUSY

    # -- P6: a field, not a TTL ---------------------------------------------------------------

    @rule("P6")
    def test_work_in_progress_outlives_its_lease(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        before = yield read()
        yield Advance(2 * self.tick)
        report, _ = yield Sweep(100)
        assert report.removed == 0
        assert (yield read()) == before
        assert (yield mine.complete(b"late")) is Ack.OK
        assert (yield claim(B)).result == b"late"

    @rule("P6", exact_time=True)
    def test_work_in_progress_remains_after_a_year(self) -> Script[None]:
        yield claim(A, lease=1000)
        before = yield read()
        yield Advance(365 * 24 * HOUR)
        yield Sweep(100)
        assert (yield read()) == before
        assert (yield claim(B)).attempt == 2

    # -- at most once -------------------------------------------------------------------------

    @rule("P6")
    def test_an_expired_claim_is_held_if_its_owner_wanted_that(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick, hold=True)
        yield Advance(self.tick)
        assert (yield claim(B, hold=True)) == Claimed(Verdict.HELD, closes=True)
        row = yield read()
        assert (row.state, row.owner, row.fence) == (State.HELD, A, mine.fence)
        assert (row.attempt, row.lease_until, row.expires_at) == (1, 0, 0)
        yield from unchanged(claim(C), Claimed(Verdict.HELD))

    @rule()
    def test_a_later_claimer_does_not_weaken_the_hold(self) -> Script[None]:
        yield claim(A, lease=self.tick, hold=True)
        yield Advance(self.tick)
        assert (yield claim(B, hold=False)).verdict is Verdict.HELD

    @rule()
    def test_a_later_claimer_takes_over_where_there_was_no_hold(self) -> Script[None]:
        yield claim(A, lease=self.tick, hold=False)
        yield Advance(self.tick)
        yield from won(B, hold=True)
        assert (yield read()).hold

    @rule()
    def test_an_expired_claim_is_held_before_it_is_parked(self) -> Script[None]:
        yield claim(A, lease=self.tick, hold=True)
        yield Advance(self.tick)
        assert (yield claim(B, max_attempts=1)).verdict is Verdict.HELD

    # -- a claim that never started -----------------------------------------------------------

    @rule("P3", "P12")
    def test_an_abandoned_claim_leaves_only_its_fence(self) -> Script[None]:
        mine = yield from won(A)
        assert (yield mine.abandon()) is Ack.OK
        row = yield read()
        assert (row.state, row.attempt, row.cause) == (State.RELEASED, 0, None)
        assert row.expires_at == row.changed_at + HOUR
        again = yield from won(B)
        assert (again.answer.attempt, again.answer.cause) == (1, None)
        assert again.fence > mine.fence

    @rule("P12")
    def test_an_abandoned_takeover_keeps_its_cause(self) -> Script[None]:
        yield claim(A, lease=self.tick)
        yield Advance(self.tick)
        second = yield from won(B)
        yield second.abandon()
        third = yield from won(C)
        assert (third.answer.attempt, third.answer.cause) == (2, Cause.LEASE_EXPIRED)

    @rule("P3")
    def test_a_claim_abandoned_without_retention_leaves_no_trace_of_its_request(
        self,
    ) -> Script[None]:
        mine = yield from won(A, fingerprint=b"f" * 32)
        assert (yield mine.abandon(retention=0)) is Ack.OK
        again = yield claim(B, fingerprint=b"g" * 32)
        assert again == Claimed(Verdict.WON, again.fence, 1, None)
        assert again.fence > mine.fence
        assert (yield claim(C, fingerprint=b"f" * 32)).verdict is Verdict.MISMATCH

    @rule()
    def test_completed_work_cannot_be_abandoned(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"x")
        yield from unchanged(mine.abandon(), Ack.LOST)

    # -- a claim that was made before its start -----------------------------------------------

    @rule("P12", cases={"one": (False, 5), "many": (True, 5), "the last": (False, 1)})
    def test_a_claim_made_ahead_of_its_start_is_not_counted(self, case: Any) -> Script[None]:
        """Its worker died, so the next claim is the first attempt again; even the last one left."""
        many, most = case
        ahead = yield from won(AHEAD, lease=self.tick)
        assert ahead.answer.attempt == 1
        yield Advance(self.tick)
        again = claim(B, max_attempts=most)
        answer = (yield [again])[0] if many else (yield again)
        assert answer == Claimed(Verdict.WON, answer.fence, 1, Cause.LEASE_EXPIRED)
        assert answer.fence > ahead.fence
        row = yield read()
        assert (row.owner, row.attempt, row.state) == (B, 1, State.IN_PROGRESS)

    @rule("P2", "P4")
    def test_a_claim_made_ahead_is_a_claim_like_any_other(self) -> Script[None]:
        ahead = yield from won(AHEAD)
        again = yield claim(AHEAD)
        assert (again.fence, again.attempt) == (ahead.fence, 1)
        assert (yield claim(B)).verdict is Verdict.BUSY
        assert (yield ahead.complete(b"x")) is Ack.OK
        assert (yield claim(B)).attempt == 1

    @rule("P12")
    def test_an_attempt_that_was_claimed_ahead_and_failed_is_counted(self) -> Script[None]:
        ahead = yield from won(AHEAD)
        yield ahead.fail()
        second = yield from won(B)
        assert (second.answer.attempt, second.answer.cause) == (2, Cause.FAILED)

    @rule("P12")
    def test_only_the_claim_that_was_made_ahead_is_not_counted(self) -> Script[None]:
        """The attempts before it still count: two died, so the third is the last of three."""
        for owner, lease in ((A, self.tick), (AHEAD, self.tick), (B, self.tick)):
            yield from won(owner, lease=lease)
            yield Advance(self.tick)
        third = yield from won(C, lease=self.tick)
        assert third.answer.attempt == 3
        yield Advance(self.tick)
        assert (yield claim(A, max_attempts=3)) == Claimed(Verdict.PARKED, closes=True)
