"""Failures: a failed key is retried after its back-off; one that fails too often is parked.

Attempts are counted when a claim is won, so a handler that kills its process counts too. A parked or
held key waits for an operator: it is never started, and never expires.
"""

from __future__ import annotations

from ..._core.protocol import Ack, Claimed, Verdict
from ..._values.records import Cause, State
from .bench import Advance, Script
from .requests import HOUR, OTHER, A, B, C, claim, reach, read, release, unchanged, won
from .rules import StoreRules, rule

__all__ = ["FailureRules"]


class FailureRules(StoreRules):
    @rule("P12")
    def test_a_failed_key_is_released_at_once(self) -> Script[None]:
        mine = yield from won(A)
        assert (yield mine.fail(error="Boom", retention=3 * HOUR)) is Ack.OK
        row = yield read()
        assert (row.state, row.cause, row.error) == (State.RELEASED, Cause.FAILED, "Boom")
        assert (row.attempt, row.fence, row.result) == (1, mine.fence, None)
        assert row.expires_at == row.changed_at + 3 * HOUR
        again = yield claim(B)
        assert again == Claimed(Verdict.WON, again.fence, 2, Cause.FAILED)
        assert again.fence > mine.fence
        row = yield read()
        assert row.expires_at == 0, "work in progress has no end of retention (P6)"
        assert row.error == "Boom", "an operator sees why it runs again"

    @rule()
    def test_a_failed_key_backs_off(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail(delay=HOUR, retention=2 * HOUR)
        before = yield read()
        answer = yield claim(B)
        assert self.near(answer.wait, HOUR)
        assert answer == Claimed(Verdict.RESTING, wait=answer.wait)
        assert (yield read()) == before

    @rule("P5", exact_time=True)
    def test_the_back_off_ends_to_the_millisecond(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail(delay=1000)
        yield Advance(999)
        assert (yield claim(B)) == Claimed(Verdict.RESTING, wait=1)
        yield Advance(1)
        assert (yield claim(B)).attempt == 2

    @rule("P8", exact_time=True)
    def test_attempts_of_a_failed_key_count_until_its_retention_ends(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail(delay=1000, retention=3000)
        yield Advance(2999)
        second = yield from won(B)
        assert second.answer.attempt == 2
        yield second.fail(delay=1000, retention=3000)
        yield Advance(3000)
        answer = yield claim(C)
        assert answer.attempt == 1
        assert answer.cause in self.after_expiry(Cause.FAILED)

    @rule()
    def test_after_its_back_off_a_key_runs_again(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail(delay=self.tick)
        yield Advance(self.tick)
        assert (yield claim(B)).verdict is Verdict.WON

    @rule("P10")
    def test_failing_again_is_ok_and_changes_nothing(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail(delay=HOUR)
        yield from unchanged(mine.fail(delay=0, error="Other"), Ack.OK)
        yield from unchanged(mine.fail(hold=True), Ack.OK)

    @rule("P10", cases={"held": State.HELD, "parked": State.PARKED})
    def test_failing_again_what_waits_for_an_operator_is_ok(self, case: State) -> Script[None]:
        mine = yield from reach(case)
        yield from unchanged(mine.fail(), Ack.OK)

    @rule(cases={"completed": State.COMPLETED, "failed": State.FAILED})
    def test_completed_work_cannot_fail(self, case: State) -> Script[None]:
        mine = yield from reach(case)
        yield from unchanged(mine.fail(), Ack.LOST)

    @rule()
    def test_a_late_owner_may_fail_if_there_was_no_takeover(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        assert (yield mine.fail()) is Ack.OK
        assert (yield read()).cause is Cause.FAILED

    @rule("P8", "P12")
    def test_an_expired_failed_key_starts_as_new_with_a_cause(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail(retention=self.tick)
        yield Advance(self.tick)
        again = yield from won(B)
        assert again.answer.attempt == 1
        assert again.answer.cause in self.after_expiry(Cause.FAILED)
        assert again.fence > mine.fence

    # -- too often ----------------------------------------------------------------------------

    @rule()
    def test_an_attempt_is_counted_when_it_starts(self) -> Script[None]:
        for attempt, owner in enumerate((A, B, C), 1):
            mine = yield from won(owner, lease=self.tick)
            assert mine.answer.attempt == attempt
            assert (yield read()).attempt == attempt, "counted before its end is known"
            yield Advance(self.tick)

    @rule()
    def test_a_key_that_fails_too_often_is_parked(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail(max_attempts=2)
        assert (yield read()).state is State.RELEASED
        again = yield from won(B)
        assert (yield again.fail(max_attempts=2, error="Boom")) is Ack.OK
        row = yield read()
        assert (row.state, row.attempt, row.error) == (State.PARKED, 2, "Boom")
        assert (row.lease_until, row.expires_at) == (0, 0)
        yield from unchanged(claim(C, max_attempts=99), Claimed(Verdict.PARKED, reason="Boom"))

    @rule()
    def test_a_key_that_kills_its_worker_too_often_is_parked(self) -> Script[None]:
        for owner in (A, B):
            yield from won(owner, lease=self.tick, max_attempts=2)
            yield Advance(self.tick)
        before = yield read()
        assert (yield claim(C, max_attempts=2)) == Claimed(Verdict.PARKED, closes=True)
        row = yield read()
        assert (row.state, row.attempt, row.owner) == (State.PARKED, 2, B)
        assert (row.fence, row.lease_until, row.expires_at) == (before.fence, 0, 0)
        assert row.error == "never finished", "an operator sees no reason"
        yield from unchanged(claim(A), Claimed(Verdict.PARKED, reason=row.error))

    @rule()
    def test_a_released_key_is_parked_by_a_stricter_claimer(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail()
        assert (yield claim(B, max_attempts=1)) == Claimed(Verdict.PARKED, closes=True)
        row = yield read()
        assert (row.state, row.expires_at) == (State.PARKED, 0)

    @rule()
    def test_a_first_claim_is_never_parked(self) -> Script[None]:
        yield from won(A, max_attempts=1)
        assert (yield claim(B, max_attempts=1)).verdict is Verdict.BUSY

    @rule("P12")
    def test_an_operators_release_resets_the_attempts(self) -> Script[None]:
        yield from reach(State.PARKED)
        yield release()
        again = yield from won(B, max_attempts=1)
        assert (again.answer.attempt, again.answer.cause) == (1, Cause.OPERATOR)

    @rule()
    def test_an_unknown_outcome_is_held_if_the_policy_says_so(self) -> Script[None]:
        mine = yield from won(A)
        assert (yield mine.fail(hold=True, error="Cut")) is Ack.OK
        row = yield read()
        assert (row.state, row.error, row.owner) == (State.HELD, "Cut", A)
        assert (row.fence, row.lease_until, row.expires_at) == (mine.fence, 0, 0)
        yield from unchanged(claim(B), Claimed(Verdict.HELD, reason="Cut"))

    @rule()
    def test_a_held_key_tells_every_caller_why(self) -> Script[None]:
        """Alone, in a batch, and with letters of any alphabet: the reason is for an operator to read."""
        why = "der Bank fehlt die Antwort: 銀行 🏦"
        mine = yield from won(A)
        assert (yield mine.fail(hold=True, error=why)) is Ack.OK
        held = Claimed(Verdict.HELD, reason=why)
        assert (yield claim(B)) == held
        other, same = yield [claim(C, OTHER), claim(B)]
        assert (other.verdict, same) == (Verdict.WON, held)
