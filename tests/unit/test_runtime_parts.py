"""The parts of a runtime, one by one: flights, the lease keeper, the replay cache, time, context."""

from __future__ import annotations

import contextvars
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.polling import until
from twicesafe import (
    InvalidKeyError,
    Key,
    LeaseLostError,
    UsageError,
    current_claim,
    current_key,
    key_scope,
)
from twicesafe import events as ev
from twicesafe._core.protocol import Ack, Claimed, Verdict
from twicesafe._runtime.lease_keeper import LeaseKeeper
from twicesafe._runtime.replay_cache import ReplayCache
from twicesafe._runtime.single_flight import Flight, SingleFlight
from twicesafe._values import clocks
from twicesafe._values.context import ActiveClaim, active, scope_of_context
from twicesafe.errors import StoreUnavailableError
from twicesafe.testing._clock import FakeClock

REPLAY = Claimed(Verdict.REPLAY, 1, 1, expires_in=1000)


# --- flights -----------------------------------------------------------------------------------------


def boarded(flights: SingleFlight, fingerprint: bytes | None = None) -> Flight:
    """A flight of this key that leads."""
    mine = Flight(b"k", fingerprint)
    assert flights.table.setdefault(b"k", mine) is mine
    return mine


def test_one_leads_and_the_others_ride() -> None:
    flights, woken = SingleFlight(), []
    flight = boarded(flights, b"f")
    assert flights.table[b"k"] is flight
    assert flight.fingerprint == b"f"
    assert flights.wait(flight, lambda: woken.append(1), 2)
    assert flights.wait(flight, lambda: woken.append(2), 2)
    with pytest.raises(OverflowError):
        flights.wait(flight, lambda: None, 2)
    flights.end(flight, REPLAY)
    assert (woken, flight.answer) == ([1, 2], REPLAY)
    assert flights.wait(flight, lambda: None, 2) is False
    boarded(flights)


def test_who_leaves_is_not_woken_and_makes_room() -> None:
    flights, woken = SingleFlight(), []
    flight = boarded(flights)

    def waker() -> None:
        woken.append(1)

    flights.wait(flight, waker, 1)
    flights.leave(flight, waker)
    flights.leave(flight, waker)
    assert flights.wait(flight, lambda: woken.append(2), 1)
    flights.end(flight, None)
    assert woken == [2]


def test_no_waiter_is_skipped_when_the_woken_leave_at_once() -> None:
    """Riders of other event loops leave while the landing still walks along the list."""
    flights, woken = SingleFlight(), []
    flight = boarded(flights)

    def rider(number: int) -> Callable[[], None]:
        def wake() -> None:
            woken.append(number)
            flights.leave(flight, wake)

        return wake

    for number in range(5):
        flights.wait(flight, rider(number), 10)
    flights.end(flight, None)
    assert woken == [0, 1, 2, 3, 4]


def test_ending_a_flight_after_a_fork_disturbs_no_caller() -> None:
    flights = SingleFlight()
    flight = boarded(flights)
    flights.forget_all()
    mine = boarded(flights)
    flights.end(flight, None)
    assert flights.table[b"k"] is mine


# --- the keeper: its rounds are called by hand, its clock is set by the test ------------------------------------


class FakeStore:
    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.answer: Any = Ack.OK

    def perform_many(self, requests: Any) -> list[Any]:
        self.batches.append(list(requests))
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer] * len(requests)


class Keeping:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.store, self.seen = FakeClock(), FakeStore(), list[Any]()
        self.keeper = LeaseKeeper(self.store.perform_many, self.clock.worker, self.seen.append)
        # No thread here: the test is the thread.
        monkeypatch.setattr(self.keeper, "_rouse", lambda pace: None)

    def claim(self, key: str = "k", lease: float = 30, max_lease: float = 3600) -> ActiveClaim:
        now = self.clock.worker()
        claim = ActiveClaim(
            Key(key),
            b"o",
            1,
            1,
            None,
            now,
            lease,
            max_lease,
            self.clock.worker,
            now,
            now + 0.9 * lease,
        )
        self.keeper.add(claim)
        return claim

    def pass_time(self, seconds: float) -> int:
        """How many round trips the keeper made in the round after this time."""
        before = len(self.store.batches)
        self.clock.advance(seconds)
        assert self.keeper._round()
        return len(self.store.batches) - before


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> Keeping:
    return Keeping(monkeypatch)


def test_short_calls_cause_no_renewal(keeping: Keeping) -> None:
    claim = keeping.claim()
    assert keeping.pass_time(9.9) == 0
    keeping.keeper.remove(claim)
    assert keeping.pass_time(100) == 0


def test_renews_at_a_third_and_again(keeping: Keeping) -> None:
    claim = keeping.claim()
    assert keeping.pass_time(10) == 1
    (renew,) = keeping.store.batches[0]
    assert (renew.id, renew.owner, renew.fence, renew.lease) == (Key("k").id, b"o", 1, 30_000)
    assert keeping.pass_time(9) == 0
    assert keeping.pass_time(1) == 1
    assert claim.expires == pytest.approx(keeping.clock.worker() + 27)
    assert not claim.lost


def test_many_claims_are_renewed_in_one_round_trip(keeping: Keeping) -> None:
    for number in range(5):
        keeping.claim(str(number))
    assert keeping.pass_time(10) == 1
    assert len(keeping.store.batches[0]) == 5


@pytest.mark.parametrize("how", ["raises", "answers"])
def test_single_errors_are_survived(keeping: Keeping, how: str, monkeypatch: Any) -> None:
    claim = keeping.claim()
    error = StoreUnavailableError("cut")
    if how == "raises":
        keeping.store.answer = error
    else:
        monkeypatch.setattr(keeping.keeper, "_perform_many", lambda asks: [error] * len(asks))
    keeping.pass_time(10)
    assert keeping.seen == [ev.RenewalFailed(Key("k"), "StoreUnavailableError")]
    assert not claim.gone
    monkeypatch.setattr(keeping.keeper, "_perform_many", keeping.store.perform_many)
    keeping.store.answer = Ack.OK
    assert keeping.pass_time(1) == 1  # soon again, not in another third
    assert claim.expires == pytest.approx(keeping.clock.worker() + 27)


@pytest.mark.parametrize("answer", [Ack.LOST, Ack.MISSING])
def test_a_refused_renewal_marks_the_claim_as_gone(keeping: Keeping, answer: Ack) -> None:
    claim = keeping.claim()
    keeping.store.answer = answer
    keeping.pass_time(10)
    assert claim.gone
    assert claim.lost
    with pytest.raises(LeaseLostError):
        claim.check()
    assert keeping.pass_time(10) == 0


def test_stops_at_max_lease(keeping: Keeping) -> None:
    claim = keeping.claim(lease=30, max_lease=45)
    keeping.pass_time(10)
    keeping.pass_time(10)
    spans = [batch[0].lease for batch in keeping.store.batches]
    assert spans == [30_000, 25_000]  # never past started + max_lease
    keeping.pass_time(10)
    assert keeping.store.batches[-1][0].lease == 15_000
    assert keeping.pass_time(15) == 0
    assert keeping.pass_time(100) == 0
    assert claim.lost


def test_settled_claims_are_freed(keeping: Keeping) -> None:
    claim = keeping.claim()
    claim.settled = True
    assert keeping.pass_time(10) == 0
    assert not keeping.keeper._live


def test_idles_when_no_claim_needs_it(keeping: Keeping) -> None:
    claim = keeping.claim()
    assert keeping.keeper._next_round() is not None
    keeping.keeper.remove(claim)
    assert keeping.keeper._next_round() is None


def test_an_error_of_its_own_does_not_end_it(
    keeping: Keeping, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keeping.claim()
    monkeypatch.setattr(keeping.keeper, "_perform_many", lambda asks: [])
    assert keeping.pass_time(10) == 0
    assert "continues after an error" in caplog.text
    monkeypatch.setattr(keeping.keeper, "_perform_many", keeping.store.perform_many)
    assert keeping.pass_time(1) == 1


def test_an_observer_that_exits_does_not_end_the_renewals(
    keeping: Keeping, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`sys.exit()` ends a thread without a word: nothing was renewed any more, and handlers lost their claims."""
    keeping.claim()
    keeping.store.answer = StoreUnavailableError("down")
    monkeypatch.setattr(keeping.keeper, "_notify", lambda event: sys.exit(1))
    assert keeping.pass_time(10) == 1
    assert "continues after an error" in caplog.text
    assert keeping.pass_time(0.5) == 0  # it is not tried again at once
    keeping.store.answer = Ack.OK
    assert keeping.pass_time(1) == 1


def test_the_thread_starts_when_needed_and_ends_when_closed() -> None:
    store = FakeStore()
    keeper = LeaseKeeper(store.perform_many, time.monotonic, lambda event: None)
    assert keeper._thread is None
    renewed = threading.Event()
    store.perform_many = lambda asks: renewed.set() or [Ack.OK] * len(asks)  # type: ignore[func-returns-value]
    keeper._perform_many = store.perform_many
    now = time.monotonic()
    keeper.add(
        ActiveClaim(Key("k"), b"o", 1, 1, None, now, 0.05, 9, time.monotonic, now, now + 0.045)
    )
    assert renewed.wait(60)
    thread = keeper._thread
    assert thread is not None
    assert thread.daemon
    keeper.close()
    thread.join(60)
    assert not thread.is_alive()


def test_the_thread_may_be_woken_at_any_moment_also_from_inside() -> None:
    """The garbage collector may drop the keeper at any line of its thread, and wakes it from there."""
    keeper = LeaseKeeper(FakeStore().perform_many, time.monotonic, lambda event: None)
    lines: list[str] = []

    def wake(frame: Any, event: str, arg: Any) -> Any:
        if len(lines) < 1000:  # then it may sleep
            lines.append(event)
            keeper._wakeup.set()
        return wake

    threading.settrace(wake)
    try:
        now = time.monotonic()
        keeper.add(
            ActiveClaim(Key("k"), b"o", 1, 1, None, now, 90, 900, time.monotonic, now, now + 81)
        )
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    thread = keeper._thread
    assert thread is not None
    until(lambda: len(lines) == 1000, 60)
    keeper.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_claim_whose_answer_was_late_is_renewed_at_once() -> None:
    """Found by the simulation, seed 665464: the next look came after the end of its lease."""
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def perform_many(asks: Any) -> list[Ack]:
        asked.put([ask.id for ask in asks])
        return [Ack.OK] * len(asks)

    def claim(key: str, ago: float) -> ActiveClaim:
        began = time.monotonic() - ago
        return ActiveClaim(
            Key(key), b"o", 1, 1, None, began, 90, 900, time.monotonic, began, began + 81
        )

    keeper = LeaseKeeper(perform_many, time.monotonic, lambda event: None)
    keeper.add(claim("fresh", 0))
    until(keeper._wakeup._asleep.locked)  # it sleeps, for half a minute
    keeper.add(claim("late", 60))
    assert asked.get(timeout=60) == [Key("late").id]
    keeper.close()


# --- the replay cache --------------------------------------------------------------------------------


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    cache = ReplayCache(2, FakeClock().worker)
    for name in (b"a", b"b", b"a", b"c"):
        cache.put(name, REPLAY)
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    cache.drop(b"a")
    cache.drop(b"a")
    assert cache.get(b"a") is None


def test_the_cache_ends_before_retention_does() -> None:
    clock = FakeClock()
    cache = ReplayCache(2, clock.worker)
    cache.put(b"a", Claimed(Verdict.REPLAY, expires_in=1000))
    clock.advance(ms=989)
    assert cache.get(b"a") is not None
    clock.advance(ms=2)
    assert cache.get(b"a") is None
    assert not cache._kept


# --- context and clocks ------------------------------------------------------------------------------


def test_scopes_nest_and_end() -> None:
    with key_scope("tenant") as outer:
        assert outer == ("tenant",)
        with key_scope("op", "v2") as inner:
            assert inner == scope_of_context() == ("tenant", "op", "v2")
        assert scope_of_context() == ("tenant",)
        with pytest.raises(ValueError, match="inside"), key_scope("x"):
            raise ValueError("inside")
        assert scope_of_context() == ("tenant",)
    assert scope_of_context() == ()


def test_scopes_do_not_leak_into_other_threads() -> None:
    seen = []
    with key_scope("tenant"):
        thread = threading.Thread(target=lambda: seen.append(scope_of_context()))
        thread.start()
        thread.join()
    assert seen == [()]


def test_a_scope_can_be_used_again_and_by_several_threads() -> None:
    tenant, seen = key_scope("tenant"), []
    begun = threading.Barrier(2, timeout=60)

    def use() -> None:
        with tenant, tenant:
            begun.wait()
            seen.append(scope_of_context())
        seen.append(scope_of_context())

    with ThreadPoolExecutor(2) as pool:
        for ended in [pool.submit(use), pool.submit(use)]:
            ended.result()
    assert sorted(seen) == [(), (), ("tenant", "tenant"), ("tenant", "tenant")]


def test_a_scope_that_ends_in_another_context_is_an_error() -> None:
    """As in a blocking dependency of FastAPI: its two halves run in two threads, its route in neither context."""

    def dependency() -> Iterator[None]:
        with key_scope("tenant"):
            yield

    block = dependency()
    contextvars.copy_context().run(next, block)
    assert scope_of_context() == ()
    with pytest.raises(UsageError, match="in another thread or task than it began in"):
        contextvars.copy_context().run(next, block)


def test_a_scope_is_no_decorator() -> None:
    """An async function or a generator would run after the block has ended, so for another tenant."""

    async def pay() -> None: ...

    with pytest.raises(UsageError, match=r"write `with key_scope\(…\):` inside the function"):
        key_scope("tenant")(pay)


@pytest.mark.parametrize("part", [None, 7, "", "x" * 256, ("a", "b")])
def test_a_scope_refuses_what_cannot_be_part_of_a_key(part: Any) -> None:
    with pytest.raises(InvalidKeyError, match="scope part"):
        key_scope(part)


def test_the_current_claim_and_its_deadline() -> None:
    assert current_claim() is None
    assert current_key() is None
    clock = FakeClock()
    now = clock.worker()
    claim = ActiveClaim(Key("k"), b"o", 3, 1, None, now, 30, 90, clock.worker, now, now + 27)
    token = active.set(claim)
    try:
        assert current_claim() is claim
        assert current_key() == Key("k")
        before, deadline, after = time.monotonic(), claim.deadline, time.monotonic()
        assert before + 26.9 < deadline < after + 27.1
        clock.advance(26.9)
        claim.check()
        clock.advance(0.1)
        with pytest.raises(LeaseLostError):
            claim.check()
        assert "k" not in repr(claim).replace("claim", "").split()
    finally:
        active.reset(token)


def test_the_workers_clock_does_not_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clocks.since_boot()
    monkeypatch.setattr("time.time", lambda: 0.0)
    monkeypatch.setattr("time.time_ns", lambda: 0)
    assert clocks.since_boot() >= before
    assert clocks.wall_clock() == 0


def test_the_boot_has_a_name_where_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clocks.boot_id() == clocks.boot_id()

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(clocks, "open", missing, raising=False)
    assert clocks.boot_id() == ""
