"""Completion (P4): only the owner records a result, and only once; a repeat changes nothing.

A late owner may still complete if there was no takeover. A record that was deleted cannot be completed.
"""

from __future__ import annotations

from typing import Final

from ..._core.protocol import Ack, Verdict
from ..._values.records import State
from .bench import Advance, Script
from .requests import HOUR, A, B, C, claim, forget, reach, read, release, resolve, unchanged, won
from .rules import StoreRules, rule

__all__ = ["CompletionRules"]

LARGE: Final = 2048
"""Near this size, stores move results out of the row."""

RESULTS: Final[dict[str, bytes | None]] = {
    "none": None,
    "empty": b"",
    "zero": b"0",
    "nul": b"\0",
    "null": b"null",
    "false": b"false",
    "every_byte": bytes(range(256)),
    "not_utf8": b"\xc3\x28\xff\xfe",
    "2047": b"a" * (LARGE - 1),
    "2048": b"b" * LARGE,
    "2049": b"c" * (LARGE + 1),
    "262144": bytes(range(256)) * 1024,
}

ENDS: Final = {"completed": State.COMPLETED, "failed": State.FAILED}


class CompletionRules(StoreRules):
    @rule("P4", cases=ENDS)
    def test_the_owner_completes(self, case: State) -> Script[None]:
        mine = yield from won(A, fingerprint=b"f" * 32)
        before = yield read()
        assert (yield mine.complete(b"r", state=case, error="E", retention=5 * HOUR)) is Ack.OK
        row = yield read()
        assert (row.state, row.result, row.error) == (case, b"r", "E")
        assert (row.owner, row.fence, row.attempt) == (A, mine.fence, 1)
        assert (row.scope, row.value, row.fingerprint) == (
            before.scope,
            before.value,
            before.fingerprint,
        )
        assert row.created_at == before.created_at
        assert row.lease_until == 0
        assert row.expires_at == row.changed_at + 5 * HOUR

    @rule("P6", exact_time=True)
    def test_retention_counts_from_completion(self) -> Script[None]:
        mine = yield from won(A)
        claimed = (yield read()).changed_at
        yield Advance(10 * HOUR)
        yield mine.complete(b"x", retention=1000)
        row = yield read()
        assert row.changed_at == claimed + 10 * HOUR
        assert row.expires_at == claimed + 10 * HOUR + 1000

    @rule("P4", cases=ENDS)
    def test_completing_again_is_ok_and_changes_nothing(self, case: State) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"first", state=case)
        yield from unchanged(mine.complete(b"first", state=case), Ack.OK)
        yield from unchanged(mine.complete(b"second"), Ack.OK)
        yield from unchanged(mine.remember(b"third"), Ack.OK)
        yield from unchanged(mine.complete(b"big" * 1000), Ack.OK)

    @rule("P4")
    def test_a_late_owner_completes_if_there_was_no_takeover(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        yield Advance(2 * self.tick)
        assert (yield mine.complete(b"late")) is Ack.OK
        assert (yield claim(B)).result == b"late"

    @rule("P4", cases={"held": State.HELD, "parked": State.PARKED})
    def test_the_owner_completes_a_held_or_parked_key(self, case: State) -> Script[None]:
        mine = yield from reach(case)
        yield from unchanged(mine.replace(owner=B).complete(b"no"), Ack.LOST)
        yield from unchanged(mine.replace(fence=mine.fence + 1).complete(b"no"), Ack.LOST)
        assert (yield mine.complete(b"done after all", retention=HOUR)) is Ack.OK
        row = yield read()
        assert (row.state, row.expires_at) == (State.COMPLETED, row.changed_at + HOUR)
        assert (yield claim(B)).result == b"done after all"

    @rule("P4")
    def test_the_owner_completes_a_key_that_a_later_claim_held(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick, hold=True)
        yield Advance(self.tick)
        yield claim(B)
        assert (yield mine.complete(b"late")) is Ack.OK
        assert (yield claim(C)).result == b"late"

    @rule("P4")
    def test_an_expired_claim_cannot_complete_its_successor(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.complete(b"x", retention=self.tick)
        yield Advance(self.tick)
        second = yield from won(B)
        yield from unchanged(mine.complete(b"zombie"), Ack.LOST)
        assert (yield second.complete(b"y")) is Ack.OK

    @rule("P4")
    def test_an_owner_that_failed_or_abandoned_cannot_complete(self) -> Script[None]:
        mine = yield from won(A)
        yield mine.fail()
        yield from unchanged(mine.complete(b"no"), Ack.LOST)
        other = yield from won(B)
        yield other.abandon()
        yield from unchanged(other.complete(b"no"), Ack.LOST)

    @rule("P4")
    def test_an_operators_decision_is_final_for_the_owner(self) -> Script[None]:
        mine = yield from won(A)
        yield resolve()
        yield from unchanged(mine.complete(b"late"), Ack.LOST)
        yield release(force=True)
        yield from unchanged(mine.complete(b"late"), Ack.LOST)
        yield forget()
        yield from unchanged(mine.complete(b"late"), Ack.LOST)

    @rule("P4", cases=RESULTS)
    def test_a_result_comes_back_byte_for_byte(self, case: bytes | None) -> Script[None]:
        mine = yield from won(A)
        assert (yield mine.complete(case)) is Ack.OK
        answer = yield claim(B)
        assert answer.verdict is Verdict.REPLAY
        assert answer.result == case
        assert type(answer.result) is type(case)
        assert (yield read()).result == case

    @rule(cases={"small_then_big": (b"s", b"B" * 5000), "big_then_small": (b"B" * 5000, b"s")})
    def test_a_key_that_runs_again_gets_a_new_result(
        self, case: tuple[bytes, bytes]
    ) -> Script[None]:
        first, second = case
        mine = yield from won(A)
        yield mine.complete(first)
        yield release(force=True)
        assert (yield read()).result is None
        again = yield from won(B)
        yield again.complete(second)
        assert (yield claim(C)).result == second

    @rule()
    def test_a_large_result_can_be_resolved(self) -> Script[None]:
        yield from reach(State.HELD)
        yield resolve(result=b"B" * 5000)
        assert (yield claim(B)).result == b"B" * 5000
