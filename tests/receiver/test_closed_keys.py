"""The moment at which a key is held or parked is an event, and logged: an operator must act.

The closing is reported once, by what closed the key; later deliveries are reported as refused.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.receiver.bench import LEAVE, Bench, Counter
from tests.receiver.faults import Outage
from twicesafe import HeldError, Key, ParkedError
from twicesafe import events as ev
from twicesafe._core.protocol import ClaimRequest

CLOSED = (ev.Held, ev.Parked)


def closed(bench: Bench) -> list[Any]:
    return [event for event in bench.seen if isinstance(event, CLOSED)]


def die(bench: Bench, *, hold: bool) -> None:
    """A worker claims the key and is never heard of again."""
    bench.call(bench.store.perform, ClaimRequest(Key("k"), b"dead worker", 1000, 5, hold))
    bench.clock.advance(2)


def test_the_last_failure_parks(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.policy(max_attempts=2)
    counter = Counter()
    for _ in range(2):
        assert closed(bench) == []
        with pytest.raises(ValueError, match="no luck"):
            bench.process("k", counter.failing)
    assert closed(bench) == [ev.Parked(Key("k"), "ValueError")]
    with pytest.raises(ParkedError):
        bench.process("k", counter.failing)
    assert len(closed(bench)) == 1
    assert f"Parked key={Key('k').short} reason=ValueError" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


def test_the_last_failure_of_a_batch_parks(bench: Bench) -> None:
    bench.policy(max_attempts=1)
    bench.process_many(["k"], Counter().failing, key=str)
    assert closed(bench) == [ev.Parked(Key("k"), "ValueError")]


def test_the_delivery_that_holds_a_key_knows_why_and_a_later_one_does_not(bench: Bench) -> None:
    die(bench, hold=True)
    with pytest.raises(HeldError, match=r"stopped mid-run \(takeover='hold'\); an operator"):
        bench.process("k", Counter().quick)
    with pytest.raises(HeldError, match="or another region may have done it"):
        bench.process("k", Counter().quick)


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
def test_who_finds_a_dead_worker_holds_or_parks(bench: Bench, batch: bool) -> None:
    def deliver() -> None:
        if batch:
            [failure] = bench.process_many(["k"], Counter().quick, key=str)
            assert isinstance(failure.error, HeldError)
        else:
            with pytest.raises(HeldError):
                bench.process("k", Counter().quick)

    die(bench, hold=True)
    deliver()
    assert closed(bench) == [ev.Held(Key("k"), "its worker stopped without an answer")]
    deliver()
    assert len(closed(bench)) == 1


def test_a_worker_that_dies_too_often_is_parked(bench: Bench) -> None:
    bench.policy(max_attempts=1)
    die(bench, hold=False)
    with pytest.raises(ParkedError, match="its worker stopped without an answer"):
        bench.process("k", Counter().quick)
    with pytest.raises(ParkedError, match="its worker stopped without an answer"):
        bench.process("k", Counter().quick)
    assert bench.record("k").error == "never finished"
    assert closed(bench) == [ev.Parked(Key("k"), "its worker stopped without an answer")]


def test_an_unknown_end_under_hold(bench: Bench) -> None:
    bench.policy(takeover="hold", timeout=None)

    def timed_out() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        bench.process("k", timed_out)
    assert closed(bench) == [ev.Held(Key("k"), "TimeoutError")]


def test_a_claim_that_is_held_by_hand(bench: Bench) -> None:
    def body(claim: Any) -> Any:
        held = claim.hold("the bank did not answer")
        if bench.is_async:
            bench._wait(held)
        return LEAVE

    bench.manual("k", body)
    assert closed(bench) == [ev.Held(Key("k"), "the bank did not answer")]


def test_a_key_is_not_called_parked_if_the_store_never_recorded_it(bench: Bench) -> None:
    bench.policy(max_attempts=1)
    bench.store.before = Outage("fail")
    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", Counter().failing)
    assert closed(bench) == []
