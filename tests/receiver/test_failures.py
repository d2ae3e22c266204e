"""When handlers fail: released at once, counted, rested, parked, or remembered as the answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.polling import until
from tests.receiver.bench import Bench, Counter
from twicesafe import (
    Backoff,
    CorruptRecordError,
    HeldError,
    Key,
    LeaseLostError,
    NotStorableError,
    ParkedError,
    RememberedFailureError,
    ResultUnavailableError,
    State,
    StillInProgressError,
    TooLargeError,
    current_claim,
)
from twicesafe import events as ev
from twicesafe._core.protocol import ClaimRequest


class DeclinedError(Exception):
    pass


def test_a_failed_key_is_released_at_once(bench: Bench) -> None:
    counter = Counter()
    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", counter.failing)
    record = bench.record("k")
    assert (record.state, record.error, record.attempt) == (State.RELEASED, "ValueError", 1)
    outcome = bench.process("k", counter.quick)
    assert (outcome.attempt, outcome.replayed, counter.runs) == (2, False, 2)
    assert bench.record("k").cause == "failed"
    failed = bench.events(ev.Failed)
    assert [(e.error, e.attempt, e.remembered) for e in failed] == [("ValueError", 1, False)]


def test_the_handlers_own_exception_object_comes_out(bench: Bench) -> None:
    mine = DeclinedError("card")

    def handle() -> None:
        raise mine

    with pytest.raises(DeclinedError) as caught:
        bench.process("k", handle)
    assert caught.value is mine


def test_parked_after_max_attempts(bench: Bench) -> None:
    bench.policy(max_attempts=3)
    counter = Counter()
    for _ in range(3):
        with pytest.raises(ValueError, match="no luck"):
            bench.process("k", counter.failing)
    for _ in range(2):
        with pytest.raises(ParkedError, match="operator") as caught:
            bench.process("k", counter.quick)
        assert not caught.value.retryable
    assert counter.runs == 3
    assert bench.record("k").state is State.PARKED


def test_attempts_are_counted_at_the_claim(bench: Bench) -> None:
    """A handler that kills its process never says that it failed."""
    bench.policy(max_attempts=2, lease=10)
    for attempt in (1, 2):
        claimed = bench.call(
            bench.store.perform, ClaimRequest(Key("k"), b"%d" % attempt, 10_000, 2)
        )
        assert claimed.attempt == attempt
        bench.clock.advance(11)
    counter = Counter()
    with pytest.raises(ParkedError):
        bench.process("k", counter.quick)
    assert counter.runs == 0


def test_a_back_off_longer_than_the_retention_counts_attempts_to_the_last(bench: Bench) -> None:
    """The record of a failed attempt is kept for the retention from the end of its back-off."""
    bench.policy(
        retention=60,
        max_attempts=3,
        backoff=Backoff(first=3600, most=9000, jitter=0),
        in_flight="reject",
    )
    counter = Counter()
    for attempt in (1, 2, 3):
        with pytest.raises(ValueError, match="no luck"):
            bench.process("k", counter.failing)
        assert bench.record("k").attempt == attempt
        bench.clock.advance(61)
        with pytest.raises((StillInProgressError, ParkedError)):
            bench.process("k", counter.failing)
        bench.clock.advance(3600 * 2 ** (attempt - 1) - 61)
    with pytest.raises(ParkedError):
        bench.process("k", counter.quick)
    assert counter.runs == 3


def test_a_sender_that_returns_after_the_retention_begins_anew(bench: Bench) -> None:
    """A limit: `retry_horizon` says how long a sender may retry, and is checked against the retention."""
    bench.policy(retention=60, max_attempts=2, backoff=Backoff(first=1, jitter=0))
    counter = Counter()
    for _ in range(3):
        with pytest.raises(ValueError, match="no luck"):
            bench.process("k", counter.failing)
        bench.clock.advance(61.1)
    assert bench.process("k", counter.quick).attempt == 1


def test_the_back_off_is_respected(bench: Bench) -> None:
    bench.policy(backoff=Backoff(first=10, factor=3, jitter=0), in_flight="reject")
    counter = Counter()
    for rest in (10, 30):
        with pytest.raises(ValueError, match="no luck"):
            bench.process("k", counter.failing)
        assert bench.record("k").not_before is not None
        bench.clock.advance(rest - 0.1)
        with pytest.raises(StillInProgressError, match="the last attempt failed") as caught:
            bench.process("k", counter.quick)
        assert caught.value.retry_after == pytest.approx(0.1)
        bench.clock.advance(0.1)
    assert bench.process("k", counter.quick).attempt == 3


def test_a_waiting_duplicate_sits_out_the_back_off(bench: Bench) -> None:
    bench.policy(backoff=Backoff(first=0.05, jitter=0), wait=60)
    counter = Counter()
    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", counter.failing)
    threading.Timer(0.02, bench.clock.advance, [1]).start()
    assert bench.process("k", counter.quick).attempt == 2


def test_remembered_failures_are_answers(bench: Bench) -> None:
    bench.policy(remember=(DeclinedError,))
    counter = Counter()

    def decline() -> None:
        counter.quick()
        raise DeclinedError("insufficient funds")

    with pytest.raises(DeclinedError):
        bench.process("k", decline)
    for _ in range(2):
        with pytest.raises(
            RememberedFailureError, match="DeclinedError: insufficient funds"
        ) as caught:
            bench.process("k", decline)
        assert caught.value.type_name == "DeclinedError"
        assert caught.value.original_message == "insufficient funds"
    assert counter.runs == 1
    assert bench.record("k").state is State.FAILED
    assert bench.events(ev.Failed)[0].remembered


def test_other_failures_are_not_remembered(bench: Bench) -> None:
    bench.policy(remember=(DeclinedError,))
    counter = Counter()
    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", counter.failing)
    assert bench.process("k", counter.quick).attempt == 2


@pytest.mark.parametrize("what", ["surrogate", "unprintable", "huge"])
def test_failures_that_are_hard_to_write_down_are_remembered_too(bench: Bench, what: str) -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            if what == "unprintable":
                raise RuntimeError("no text")
            return "\ud800" if what == "surrogate" else "x" * 1_000_000

    bench.policy(remember=(OddError,))

    def handle() -> None:
        raise OddError

    with pytest.raises(OddError):
        bench.process("k", handle)
    with pytest.raises(RememberedFailureError) as caught:
        bench.process("k", handle)
    assert caught.value.type_name.endswith("OddError")
    assert len(caught.value.original_message) <= 2000


@pytest.mark.parametrize("bench", ["memory-sync", "memory-async"], indirect=True)
def test_a_tampered_failure_is_corrupt_and_never_run_again(bench: Bench) -> None:
    bench.policy(remember=(ValueError,))
    counter = Counter()
    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", counter.failing)
    for blob in (b"\xff", b'{"type": 1}', b"[]"):
        bench._memory._rows[Key("k").id].result = blob
        with pytest.raises(CorruptRecordError) as caught:
            bench.process("k", counter.quick)
        assert caught.value.key == Key("k")
    assert counter.runs == 1


@pytest.mark.parametrize("bench", ["memory-sync", "memory-async"], indirect=True)
def test_a_tampered_result_is_corrupt_and_never_run_again(bench: Bench) -> None:
    counter = Counter()
    bench.process("k", counter.quick)
    for blob in (b"", b"j{", b"zzz", b'j{"a":'):
        bench._memory._rows[Key("k").id].result = blob
        with pytest.raises(CorruptRecordError) as caught:
            bench.process("k", counter.quick)
        assert caught.value.key == Key("k")
    assert counter.runs == 1


# --- results that cannot be kept -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [NotStorableError, TooLargeError])
def test_a_result_that_cannot_be_kept_never_runs_again(bench: Bench, kind: type) -> None:
    bench.policy(max_result_bytes=100)
    value: Any = object() if kind is NotStorableError else "x" * 200
    counter = Counter(value)
    with pytest.raises(kind) as caught:
        bench.process("k", counter.quick)
    assert caught.value.value is value
    assert caught.value.key == Key("k")
    assert "the work is done and recorded, but without its result: " in str(caught.value)
    for _ in range(2):
        with pytest.raises(ResultUnavailableError) as after:
            bench.process("k", counter.quick)
        assert after.value.http_status == 410
    assert counter.runs == 1
    record = bench.record("k")
    assert (record.state, record.result_bytes) == (State.COMPLETED, None)
    assert [event.reason for event in bench.events(ev.ResultNotKept)] == [kind.__name__]


def test_a_codec_that_breaks_is_a_result_not_kept(bench: Bench) -> None:
    class Broken:
        def encode(self, value: Any, declared: Any = Any) -> bytes:
            raise ZeroDivisionError

        def decode(self, payload: bytes, declared: Any = Any) -> Any:
            raise AssertionError("nothing was stored")

    bench.policy(codec=Broken())
    counter = Counter(5)
    with pytest.raises(NotStorableError) as caught:
        bench.process("k", counter.quick)
    assert caught.value.value == 5
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ResultUnavailableError):
        bench.process("k", counter.quick)
    assert counter.runs == 1


def test_what_a_codec_raises_for_a_stored_result_does_not_look_like_the_handlers_error(
    bench: Bench,
) -> None:
    class Forgetful:
        def encode(self, value: Any, declared: Any = Any) -> bytes:
            return b"paid"

        def decode(self, payload: bytes, declared: Any = Any) -> Any:
            raise ValueError("an unknown format")

    bench.policy(codec=Forgetful())
    counter = Counter(5)
    bench.process("k", counter.quick)
    with pytest.raises(CorruptRecordError, match="not run again") as caught:
        bench.process("k", counter.quick)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.key == bench.receiver.key("k")
    assert counter.runs == 1


def test_waiters_of_an_unstorable_result_get_the_error_too(bench: Bench) -> None:
    counter = Counter(object())
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    second = bench.start(bench.process, "k", counter.slow)
    table = bench.receiver._runtime.flights.table
    until(lambda: table.get(Key("k").id) and table[Key("k").id].wakers)
    counter.go_on.set()
    assert isinstance(first.exception(120), NotStorableError)
    assert isinstance(second.exception(120), ResultUnavailableError)
    assert counter.runs == 1


# --- lost leases ---------------------------------------------------------------------------------


def test_a_zombie_cannot_record_and_the_newer_result_stays(bench: Bench) -> None:
    zombie, other = Counter("zombie"), bench.new_receiver()
    first = bench.start(bench.process, "k", zombie.slow)
    assert zombie.entered.wait(60)
    bench.clock.advance(31)  # its lease is over, and the keeper has not renewed
    newer = bench.call(other.process, "k", bench.in_mode(Counter("newer").quick))
    assert (newer.value, newer.attempt) == ("newer", 2)
    zombie.go_on.set()
    with pytest.raises(LeaseLostError, match="took it over"):
        first.result(120)
    assert bench.process("k", zombie.quick).value == "newer"
    assert bench.record("k").cause == "lease_expired"
    assert len(bench.events(ev.LeaseLost)) == 1
    assert len(bench.events(ev.TakenOver)) == 1


def test_a_zombie_that_fails_does_not_free_the_new_owner(bench: Bench) -> None:
    zombie, owner, other = Counter(), Counter("owner"), bench.new_receiver()

    def fail() -> None:
        zombie.slow()
        raise ValueError("zombie")

    first = bench.start(bench.process, "k", fail)
    assert zombie.entered.wait(60)
    bench.clock.advance(31)
    second = bench.start(bench.call, other.process, "k", bench.in_mode(owner.slow))
    assert owner.entered.wait(60)
    zombie.go_on.set()
    with pytest.raises(ValueError, match="zombie"):
        first.result(120)
    assert bench.record("k").state is State.IN_PROGRESS
    owner.go_on.set()
    assert second.result(120).value == "owner"


def test_completing_late_is_accepted_if_there_was_no_takeover(bench: Bench) -> None:
    counter = Counter("late")
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    bench.clock.advance(300)
    counter.go_on.set()
    assert first.result(120).value == "late"
    assert bench.process("k", counter.quick).value == "late"


@pytest.mark.parametrize("bench", ["memory-sync", "memory-async"], indirect=True)
def test_a_record_that_vanished_is_not_created_anew(bench: Bench) -> None:
    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    bench._memory._rows.clear()
    counter.go_on.set()
    with pytest.raises(LeaseLostError, match="its record is gone"):
        first.result(120)
    assert bench.record("k") is None


def test_hold_keeps_the_key_for_an_operator_after_a_crash(bench: Bench) -> None:
    bench.policy(takeover="hold")
    zombie = Counter()
    first = bench.start(bench.process, "k", zombie.slow)
    assert zombie.entered.wait(60)
    bench.clock.advance(31)
    other = bench.new_receiver(policy=bench.receiver.policy)
    with pytest.raises(HeldError, match="resolve or release"):
        bench.call(other.process, "k", bench.in_mode(zombie.quick))
    assert bench.record("k").state is State.HELD
    zombie.go_on.set()  # the owner alone knows how it ended: its word counts
    assert first.result(120).value == "done"
    assert bench.process("k", zombie.quick).value == "done"
    assert zombie.runs == 1


def test_an_ordinary_failure_is_not_held(bench: Bench) -> None:
    bench.policy(takeover="hold")
    counter = Counter()
    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", counter.failing)
    assert bench.record("k").state is State.RELEASED


def test_lost_turns_true_before_the_store_lets_go(bench: Bench) -> None:
    """P7: the worker's own lease is 10 % shorter than the store's."""
    receiver = bench.new_receiver(worker_clock=bench.clock.worker)
    keeper = receiver._runtime.keeper
    seen = []

    def handle() -> None:
        claim = current_claim()
        assert claim is not None
        keeper.remove(claim)  # as if the store could not be reached
        bench.clock.advance(26.9)
        seen.append(claim.lost)
        bench.clock.advance(0.2)
        seen.append(claim.lost)
        with pytest.raises(LeaseLostError):
            claim.check()

    bench.call(receiver.process, "k", bench.in_mode(handle))
    assert seen == [False, True]


def test_work_that_a_failed_attempt_left_running_has_lost_its_claim(bench: Bench) -> None:
    """A thread or task that the handler started and did not wait for still has the first claim."""
    claims: list[Any] = []
    seen: list[Any] = []

    def leaves_work() -> None:
        claims.append(current_claim())
        raise ValueError("no luck")

    def next_attempt() -> None:
        claims.append(current_claim())
        seen.append([claim.lost for claim in claims])
        with pytest.raises(LeaseLostError):
            claims[0].check()

    def look(request: Any) -> None:
        if request.op == "fail":
            seen.append(claims[0].lost)

    bench.store.before = look
    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", leaves_work)
    bench.process("k", next_attempt)
    assert seen == [True, [True, False]]  # first: before the store lets go
    assert not claims[1].lost  # recorded: no other worker runs it


def test_a_failure_that_could_not_be_remembered_is_nobodys_answer(bench: Bench) -> None:
    """The owner lost its claim: riders of this process must not get its unrecorded failure."""
    bench.policy(remember=(ValueError,), lease=10)
    other = bench.new_receiver()

    def loses_its_claim() -> None:
        bench.clock.advance(11)
        assert bench.call(other.process, "k", Counter("newer").quick).replayed is False
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        bench.process("k", loses_its_claim)
    assert bench.process("k", Counter().quick).replayed


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
def test_a_generator_is_a_result_that_cannot_be_kept(bench: Bench, batch: bool) -> None:
    """The function ran to its end, effect and all: a repeat must not run it again."""
    counter = Counter()

    def lazily(*_: Any) -> Any:
        counter.quick()
        return (number for number in range(3))

    def deliver() -> None:
        if batch:
            [failure] = bench.process_many(["k"], lazily, key=str)
            raise failure.error
        bench.process("k", lazily)

    with pytest.raises(NotStorableError) as caught:
        deliver()
    assert list(caught.value.value) == [0, 1, 2]  # not touched
    with pytest.raises(ResultUnavailableError):
        deliver()
    assert counter.runs == 1
