"""When the connection is cut, the worker cannot know whether the store got the request (P7, P9, P10).

A cut before the request and a cut after it look alike to the caller. Both must end with one run,
one recorded answer and no wait for a lease.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from tests.receiver.faults import Outage
from twicesafe import Key, State, StoreUnavailableError
from twicesafe import events as ev
from twicesafe._core.commands import Sleep


@pytest.fixture
def impatient(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Pauses between tries pass at once, on the worker's clock."""

    def sleep(seconds: float, firm: bool = False) -> Sleep:
        bench.clock.advance(seconds)
        bench.receiver._runtime.keeper._renew_due()
        return Sleep(0)

    for module in ("delivery", "settling", "batch", "outcome_recording"):
        monkeypatch.setattr(f"twicesafe._core.{module}.Sleep", sleep)
    bench.store = bench.new_store()
    bench.receiver = bench.new_receiver(bench.store, worker_clock=bench.clock.worker)
    return bench


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("op", ["claim", "complete"])
@pytest.mark.parametrize("times", [1, 4])
def test_one_run_and_replay(impatient: Bench, side: str, op: str, times: int) -> None:
    counter = Counter("once")
    setattr(impatient.store, side, Outage(op, times=times))
    outcome = impatient.process("k", counter.quick)
    assert (outcome.value, outcome.replayed, outcome.attempt, counter.runs) == ("once", False, 1, 1)
    owners = {r.owner for r in impatient.store.log if r.op == "claim"}
    assert len(owners) == 1  # P2: the same owner on every try
    assert impatient.store.ops().count(op) == times + 1
    assert impatient.process("k", counter.quick).replayed


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_is_given_back_all_the_same(impatient: Bench, side: str, times: int) -> None:
    counter = Counter()
    setattr(impatient.store, side, Outage("fail", times=times))
    with pytest.raises(ValueError, match="no luck"):
        impatient.process("k", counter.failing)
    assert impatient.record("k").state is State.RELEASED
    assert impatient.process("k", counter.quick).attempt == 2


def test_a_store_that_is_down_for_the_failure_does_not_hide_it(impatient: Bench) -> None:
    impatient.store.before = Outage("fail")
    with pytest.raises(ValueError, match="no luck"):
        impatient.process("k", Counter().failing)
    assert impatient.events(ev.StoreFailed)[0].operation == "fail"


def test_a_store_that_is_down_refuses_and_starts_nothing(impatient: Bench) -> None:
    impatient.store.before = Outage("claim")
    counter = Counter()
    with pytest.raises(StoreUnavailableError) as caught:
        impatient.process("k", counter.quick)
    assert (caught.value.key, caught.value.retryable, caught.value.http_status) == (
        Key("k"),
        True,
        503,
    )
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert counter.runs == 0
    assert impatient.events(ev.StoreFailed) == [
        ev.StoreFailed(Key("k"), "claim", "ConnectionError")
    ]
    impatient.store.before = Outage()
    assert impatient.process("k", counter.quick).value == "done"


def test_a_claim_whose_answer_was_lost_ends_with_its_lease(impatient: Bench) -> None:
    impatient.store.after = Outage("claim")
    counter = Counter()
    with pytest.raises(StoreUnavailableError):
        impatient.process("k", counter.quick)
    impatient.store.after = Outage()
    impatient.clock.advance(31)
    outcome = impatient.process("k", counter.quick)
    assert (outcome.attempt, counter.runs) == (2, 1)
    assert impatient.record("k").cause == "lease_expired"


def test_outage_run_is_unprotected_counted_and_logged(
    impatient: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    impatient.policy(outage="run")
    impatient.store.before = Outage("claim")
    counter = Counter(7)
    with caplog.at_level(logging.WARNING, "twicesafe"):
        outcome = impatient.process("k", counter.quick)
    assert (outcome.value, outcome.replayed, outcome.attempt, outcome.fence) == (7, False, 0, 0)
    assert impatient.events(ev.Unprotected) == [ev.Unprotected(Key("k"))]
    assert "Unprotected" in caplog.text
    assert Key("k").short in caplog.text
    with pytest.raises(ValueError, match="no luck"):
        impatient.process("k", counter.failing)


def test_a_complete_that_is_never_answered_is_unknown_not_lost(impatient: Bench) -> None:
    impatient.store.after = Outage("complete")
    counter = Counter("recorded")
    with pytest.raises(StoreUnavailableError, match=r"unknown.*deliver again") as caught:
        impatient.process("k", counter.quick)
    assert caught.value.key == Key("k")
    impatient.store.after = Outage()
    again = impatient.process("k", counter.quick)
    assert (again.value, again.replayed, counter.runs) == ("recorded", True, 1)


@pytest.mark.parametrize("many", [False, True], ids=["one", "a batch"])
def test_a_recorded_result_is_found_although_its_lease_cannot_be_renewed(
    impatient: Bench, many: bool
) -> None:
    """Only the answer was lost. When the outage ends, the renewal comes first: it is refused, and nothing is lost."""
    over = impatient.clock() + 12_000  # by then a renewal is due

    def down(request: Any) -> None:
        if impatient.clock() < over:
            raise StoreUnavailableError("cut")

    def lost(request: Any) -> None:
        if request.op == "complete" and impatient.store.before is not down:
            impatient.store.before = down
            raise StoreUnavailableError("cut")

    impatient.store.after = lost
    counter = Counter("recorded")
    if many:
        first, _ = impatient.process_many(["k", "other"], counter.quick, key=str)
    else:
        first = impatient.process("k", counter.quick)
    assert (first.value, first.replayed) == ("recorded", False)
    assert impatient.events(ev.RenewalRefused) == []


def test_a_complete_that_never_arrived_is_retried_while_the_claim_lasts(impatient: Bench) -> None:
    impatient.store.before = Outage("complete", "renew", times=12)
    counter = Counter("recorded")
    assert impatient.process("k", counter.quick).value == "recorded"
    assert impatient.record("k").state is State.COMPLETED


def test_a_record_is_tried_for_as_long_as_the_lease_is_renewed(impatient: Bench) -> None:
    """1,100 s of an outage that comes and goes: what the keeper sends gets through, nothing else."""
    over = impatient.clock() + 1_100_000

    def down(request: Any) -> None:
        kept = request.op == "claim" or (request.op == "renew" and request.lease > 1)
        if not kept and impatient.clock() < over:
            raise StoreUnavailableError("the wire was cut")

    impatient.store.before = down
    assert impatient.process("k", Counter("recorded").quick).value == "recorded"


@pytest.mark.parametrize("late", [27, 29, 300])
def test_a_late_claim_answer_starts_nothing(impatient: Bench, late: float) -> None:
    """P7: the answer is older than what it grants (lease 30, margin 10 %)."""
    counter = Counter()

    def slow(request: Any) -> None:
        if request.op == "claim":
            impatient.clock.advance(late)

    impatient.store.after = slow
    with pytest.raises(StoreUnavailableError, match="not started"):
        impatient.process("k", counter.quick)
    assert counter.runs == 0
    record = impatient.record("k")
    assert (record.state, record.attempt) == (State.RELEASED, 0)
    impatient.store.after = Outage()
    assert impatient.process("k", counter.quick).attempt == 1


def test_late_claims_of_a_batch_start_nothing(impatient: Bench) -> None:
    counter = Counter()

    def slow(request: Any) -> None:
        if request.op == "claim" and impatient.store.round_trips == 1:
            impatient.clock.advance(28)

    impatient.store.after = slow
    answers = impatient.process_many(["a", "b"], counter.quick, key=str)
    # Given back, then delivered once more as single calls: never started on the stale claim.
    assert impatient.store.ops()[:4] == ["claim", "claim", "abandon", "abandon"]
    assert [answer.value for answer in answers] == ["done", "done"]
    assert counter.runs == 2


# --- the records of a batch ------------------------------------------------------------------------


@pytest.mark.parametrize("side, seconds", [("before", 8), ("before", 60), ("after", 8)])
def test_a_batch_records_as_long_as_its_claims_last(
    impatient: Bench, side: str, seconds: int
) -> None:
    """60 seconds are longer than a lease, which is renewed meanwhile."""
    counter = Counter("once")
    began = impatient.clock()

    def down(request: Any) -> None:
        kept = request.op == "claim" or (request.op == "renew" and request.lease > 1)
        if not kept and impatient.clock() - began < seconds * 1000:
            raise StoreUnavailableError("the wire was cut")

    setattr(impatient.store, side, down)
    answers = impatient.process_many(["a", "b"], counter.quick, key=str)
    assert [answer.value for answer in answers] == ["once", "once"]
    assert [impatient.record(key).state for key in "ab"] == [State.COMPLETED] * 2
    assert counter.runs == 2


@pytest.mark.parametrize("times", [12, 60])
def test_the_failures_of_a_batch_are_given_back_all_the_same(impatient: Bench, times: int) -> None:
    impatient.store.before = Outage("fail", times=times)
    answers = impatient.process_many(["a", "b"], Counter().failing, key=str)
    assert [type(answer.error) for answer in answers] == [ValueError, ValueError]
    assert [impatient.record(key).state for key in "ab"] == [State.RELEASED] * 2


def test_what_is_recorded_is_renewed_no_more(impatient: Bench) -> None:
    """Two of a batch end in different ways, and only one of them meets an outage."""

    def handle(message: str) -> str:
        if message == "a":
            raise ValueError("no luck")
        return message

    impatient.receiver = impatient.receiver.options(
        policy=impatient.receiver.policy.replace(remember=(ValueError,))
    )
    perform_many = impatient.store.perform_many
    over = impatient.clock() + 60_000

    def down(request: Any) -> None:
        mine = request.op == "complete" or (request.op == "renew" and request.lease == 1)
        if mine and request.id == Key("a").id and impatient.clock() < over:
            raise StoreUnavailableError("cut")

    impatient.store.before = down

    def some(requests: Any) -> Any:
        if requests[0].op != "complete" or impatient.clock() >= over:
            return perform_many(requests)
        rest = requests[1:]
        trouble = [StoreUnavailableError("cut")]
        if not impatient.is_async:
            return trouble + (perform_many(rest) if rest else [])

        async def awaited() -> list[Any]:
            return trouble + (await perform_many(rest) if rest else [])

        return awaited()

    impatient.store.perform_many = some
    first, second = impatient.process_many(["a", "b"], handle, key=str)
    assert isinstance(first.error, ValueError)
    assert second.value == "b"
    assert [impatient.record(key).state for key in "ab"] == [State.FAILED, State.COMPLETED]
    renewed = {request.id for request in impatient.store.log if request.op == "renew"}
    assert renewed == {Key("a").id}


def test_a_batch_whose_records_are_never_answered_does_not_know(impatient: Bench) -> None:
    impatient.store.after = Outage("complete", "renew")
    counter = Counter("recorded")
    answers = impatient.process_many(["a", "b"], counter.quick, key=str)
    for answer, key in zip(answers, "ab", strict=True):
        assert isinstance(answer.error, StoreUnavailableError)
        assert "unknown" in str(answer.error)
        assert answer.error.key == Key(key)
        assert isinstance(answer.error.__cause__, StoreUnavailableError)
    assert [event.operation for event in impatient.events(ev.StoreFailed)] == ["complete"] * 2
    impatient.store.after = Outage()
    again = impatient.process_many(["a", "b"], counter.quick, key=str)
    assert [(answer.value, answer.replayed) for answer in again] == [("recorded", True)] * 2
    assert counter.runs == 2


def test_an_interrupt_of_a_batch_does_not_wait_for_a_lease(impatient: Bench) -> None:
    class Stop(BaseException):
        pass

    def stop(message: str) -> None:
        raise Stop

    impatient.store.before = Outage("fail")
    began = impatient.clock()
    with pytest.raises(Stop):
        impatient.process_many(["a"], stop, key=str)
    assert impatient.clock() - began < 2000
