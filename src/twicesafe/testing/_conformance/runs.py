"""Durable runs: what is kept when they fail, end or are changed by an operator, and which are due."""

from __future__ import annotations

from msgspec.structs import replace

from ..._core.durable.run_requests import FOREVER, Due, FindDue, LoadRun, Restart, Submit, TidyRuns
from ..._core.protocol import Ack, Sweep, Verdict
from ..._values.keys import Key
from ..._values.records import Cause, State
from .bench import Advance, AtOnce, Reopen, Script
from .requests import HOUR, KEY, OTHER, A, B, C, claim, forget, read, release
from .rules import StoreRules, rule
from .run_requests import failed, signal, started, step, steps_of, suspend

__all__ = ["RunRules"]


class RunRules(StoreRules):
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
        (run,) = (yield FindDue(10, HOUR)).runs
        assert run.key == KEY
        assert self.tick < run.overdue < 3 * self.tick, "since its lease has ended"

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
