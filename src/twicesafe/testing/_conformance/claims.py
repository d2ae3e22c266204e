"""Claims: one atomic write decides which worker runs (P1), and a repeated claim gets the same answer (P2).

Also: what each verdict contains, that a mismatch comes before everything else (P11), and that every
start after the first has its cause (P12).
"""

from __future__ import annotations

from typing import Any, Final

from ..._core.protocol import Ack, Claimed, Verdict
from ..._values.fingerprint import MAX_BYTES, stated
from ..._values.keys import Key
from ..._values.records import Cause, State
from .bench import Advance, Recalled, Script
from .requests import (
    HOUR,
    KEY,
    STATES,
    A,
    B,
    C,
    claim,
    forget,
    reach,
    read,
    release,
    resolve,
    unchanged,
    won,
)
from .rules import StoreRules, rule

__all__ = ["ClaimRules"]

F1: Final = b"\x00first".ljust(32, b"\xff")
F2: Final = b"\x00other".ljust(32, b"\xff")

LOOKALIKES: Final = {
    "scope_or_not": Key("order-77"),
    "parts_moved": Key("order-77", scope=("shopcharge",)),
    "one_part_less": Key("order-77", scope=("shop",)),
    "case": Key("ORDER-77", scope=("shop", "charge")),
    "trailing_space": Key("order-77 ", scope=("shop", "charge")),
    "trailing_nul": Key("order-77\0", scope=("shop", "charge")),
    "full_width": Key("order-７7", scope=("shop", "charge")),
}

KNOWN: Final = [state for state in STATES if state is not State.FORGOTTEN]
"""States in which the fingerprint is kept."""


class ClaimRules(StoreRules):
    @rule("P1")
    def test_the_first_claim_wins_and_its_row_is_there(self) -> Script[None]:
        answer = yield claim(A, fingerprint=F1, hold=True)
        assert answer == Claimed(Verdict.WON, answer.fence, 1, None)
        assert answer.fence > 0
        row = yield read()
        assert (row.id, row.scope, row.value) == (KEY.id, KEY.scope, KEY.value)
        assert (row.state, row.owner, row.fence) == (State.IN_PROGRESS, A, answer.fence)
        assert (row.attempt, row.cause, row.hold) == (1, None, True)
        assert (row.fingerprint, row.result, row.error) == (F1, None, "")
        assert row.lease_until == row.changed_at + HOUR
        assert row.created_at == row.changed_at
        assert row.expires_at == 0, "work in progress has no end of retention (P6)"

    @rule("P2")
    def test_a_retry_of_the_claim_gets_the_same_answer(self) -> Script[None]:
        first = yield claim(A)
        yield from unchanged(claim(A), first)

    @rule("P2")
    def test_a_retry_gets_the_same_answer_after_the_lease_if_there_was_no_takeover(
        self,
    ) -> Script[None]:
        first = yield claim(A, lease=self.tick)
        yield Advance(self.tick)
        yield from unchanged(claim(A), first)

    @rule("P2", "P12")
    def test_a_retry_of_a_takeover_gets_its_cause_again(self) -> Script[None]:
        yield claim(A, lease=self.tick)
        yield Advance(self.tick)
        second = yield claim(B)
        yield from unchanged(claim(B), second)
        assert second.cause is Cause.LEASE_EXPIRED

    @rule("P2")
    def test_a_retry_after_its_own_completion_is_a_replay(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"x")
        assert (yield claim(A)).verdict is Verdict.REPLAY

    @rule("P2")
    def test_an_owner_that_was_taken_over_is_busy_like_any_other(self) -> Script[None]:
        yield claim(A, lease=self.tick)
        yield Advance(self.tick)
        yield from won(B)
        assert (yield claim(A)).verdict is Verdict.BUSY

    @rule("P1")
    def test_a_second_owner_is_busy_and_learns_only_the_wait(self) -> Script[None]:
        yield claim(A)
        before = yield read()
        answer = yield claim(B)
        assert self.near(answer.wait, HOUR)
        assert answer == Claimed(Verdict.BUSY, wait=answer.wait)
        assert (yield read()) == before

    @rule("P1", cases=LOOKALIKES)
    def test_keys_that_look_alike_are_different(self, case: Key) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"mine")
        other = yield from won(B, case)
        yield other.complete(b"other")
        assert (yield claim(C)).result == b"mine"
        assert (yield claim(C, case)).result == b"other"

    @rule()
    def test_a_replay_has_everything_that_a_caller_needs(self) -> Script[None]:
        mine = yield from won(A, fingerprint=F1)
        yield mine.complete(b"answer", retention=2 * HOUR)
        yield Advance(self.tick)
        answer = yield claim(B, fingerprint=F1)
        assert self.near(answer.age, self.tick)
        assert self.near(answer.expires_in, 2 * HOUR - self.tick)
        assert answer == Claimed(
            Verdict.REPLAY,
            mine.fence,
            1,
            None,
            0,
            State.COMPLETED,
            b"answer",
            F1,
            answer.age,
            answer.expires_in,
        )

    @rule()
    def test_a_remembered_failure_is_replayed_as_one(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.remember(b"why")
        answer = yield claim(B)
        assert answer.verdict is Verdict.REPLAY
        assert (answer.state, answer.result) == (State.FAILED, b"why")

    @rule("P12")
    def test_a_replay_names_its_attempt(self) -> Script[None]:
        yield claim(A, lease=self.tick)
        yield Advance(self.tick)
        mine = yield from won(B)
        yield mine.complete(b"x")
        answer = yield claim(C)
        assert (answer.fence, answer.attempt) == (mine.fence, 2)
        assert answer.cause is Cause.LEASE_EXPIRED

    @rule(cases={"held": State.HELD, "parked": State.PARKED, "forgotten": State.FORGOTTEN})
    def test_a_closed_key_reveals_only_its_state_and_why(self, case: State) -> Script[None]:
        yield from reach(case, fingerprint=F1)
        why = "" if case is State.FORGOTTEN else "Boom"
        yield from unchanged(claim(B), Claimed(Verdict[case.name], reason=why))

    # -- P11 ----------------------------------------------------------------------------------

    @rule("P11", cases={state.value: state for state in KNOWN})
    def test_another_fingerprint_is_a_mismatch_in_every_state(self, case: State) -> Script[None]:
        yield from reach(case, fingerprint=F1)
        yield from unchanged(claim(B, fingerprint=F2), Claimed(Verdict.MISMATCH, fingerprint=F1))

    @rule("P11")
    def test_another_fingerprint_does_not_take_over(self) -> Script[None]:
        yield claim(A, lease=self.tick, fingerprint=F1)
        yield Advance(self.tick)
        yield from unchanged(claim(B, fingerprint=F2), Claimed(Verdict.MISMATCH, fingerprint=F1))

    @rule("P11", cases={"stored": (F1, None), "asked": (None, F2), "neither": (None, None)})
    def test_a_missing_fingerprint_matches_all(
        self, case: tuple[bytes | None, bytes | None]
    ) -> Script[None]:
        stored, asked = case
        mine = yield from won(A, fingerprint=stored)
        assert (yield claim(B, fingerprint=asked)).verdict is Verdict.BUSY
        yield mine.complete(b"x")
        assert (yield claim(B, fingerprint=asked)).verdict is Verdict.REPLAY

    @rule("P11")
    def test_a_takeover_without_a_fingerprint_keeps_the_stored_one(self) -> Script[None]:
        yield claim(A, lease=self.tick, fingerprint=F1)
        yield Advance(self.tick)
        yield from won(B)
        assert (yield claim(C, fingerprint=F2)).verdict is Verdict.MISMATCH

    @rule("P11")
    def test_a_takeover_brings_the_fingerprint_that_was_missing(self) -> Script[None]:
        yield claim(A, lease=self.tick)
        yield Advance(self.tick)
        yield from won(B, fingerprint=F2)
        assert (yield claim(C, fingerprint=F1)).verdict is Verdict.MISMATCH

    @rule("P11", cases={"completed": True, "by_hand": False})
    def test_the_fingerprint_outlives_the_work(self, case: bool) -> Script[None]:
        mine = yield from won(A, fingerprint=F1)
        assert (yield mine.complete(b"x") if case else resolve()) is Ack.OK
        assert (yield claim(B, fingerprint=F1)).verdict is Verdict.REPLAY
        assert (yield claim(B, fingerprint=F2)).verdict is Verdict.MISMATCH

    @rule("P11", cases={"longest": b"f" * MAX_BYTES, "hashed": stated(b"f" * 300)})
    def test_a_long_fingerprint_is_kept_whole(self, case: bytes) -> Script[None]:
        mine = yield from won(A, fingerprint=case)
        assert (yield read()).fingerprint == case
        yield mine.complete(b"x")
        answer = yield claim(B, fingerprint=case)
        assert (answer.verdict, answer.result, answer.fingerprint) == (Verdict.REPLAY, b"x", case)
        other = case[:-1] + bytes([case[-1] ^ 1])
        assert (yield claim(B, fingerprint=other)).verdict is Verdict.MISMATCH

    @rule("P8", "P11", cases={"other": F2, "none": None})
    def test_an_expired_record_has_no_fingerprint_to_match(
        self, case: bytes | None
    ) -> Script[None]:
        mine = yield from won(A, fingerprint=F1)
        yield mine.complete(b"x", retention=self.tick)
        yield Advance(self.tick)
        yield from won(B, fingerprint=case)
        assert (yield read()).fingerprint == case

    # -- P12 ----------------------------------------------------------------------------------

    @rule("P12")
    def test_the_first_start_has_no_cause(self) -> Script[None]:
        assert (yield claim(A)).cause is None

    @rule("P12")
    def test_every_later_start_has_its_cause(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail()
        again = yield from won(B, lease=self.tick)
        assert again.answer.cause is Cause.FAILED
        yield Advance(self.tick)
        third = yield from won(C)
        assert third.answer.cause is Cause.LEASE_EXPIRED
        yield release()
        fourth = yield from won(A)
        assert fourth.answer.cause is Cause.OPERATOR
        yield fourth.complete(retention=self.tick)
        yield Advance(self.tick)
        fifth = yield from won(B)
        assert fifth.answer.cause in self.after_expiry(Cause.RETENTION_EXPIRED)
        assert (yield read()).cause == fifth.answer.cause
        fences = [each.fence for each in (mine, again, third, fourth, fifth)]
        assert fences == sorted(set(fences)), "fences strictly increase (P3)"

    # -- recall: it may know nothing, but never more than a claim ------------------------------

    @rule("P8", cases={state.value: state for state in STATES})
    def test_recall_returns_what_a_claim_would(self, case: State) -> Script[None]:
        yield from reach(case, fingerprint=F1)
        recalled = yield Recalled(KEY.id)
        answer = yield claim(B)
        if recalled is not None and recalled.verdict is Verdict.REPLAY:
            assert case in (State.COMPLETED, State.FAILED), f"{case} is no answer"
            same = ("fence", "attempt", "cause", "state", "result", "fingerprint")
            assert [getattr(recalled, name) for name in same] == [getattr(answer, n) for n in same]

    @rule("P8")
    def test_recall_does_not_return_expired_answers(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"x", retention=self.tick)
        yield Advance(self.tick)
        recalled = yield Recalled(KEY.id)
        assert recalled is None or recalled.verdict is not Verdict.REPLAY

    @rule("P8", cases={"release": release(force=True), "forget": forget()})
    def test_recall_does_not_return_what_an_operator_took_back(self, case: Any) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"x")
        yield Recalled(KEY.id)
        assert (yield case) is Ack.OK
        recalled = yield Recalled(KEY.id)
        assert recalled is None or recalled.verdict is not Verdict.REPLAY
