"""`process_many`: one answer per message, in order; one bad message never sinks the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.polling import until
from tests.receiver.bench import Bench, Counter
from tests.receiver.faults import Outage
from twicesafe import (
    Cause,
    ConfigurationError,
    Failure,
    FingerprintMismatchError,
    InvalidKeyError,
    Key,
    NotStorableError,
    ParkedError,
    ResultUnavailableError,
    StillInProgressError,
    StoreUnavailableError,
    current_claim,
)
from twicesafe import events as ev
from twicesafe._core.commands import LostBeforeStartError, Sleep
from twicesafe._core.protocol import ClaimRequest
from twicesafe._values.keys import is_ahead, new_owner, new_owner_ahead


def by_id(message: dict[str, Any]) -> Any:
    return message["id"]


def messages(*ids: Any) -> list[dict[str, Any]]:
    return [{"id": id_} for id_ in ids]


def double(message: dict[str, Any]) -> str:
    return message["id"] * 2


@pytest.mark.usefixtures("ends_go_together")
@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_answers_come_in_order_in_two_round_trips(bench: Bench, concurrency: int) -> None:
    batch = messages(*"abcdefghij")
    outcomes = bench.process_many(batch, double, key=by_id, concurrency=concurrency)
    assert [outcome.value for outcome in outcomes] == [m["id"] * 2 for m in batch]
    assert [outcome.key for outcome in outcomes] == [Key(m["id"]) for m in batch]
    assert all(outcome.ok and not outcome.replayed for outcome in outcomes)
    assert bench.store.round_trips == 2
    again = bench.process_many(batch, double, key=by_id, concurrency=concurrency)
    assert all(outcome.replayed for outcome in again)
    assert bench.store.round_trips == 3


def test_an_empty_batch_and_an_iterator(bench: Bench) -> None:
    assert bench.process_many([], double, key=by_id) == []
    assert bench.store.log == []
    (outcome,) = bench.process_many(iter(messages("a")), double, key=by_id)
    assert outcome.value == "aa"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_one_poison_item_never_fails_the_rest(bench: Bench, concurrency: int) -> None:
    def handle(message: dict[str, Any]) -> Any:
        if message["id"] == "poison":
            raise ValueError("poison")
        return object() if message["id"] == "odd" else message["id"]

    batch = messages("a", "poison", "b", "odd", "", "c", None, "x" * 300)
    answers = bench.process_many(batch, handle, key=by_id, concurrency=concurrency)
    assert [answers[i].value for i in (0, 2, 5)] == ["a", "b", "c"]
    failures = {i: answer for i, answer in enumerate(answers) if isinstance(answer, Failure)}
    assert set(failures) == {1, 3, 4, 6, 7}
    assert not failures[1].ok
    assert isinstance(failures[1].error, ValueError)
    assert failures[1].key == Key("poison")
    assert isinstance(failures[3].error, NotStorableError)
    assert isinstance(failures[4].error, InvalidKeyError)
    assert failures[4].key is None
    assert isinstance(failures[7].error, InvalidKeyError)
    again = bench.process_many(messages("odd", "poison"), handle, key=by_id)
    assert isinstance(again[0].error, ResultUnavailableError)
    assert isinstance(again[1].error, ValueError)


def test_work_that_a_failed_item_left_running_has_lost_its_claim(bench: Bench) -> None:
    claims: dict[str, Any] = {}

    def handle(item: str) -> None:
        claims[item] = current_claim()
        if item == "bad":
            raise ValueError("no luck")

    bench.process_many(["good", "bad"], handle, key=str)
    assert {item: claim.lost for item, claim in claims.items()} == {"good": False, "bad": True}


def test_a_key_function_that_raises_fails_its_item_only(bench: Bench) -> None:
    answers = bench.process_many([{"id": "a"}, {}, 5], double, key=by_id)
    assert answers[0].value == "aa"
    assert isinstance(answers[1].error, KeyError)
    assert isinstance(answers[2].error, TypeError)


def test_duplicates_inside_one_batch_run_once(bench: Bench) -> None:
    counter = Counter(1)
    answers = bench.process_many(messages("a", "b", "a", "a"), counter.quick, key=by_id)
    assert counter.runs == 2
    assert [answer.replayed for answer in answers] == [False, False, True, True]
    assert [answer.value for answer in answers] == [1, 1, 1, 1]


def test_a_duplicate_with_another_payload_is_a_mismatch(bench: Bench) -> None:
    bench.receiver = bench.receiver.options(fingerprint=True)
    batch = [{"id": "a", "n": 1}, {"id": "a", "n": 2}]
    first, second = bench.process_many(batch, double, key=by_id)
    assert first.value == "aa"
    assert isinstance(second.error, FingerprintMismatchError)
    assert second.error.fields == ("n",)


def test_concurrency_is_bounded_and_used(bench: Bench) -> None:
    running, most = 0, 0
    lock, full = threading.Lock(), threading.Event()

    def handle(message: dict[str, Any]) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                full.set()
        assert full.wait(60)
        with lock:
            running -= 1
        return 1

    answers = bench.process_many(messages(*"abcdefghi"), handle, key=by_id, concurrency=3)
    assert all(answer.ok for answer in answers)
    assert most == 3


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "4"])
def test_nonsense_concurrency(bench: Bench, concurrency: Any) -> None:
    with pytest.raises(ConfigurationError, match="concurrency"):
        bench.process_many(messages("a"), double, key=by_id, concurrency=concurrency)
    assert bench.store.log == []


def test_items_in_flight_elsewhere_are_waited_for(bench: Bench) -> None:
    counter = Counter("theirs")
    other = bench.new_receiver()
    first = bench.start(bench.call, other.process, "b", bench.in_mode(counter.slow))
    assert counter.entered.wait(60)
    batch = bench.start(bench.process_many, messages("a", "b", "c"), double, key=by_id)
    until(lambda: bench.store.ops().count("claim") >= 4)
    counter.go_on.set()
    answers = batch.result(120)
    assert [answer.value for answer in answers] == ["aa", "theirs", "cc"]
    assert answers[1].replayed
    first.result(120)


def test_items_in_flight_elsewhere_are_refused_if_the_policy_says_so(bench: Bench) -> None:
    counter = Counter()
    other = bench.new_receiver()
    first = bench.start(bench.call, other.process, "b", bench.in_mode(counter.slow))
    assert counter.entered.wait(60)
    bench.policy(in_flight="reject")
    answers = bench.process_many(messages("a", "b"), double, key=by_id)
    assert answers[0].value == "aa"
    assert isinstance(answers[1].error, StillInProgressError)
    counter.go_on.set()
    first.result(120)


def test_parked_items_fail_by_themselves(bench: Bench) -> None:
    bench.policy(max_attempts=1)
    counter = Counter()
    with pytest.raises(ValueError, match="no luck"):
        bench.process("b", counter.failing)
    answers = bench.process_many(messages("a", "b"), double, key=by_id)
    assert answers[0].value == "aa"
    assert isinstance(answers[1].error, ParkedError)


def test_an_unreachable_store_fails_every_item_and_starts_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twicesafe._core.batch.Sleep", lambda seconds, firm=False: Sleep(0))
    bench.store.before = Outage("claim")
    counter = Counter()
    answers = bench.process_many(messages("a", "b"), counter.quick, key=by_id)
    assert [type(answer.error) for answer in answers] == [StoreUnavailableError] * 2
    assert [answer.error.key for answer in answers] == [Key("a"), Key("b")]
    assert counter.runs == 0


@pytest.mark.parametrize("op", ["claim", "complete"])
def test_lost_replies_are_asked_again_with_the_same_owner(bench: Bench, op: str) -> None:
    bench.store.after = Outage(op, times=1)
    counter = Counter("once")
    answers = bench.process_many(messages("a", "b"), counter.quick, key=by_id)
    assert [(answer.value, answer.replayed) for answer in answers] == [("once", False)] * 2
    assert counter.runs == 2
    owners = {request.owner for request in bench.store.log if request.op == "claim"}
    assert len(owners) == 2


def test_a_batch_is_observed_like_single_deliveries(bench: Bench) -> None:
    bench.process_many(messages("a", "a"), double, key=by_id)
    kinds = [type(event) for event in bench.seen]
    assert kinds == [ev.Started, ev.Completed, ev.Replayed]


# --- attempts count starts -----------------------------------------------------------------------


def died(bench: Bench, ids: str, owner: Callable[[], bytes]) -> None:
    """A worker that claimed these has died."""
    for id_ in ids:
        bench._memory.perform(ClaimRequest(Key(id_), owner(), 1000))
    bench.clock.advance(2)


class Seen:
    """What ran, with its attempt and cause, and how many at once."""

    def __init__(self) -> None:
        self.starts: dict[str, tuple[int, Any]] = {}
        self.beside: dict[str, set[str]] = {}
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, message: dict[str, Any]) -> None:
        claim, id_ = current_claim(), message["id"]
        with self._lock:
            self._running.add(id_)
            self.starts[id_] = claim.attempt, claim.cause
            for one in self._running:
                self.beside.setdefault(one, set()).update(self._running)
        with self._lock:
            self._running.remove(id_)


MEMORY = pytest.mark.parametrize("bench", ["memory-sync", "memory-async"], indirect=True)
"""Every store counts alike: the conformance suite says so."""


@MEMORY
def test_only_claims_that_can_start_are_counted(bench: Bench) -> None:
    bench.process_many(messages(*"abcdef"), double, key=by_id, concurrency=2)
    claims = [request for request in bench.store.log if request.op == "claim"]
    assert [is_ahead(request.owner) for request in claims] == [False] * 2 + [True] * 4


@MEMORY
def test_claims_made_ahead_by_a_dead_worker_were_no_attempts(bench: Bench) -> None:
    died(bench, "abcdef", new_owner_ahead)
    seen = Seen()
    outcomes = bench.process_many(messages(*"abcdef"), seen, key=by_id, concurrency=2)
    assert [outcome.attempt for outcome in outcomes] == [1] * 6
    assert set(seen.starts.values()) == {(1, Cause.LEASE_EXPIRED)}


@MEMORY
def test_claims_that_expired_before_their_start_were_no_attempts(bench: Bench) -> None:
    def handle(message: dict[str, Any]) -> None:
        if message["id"] == "a":
            bench.clock.advance(1000)

    bench.receiver = bench.new_receiver(bench.store, worker_clock=bench.clock.worker)
    answers = bench.process_many(messages(*"abc"), handle, key=by_id, concurrency=1)
    assert [type(answer.error) for answer in answers[1:]] == [LostBeforeStartError] * 2
    again = bench.process_many(messages(*"bc"), double, key=by_id)
    assert [answer.attempt for answer in again] == [1, 1]


@MEMORY
def test_what_was_tried_before_is_claimed_when_it_can_start(bench: Bench) -> None:
    """So a second death counts two messages at most, and not the rest of the batch."""
    died(bench, "abcdef", new_owner_ahead)
    bench.process_many(messages(*"abcdef"), double, key=by_id, concurrency=2)
    ops = [request.op for request in bench.store.log]
    assert ops == ["claim"] * 6 + ["abandon"] * 4 + (
        ["complete"] * 2 + ["claim"] * 2 + ["complete"] * 2 + ["claim"] * 2 + ["complete"] * 2
    )
    counted = [one for one in bench.store.log if one.op == "claim" and not is_ahead(one.owner)]
    assert len(counted) == 6


@MEMORY
def test_a_message_that_may_have_killed_its_worker_runs_alone(bench: Bench) -> None:
    died(bench, "c", new_owner)
    seen = Seen()
    outcomes = bench.process_many(messages(*"abcdef"), seen, key=by_id, concurrency=6)
    assert list(seen.starts)[-1] == "c", "after the others"
    assert seen.starts["c"] == (2, Cause.LEASE_EXPIRED)
    assert seen.beside["c"] == {"c"}
    assert [outcome.attempt for outcome in outcomes] == [1, 1, 2, 1, 1, 1]


@MEMORY
@pytest.mark.parametrize("policy", [{"takeover": "hold"}, {"max_attempts": 1}])
def test_what_may_start_once_is_never_claimed_ahead(bench: Bench, policy: Any) -> None:
    """Else a death would hold or park messages that never started."""
    bench.policy(**policy)
    outcomes = bench.process_many(messages(*"abcdef"), double, key=by_id, concurrency=4)
    assert all(outcome.ok for outcome in outcomes)
    assert [request.op for request in bench.store.log] == (
        ["claim"] * 4 + ["complete"] * 4 + ["claim"] * 2 + ["complete"] * 2
    )
    assert not any(is_ahead(one.owner) for one in bench.store.log)


@pytest.mark.parametrize("bench", ["memory-sync"], indirect=True)
def test_a_batch_in_parts_ends_with_its_interrupt(bench: Bench) -> None:
    """What comes after it is not claimed."""
    bench.policy(takeover="hold")

    def handle(message: dict[str, Any]) -> str:
        if message["id"] == "c":
            raise SystemExit(3)
        return message["id"]

    with pytest.raises(SystemExit):
        bench.process_many(messages(*"abcdef"), handle, key=by_id, concurrency=2)
    assert [bench.record(id_) is None for id_ in "abcdef"] == [False] * 4 + [True] * 2


@pytest.mark.parametrize("timeout", [None, 30])
def test_without_a_store_the_handlers_of_a_batch_run_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    """Each of them asked the store again, for three seconds, and one after the other."""
    monkeypatch.setattr("twicesafe._core.batch.Sleep", lambda _: Sleep(0))
    bench.policy(outage="run", timeout=timeout)
    bench.store.before = Outage("claim")
    together = threading.Barrier(3)

    def handle(message: int) -> int:
        together.wait(60)
        if message == 1:
            raise ValueError("no luck")
        return message

    ended = bench.process_many([0, 1, 2], handle, key=str, concurrency=3)
    assert [getattr(one, "value", None) for one in ended] == [0, None, 2]
    assert isinstance(ended[1].error, ValueError)
    assert (ended[0].attempt, ended[0].fence) == (0, 0)
    assert len(bench.events(ev.Unprotected)) == len(bench.events(ev.StoreFailed)) == 3
    assert bench.store.round_trips == 6, "the batch asked, and nothing asked again for each message"
