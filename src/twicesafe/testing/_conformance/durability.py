"""Durability: what survives reopening a store, and what a second store object sees at once."""

from __future__ import annotations

from ..._core.protocol import Ack, Browse, History, Survey, Sweep, Verdict
from ..._values.keys import Key
from ..._values.records import State
from .bench import Advance, Elsewhere, Reopen, Script
from .requests import KEY, STATES, A, B, C, claim, reach, read, release, won
from .retention import expiring
from .rules import StoreRules, rule

__all__ = ["DurabilityRules"]


class DurabilityRules(StoreRules):
    # -- the store is closed and opened again -------------------------------------------------

    @rule("P1", needs="durable", cases={state.value: state for state in STATES})
    def test_a_record_is_the_same_after_reopening(self, case: State) -> Script[None]:
        yield from reach(case, fingerprint=bytes(range(32)), hold=True)
        before = yield read()
        yield Reopen()
        assert (yield read()) == before
        assert (yield Browse(10)).rows == [before]
        assert (yield Survey()).by_state == {case: 1}

    @rule("P2", "P4", needs="durable")
    def test_an_owner_continues_after_reopening(self) -> Script[None]:
        mine = yield from won(A)
        yield Reopen()
        assert (yield claim(A)) == mine.answer
        assert (yield mine.renew()) is Ack.OK
        assert (yield mine.complete(b"B" * 5000)) is Ack.OK
        yield Reopen()
        assert (yield mine.complete(b"again")) is Ack.OK
        assert (yield claim(B)).result == b"B" * 5000

    @rule("P3", needs="durable")
    def test_fences_keep_increasing_after_reopening(self) -> Script[None]:
        mine = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        yield Reopen()
        second = yield from won(B)
        yield release()
        yield Reopen()
        third = yield from won(C)
        assert mine.fence < second.fence < third.fence

    @rule("P3", needs="durable")
    def test_fences_keep_increasing_after_a_sweep_and_reopening(self) -> Script[None]:
        fence = yield from expiring(State.COMPLETED, self.tick)
        yield Advance(self.tick)
        yield Sweep(100)
        yield Reopen()
        again = yield from won(B)
        assert again.fence > fence

    @rule("P5", needs="durable", exact_time=True)
    def test_time_continues_after_reopening(self) -> Script[None]:
        yield from won(A, lease=1000)
        yield Advance(999)
        yield Reopen()
        assert (yield claim(B)).verdict is Verdict.BUSY
        yield Advance(1)
        assert (yield claim(B)).verdict is Verdict.WON

    @rule(needs="durable")
    def test_the_audit_trail_survives_reopening(self) -> Script[None]:
        yield from reach(State.HELD)
        yield release()
        before = yield History(KEY.id)
        assert len(before) == 1
        yield Reopen()
        assert (yield History(KEY.id)) == before

    # -- two store objects on the same data ---------------------------------------------------

    @rule("P1", needs="shared")
    def test_a_claim_is_seen_elsewhere_at_once(self) -> Script[None]:
        mine = yield from won(A)
        assert (yield Elsewhere(claim(B))).verdict is Verdict.BUSY
        assert (yield Elsewhere(read())) == (yield read())
        yield mine.complete(b"x")
        assert (yield Elsewhere(claim(B))).result == b"x"

    @rule("P2", "P4", needs="shared")
    def test_an_owner_may_continue_on_another_store_object(self) -> Script[None]:
        mine = yield from won(A)
        assert (yield Elsewhere(claim(A))) == mine.answer
        assert (yield Elsewhere(mine.renew())) is Ack.OK
        assert (yield Elsewhere(mine.complete(b"x"))) is Ack.OK
        assert (yield mine.complete(b"x")) is Ack.OK

    @rule("P3", needs="shared")
    def test_fences_increase_across_store_objects(self) -> Script[None]:
        first = yield from won(A, lease=self.tick)
        yield Advance(self.tick)
        answer = yield Elsewhere(claim(B))
        assert answer.fence > first.fence
        assert (yield first.complete(b"zombie")) is Ack.LOST
        yield Elsewhere(release())
        third = yield from won(C)
        assert third.fence > answer.fence

    @rule("P3", needs="shared")
    def test_fences_keep_increasing_after_a_sweep_by_another_store_object(self) -> Script[None]:
        fence = yield from expiring(State.COMPLETED, self.tick)
        yield Advance(self.tick)
        yield Elsewhere(Sweep(100))
        assert (yield from won(B)).fence > fence

    @rule("P6", needs="shared")
    def test_a_sweep_by_another_store_object_keeps_live_records(self) -> Script[None]:
        yield from won(A, Key("alive"), lease=self.tick)
        yield from expiring(State.COMPLETED, self.tick, Key("dead"))
        yield Advance(self.tick)
        yield Elsewhere(Sweep(100))
        assert (yield Survey()).by_state == {State.IN_PROGRESS: 1}
