"""Durable runs: a run is claimed like any key, and its steps are recorded once, by its owner."""

from __future__ import annotations

from typing import Final

from ..._core.durable.run_requests import LoadRun
from ..._core.protocol import Ack, Claimed, Verdict
from ..._values.records import Cause, State
from ..._values.steps import StepState
from .bench import Advance, AtOnce, Script
from .requests import KEY, OTHER, A, B, C, Mine, claim, read
from .rules import StoreRules, rule
from .run_requests import PRINT, start, started, step, steps_of

__all__ = ["StepRules"]

NAMES: Final = {
    "plain": "charge",
    "unicode": "zahlung ü 漢 🙂",
    "quoted": 'it\'s; -- "x" %s $1 ?',
    "long": "n" * 200,
}
RESULTS: Final[dict[str, bytes | None]] = {
    "none": None,
    "empty": b"",
    "every_byte": bytes(range(256)),
    "262144": bytes(range(256)) * 1024,
}


class StepRules(StoreRules):
    # -- starting -----------------------------------------------------------------------------

    @rule("P1", needs="steps")
    def test_a_run_is_claimed_like_any_key(self) -> Script[None]:
        mine = yield from started(A)
        assert (mine.answer.attempt, mine.answer.cause, mine.answer.steps) == (1, None, [])
        assert mine.answer.now > 0
        assert (yield start(B)).verdict is Verdict.BUSY
        assert (yield claim(B)).verdict is Verdict.BUSY
        assert (yield read()).state is State.IN_PROGRESS
        assert (yield mine.complete(b"x")) is Ack.OK
        assert (yield start(B)).result == b"x"

    @rule("P2", needs="steps")
    def test_a_network_retry_of_a_start_gets_the_same_fence_and_all_steps(self) -> Script[None]:
        mine = yield from started(A)
        yield step(mine)
        again = yield start(A)
        assert (again.verdict, again.fence) == (Verdict.WON, mine.fence)
        assert [each.name for each in again.steps] == ["charge"]

    @rule("P11", needs="steps")
    def test_other_arguments_under_the_key_are_a_mismatch(self) -> Script[None]:
        yield from started(A, fingerprint=b"f" * 33)
        assert (yield start(B, fingerprint=b"g" * 33)).verdict is Verdict.MISMATCH

    @rule("P12", needs="steps")
    def test_a_takeover_gets_the_recorded_steps(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick)
        yield step(mine, "charge", b"paid", attempt=2, position=1, undo=True)
        yield step(mine, "ship", b"sent", position=2)
        yield Advance(self.tick)
        other = yield from started(B)
        assert (other.answer.attempt, other.answer.cause) == (2, Cause.LEASE_EXPIRED)
        found = {each.name: each for each in other.answer.steps or ()}
        assert sorted(found) == ["charge", "ship"]
        charge = found["charge"]
        assert (charge.result, charge.fingerprint, charge.state) == (b"paid", PRINT, StepState.DONE)
        assert (charge.attempt, charge.position, charge.undo) == (2, 1, True)
        assert (charge.kind, charge.fence) == ("run", mine.fence)
        assert found["ship"].undo is False

    @rule(needs="steps")
    def test_a_run_of_many_steps_comes_back_whole(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick)
        for number in range(120):
            assert (yield step(mine, f"step-{number}", b"%d" % number, position=number)) is Ack.OK
        yield Advance(self.tick)
        other = yield from started(B)
        assert {each.name: each.result for each in other.answer.steps or ()} == {
            f"step-{number}": b"%d" % number for number in range(120)
        }

    @rule("P6", needs="steps")
    def test_a_run_without_an_undo_parks_after_its_attempts(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick, max_attempts=1)
        yield step(mine)
        yield Advance(self.tick)
        assert (yield start(B, max_attempts=1)).verdict is Verdict.PARKED
        row = yield read()
        assert (row.state, row.attempt, row.error) == (State.PARKED, 1, "never finished")
        assert (yield start(C, max_attempts=1)).verdict is Verdict.PARKED

    @rule("P6", needs="steps")
    def test_a_run_with_an_undo_may_be_claimed_as_often_again(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick, max_attempts=1)
        yield step(mine, undo=True)
        yield Advance(self.tick)
        other = yield from started(B, lease=self.tick, max_attempts=1)
        assert other.answer.attempt == 2
        yield Advance(self.tick)
        assert (yield start(C, max_attempts=1)).verdict is Verdict.PARKED

    # -- recording ----------------------------------------------------------------------------

    @rule("P4", needs="steps", cases=NAMES)
    def test_a_name_comes_back_as_it_was(self, case: str) -> Script[None]:
        mine = yield from started(A)
        assert (yield step(mine, case)) is Ack.OK
        assert list((yield from steps_of())) == [case]

    @rule("P4", needs="steps", cases=RESULTS)
    def test_a_result_comes_back_byte_for_byte(self, case: bytes | None) -> Script[None]:
        mine = yield from started(A)
        assert (yield step(mine, "charge", case)) is Ack.OK
        assert (yield from steps_of())["charge"].result == case

    @rule("P4", needs="steps")
    def test_names_that_look_alike_are_different_steps(self) -> Script[None]:
        mine = yield from started(A)
        names = ["charge", "Charge", "charge ", "chargé"]
        for name in names:
            assert (yield step(mine, name, name.encode())) is Ack.OK
        found = yield from steps_of()
        assert {name: found[name].result for name in names} == {n: n.encode() for n in names}

    @rule("P4", needs="steps")
    def test_recording_again_is_ok_and_changes_nothing(self) -> Script[None]:
        mine = yield from started(A)
        yield step(mine)
        before = yield from steps_of()
        assert (yield step(mine)) is Ack.OK
        assert (yield step(mine, result=b"other")) is Ack.REFUSED
        assert (yield step(mine, fingerprint=b"q" * 33)) is Ack.REFUSED
        assert (yield step(mine, kind="capture")) is Ack.REFUSED
        assert (yield from steps_of()) == before

    @rule("P3", "P4", needs="steps")
    def test_only_the_owner_with_its_fence_records(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick)
        assert (yield step(mine.replace(owner=B))) is Ack.LOST
        assert (yield step(mine.replace(fence=mine.fence + 1))) is Ack.LOST
        yield Advance(self.tick)
        assert (yield step(mine, "late")) is Ack.OK, "no other worker took over"
        other = yield from started(B)
        assert (yield step(mine)) is Ack.LOST, "a zombie records nothing"
        assert list((yield from steps_of())) == ["late"]
        assert (yield step(other)) is Ack.OK

    @rule("P4", needs="steps")
    def test_no_step_without_a_run(self) -> Script[None]:
        absent = Mine(KEY.id, A, 1, Claimed(Verdict.WON))
        assert (yield step(absent)) is Ack.MISSING
        assert (yield LoadRun(KEY.id)) is None
        mine = yield from started(A)
        yield mine.complete()
        assert (yield step(mine)) is Ack.LOST

    @rule("P4", needs="steps")
    def test_a_step_that_was_started_can_be_recorded_by_the_next_owner(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick)
        assert (yield step(mine, result=None, state=StepState.STARTED)) is Ack.OK
        yield Advance(self.tick)
        other = yield from started(B)
        assert [each.state for each in other.answer.steps or ()] == [StepState.STARTED]
        assert (yield step(other, result=b"found")) is Ack.OK
        found = (yield from steps_of())["charge"]
        assert (found.state, found.result) == (StepState.DONE, b"found")

    @rule("P1", needs="steps")
    def test_steps_of_parallel_branches_are_all_recorded(self) -> Script[None]:
        mine = yield from started(A)
        asks = [step(mine, f"branch-{number}") for number in range(8)]
        assert (yield AtOnce(asks, elsewhere=self.capabilities.durable)) == [Ack.OK] * 8
        assert len((yield from steps_of())) == 8

    @rule(needs="steps")
    def test_steps_can_be_sent_in_one_batch(self) -> Script[None]:
        mine = yield from started(A)
        asks = [step(mine, f"n{number}") for number in range(5)] + [step(mine, "n0", b"other")]
        assert (yield asks) == [Ack.OK] * 5 + [Ack.REFUSED]

    @rule("P6", needs="steps")
    def test_runs_do_not_share_steps(self) -> Script[None]:
        mine = yield from started(A)
        other = yield from started(A, OTHER)
        yield step(mine, "charge", b"1")
        yield step(other, "charge", b"2")
        assert (yield from steps_of())["charge"].result == b"1"
        assert (yield from steps_of(OTHER))["charge"].result == b"2"
