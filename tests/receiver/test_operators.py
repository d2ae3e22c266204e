"""What operators do: look, release, resolve, forget, sweep, count, browse; all of it on the record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from twicesafe import Key, LeaseLostError, ParkedError, ResultUnavailableError, State, UsageError
from twicesafe import events as ev
from twicesafe._core.protocol import Browse


def park(bench: Bench, key: str = "k") -> None:
    parked = bench.receiver.options(policy=bench.receiver.policy.replace(max_attempts=1))
    with pytest.raises(ValueError, match="no luck"):
        bench.call(parked.process, key, bench.in_mode(Counter().failing))
    assert bench.record(key).state is State.PARKED


def test_release_lets_the_next_delivery_run(bench: Bench) -> None:
    park(bench)
    bench.release("k", by="ann", why="bank is back")
    outcome = bench.process("k", Counter().quick)
    assert (outcome.attempt, outcome.replayed) == (1, False)
    assert bench.record("k").cause == "operator"
    (entry,) = bench.audit("k")
    assert (entry.action, entry.by, entry.why) == ("release", "ann", "bank is back")
    assert entry.state_before is State.PARKED


def test_release_of_a_completed_key_needs_force(bench: Bench) -> None:
    counter = Counter()
    first = bench.process("k", counter.quick)
    with pytest.raises(UsageError, match="force=True"):
        bench.release("k", by="ann")
    assert bench.process("k", counter.quick).replayed
    bench.release("k", by="ann", force=True)
    again = bench.process("k", counter.quick)
    assert (again.replayed, counter.runs) == (False, 2)
    assert again.fence > first.fence


def test_release_fences_off_an_owner_that_still_runs(bench: Bench) -> None:
    zombie, other = Counter("old"), bench.new_receiver()
    first = bench.start(bench.process, "k", zombie.slow)
    assert zombie.entered.wait(60)
    bench.release("k", by="ann")
    assert bench.call(other.process, "k", bench.in_mode(Counter("new").quick)).value == "new"
    zombie.go_on.set()
    with pytest.raises(LeaseLostError):
        first.result(120)
    assert bench.process("k", zombie.quick).value == "new"


def test_resolve_records_an_answer_by_hand(bench: Bench) -> None:
    park(bench)
    bench.resolve("k", {"paid": True}, by="bob", why="seen at the bank")
    counter = Counter()
    outcome = bench.process("k", counter.quick)
    assert (outcome.value, outcome.replayed, counter.runs) == ({"paid": True}, True, 0)
    with pytest.raises(UsageError, match="completed"):
        bench.resolve("k", 1, by="bob")
    assert [entry.action for entry in bench.audit("k")] == ["resolve"]


def test_forget_erases_but_a_late_duplicate_does_not_run(bench: Bench) -> None:
    counter = Counter("personal data")
    bench.process("k", counter.quick)
    bench.forget("k", by="dpo", why="request 17")
    with pytest.raises(ResultUnavailableError, match="forgotten"):
        bench.process("k", counter.quick)
    assert counter.runs == 1
    record = bench.record("k")
    assert (record.state, record.value, record.scope) == (State.FORGOTTEN, "", ())
    assert record.result_bytes is None
    bench.forget("k")
    assert [entry.action for entry in bench.audit("k")] == ["forget"]


@pytest.mark.parametrize("act", ["release", "resolve"])
def test_the_error_for_a_forgotten_key_offers_nothing_that_is_refused_too(
    bench: Bench, act: str
) -> None:
    bench.process("tx-1", lambda: 1)
    bench.forget("tx-1", by="ana", why="erasure")
    more = {"release": {"force": True}, "resolve": {"value": 2}}[act]
    with pytest.raises(UsageError, match="stays until its retention ends") as refused:
        getattr(bench, act)("tx-1", by="ana", why="again", **more)
    assert "force" not in str(refused.value)


def test_work_in_progress_cannot_be_forgotten(bench: Bench) -> None:
    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    with pytest.raises(UsageError, match=r"in_progress.*wait until it ends"):
        bench.forget("k")
    counter.go_on.set()
    assert first.result(120).value == "done"


@pytest.mark.parametrize("act", ["release", "resolve", "forget"])
def test_acts_on_unknown_keys_and_without_a_name(bench: Bench, act: str) -> None:
    more = (5,) if act == "resolve" else ()
    with pytest.raises(UsageError, match="no record of this key"):
        getattr(bench, act)("nothing", *more, by="ann")
    bench.process("k", Counter().quick)
    for by in ("", "  ", "\ud800", None):
        with pytest.raises(UsageError, match="by="):
            getattr(bench, act)("k", *more, by=by)
    with pytest.raises(UsageError, match="why="):
        getattr(bench, act)("k", *more, by="ann", why="\ud800")
    with pytest.raises(
        UsageError, match=r"why= has more than 4,000 characters; nothing was changed"
    ):
        getattr(bench, act)("k", *more, by="ann", why="x" * 4001)
    assert bench.audit("k") == []


def test_sweep_removes_what_is_over_and_nothing_else(bench: Bench) -> None:
    bench.policy(retention=10)
    for number in range(7):
        bench.process(f"old-{number}", Counter().quick)
    park(bench, "parked")
    running = Counter()
    first = bench.start(bench.process, "running", running.slow)
    assert running.entered.wait(60)
    bench.clock.advance(11)
    bench.process("new", Counter().quick)
    report = bench.sweep(limit=3)
    assert (report.removed, report.more) == (3, True)
    report = bench.sweep()
    assert (report.removed, report.more) == (4, False)
    assert {record.value for record in bench.records()} == {"parked", "running", "new"}
    assert [event.removed for event in bench.events(ev.Swept)] == [3, 4]
    running.go_on.set()
    first.result(120)


def test_fences_do_not_restart_after_a_sweep(bench: Bench) -> None:
    bench.policy(retention=10)
    first = bench.process("k", Counter().quick)
    bench.clock.advance(11)
    bench.sweep()
    assert bench.record("k") is None
    assert bench.process("k", Counter().quick).fence > first.fence


@pytest.mark.parametrize("limit", [0, -5, True, 1.5])
def test_nonsense_limits(bench: Bench, limit: Any) -> None:
    bench.process("k", Counter().quick)
    with pytest.raises(UsageError, match="limit="):
        bench.sweep(limit=limit)
    with pytest.raises(UsageError, match="limit="):
        bench.records(limit=limit)
    with pytest.raises(UsageError, match="limit="):
        bench.records_page(limit=limit)


def test_stats_count_by_state(bench: Bench) -> None:
    assert bench.stats().total == 0
    bench.policy(retention=10)
    bench.process("a", Counter().quick)
    bench.process("b", Counter().quick)
    park(bench)
    running = Counter()
    first = bench.start(bench.process, "running", running.slow)
    assert running.entered.wait(60)
    stats = bench.stats()
    assert stats.by_state == {State.COMPLETED: 2, State.PARKED: 1, State.IN_PROGRESS: 1}
    assert (stats.total, stats.stuck, stats.expired) == (4, 0, 0)
    assert stats.oldest_in_progress is not None
    bench.clock.advance(31)
    stats = bench.stats()
    assert (stats.stuck, stats.expired) == (1, 2)
    running.go_on.set()
    first.result(120)


def test_records_page_by_page_by_state_and_scope(bench: Bench) -> None:
    for number in range(5):
        bench.process(Key(str(number), scope=("shop", "charge")), Counter().quick)
    bench.process(Key("x", scope=("shop2",)), Counter().quick)
    park(bench)
    first, after = bench.records_page(scope=("shop",), limit=3)
    assert [record.value for record in first] == ["4", "3", "2"]
    rest, end = bench.records_page(scope=("shop",), limit=3, after=after)
    assert [record.value for record in rest] == ["1", "0"]
    assert end == ""
    assert [record.value for record in bench.records(state=State.PARKED)] == ["k"]
    assert len(bench.records()) == 7


def test_records_are_read_in_growing_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twicesafe._core.searching.PAGE", 1)
    monkeypatch.setattr("twicesafe._core.searching.LARGEST_PAGE", 2)
    for number in range(5):
        bench.process(Key(str(number), scope=("shop",)), Counter().quick)
    bench.process("other", Counter().quick)
    asked: list[int] = []
    perform = bench.store.perform

    def counted(request: Any) -> Any:
        if type(request) is Browse:
            asked.append(request.limit)
        return perform(request)

    monkeypatch.setattr(bench.store, "perform", counted)
    assert [r.value for r in bench.records(scope=("shop",))] == ["4", "3", "2", "1", "0"]
    assert asked == [1, 2, 2]
    asked.clear()
    assert [r.value for r in bench.records(limit=3)] == ["other", "4", "3"]
    assert asked == [1, 2]
    assert bench.records(state=State.HELD) == []


def test_records_ask_for_nothing_until_they_are_read(bench: Bench) -> None:
    bench.process("k", Counter().quick)
    with pytest.raises(UsageError, match="state="):
        bench.receiver.records(state="lost")  # at the call, not at the first record
    bench.receiver.records()


def test_a_parked_key_stays_parked_until_an_operator_acts(bench: Bench) -> None:
    park(bench)
    bench.clock.advance(365 * 86400)
    bench.sweep()
    with pytest.raises(ParkedError):
        bench.process("k", Counter().quick)


def test_doctor_looks(bench: Bench) -> None:
    findings = bench.call(bench.store.inner.doctor)
    assert findings
    assert all(finding.level in ("ok", "warn", "refuse") for finding in findings)


def test_a_state_may_be_named_by_its_word(bench: Bench) -> None:
    bench.process("k", Counter().quick)
    found = bench.records(state="completed")
    assert [record.value for record in found] == ["k"]
    with pytest.raises(UsageError, match="'done' is not valid: use one of in_progress"):
        bench.records(state="done")
