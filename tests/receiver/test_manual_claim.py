"""`with receiver.claim(key)`: the same promises for work that does not fit into one function."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests.receiver.bench import LEAVE, Bench, Counter
from tests.receiver.faults import FaultyStore, Outage
from twicesafe import (
    AsyncReceiver,
    FingerprintMismatchError,
    HeldError,
    Key,
    LeaseLostError,
    NotStorableError,
    ParkedError,
    Policy,
    Receiver,
    ResultUnavailableError,
    State,
    StoreUnavailableError,
    UsageError,
    current_claim,
    current_key,
)
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore


def test_complete_then_duplicate(bench: Bench) -> None:
    first = bench.manual("k", lambda claim: {"n": 0})
    second = bench.manual("k", lambda claim: pytest.fail("ran twice"))
    assert (first.is_new, first.result, first.attempt) == (True, {"n": 0}, 1)
    assert (second.is_new, second.result, second.attempt) == (False, {"n": 0}, 1)
    assert second.fence == first.fence
    assert first.key == Key("k")
    assert bench.process("k", Counter().quick).value == {"n": 0}


def test_a_completed_claim_is_answered_before_its_block_ends() -> None:
    """The rest of the block may take long; a response with background tasks is one example."""
    receiver = Receiver(MemoryStore(), policy=Policy(in_flight="reject"))
    receiver._runtime.recall = None  # as on a server
    with receiver.claim("k") as claim:
        claim.complete("done")
        assert receiver.process("k", lambda: pytest.fail("ran twice")).value == "done"


async def test_a_completed_claim_is_answered_before_its_block_ends_async() -> None:
    receiver = AsyncReceiver(AsyncMemoryStore(), policy=Policy(in_flight="reject"))
    receiver._runtime.recall = None  # as on a server
    async with receiver.claim("k") as claim:
        await claim.complete("done")
        async with receiver.claim("k") as again:
            assert (again.is_new, again.result) == (False, "done")


def test_the_block_runs_under_its_claim(bench: Bench) -> None:
    seen: list[Any] = []

    def body(claim: Any) -> None:
        active = current_claim()
        assert active is not None
        seen.append((current_key(), active.fence == claim.fence, claim.lost, claim.cause))
        with pytest.raises(UsageError, match="no result"):
            _ = claim.result

    bench.manual("k", body)
    assert seen == [(Key("k"), True, False, None)]
    assert current_claim() is None


def test_an_exception_fails_the_attempt(bench: Bench) -> None:
    with pytest.raises(ValueError, match="no luck"):
        bench.manual("k", Counter().failing)
    assert bench.record("k").state is State.RELEASED
    again = bench.manual("k", lambda claim: (claim.attempt, str(claim.cause)))
    assert again.result == (2, "failed")


def test_leaving_without_complete_gives_the_claim_back(bench: Bench) -> None:
    bench.policy(max_attempts=1)
    for _ in range(3):
        bench.manual("k", lambda claim: LEAVE)  # not an attempt: nothing was done
        assert bench.record("k").state is State.RELEASED
    assert bench.manual("k", lambda claim: 5).result == 5


def test_failures_count_and_park(bench: Bench) -> None:
    bench.policy(max_attempts=1)
    with pytest.raises(ValueError, match="no luck"):
        bench.manual("k", Counter().failing)
    with pytest.raises(ParkedError):
        bench.manual("k", lambda claim: 5)


def test_a_lost_lease_is_reported_and_records_nothing(bench: Bench) -> None:
    other = bench.new_receiver()

    def body(claim: Any) -> str:
        bench.clock.advance(31)
        bench.call(other.process, "k", bench.in_mode(Counter("newer").quick))
        return "zombie"

    with pytest.raises(LeaseLostError):
        bench.manual("k", body)
    assert bench.process("k", Counter().quick).value == "newer"


def test_fingerprints(bench: Bench) -> None:
    bench.manual("k", lambda claim: 1, fingerprint={"amount": 1, "to": "x"})
    assert bench.manual("k", lambda claim: 2, fingerprint={"to": "x", "amount": 1}).result == 1
    with pytest.raises(FingerprintMismatchError) as caught:
        bench.manual("k", lambda claim: 2, fingerprint={"amount": 2, "to": "x"})
    assert caught.value.fields == ("amount",)
    bench.manual("b", lambda claim: 1, fingerprint=b"1")
    with pytest.raises(FingerprintMismatchError):
        bench.manual("b", lambda claim: 1, fingerprint=b"2")


def test_a_result_that_cannot_be_kept(bench: Bench) -> None:
    value = object()
    with pytest.raises(NotStorableError) as caught:
        bench.manual("k", lambda claim: value)
    assert caught.value.value is value
    assert bench.record("k").state is State.COMPLETED
    with pytest.raises(ResultUnavailableError):
        bench.manual("k", lambda claim: 5)


def test_completing_twice_or_as_a_duplicate_is_refused() -> None:
    receiver = Receiver(MemoryStore())
    with receiver.claim("k") as claim:
        claim.complete(1)
        assert claim.result == 1
        with pytest.raises(UsageError, match="already ended"):
            claim.complete(2)
    with receiver.claim("k") as claim, pytest.raises(UsageError, match="duplicate"):
        claim.complete(2)
    assert receiver.process("k", lambda: 3).value == 1


async def test_completing_twice_or_as_a_duplicate_is_refused_async() -> None:
    receiver = AsyncReceiver(AsyncMemoryStore())
    async with receiver.claim("k") as claim:
        await claim.complete(1)
        with pytest.raises(UsageError, match="already ended"):
            await claim.complete(2)
    async with receiver.claim("k") as claim:
        with pytest.raises(UsageError, match="duplicate"):
            await claim.complete(2)


def test_waiting_duplicates_are_woken(bench: Bench) -> None:
    counter = Counter(7)
    first = bench.start(bench.manual, "k", counter.slow)
    assert counter.entered.wait(60)
    second = bench.start(bench.process, "k", counter.slow)
    third = bench.start(bench.manual, "k", counter.slow)
    counter.go_on.set()
    assert [first.result(120).result, second.result(120).value, third.result(120).result] == [
        7,
        7,
        7,
    ]
    assert counter.runs == 1


@pytest.mark.parametrize("bench", ["memory-async", "sqlite-async"], indirect=True)
def test_cancelled_while_giving_back_is_cancelled(bench: Bench) -> None:
    """The record is written to its end, and then the cancellation is delivered."""
    reached: list[asyncio.Event] = []

    async def run() -> str:
        writing, go_on = asyncio.Event(), asyncio.Event()
        reached.append(writing)

        async def pause(request: Any) -> None:
            if request.op == "abandon":
                writing.set()
                await go_on.wait()

        bench.store.before = pause

        async def leave() -> None:
            async with bench.receiver.claim("k"):
                pass

        task = asyncio.ensure_future(leave())
        await writing.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return str((await bench.receiver.record("k")).state)

    assert bench._wait(run()) == "released"


def test_claims_nest() -> None:
    receiver = Receiver(MemoryStore())
    with receiver.claim("outer") as outer:
        with receiver.claim("inner") as inner:
            assert current_key() == Key("inner")
            inner.complete(1)
        assert current_key() == Key("outer")
        outer.complete(2)
    assert current_key() is None


def test_release_and_hold_end_a_claim() -> None:
    receiver = Receiver(MemoryStore())
    with receiver.claim("r") as claim:
        claim.release()
        with pytest.raises(UsageError, match="already ended"):
            claim.complete(1)
    record = receiver.record("r")
    assert record is not None
    assert (record.state, record.attempt) == (State.RELEASED, 0)
    with receiver.claim("h") as claim:
        claim.hold("the bank did not answer")
    record = receiver.record("h")
    assert record is not None
    assert (record.state, record.error) == (State.HELD, "the bank did not answer")


@pytest.mark.parametrize("way", ["complete", "release", "hold", "leave", "raise"])
def test_only_a_claim_that_was_not_completed_is_lost_by_its_end(way: str) -> None:
    receiver = Receiver(MemoryStore())
    with suppress(ValueError), receiver.claim("k") as claim:
        held = current_claim()
        assert held is not None
        if way == "raise":
            raise ValueError("no luck")
        if way != "leave":
            getattr(claim, way)()
    assert claim.lost == held.lost == (way != "complete")


async def test_release_and_hold_end_a_claim_async() -> None:
    receiver = AsyncReceiver(AsyncMemoryStore())
    async with receiver.claim("r") as claim:
        await claim.release()
    async with receiver.claim("h") as claim:
        await claim.hold("why")
    states = [record.state async for record in receiver.records()]
    assert states == [State.HELD, State.RELEASED]


@dataclass
class Receipt:
    id: str


def test_releasing_gives_the_claim_back_and_is_no_attempt() -> None:
    receiver = Receiver(MemoryStore())
    with receiver.claim("k") as claim:
        claim.release()
        assert receiver.process("k", lambda: 1).value == 1  # at once, inside the block
        with pytest.raises(UsageError, match="no result"):
            _ = claim.result
    record = receiver.record("k")
    assert record is not None
    assert (record.attempt, record.cause) == (1, None)


def test_a_held_key_runs_nothing_until_an_operator_decides() -> None:
    receiver = Receiver(MemoryStore())
    with receiver.claim("k") as claim:
        claim.hold("upstream cut the connection")
    with pytest.raises(
        HeldError, match="its record says 'upstream cut the connection'; an operator"
    ):
        receiver.process("k", lambda: 1)
    record = receiver.record("k")
    assert record is not None
    assert (record.state, record.error) == (State.HELD, "upstream cut the connection")
    receiver.resolve("k", "seen at the bank", by="ana")
    assert receiver.process("k", lambda: 1).value == "seen at the bank"


async def test_release_and_hold_async() -> None:
    receiver = AsyncReceiver(AsyncMemoryStore())
    async with receiver.claim("k") as claim:
        await claim.release()
    async with receiver.claim("k") as claim:
        assert claim.attempt == 1
        await claim.hold("the bank\nsent " + "x" * 4000)
    with pytest.raises(HeldError, match=r"says 'the bank\\nsent x+…'; an operator") as held:
        async with receiver.claim("k"):
            pass
    assert len(str(held.value)) < 400
    async with receiver.claim("other") as claim:
        await claim.complete(1)
        with pytest.raises(UsageError, match="already ended"):
            await claim.hold()
    record = await receiver.record("k")
    assert record is not None
    assert record.state is State.HELD


def test_what_follows_a_block_is_not_under_its_claim_though_a_thread_released_it() -> None:
    receiver = Receiver.open("memory://")
    with receiver.claim("k") as claim, ThreadPoolExecutor(1) as thread:
        thread.submit(claim.release).result()
    assert current_key() is None
    receiver.close()


@pytest.mark.parametrize("way", ["release", "hold"])
async def test_a_task_of_the_block_may_give_the_claim_up(way: str) -> None:
    receiver = AsyncReceiver(AsyncMemoryStore())
    async with receiver.claim("k") as claim:
        await asyncio.create_task(getattr(claim, way)())
    record = await receiver.record("k")
    assert record is not None
    assert record.state is (State.HELD if way == "hold" else State.RELEASED)


@pytest.mark.parametrize("way", ["complete", "hold"])
@pytest.mark.parametrize("swallowed", [True, False])
def test_an_unconfirmed_end_gives_nothing_back(way: str, swallowed: bool) -> None:
    store = FaultyStore(MemoryStore())
    receiver = Receiver(store, policy=Policy(takeover="hold", lease=0.1, in_flight="reject"))
    store.before = outage = Outage("complete", "fail")
    with suppress(StoreUnavailableError), receiver.claim("k") as claim:
        try:
            getattr(claim, way)("x")
        except StoreUnavailableError:
            if not swallowed:
                raise
    outage.over()
    record = receiver.record("k")
    assert record is not None
    assert record.state is State.IN_PROGRESS  # not released: the effect may have happened


def test_a_rich_result_needs_its_type() -> None:
    receiver = Receiver(MemoryStore())
    with receiver.claim("k", returns=Receipt) as claim:
        claim.complete(Receipt("r-1"))
    with receiver.claim("k", returns=Receipt) as claim:
        assert claim.result == Receipt("r-1")


def test_the_result_has_the_type_that_returns_names(bench: Bench) -> None:
    def work(claim: Any) -> Receipt:
        return Receipt("r-1")

    assert bench.manual("k", work, returns=Receipt).result == Receipt("r-1")
    assert bench.manual("k", work, returns=Receipt).result == Receipt("r-1")


def test_a_union_or_a_list_as_the_type(bench: Bench) -> None:
    def work(claim: Any) -> list[Receipt]:
        return [Receipt("r-1")]

    for _ in range(2):
        assert bench.manual("k", work, returns=list[Receipt]).result == [Receipt("r-1")]
    for _ in range(2):
        found = bench.manual("n", lambda claim: None, returns=Receipt | None)
        assert found.result is None


VALUES = (None, "done", "late")


def test_a_claim_may_be_entered_again() -> None:
    """A loop that tries again with the same object: each block is a claim of its own."""
    claim = Receiver(MemoryStore()).claim("k")
    found = []
    for value in VALUES:
        with claim:
            found.append((claim.is_new, claim.fence))
            if value and claim.is_new:
                claim.complete(value)
    assert [is_new for is_new, _ in found] == [True, True, False]
    assert found[2][1] == found[1][1] > found[0][1]
    assert claim.result == "done"


async def test_a_claim_may_be_entered_again_async() -> None:
    claim = AsyncReceiver(AsyncMemoryStore()).claim("k")
    found = []
    for value in VALUES:
        async with claim:
            found.append((claim.is_new, claim.fence))
            if value and claim.is_new:
                await claim.complete(value)
    assert [is_new for is_new, _ in found] == [True, True, False]
    assert found[2][1] == found[1][1] > found[0][1]
    assert claim.result == "done"


def test_a_claim_that_could_not_be_left_can_be_released_later() -> None:
    outage = Outage("fail", "abandon")
    store = FaultyStore(MemoryStore())
    store.before = outage  # type: ignore[method-assign]
    receiver = Receiver(store)
    claim = receiver.claim("k")
    with suppress(StoreUnavailableError), claim:
        pass
    outage.over()
    claim.release()
    assert receiver.process("k", lambda: "now").value == "now"


def test_a_claim_that_was_not_entered_says_neither_new_nor_done(bench: Bench) -> None:
    """A forgotten `with` looked like a duplicate whose result is None: the work was skipped."""
    claim = bench.receiver.claim("k")
    for ask in (lambda: claim.is_new, lambda: claim.result, lambda: bench.call(claim.complete, 1)):
        with pytest.raises(UsageError, match=r"enter the claim first, by `with"):
            ask()


def test_completing_after_the_block_says_that_the_claim_has_ended(bench: Bench) -> None:
    claim = bench.manual("k", lambda _: LEAVE)
    with pytest.raises(UsageError, match="already ended"):
        bench.call(claim.complete, "late")
    assert bench.record("k").state is State.RELEASED
