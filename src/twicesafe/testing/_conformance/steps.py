"""Durable runs: steps are recorded once, by the run's owner; a suspended run has no owner until it is due."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from ..._core.protocol import Ack, Browse, Claimed, Count, History, Survey, Sweep, Verdict
from ..._core.run_requests import (
    FOREVER,
    Due,
    FailRun,
    FindDue,
    LoadRun,
    RecordStep,
    Restart,
    RewriteRun,
    Run,
    Signal,
    StartRun,
    Submit,
    Suspend,
    TidyRuns,
)
from ..._values.keys import Key
from ..._values.records import Cause, State
from ..._values.steps import Step, StepState
from .asking import HOUR, KEY, OTHER, A, B, C, Mine, claim, forget, read, release, resolve
from .bench import Advance, AtOnce, Reopen, Script
from .rules import Rules, rule

__all__ = ["StepRules"]

PRINT: Final = b"p" * 33


def start(
    by: bytes, key: Key = KEY, *, lease: int = HOUR, max_attempts: int = 5, **more: Any
) -> StartRun:
    return StartRun(
        key, by, lease, max_attempts, function="shop.checkout", arguments=b"j[1]", **more
    )


def started(by: bytes = A, key: Key = KEY, **settings: Any) -> Script[Mine]:
    answer = yield start(by, key, **settings)
    assert answer.verdict is Verdict.WON, answer
    return Mine(key.id, by, answer.fence, answer)


def step(mine: Mine, name: str = "charge", result: bytes | None = b"r", **more: Any) -> RecordStep:
    settings = {"kind": "run", "fingerprint": PRINT, "result": result, **more}
    return RecordStep(mine.id, mine.owner, mine.fence, name, **settings)


def suspend(mine: Mine, delay: int = HOUR, *waits: str) -> Suspend:
    return Suspend(mine.id, mine.owner, mine.fence, delay, waits)


def signal(name: str = "approval", value: bytes = b"jtrue", key: Key = KEY) -> Signal:
    return Signal(key.id, name, value, HOUR)


def steps_of(key: Key = KEY) -> Script[dict[str, Step]]:
    run: Run | None = yield LoadRun(key.id)
    return {} if run is None else {each.name: each for each in run.steps}


def failed(mine: Mine, **more: Any) -> FailRun:
    return FailRun(mine.id, mine.owner, mine.fence, 0, 5, FOREVER, "Boom", **more)


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


class StepRules(Rules):
    # -- rewriting ----------------------------------------------------------------------------

    @rule(needs="steps", cases=NAMES)
    def test_a_payload_of_a_run_is_rewritten_and_nothing_else(self, case: str) -> Script[None]:
        mine = yield from started(A)
        yield step(mine, case, b"old", undo=True)
        yield suspend(mine)
        row, known = (yield read()), (yield from steps_of())[case]
        assert (yield RewriteRun(KEY.id, case, b"old", b"new")) is Ack.OK
        assert (yield RewriteRun(KEY.id, case, b"old", b"new")) is Ack.OK, "a network retry"
        assert (yield RewriteRun(KEY.id, case, b"old", b"newer")) is Ack.LOST
        assert (yield RewriteRun(KEY.id, "", b"j[1]", b"j[2]")) is Ack.OK
        assert (yield RewriteRun(KEY.id, "", b"j[1]", b"j[3]")) is Ack.LOST
        assert (yield read()) == row
        run: Run = yield LoadRun(KEY.id)
        assert (run.function, run.arguments) == ("shop.checkout", b"j[2]")
        assert run.steps == [replace(known, result=b"new")]

    @rule(needs="steps")
    def test_a_run_in_progress_is_not_rewritten(self) -> Script[None]:
        """Its worker may repeat a step whose answer was lost, and must find the bytes that it sent."""
        mine = yield from started(A)
        yield step(mine, "charge", b"old")
        assert (yield RewriteRun(KEY.id, "charge", b"old", b"new")) is Ack.REFUSED
        assert (yield RewriteRun(KEY.id, "", b"j[1]", b"new")) is Ack.REFUSED
        assert (yield step(mine, "charge", b"old")) is Ack.OK
        assert (yield mine.complete(b"x")) is Ack.OK
        assert (yield RewriteRun(KEY.id, "charge", b"old", b"new")) is Ack.OK

    @rule(needs="steps")
    def test_what_is_not_there_is_not_rewritten(self) -> Script[None]:
        assert (yield RewriteRun(KEY.id, "charge", b"old", b"new")) is Ack.MISSING
        mine = yield from started(A)
        yield step(mine, "empty", None)
        yield suspend(mine)
        for name in ("charge", "empty"):
            assert (yield RewriteRun(KEY.id, name, b"old", b"new")) is Ack.MISSING
        assert (yield RewriteRun(OTHER.id, "", b"j[1]", b"new")) is Ack.MISSING

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
        assert (row.state, row.attempt) == (State.PARKED, 1)
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

    # -- failing, operators, retention --------------------------------------------------------

    @rule("P12", needs="steps")
    def test_a_failed_run_keeps_its_steps_and_is_never_swept(self) -> Script[None]:
        mine = yield from started(A)
        yield step(mine)
        assert (yield failed(mine)) is Ack.OK
        assert (yield failed(mine)) is Ack.OK, "only its answer was lost"
        yield Sweep(100)
        row = yield read()
        assert row.state is State.RELEASED
        again = yield from started(B)
        assert (again.answer.attempt, again.answer.cause) == (2, Cause.FAILED)
        assert [each.name for each in again.answer.steps or ()] == ["charge"]

    @rule(needs="steps")
    def test_release_keeps_the_steps_and_restart_drops_them(self) -> Script[None]:
        mine = yield from started(A)
        yield step(mine)
        assert (yield release()) is Ack.OK
        second = yield from started(B)
        assert (second.answer.cause, second.answer.attempt) == (Cause.OPERATOR, 1)
        assert [each.name for each in second.answer.steps or ()] == ["charge"]
        restart = Restart(KEY.id, "ann", "ticket 7", HOUR)
        assert (yield restart) is Ack.OK
        assert (yield step(second)) is Ack.LOST
        third = yield from started(C)
        assert third.answer.steps == []
        assert third.fence > second.fence

    @rule("P3", "P8", needs="steps")
    def test_a_run_after_retention_starts_without_the_old_steps(self) -> Script[None]:
        mine = yield from started(A)
        yield step(mine)
        yield signal("old")
        yield mine.complete(retention=self.tick)
        yield Advance(self.tick)
        again = yield from started(B)
        assert again.answer.steps == []
        assert (yield from steps_of()) == {}
        assert (yield step(again, "charge", b"new")) is Ack.OK

    @rule("P6", needs="steps")
    def test_tidying_removes_the_steps_of_swept_runs_only(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick)
        other = yield from started(A, OTHER, lease=self.tick)
        yield step(mine)
        yield step(other)
        yield mine.complete(retention=self.tick)
        yield Advance(2 * self.tick)
        yield Sweep(100)
        assert (yield TidyRuns(100)) == (1, b"")
        assert (yield LoadRun(KEY.id)) is None
        assert list((yield from steps_of(OTHER))) == ["charge"]

    @rule(needs="steps")
    def test_tidying_goes_on_where_it_stopped(self) -> Script[None]:
        keys = [Key(f"run-{number}") for number in range(5)]
        for key in keys:
            mine = yield from started(A, key, lease=self.tick)
            yield mine.complete(retention=self.tick)
        yield Advance(2 * self.tick)
        removed, after = yield TidyRuns(2)
        while after:
            more, after = yield TidyRuns(2, after)
            removed += more
        assert removed == 5

    @rule(needs="steps")
    def test_a_forgotten_run_loses_its_steps(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick)
        yield step(mine)
        yield mine.complete()
        yield forget()
        yield Advance(self.tick)
        yield TidyRuns(100)
        assert (yield LoadRun(KEY.id)) is None

    @rule(needs="steps")
    def test_a_run_that_an_operator_changed_is_looked_at_before_it_is_due(self) -> Script[None]:
        mine = yield from started(A)
        yield step(mine)
        yield suspend(mine, FOREVER)
        assert (yield TidyRuns(1, only=KEY.id)) == (0, b"")
        assert (yield FindDue(10, HOUR)).runs == []
        yield release()
        assert (yield TidyRuns(1, only=KEY.id)) == (0, b"")
        assert [each.key.id for each in (yield FindDue(10, HOUR)).runs] == [KEY.id]
        assert list((yield from steps_of())) == ["charge"]
        yield forget()
        assert (yield TidyRuns(1, only=KEY.id)) == (1, b"")
        assert (yield LoadRun(KEY.id)) is None
        assert (yield TidyRuns(1, only=KEY.id)) == (0, b"")

    @rule("P1", needs="steps")
    def test_steps_survive_a_restart_of_the_store(self) -> Script[None]:
        if not self.capabilities.durable:
            return
        mine = yield from started(A)
        yield step(mine)
        yield Reopen()
        assert (yield step(mine, "ship")) is Ack.OK
        assert sorted((yield from steps_of())) == ["charge", "ship"]

    # -- suspending ---------------------------------------------------------------------------

    @rule("P6", needs="steps")
    def test_a_suspended_run_has_no_owner_and_is_not_an_attempt(self) -> Script[None]:
        mine = yield from started(A)
        assert (yield suspend(mine)) is Ack.OK
        assert (yield suspend(mine)) is Ack.OK, "only its answer was lost"
        row = yield read()
        assert (row.state, row.attempt, row.expires_at) == (State.SUSPENDED, 0, 0)
        answer = yield start(B)
        assert (answer.verdict, answer.state) == (Verdict.RESTING, State.SUSPENDED)
        assert self.near(answer.wait, HOUR)
        for refused in (step(mine), mine.renew(), mine.complete(), failed(mine), mine.abandon()):
            assert (yield refused) is Ack.LOST, refused
        assert (yield forget()) is Ack.REFUSED
        yield Sweep(100)
        assert (yield read()) == row

    @rule(needs="steps")
    def test_a_suspended_run_is_counted_and_found(self) -> Script[None]:
        mine = yield from started(A)
        yield suspend(mine)
        yield from started(A, OTHER)
        stats = yield Survey()
        assert stats.by_state == {State.SUSPENDED: 1, State.IN_PROGRESS: 1}
        assert stats.stuck == 0
        page = yield Browse(10, states=(State.SUSPENDED,))
        assert [(row.value, row.state) for row in page.rows] == [(KEY.value, State.SUSPENDED)]
        assert page.rows[0] == (yield read())
        assert (yield Count(10, states=(State.SUSPENDED,))) == 1
        assert (yield Count(10, cause=Cause.RESUMED)) == 1

    @rule("P12", needs="steps")
    def test_a_suspended_run_is_claimed_when_it_is_due(self) -> Script[None]:
        mine = yield from started(A)
        yield suspend(mine, self.tick)
        yield Advance(self.tick)
        again = yield from started(B)
        assert (again.answer.attempt, again.answer.cause) == (1, Cause.RESUMED)
        assert again.fence > mine.fence
        assert (yield step(mine)) is Ack.LOST

    @rule(needs="steps")
    def test_only_the_owner_suspends(self) -> Script[None]:
        mine = yield from started(A)
        assert (yield suspend(mine.replace(owner=B))) is Ack.LOST
        assert (yield suspend(mine.replace(fence=mine.fence + 1))) is Ack.LOST
        assert (yield read()).state is State.IN_PROGRESS
        absent = Mine(OTHER.id, A, 1, mine.answer)
        assert (yield suspend(absent)) is Ack.MISSING

    @rule(needs="steps")
    def test_an_operator_releases_or_resolves_a_suspended_run(self) -> Script[None]:
        mine = yield from started(A)
        yield suspend(mine)
        assert (yield release()) is Ack.OK
        assert (yield read()).state is State.RELEASED
        again = yield from started(B)
        yield suspend(again)
        assert (yield resolve(result=b"by hand")) is Ack.OK
        assert (yield start(C)).result == b"by hand"

    @rule("P6", needs="steps")
    def test_a_suspended_run_parks_if_its_attempts_are_used_up(self) -> Script[None]:
        for _ in range(2):
            mine = yield from started(A, max_attempts=3)
            yield failed(mine)
        mine = yield from started(A, max_attempts=3)
        yield suspend(mine, 0)
        assert (yield read()).attempt == 2
        assert (yield start(B, max_attempts=1)).verdict is Verdict.PARKED
        assert (yield read()).state is State.PARKED

    @rule("P6", needs="steps")
    def test_a_sleep_is_due_when_it_was(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick)
        sleep = step(mine, "nap", None, kind="sleep", state=StepState.WAITING, delay=HOUR)
        assert (yield sleep) is Ack.OK
        first = (yield from steps_of())["nap"]
        assert self.near(first.due_at - mine.answer.now, HOUR)
        yield Advance(self.tick)
        other = yield from started(B)
        later = replace(sleep, owner=B, fence=other.fence, delay=5 * HOUR)
        assert (yield later) is Ack.OK
        assert (yield from steps_of())["nap"].due_at == first.due_at

    # -- signals ------------------------------------------------------------------------------

    @rule(needs="steps")
    def test_the_first_signal_stays(self) -> Script[None]:
        mine = yield from started(A)
        assert (yield signal(value=b"first")) is True
        assert (yield signal(value=b"second")) is False
        found = (yield from steps_of())["approval"]
        assert (found.state, found.result, found.kind) == (StepState.DONE, b"first", "wait")
        assert (yield step(mine, "approval", b"mine", kind="wait", fingerprint=b"")) is Ack.REFUSED

    @rule(needs="steps")
    def test_a_signal_before_its_run_is_kept(self) -> Script[None]:
        assert (yield signal(value=b"early")) is True
        assert (yield read()) is None
        mine = yield from started(A, lease=self.tick)
        assert [each.result for each in mine.answer.steps or ()] == [b"early"]
        assert (yield from steps_of())["approval"].fence == mine.fence, "it belongs to this run"
        yield Advance(self.tick)
        other = yield from started(B)
        assert [each.result for each in other.answer.steps or ()] == [b"early"]

    @rule("P8", needs="steps")
    def test_a_signal_after_a_run_outlives_its_steps(self) -> Script[None]:
        """The run before it is over, and its steps may be removed at any time."""
        mine = yield from started(A, lease=self.tick)
        yield step(mine)
        yield mine.complete(retention=self.tick)
        yield Advance(2 * self.tick)
        assert (yield signal(value=b"early")) is True
        yield Sweep(100)
        yield TidyRuns(100)
        again = yield from started(B)
        assert [each.result for each in again.answer.steps or ()] == [b"early"]

    @rule("P8", needs="steps")
    def test_a_signal_after_a_failed_run_belongs_to_the_next(self) -> Script[None]:
        """That run has a cause, unlike other first runs of a record."""
        mine = yield from started(A)
        yield replace(failed(mine), retention=self.tick)
        yield Advance(self.tick)
        assert (yield signal(value=b"early")) is True
        again = yield from started(B)
        assert (again.answer.attempt, again.answer.cause) == (1, Cause.FAILED)
        assert (yield from steps_of())["approval"].fence == again.fence

    @rule(needs="steps")
    def test_a_signal_for_the_next_run_of_a_key_is_kept(self) -> Script[None]:
        """The last run and its retention are over; its own signal and steps are still there."""
        mine = yield from started(A, lease=self.tick)
        yield step(mine)
        assert (yield signal(value=b"old")) is True
        yield mine.complete(retention=self.tick)
        yield Advance(2 * self.tick)
        assert (yield signal(value=b"new")) is True
        assert (yield signal(value=b"newer")) is False
        assert (yield FindDue(10, HOUR)).runs == []
        assert (yield TidyRuns(100)) == (0, b"")
        again = yield from started(B)
        assert [(each.name, each.result) for each in again.answer.steps or ()] == [
            ("approval", b"new")
        ]

    @rule(needs="steps")
    def test_every_signal_before_its_run_has_its_own_retention(self) -> Script[None]:
        yield replace(signal("first"), retention=self.tick)
        yield signal("second")
        yield Advance(2 * self.tick)
        yield TidyRuns(100)
        assert "second" in (yield from steps_of())

    @rule(needs="steps")
    def test_a_signal_makes_the_run_that_waits_for_it_due(self) -> Script[None]:
        mine = yield from started(A)
        wait = step(mine, "approval", None, kind="wait", state=StepState.WAITING, fingerprint=b"")
        assert (yield wait) is Ack.OK
        yield suspend(mine, HOUR, "approval")
        assert (yield signal("something else")) is True
        assert (yield start(B)).verdict is Verdict.RESTING
        assert (yield signal()) is True
        other = yield from started(B)
        found = {each.name: each.state for each in other.answer.steps or ()}
        assert found["approval"] is StepState.DONE

    @rule(needs="steps")
    def test_a_signal_that_came_before_the_suspension_is_not_missed(self) -> Script[None]:
        mine = yield from started(A)
        wait = step(mine, "approval", None, kind="wait", state=StepState.WAITING, fingerprint=b"")
        yield wait
        assert (yield signal()) is True
        yield suspend(mine, HOUR, "approval")
        yield from started(B)

    @rule(needs="steps")
    def test_a_signal_of_an_operator_is_in_the_audit_trail_of_its_run(self) -> Script[None]:
        yield replace(signal("early"), by="ann", why="there is no record yet")
        yield from started(A)
        yield signal("program")
        yield replace(signal(), by="ann", why="looks good")
        yield replace(signal(), by="bob", why="refused: it has a value")
        trail = yield History(KEY.id)
        assert [(entry.action, entry.by, entry.why) for entry in trail] == [
            ("signal", "ann", "looks good")
        ]
        assert trail[0].state_before is State.IN_PROGRESS

    @rule(needs="steps")
    def test_a_run_that_is_over_takes_no_signal(self) -> Script[None]:
        mine = yield from started(A)
        yield mine.complete()
        assert (yield signal()) is False

    @rule("P1", needs="steps")
    def test_a_signal_and_a_time_out_leave_one_value(self) -> Script[None]:
        mine = yield from started(A)
        wait = step(mine, "approval", None, kind="wait", state=StepState.WAITING, fingerprint=b"")
        yield wait
        over = replace(wait, state=StepState.DONE, result=b"time-out")
        answers = yield AtOnce([signal(value=b"yes"), over])
        value = (yield from steps_of())["approval"].result
        assert (answers, value) in (
            ([True, Ack.REFUSED], b"yes"),
            ([False, Ack.OK], b"time-out"),
        )

    # -- submitting, and finding what is due --------------------------------------------------

    @rule("P1", needs="steps")
    def test_a_submitted_run_is_due_at_once(self) -> Script[None]:
        ask = Submit(
            KEY, A, HOUR, 5, False, b"f" * 33, function="shop.checkout", arguments=b"j[7]"
        )  # fmt: skip
        answer = yield ask
        assert answer.verdict is Verdict.WON
        assert (yield ask).fence == answer.fence, "a network retry"
        assert (yield replace(ask, owner=B)).verdict is not Verdict.WON
        assert (yield replace(ask, owner=B, fingerprint=b"g" * 33)).verdict is Verdict.MISMATCH
        row = yield read()
        assert (row.state, row.attempt) == (State.SUSPENDED, 0)
        found: Due = yield FindDue(10, HOUR)
        (run,) = found.runs
        assert (run.key, run.function, run.arguments) == (KEY, "shop.checkout", b"j[7]")
        assert (yield FindDue(10, HOUR)).runs == [], "another completer works on it"
        mine = yield from started(B)
        assert mine.answer.attempt == 1
        yield mine.complete(b"x")
        assert (yield replace(ask, owner=C)).result == b"x"

    @rule(needs="steps")
    def test_what_is_due_is_found(self) -> Script[None]:
        abandoned = yield from started(A, Key("abandoned"), lease=self.tick)
        asleep = yield from started(A, Key("asleep"))
        yield suspend(asleep, self.tick)
        broken = yield from started(A, Key("failed"))
        yield failed(broken)
        done = yield from started(A, Key("done"))
        yield done.complete()
        yield from started(A, Key("callers only"), lease=self.tick, completes=False)
        yield from started(A, Key("running"))
        sleeping = yield from started(A, Key("sleeping"))
        yield suspend(sleeping)
        yield claim(A, Key("plain"), lease=self.tick)
        yield Advance(self.tick)
        found: Due = yield FindDue(100, HOUR)
        assert {run.key.value for run in found.runs} == {"abandoned", "asleep", "failed"}
        assert not found.more
        assert abandoned.answer.attempt == 1

    @rule(needs="steps", exact_time=True)
    def test_a_live_lease_is_looked_at_again_when_it_ends(self) -> Script[None]:
        mine = yield from started(A, lease=self.tick)
        yield mine.renew(4 * self.tick)
        yield Advance(2 * self.tick)
        assert (yield FindDue(10, HOUR)).runs == []
        yield Advance(4 * self.tick)
        assert [run.key for run in (yield FindDue(10, HOUR)).runs] == [KEY]

    @rule("P1", needs="steps")
    def test_two_completers_find_different_runs(self) -> Script[None]:
        for number in range(6):
            mine = yield from started(A, Key(f"run-{number}"))
            yield suspend(mine, 0)
        asks = [FindDue(10, HOUR), FindDue(10, HOUR)]
        found = yield AtOnce(asks, elsewhere=self.capabilities.durable)
        keys = [run.key.value for each in found for run in each.runs]
        assert sorted(keys) == [f"run-{number}" for number in range(6)]

    @rule(needs="steps")
    def test_finding_is_bounded(self) -> Script[None]:
        for number in range(5):
            mine = yield from started(A, Key(f"run-{number}"))
            yield suspend(mine, 0)
        first: Due = yield FindDue(3, HOUR)
        assert (len(first.runs), first.more) == (3, True)
        second: Due = yield FindDue(3, HOUR)
        assert (len(second.runs), second.more) == (2, False)
