"""Duplicates of running work: they wait, are woken, take over when the owner fails, or are refused."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
import time
from typing import Any

import pytest

from tests.polling import until
from tests.receiver.bench import Bench, Counter
from twicesafe import (
    Backoff,
    StillInProgressError,
    StoreUnavailableError,
    TooManyWaitersError,
    current_key,
)
from twicesafe import events as ev
from twicesafe._core.delivery import _pause
from twicesafe._core.protocol import Claimed, Verdict
from twicesafe._values.keys import new_owner


def riders(bench: Bench) -> int:
    table = bench.receiver._runtime.flights.table
    return sum(len(flight.wakers or ()) for flight in list(table.values()))


def test_a_hundred_duplicates_of_one_slow_call(bench: Bench) -> None:
    counter = Counter({"same": "bytes"})
    calls = [bench.start(bench.process, "k", counter.slow) for _ in range(101)]
    until(lambda: riders(bench) == 100)
    counter.go_on.set()
    outcomes = [call.result(120) for call in calls]
    assert counter.runs == 1
    assert [outcome.value for outcome in outcomes] == [{"same": "bytes"}] * 101
    assert sum(not outcome.replayed for outcome in outcomes) == 1
    assert len({outcome.fence for outcome in outcomes}) == 1
    assert bench.store.ops().count("claim") == 1


def test_a_duplicate_of_running_work_does_not_look_at_the_store(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, looks = Counter(5), []
    monkeypatch.setattr(bench.receiver._runtime, "recall", looks.append)
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    second = bench.start(bench.process, "k", counter.slow)
    until(lambda: riders(bench) == 1)
    counter.go_on.set()
    assert (first.result(120).value, second.result(120).value) == (5, 5)
    assert len(looks) == 1


def test_a_duplicate_in_another_process_waits_and_replays(bench: Bench) -> None:
    counter = Counter(5)
    other = bench.new_receiver()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    second = bench.start(bench.call, other.process, "k", bench.in_mode(counter.slow))
    until(lambda: other.store.log)
    counter.go_on.set()
    assert (first.result(120).value, second.result(120).value) == (5, 5)
    assert (second.result().replayed, counter.runs) == (True, 1)


def test_a_waiter_that_cannot_be_woken_asks_again(bench: Bench) -> None:
    """The connection was lost after its claim was answered: the next claim is answered again."""
    counter, store, lost = Counter(5), bench.new_store(), threading.Event()

    def lose(id_: bytes, seconds: float) -> Any:
        lost.set()
        raise StoreUnavailableError("the wire was cut")

    store.capabilities = dataclasses.replace(store.capabilities, wake=True)
    store.watch = lose
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    second = bench.start(
        bench.call, bench.new_receiver(store).process, "k", bench.in_mode(counter.slow)
    )
    assert lost.wait(60)
    counter.go_on.set()
    assert (first.result(120).value, second.result(120).value) == (5, 5)
    assert (second.result().replayed, counter.runs) == (True, 1)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this process", "another process"])
def test_a_waiter_takes_over_when_the_owner_fails(bench: Bench, elsewhere: bool) -> None:
    counter = Counter("second try")

    def first() -> str:
        counter.slow()
        raise ValueError("owner failed")

    waiter = bench.new_receiver() if elsewhere else bench.receiver
    owner = bench.start(bench.process, "k", first)
    assert counter.entered.wait(60)
    second = bench.start(bench.call, waiter.process, "k", bench.in_mode(counter.quick))
    until(lambda: waiter.store.log if elsewhere else riders(bench))
    counter.go_on.set()
    with pytest.raises(ValueError, match="owner failed"):
        owner.result(120)
    outcome = second.result(120)
    assert (outcome.value, outcome.replayed, outcome.attempt) == ("second try", False, 2)
    assert bench.record("k").cause == "failed"


def test_many_waiters_of_a_failing_owner_run_one_at_a_time(bench: Bench) -> None:
    counter = Counter()
    running, most = 0, 0
    lock = threading.Lock()

    def flaky() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            counter.runs += 1
            mine = counter.runs
        counter.entered.set()
        assert counter.go_on.wait(60)
        with lock:
            running -= 1
        if mine < 3:
            raise ValueError("not yet")
        return mine

    calls = [bench.start(bench.process, "k", flaky) for _ in range(20)]
    until(lambda: riders(bench) == 19)
    counter.go_on.set()
    results = [call.exception(120) or call.result() for call in calls]
    assert sum(isinstance(result, ValueError) for result in results) == 2
    assert [r.value for r in results if not isinstance(r, ValueError)] == [3] * 18
    assert (counter.runs, most) == (3, 1)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this process", "another process"])
def test_reject_answers_at_once(bench: Bench, elsewhere: bool) -> None:
    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    second = bench.new_receiver() if elsewhere else bench.receiver
    second = second.options(policy=second.policy.replace(in_flight="reject"))
    began = time.monotonic()
    with pytest.raises(StillInProgressError) as caught:
        bench.call(second.process, "k", bench.in_mode(counter.slow))
    assert time.monotonic() - began < 60  # less than its time limit: it did not wait
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 1
    assert (caught.value.http_status, caught.value.retryable) == (409, True)
    counter.go_on.set()
    first.result(120)
    assert counter.runs == 1
    assert bench.events(ev.Refused)[-1].reason == "StillInProgressError"


@pytest.mark.parametrize("setting", [{"in_flight": "reject"}, {"wait": 0}], ids=str)
def test_who_never_waits_gets_an_answer_that_is_just_being_read(
    bench: Bench, setting: dict[str, Any]
) -> None:
    """With wait=0 it got `StillInProgressError` for finished work."""
    counter = Counter()
    bench.process("k", counter.quick)
    bench.policy(**setting)
    reading, go_on = threading.Event(), threading.Event()

    def hold(request: Any) -> None:
        reading.set()
        assert go_on.wait(60)

    bench.store.after = bench.in_mode(hold)
    first = bench.start(bench.process, "k", counter.quick)
    assert reading.wait(60)
    second = bench.start(bench.process, "k", counter.quick)
    flights = bench.receiver._runtime.flights.table
    until(lambda: second.done() or any(flight.askers for flight in flights.values()))
    go_on.set()
    assert first.result(120).replayed
    assert second.result(120).replayed
    assert counter.runs == 1


def test_reject_does_not_wait_behind_a_waiter_of_its_own_process(bench: Bench) -> None:
    """The waiter waits for another process, and may for long; the answer is known already."""
    counter = Counter()
    elsewhere = bench.new_receiver()
    first = bench.start(bench.call, elsewhere.process, "k", bench.in_mode(counter.slow))
    assert counter.entered.wait(60)
    waiter = bench.start(bench.process, "k", counter.quick)
    flights = bench.receiver._runtime.flights
    until(lambda: any(flight.delayed for flight in flights.table.values()))
    impatient = bench.receiver.options(policy=bench.receiver.policy.replace(in_flight="reject"))
    riding = []
    ask = flights.ask
    flights.ask = lambda *args: riding.append(ask(*args)) or riding[-1]
    with pytest.raises(StillInProgressError):
        bench.call(impatient.process, "k", bench.in_mode(counter.quick))
    assert riding == []  # it went to the store by itself
    counter.go_on.set()
    assert first.result(120).value == waiter.result(120).value == "done"
    assert counter.runs == 1


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this process", "another process"])
def test_the_wait_has_a_deadline(bench: Bench, elsewhere: bool) -> None:
    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    second = bench.new_receiver() if elsewhere else bench.receiver
    second = second.options(policy=second.policy.replace(wait=0.1))
    began = time.monotonic()
    with pytest.raises(StillInProgressError, match=r"wait=0.1") as caught:
        bench.call(second.process, "k", bench.in_mode(counter.slow))
    assert 0.09 <= time.monotonic() - began < 60
    assert caught.value.retry_after is not None
    counter.go_on.set()
    first.result(120)


def test_waiters_are_bounded(bench: Bench) -> None:
    counter = Counter()
    bench.policy(max_waiters=2)
    calls = [bench.start(bench.process, "k", counter.slow) for _ in range(3)]
    until(lambda: riders(bench) == 2)
    with pytest.raises(TooManyWaitersError, match="max_waiters") as caught:
        bench.process("k", counter.slow)
    assert caught.value.retryable
    counter.go_on.set()
    assert [call.result(120).value for call in calls] == ["done"] * 3


def test_a_waiter_that_gave_up_makes_room(bench: Bench) -> None:
    counter = Counter()
    patient = bench.receiver
    bench.policy(max_waiters=1, wait=0.05)
    first = bench.start(bench.call, patient.process, "k", bench.in_mode(counter.slow))
    assert counter.entered.wait(60)
    for _ in range(3):
        with pytest.raises(StillInProgressError):
            bench.process("k", counter.slow)
    counter.go_on.set()
    first.result(120)


def test_different_keys_do_not_wait_for_each_other(bench: Bench) -> None:
    counter = Counter()
    first = bench.start(bench.process, "a", counter.slow)
    assert counter.entered.wait(60)
    assert bench.process("b", counter.quick).value == "done"
    counter.go_on.set()
    first.result(120)


def test_a_handler_that_waits_for_itself_gets_an_error(bench: Bench) -> None:
    receiver = bench.receiver

    def outer() -> Any:
        return receiver.process("k", lambda: 1)

    async def outer_async() -> Any:
        return await receiver.process("k", lambda: None)

    with pytest.raises(StillInProgressError, match=r"wait for itself.*derive"):
        bench.process("k", outer_async if bench.is_async else outer)


def test_what_a_handler_left_running_may_wait_for_its_key_later(bench: Bench) -> None:
    """A task or thread keeps the context that it began in. It was refused, as if it waited for itself."""
    contexts: list[contextvars.Context] = []
    counter = Counter()
    elsewhere = bench.new_receiver()

    def begins() -> None:
        contexts.append(contextvars.copy_context())
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", begins)
    first = bench.start(bench.call, elsewhere.process, "k", bench.in_mode(counter.slow))
    assert counter.entered.wait(60)
    process = bench.receiver.process
    later = bench.start(contexts[0].run, bench.call, process, "k", bench.in_mode(counter.quick))
    until(lambda: "claim" in bench.store.ops()[2:] or later.done())
    counter.go_on.set()
    assert first.result(120).value == "done"
    assert later.result(120).replayed


def test_a_handler_may_use_derived_keys(bench: Bench) -> None:
    receiver, runs = bench.receiver, []

    def inner() -> int:
        runs.append(1)
        return len(runs)

    async def inner_async() -> int:
        return inner()

    def step() -> Any:
        key = current_key()
        assert key is not None
        return key.derive("charge")

    def outer() -> Any:
        return receiver.process(step(), inner).value

    async def outer_async() -> Any:
        return (await receiver.process(step(), inner_async)).value

    assert bench.process("k", outer_async if bench.is_async else outer).value == 1
    assert len(runs) == 1


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this process", "another process"])
def test_a_wait_is_one_event(bench: Bench, elsewhere: bool) -> None:
    """However often it asks: the seconds of all waits add up to the time that callers spent."""
    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    second = bench.new_receiver() if elsewhere else bench.receiver
    for wait in (
        0.1,
        1.0,
        10.0,
    ):  # on a busy machine the store's first answer may take the whole wait
        patient = second.options(policy=second.policy.replace(wait=wait))
        with pytest.raises(StillInProgressError):
            bench.call(patient.process, "k", bench.in_mode(counter.slow))
        if bench.events(ev.Waited):
            break
    counter.go_on.set()
    first.result(120)
    (waited,) = bench.events(ev.Waited)
    assert waited.seconds >= 0.09


def held_and_failing(counter: Counter) -> Any:
    def handler() -> None:
        counter.slow()
        raise ValueError("no luck")

    return handler


def test_a_wait_for_a_flight_and_then_for_the_store_is_one_event(bench: Bench) -> None:
    """The leader fails, and its follower waits for the back-off too."""
    bench.policy(backoff=Backoff(first=0.05))
    counter = Counter()
    first = bench.start(bench.process, "k", held_and_failing(counter))
    assert counter.entered.wait(60)
    second = bench.start(bench.process, "k", counter.quick)
    until(lambda: riders(bench) == 1)
    counter.go_on.set()
    with pytest.raises(ValueError, match="no luck"):
        first.result(120)
    until(lambda: bench.store.ops().count("claim") >= 2)  # refused: the back-off is not over
    bench.clock.advance(60)
    assert second.result(120).attempt == 2
    assert len(bench.events(ev.Waited)) == 1


def test_a_wait_for_several_flights_is_one_event(bench: Bench) -> None:
    """The leader fails: one of its two followers leads, and the other one follows that."""
    bench.policy(backoff=Backoff(first=0))
    counter, then = Counter(), Counter()
    first = bench.start(bench.process, "k", held_and_failing(counter))
    assert counter.entered.wait(60)
    others = [bench.start(bench.process, "k", then.slow) for _ in range(2)]
    until(lambda: riders(bench) == 2)
    counter.go_on.set()
    assert then.entered.wait(60)
    until(lambda: riders(bench) == 1)
    then.go_on.set()
    with pytest.raises(ValueError, match="no luck"):
        first.result(120)
    assert sorted(other.result(120).replayed for other in others) == [False, True]
    assert len(bench.events(ev.Waited)) == 2


@pytest.mark.parametrize("work, polls, late", [(0.2, 14, 0.055), (1.0, 30, 0.11)])
def test_a_store_that_cannot_wake_is_polled_seldom_and_seen_soon(
    work: float, polls: int, late: float
) -> None:
    """At most so many statements, whatever the jitter, and at most so many seconds after the end."""
    busy = Claimed(Verdict.BUSY, wait=30_000)
    for _ in range(200):
        owner, waited, turn = new_owner(), 0.0, 0
        while waited < work:
            waited += _pause(busy, turn, owner)
            turn += 1
        assert turn <= polls
        assert waited <= work + late
