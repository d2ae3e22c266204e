"""When the wire is cut: nobody knows whether the store heard us (P7, P9, P10).

A cut before the request and a cut after it look alike to the caller. Both must end with one run,
one recorded answer and no wait for a lease.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.receiver.colours import Bench, Counter
from tests.receiver.faults import Outage
from twicesafe import Key, State, StoreUnavailableError
from twicesafe import events as ev
from twicesafe.core.commands import Sleep


@pytest.fixture
def impatient(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Pauses between tries pass at once, on the worker's clock."""

    def sleep(seconds: float, firm: bool = False) -> Sleep:
        bench.clock.advance(seconds)
        return Sleep(0)

    for module in ("exchange", "settling"):
        monkeypatch.setattr(f"twicesafe.core.{module}.Sleep", sleep)
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


def test_a_claim_that_was_won_unheard_ends_with_its_lease(impatient: Bench) -> None:
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


def test_a_complete_that_never_arrived_is_retried_while_the_claim_lasts(impatient: Bench) -> None:
    impatient.store.before = Outage("complete", times=12)
    counter = Counter("recorded")
    assert impatient.process("k", counter.quick).value == "recorded"
    assert impatient.record("k").state is State.COMPLETED


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
        if request.op == "claim" and impatient.store.trips == 1:
            impatient.clock.advance(28)

    impatient.store.after = slow
    answers = impatient.process_many(["a", "b"], counter.quick, key=str)
    # Given back, then delivered once more as single calls: never started on the stale claim.
    assert impatient.store.ops()[:4] == ["claim", "claim", "abandon", "abandon"]
    assert [answer.value for answer in answers] == ["done", "done"]
    assert counter.runs == 2
