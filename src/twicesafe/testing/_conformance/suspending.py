"""Durable runs: a suspended run has no owner until it is due, or until its signal comes."""

from __future__ import annotations

from msgspec.structs import replace

from ..._core.durable.run_requests import FindDue, Submit, TidyRuns
from ..._core.protocol import Ack, Browse, Count, History, Survey, Sweep, Verdict
from ..._values.records import Cause, State
from ..._values.steps import StepState
from .bench import Advance, AtOnce, Script
from .requests import HOUR, KEY, OTHER, A, B, C, Mine, forget, read, release, resolve
from .rules import StoreRules, rule
from .run_requests import failed, signal, start, started, step, steps_of, suspend

__all__ = ["SuspendingRules"]


class SuspendingRules(StoreRules):
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

    @rule(needs="steps")
    def test_a_signal_before_its_run_is_kept_however_soon_the_run_starts_again(
        self,
    ) -> Script[None]:
        """In the millisecond in which the run was created, what belongs to it must not look like an older run's."""
        yield signal(value=b"early")
        yield Advance(self.tick)
        yield Submit(KEY, A, HOUR, 5, function="shop.checkout", arguments=b"j[1]")
        first = yield from started(A)
        assert [each.result for each in first.answer.steps or ()] == [b"early"], (
            "after a submission"
        )
        yield failed(first)
        again = yield from started(B)
        assert [each.result for each in again.answer.steps or ()] == [b"early"], "after a failure"

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
