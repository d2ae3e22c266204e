"""The local replay cache: a hot duplicate costs no round trip, and never a wrong answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from tests.receiver.faults import Outage
from twicesafe import FingerprintMismatchError, Key, RememberedFailureError, StoreUnavailableError
from twicesafe import events as ev


@pytest.fixture
def cached(bench: Bench) -> Bench:
    bench.store = bench.new_store()
    bench.receiver = bench.new_receiver(bench.store, cache=2, worker_clock=bench.clock.worker)
    return bench


def test_a_hot_duplicate_costs_no_round_trip(cached: Bench) -> None:
    counter = Counter([1])
    cached.process("k", counter.quick)
    round_trips = cached.store.round_trips
    outcome = cached.process("k", counter.quick)
    assert (outcome.value, outcome.replayed, cached.store.round_trips) == ([1], True, round_trips)
    assert cached.events(ev.Replayed)[-1].cached


def test_answers_are_copies(cached: Bench) -> None:
    cached.process("k", Counter([1]).quick)
    cached.process("k", Counter().quick).value.append("spoilt")
    assert cached.process("k", Counter().quick).value == [1]


def test_a_replay_from_the_store_fills_it(cached: Bench) -> None:
    other = cached.new_receiver()
    cached.call(other.process, "k", cached.in_mode(Counter(5).quick))
    cached.process("k", Counter().quick)
    round_trips = cached.store.round_trips
    assert cached.process("k", Counter().quick).value == 5
    assert cached.store.round_trips == round_trips


def test_it_is_bounded(cached: Bench) -> None:
    for key in "abc":
        cached.process(key, Counter(key).quick)
    assert len(cached.receiver._runtime.cache._kept) == 2
    round_trips = cached.store.round_trips
    assert cached.process("a", Counter().quick).value == "a"
    assert cached.store.round_trips == round_trips + 1


def test_it_never_outlives_retention(cached: Bench) -> None:
    cached.policy(retention=100)
    counter = Counter()
    cached.process("k", counter.quick)
    cached.clock.advance(100)
    assert not cached.process("k", counter.quick).replayed
    assert counter.runs == 2


def test_a_replay_late_in_retention_is_kept_for_the_rest_only(cached: Bench) -> None:
    cached.policy(retention=100)
    counter = Counter()
    other = cached.new_receiver(policy=cached.receiver.policy)
    cached.call(other.process, "k", cached.in_mode(counter.quick))
    cached.clock.advance(90)
    assert cached.process("k", counter.quick).replayed
    cached.clock.advance(10)
    assert not cached.process("k", counter.quick).replayed


def test_it_is_not_filled_before_the_store_confirmed(
    cached: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(request: Any) -> None:
        if request.op == "complete":
            cached.clock.advance(3600)  # no time left for another try
            Outage("complete")(request)

    cached.store.before = gone
    with pytest.raises(StoreUnavailableError, match="unknown"):
        cached.process("k", Counter().quick)
    assert cached.receiver._runtime.cache.get(Key("k").id) is None


def test_failures_and_refusals_are_not_kept(cached: Bench) -> None:
    with pytest.raises(ValueError, match="no luck"):
        cached.process("k", Counter().failing)
    assert cached.receiver._runtime.cache.get(Key("k").id) is None
    assert cached.process("k", Counter(1).quick).attempt == 2


def test_remembered_failures_are_kept(cached: Bench) -> None:
    cached.policy(remember=(ValueError,))
    with pytest.raises(ValueError, match="no luck"):
        cached.process("k", Counter().failing)
    round_trips = cached.store.round_trips
    with pytest.raises(RememberedFailureError):
        cached.process("k", Counter().quick)
    assert cached.store.round_trips == round_trips


def test_a_mismatch_is_still_a_mismatch(cached: Bench) -> None:
    cached.receiver = cached.receiver.options(fingerprint=True)
    cached.process("k", Counter().quick, 1)
    with pytest.raises(FingerprintMismatchError):
        cached.process("k", Counter().quick, 2)


def test_an_answer_without_fingerprint_is_not_for_who_has_one(cached: Bench) -> None:
    """The worker that finished had none, but the record keeps that of its first request."""
    plain, checked = cached.receiver, cached.receiver.options(fingerprint=True)
    work = cached.in_mode(Counter("for 1").quick)
    with pytest.raises(ValueError, match="no luck"):
        cached.call(checked.process, "k", cached.in_mode(Counter().failing), 1)
    cached.call(plain.process, "k", work, 1)
    with pytest.raises(FingerprintMismatchError):
        cached.call(checked.process, "k", work, 2)
    assert cached.call(checked.process, "k", work, 1).value == "for 1"
    round_trips = cached.store.round_trips
    assert cached.call(checked.process, "k", work, 1).value == "for 1"  # now it is known
    assert cached.store.round_trips == round_trips


@pytest.mark.parametrize("act", ["release", "forget", "resolve"])
def test_an_operators_act_is_seen_at_once(cached: Bench, act: str) -> None:
    cached.policy(remember=(ValueError,))
    counter = Counter("fresh")
    with pytest.raises(ValueError, match="no luck"):
        cached.process("k", counter.failing)
    with pytest.raises(RememberedFailureError):
        cached.process("k", counter.quick)
    if act == "release":
        cached.release("k", by="ann")
        assert cached.process("k", counter.quick).value == "fresh"
    elif act == "resolve":
        cached.resolve("k", "by hand", by="ann")
        assert cached.process("k", counter.quick).value == "by hand"
    else:
        cached.forget("k")
        with pytest.raises(Exception, match="forgotten"):
            cached.process("k", counter.quick)


def test_an_act_whose_answer_is_lost_is_seen_too(cached: Bench) -> None:
    counter = Counter("fresh")
    cached.process("k", counter.quick)
    cached.store.after = Outage("release")
    with pytest.raises(StoreUnavailableError):
        cached.release("k", by="ann", force=True)
    assert not cached.process("k", counter.quick).replayed


@pytest.mark.parametrize("answered", ["complete", "claim"])
def test_an_act_between_an_answer_and_the_cache_is_seen(cached: Bench, answered: str) -> None:
    """A delivery holds the answer of the store, and an operator changes the record, before the
    delivery puts it into the cache."""
    if answered == "claim":
        other = cached.new_receiver()
        cached.call(other.process, "k", cached.in_mode(Counter("secret").quick))

    def forget(request: Any) -> Any:
        return cached.receiver.forget("k") if request.op == answered else None

    cached.store.after = forget
    assert cached.process("k", Counter("secret").quick).value == "secret"
    cached.store.after = lambda request: None
    with pytest.raises(Exception, match="forgotten"):
        cached.process("k", Counter().quick)
