"""The store says no to this payload, or this one request never gets through.

The handler has run: the record says done without its result, soon, and nothing runs again. Only the
error of the driver, or a renewal that gets through beside it, tells this from an outage.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from twicesafe import (
    ConfigurationError,
    Key,
    NotStorableError,
    RememberedFailureError,
    ResultUnavailableError,
    State,
    StoreError,
    StoreUnavailableError,
)
from twicesafe import events as ev
from twicesafe._core.commands import Sleep


@pytest.fixture
def impatient(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Pauses between tries pass at once, on the worker's clock."""

    def sleep(seconds: float, firm: bool = False) -> Sleep:
        bench.clock.advance(seconds)
        bench.receiver._runtime.keeper._renew_due()
        return Sleep(0)

    for module in ("settling", "outcome_recording"):
        monkeypatch.setattr(f"twicesafe._core.{module}.Sleep", sleep)
    bench.store = bench.new_store()
    bench.receiver = bench.new_receiver(bench.store, worker_clock=bench.clock.worker)
    return bench


def heavy(request: Any) -> bool:
    return bool(getattr(request, "result", None)) and b"heavy" in request.result


def refuses(request: Any) -> None:
    if heavy(request):
        raise StoreError("this value is too large for the lab")


def cuts(request: Any) -> None:
    if heavy(request):
        raise StoreUnavailableError("the wire was cut") from ConnectionError("cut")


def fails_in_driver(request: Any) -> None:
    if heavy(request):
        raise OverflowError("BLOB longer than INT_MAX bytes")


WAYS = pytest.mark.parametrize("says", [refuses, cuts, fails_in_driver])


@WAYS
def test_done_without_its_result_soon_and_never_again(impatient: Bench, says: Any) -> None:
    impatient.store.before = says
    counter = Counter("heavy")
    began = impatient.clock()
    with pytest.raises(NotStorableError) as caught:
        impatient.process("k", counter.quick)
    assert impatient.clock() - began <= 10_000
    assert (caught.value.value, caught.value.key) == ("heavy", Key("k"))
    assert caught.value.__cause__ is not None
    for _ in range(3):
        with pytest.raises(ResultUnavailableError):
            impatient.process("k", counter.quick)
    impatient.clock.advance(7200)
    with pytest.raises(ResultUnavailableError):
        impatient.process("k", counter.quick)
    assert counter.runs == 1
    assert impatient.record("k").state is State.COMPLETED
    assert [event.reason for event in impatient.events(ev.ResultNotKept)] == ["NotStorableError"]
    assert len(impatient.events(ev.Completed)) == 1


def test_a_refusal_is_not_asked_twice(impatient: Bench) -> None:
    impatient.store.before = refuses
    with pytest.raises(NotStorableError, match="refused by the store"):
        impatient.process("k", Counter("heavy").quick)
    assert impatient.store.ops() == ["claim", "complete", "complete"]


def test_what_never_gets_through_is_tried_some_times(impatient: Bench) -> None:
    impatient.store.before = cuts
    with pytest.raises(NotStorableError, match="never got through"):
        impatient.process("k", Counter("heavy").quick)
    sent = [request for request in impatient.store.log if heavy(request)]
    assert 4 <= len(sent) <= 10
    assert [request.alone for request in sent[:3]] == [False, False, True]


def test_an_outage_drops_nothing(impatient: Bench) -> None:
    """Renewals do not get through either: whatever it lasts, the result is kept."""
    began = impatient.clock()

    def down(request: Any) -> None:
        if request.op != "claim" and impatient.clock() - began < 20_000:
            raise StoreUnavailableError("down")

    impatient.store.before = down
    counter = Counter("heavy")
    assert impatient.process("k", counter.quick).value == "heavy"
    assert impatient.process("k", counter.quick).replayed


def test_a_result_that_is_recorded_is_not_called_lost(impatient: Bench) -> None:
    """Only the answers to its recording are lost. The caller heard that the record has no result."""
    impatient.store.after = cuts
    counter = Counter("heavy")
    with pytest.raises(StoreUnavailableError, match="deliver again to find out"):
        impatient.process("k", counter.quick)
    assert not impatient.events(ev.ResultNotKept)
    outcome = impatient.process("k", counter.quick)
    assert (outcome.value, outcome.replayed, counter.runs) == ("heavy", True, 1)


def test_a_store_that_refuses_everything_says_what_it_said_first(impatient: Bench) -> None:
    def broken(request: Any) -> None:
        if request.op == "complete":
            raise StoreError("heavy" if heavy(request) else "light")

    impatient.store.before = broken
    with pytest.raises(StoreError, match="heavy") as caught:
        impatient.process("k", Counter("heavy").quick)
    assert caught.value.key == Key("k")
    assert impatient.events(ev.StoreFailed)[0].operation == "complete"


def test_what_is_refused_for_a_while_is_recorded_whole(impatient: Bench) -> None:
    """A permission taken away, a table renamed: the payload is not to blame, and the lease still lasts."""
    began = impatient.clock()

    def forbidden(request: Any) -> None:
        if request.op != "claim" and impatient.clock() - began < 10_000:
            raise ConfigurationError("no permission")

    impatient.store.before = forbidden
    counter = Counter("heavy")
    assert impatient.process("k", counter.quick).value == "heavy"
    outcome = impatient.process("k", counter.quick)
    assert (outcome.replayed, outcome.value, counter.runs) == (True, "heavy", 1)
    assert impatient.events(ev.ResultNotKept) == []


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_permission_that_comes_back_between_two_tries_costs_no_result(
    impatient: Bench, times: int
) -> None:
    """Otherwise a login that is renewed at the wrong moment loses the result."""
    left = [None] * times

    def forbidden(request: Any) -> None:
        if request.op == "complete" and left:
            left.pop()
            raise ConfigurationError("no permission")

    impatient.store.before = forbidden
    assert impatient.process("k", Counter("heavy").quick).value == "heavy"
    assert impatient.process("k", Counter("other").quick).value == "heavy"
    assert impatient.events(ev.ResultNotKept) == []


def test_what_is_refused_for_good_waits_no_longer_than_the_lease(impatient: Bench) -> None:
    def forbidden(request: Any) -> None:
        if request.op == "complete":
            raise ConfigurationError("no permission")

    impatient.store.before = forbidden
    began = impatient.clock()
    with pytest.raises(ConfigurationError):
        impatient.process("k", Counter("heavy").quick)
    assert impatient.clock() - began <= 31_000


@WAYS
def test_by_hand(impatient: Bench, says: Any) -> None:
    impatient.store.before = says
    runs: list[None] = []

    def work(claim: Any) -> str:
        runs.append(None)
        return "heavy"

    with pytest.raises(NotStorableError):
        impatient.manual("k", work)
    with pytest.raises(ResultUnavailableError):
        impatient.manual("k", work)
    assert len(runs) == 1


@WAYS
def test_a_remembered_failure(impatient: Bench, says: Any) -> None:
    impatient.policy(remember=(ValueError,))
    impatient.store.before = says
    counter = Counter()

    def fail() -> None:
        counter.quick()
        raise ValueError("heavy")

    with pytest.raises(ValueError, match="heavy"):
        impatient.process("k", fail)
    with pytest.raises(RememberedFailureError, match="failed permanently"):
        impatient.process("k", fail)
    record = impatient.record("k")
    assert (counter.runs, record.state, record.error) == (1, State.FAILED, "ValueError")


def test_a_failure_whose_name_is_refused_is_given_back_all_the_same(impatient: Bench) -> None:
    class OddError(Exception):
        pass

    OddError.__qualname__ = "Odd\ud800" + "x" * 500

    def odd() -> None:
        raise OddError

    def says(request: Any) -> None:
        if request.op == "fail":
            request.error.encode()  # as a driver would

    impatient.store.before = says
    with pytest.raises(OddError):
        impatient.process("k", odd)
    record = impatient.record("k")
    assert (record.state, record.error[:5]) == (State.RELEASED, "Odd?x")


def test_a_hold_whose_reason_is_refused_holds_all_the_same(impatient: Bench) -> None:
    def says(request: Any) -> None:
        if request.op == "fail" and len(request.error) > 1000:
            raise StoreError("too long")

    impatient.store.before = says
    hold = "hold" if not impatient.is_async else None

    def block(claim: Any) -> Any:
        claim.hold("x" * 2000)

    if hold:
        with impatient.receiver.claim("k") as claim:
            block(claim)
    else:

        async def awaited() -> None:
            async with impatient.receiver.claim("k") as claim:
                await claim.hold("x" * 2000)

        impatient._wait(awaited())
    assert impatient.record("k").state is State.HELD


@WAYS
def test_one_of_a_batch_never_sinks_the_others(impatient: Bench, says: Any) -> None:
    """Sent together, a connection that is cut cuts them all: alone, each gets its own answer."""
    perform_many = impatient.store.perform_many

    def some(requests: Any) -> Any:
        if says is cuts or not any(map(heavy, requests)):
            return perform_many(requests)
        light = [request for request in requests if not heavy(request)]
        answers: list[Any] = []
        try:
            says(next(filter(heavy, requests)))
        except Exception as error:
            refused = error

        def merged(found: list[Any]) -> list[Any]:
            rest = iter(found)
            return [refused if heavy(request) else next(rest) for request in requests]

        if not impatient.is_async:
            return merged(perform_many(light) if light else answers)

        async def awaited() -> list[Any]:
            return merged(await perform_many(light) if light else answers)

        return awaited()

    impatient.store.before = says
    impatient.store.perform_many = some
    runs: list[str] = []

    def handle(message: str) -> str:
        runs.append(message)
        return message

    def deliver() -> list[Any]:
        return impatient.process_many(["a", "heavy", "b"], handle, key=str)  # type: ignore[no-any-return]

    first = deliver()
    assert [first[0].value, first[2].value] == ["a", "b"]
    assert isinstance(first[1].error, NotStorableError)
    again = deliver()
    assert [again[0].replayed, again[2].replayed] == [True, True]
    assert isinstance(again[1].error, ResultUnavailableError)
    assert sorted(runs) == ["a", "b", "heavy"]


def test_who_waits_in_the_same_process_gets_no_result_either(impatient: Bench) -> None:
    impatient.store.before = refuses
    counter = Counter("heavy")
    first = impatient.start(impatient.process, "k", counter.slow)
    assert counter.entered.wait(60)
    second = impatient.start(impatient.process, "k", counter.slow)
    counter.go_on.set()
    with pytest.raises(NotStorableError):
        first.result(120)
    with pytest.raises(ResultUnavailableError):
        second.result(120)
    assert counter.runs == 1
