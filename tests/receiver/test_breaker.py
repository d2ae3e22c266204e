"""The circuit breaker: a store that fails is left alone for a while, and a fallback may answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.polling import until
from tests.receiver.bench import Bench, Counter
from tests.receiver.faults import AsyncFaultyStore, FaultyStore, Outage
from twicesafe import (
    Breaker,
    ConfigurationError,
    Policy,
    Receiver,
    State,
    StoreUnavailableError,
)
from twicesafe import events as ev
from twicesafe._core.protocol import Ack, Renew
from twicesafe.consumers import AsyncConsumer, Consumer, Message
from twicesafe.receiver._fallback import fallback_of
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing import MemoryBroker

BREAKER = Breaker(failures=3, rest=1000, longest_rest=1000)
ALL = ("claim", "complete", "fail", "renew", "abandon", "read", "survey")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim gives up at once: how long it asks again is tested elsewhere."""
    monkeypatch.setattr("twicesafe._core.delivery.CLAIM_RETRIES", 0.0)


def fallback(bench: Bench) -> Any:
    store = MemoryStore()
    return AsyncMemoryStore(store) if bench.is_async else store


def watched(bench: Bench) -> Any:
    """A fallback whose requests a test can see, and interrupt."""
    found = fallback(bench)
    return AsyncFaultyStore(found) if bench.is_async else FaultyStore(found)


def lending(other: Any) -> Breaker:
    return Breaker(failures=3, rest=1000, longest_rest=1000, fallback=other)


def guarded(bench: Bench, breaker: Breaker = BREAKER, **settings: Any) -> Any:
    bench.receiver = bench.new_receiver(bench.store, breaker=breaker, **settings)
    return bench.receiver


def fail(bench: Bench, times: int = 3) -> Outage:
    outage = bench.store.before = Outage(*ALL)
    for number in range(times):
        with pytest.raises(StoreUnavailableError):
            bench.process(f"failing-{number}", Counter().quick)
    return outage


def asked(bench: Bench) -> int:
    return sum(request.op == "claim" for request in bench.store.log)


def test_a_store_that_fails_is_not_asked_for_a_while(bench: Bench):
    guarded(bench)
    fail(bench)
    before, counter = asked(bench), Counter()
    with pytest.raises(StoreUnavailableError, match=r"3 times in a row .* another \d+") as caught:
        bench.process("k", counter.quick)
    assert asked(bench) == before
    assert counter.runs == 0
    assert caught.value.retryable
    assert caught.value.key is not None
    (opened,) = bench.events(ev.BreakerChanged)
    assert (opened.state, opened.failures) == ("open", 3)


def test_fewer_failures_change_nothing(bench: Bench):
    guarded(bench)
    outage = fail(bench, 2)
    outage.over()
    assert bench.process("k", Counter().quick).value == "done"
    fail(bench, 2).over()
    assert bench.process("k-2", Counter().quick).value == "done"
    assert bench.events(ev.BreakerChanged) == []


def test_after_the_rest_one_claim_tries_and_closes_it(bench: Bench):
    receiver = guarded(bench)
    outage = fail(bench)
    now = [receiver._runtime.clock()]
    receiver._runtime.guard._clock = lambda: now[0]
    outage.over()
    with pytest.raises(StoreUnavailableError):
        bench.process("k", Counter().quick)
    now[0] += 1001
    assert bench.process("k", Counter().quick).value == "done"
    assert [event.state for event in bench.events(ev.BreakerChanged)] == ["open", "closed"]
    assert receiver._runtime.store is bench.store, "the guard is gone: it costs nothing"


def test_a_try_that_fails_opens_it_again(bench: Bench):
    receiver = guarded(bench)
    fail(bench)
    now = [receiver._runtime.clock()]
    receiver._runtime.guard._clock = lambda: now[0]
    now[0] += 1001
    before = asked(bench)
    with pytest.raises(StoreUnavailableError, match="cut"):
        bench.process("k", Counter().quick)
    assert asked(bench) == before + 1
    with pytest.raises(StoreUnavailableError, match="4 times in a row"):
        bench.process("k", Counter().quick)
    assert asked(bench) == before + 1


def test_the_policy_says_what_happens_meanwhile(bench: Bench):
    guarded(bench, policy=Policy(outage="run"))
    counter = Counter()
    bench.store.before = Outage(*ALL)
    for number in range(5):
        assert bench.process(f"k-{number}", counter.quick).attempt == 0
    assert counter.runs == 5
    assert asked(bench) == 3
    assert len(bench.events(ev.Unprotected)) == 5


def test_a_batch_is_refused_without_asking(bench: Bench):
    guarded(bench)
    fail(bench)
    before = asked(bench)
    outcomes = bench.process_many(["a", "b"], Counter().quick, key=str)
    assert [type(one.error) for one in outcomes] == [StoreUnavailableError] * 2
    assert asked(bench) == before


def test_what_a_handler_did_is_recorded_although_the_circuit_is_open(bench: Bench):
    """Only claims are kept from the store: a claim that is held is still ended there."""
    receiver = guarded(bench)
    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    fail(bench).over()
    assert receiver._runtime.guard.state == "open"
    counter.go_on.set()
    assert first.result(120).value == "done"
    assert bench.record("k").state is State.COMPLETED
    assert receiver._runtime.guard.state == "closed", "its answer shows that the store works"


# --- the fallback ------------------------------------------------------------------------------


def test_the_store_itself_is_no_fallback(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/keys.db"
    with pytest.raises(ConfigurationError, match="is the store itself"):
        Receiver.open(url, breaker=Breaker(fallback=url))
    with (
        Receiver.open(url) as other,
        pytest.raises(ConfigurationError, match="is the store itself"),
    ):
        Receiver(other.store, breaker=Breaker(fallback=other.store))
    with Receiver.open("memory://", breaker=Breaker(fallback="memory://")) as receiver:
        assert receiver.process("k", int).value == 0


@pytest.mark.parametrize(
    "url, is_refused",
    [
        ("dynamodb://shop?region=eu-west-1", False),
        ("dynamodb://shop?region=us-east-1&timeout=9", True),
        ("dynamodb://shop?region=us-east-1&endpoint=http://localhost:8000", False),
    ],
)
def test_a_fallback_may_be_the_same_table_in_another_region(url: str, is_refused: bool):
    store = MemoryStore()
    store.url, store.place = "dynamodb://shop", "region=us-east-1"
    with pytest.raises(ConfigurationError) if is_refused else nullcontext():
        assert fallback_of(Receiver(store), Breaker(fallback=url)).url == "dynamodb://shop"


def test_the_fallback_recognises_what_it_has_seen_and_counts_it(bench: Bench):
    other = fallback(bench)
    guarded(bench, Breaker(failures=3, rest=1000, longest_rest=1000, fallback=other))
    bench.process("before", Counter().quick)
    fail(bench)
    counter = Counter()
    assert bench.process("k", counter.quick).replayed is False
    assert bench.process("k", counter.quick).replayed is True
    assert counter.runs == 1
    assert bench.process("before", counter.quick).replayed in (True, False)
    fell_back = [event.key.value for event in bench.events(ev.FellBack)]
    assert fell_back[0] == "k"
    assert fell_back.count("k") == 1


def test_a_claim_of_the_fallback_ends_there_although_the_store_is_back(bench: Bench):
    other = fallback(bench)
    receiver = guarded(bench, Breaker(failures=3, rest=1000, longest_rest=1000, fallback=other))
    outage = fail(bench)
    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    outage.over()
    bench.record("any")  # an answer: the circuit closes
    assert receiver._runtime.guard.state == "closed"
    counter.go_on.set()
    assert first.result(120).value == "done"
    assert bench.record("k") is None, "the store has not seen it: that is the price"
    assert receiver._runtime.guard.lent == set()


def test_a_manual_claim_and_a_batch_fall_back_too(bench: Bench):
    other = fallback(bench)
    receiver = guarded(bench, Breaker(failures=3, rest=1000, longest_rest=1000, fallback=other))
    fail(bench)
    assert bench.manual("k", lambda claim: "by hand").result == "by hand"
    assert bench.manual("k", lambda claim: "again").result == "by hand"
    outcomes = bench.process_many(["a", "b"], Counter().quick, key=str)
    assert [one.value for one in outcomes] == ["done", "done"]
    assert receiver._runtime.guard.lent == set()


def test_leases_of_the_fallback_are_renewed_there(bench: Bench):
    other = fallback(bench)
    receiver = guarded(bench, Breaker(failures=3, rest=1000, longest_rest=1000, fallback=other))
    receiver = receiver.options(policy=receiver.policy.replace(lease=0.3))
    fail(bench)
    counter = Counter()
    first = bench.start(bench.call, receiver.process, "k", bench.in_mode(counter.slow))
    assert counter.entered.wait(60)
    (claim,) = receiver._runtime.keeper._live
    before = claim.renewed
    until(lambda: claim.renewed > before)
    assert not claim.gone
    counter.go_on.set()
    assert first.result(120).value == "done"


@pytest.mark.parametrize("bench", ["memory-blocking", "memory-async"], indirect=True)
def test_the_fallback_is_renewed_before_the_store_that_failed(bench: Bench):
    """A store that hangs took the time of the leases in the fallback."""
    other, order = fallback(bench), list[str]()
    receiver = guarded(bench, lending(other))
    in_store, lent = Counter(), Counter()
    lent.go_on = in_store.go_on
    calls = [bench.start(bench.process, "in the store", in_store.slow)]
    assert in_store.entered.wait(60)
    fail(bench).over()
    calls.append(bench.start(bench.process, "in the fallback", lent.slow))
    assert lent.entered.wait(60)
    keeper = receiver._runtime.keeper
    guarded_store = keeper._perform_many.__self__
    for name, part in (("store", guarded_store._store), ("fallback", guarded_store._fallback)):
        guarded_store.__dict__[f"_{name}"] = Told(part, name, order)
    keeper._perform_many([Renew(one.key.id, one.owner, one.fence, 1) for one in keeper._live])
    in_store.go_on.set()
    assert [call.result(120).value for call in calls] == ["done", "done"]
    assert order == ["fallback", "store"]


class Told:
    """A store that tells when it is asked."""

    def __init__(self, inner: Any, name: str, order: list[str]) -> None:
        self._inner, self._name, self._order = inner, name, order

    def perform_many(self, requests: Any) -> Any:
        self._order.append(self._name)
        return self._inner.perform_many(requests)


@pytest.mark.parametrize("bench", ["memory-async"], indirect=True)
@pytest.mark.parametrize("away", ["store", "fallback"])
def test_leases_are_renewed_although_the_other_store_does_not_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, away: str
):
    """The keeper opened the fallback with the first renewal. If it was down, every handler lost its claim."""
    other, counter = fallback(bench), Counter()
    receiver = guarded(bench, lending(other))
    calls = [bench.start(bench.process, "in the store", counter.slow)]
    assert counter.entered.wait(60)
    if away == "store":
        outage = fail(bench)
        lent = Counter()
        lent.go_on = counter.go_on
        calls.append(bench.start(bench.process, "in the fallback", lent.slow))
        assert lent.entered.wait(60)
        outage.over()

    def refuse() -> Any:
        raise StoreUnavailableError("its server is away")

    monkeypatch.setattr(bench.store if away == "store" else other, "blocking_store", refuse)
    keeper = receiver._runtime.keeper
    renew = keeper._perform_many
    answers = renew([Renew(one.key.id, one.owner, one.fence, 1) for one in keeper._live])
    counter.go_on.set()
    assert [call.result(120).value for call in calls] == ["done"] * len(calls)
    assert [type(answer) for answer in answers[:-1]] == [StoreUnavailableError] * (len(calls) - 1)
    assert answers[-1] is Ack.OK


def test_a_fallback_may_be_a_url(bench: Bench):
    guarded(bench, Breaker(failures=1, rest=1000, longest_rest=1000, fallback="memory://"))
    fail(bench, 1)
    assert bench.process("k", Counter().quick).value == "done"


def test_a_wrong_breaker_says_so(bench: Bench):
    with pytest.raises(ConfigurationError, match="Breaker"):
        guarded(bench, breaker=5)  # type: ignore[arg-type]


def test_health_says_that_it_is_open(bench: Bench):
    guarded(bench)
    fail(bench)
    health = bench.health()
    assert health.status == "failing"
    assert health["breaker"].status == "failing"


def test_without_a_breaker_nothing_changes(bench: Bench):
    fail(bench, 8)
    assert bench.receiver._runtime.guard is None
    assert asked(bench) == 8


def test_a_block_that_begins_in_an_outage_keeps_the_breaker(bench: Bench):
    """Entering the receiver took the guard away: every claim asked the store, and health said for ever
    that none does."""
    receiver = guarded(bench)
    outage = fail(bench)
    now = [receiver._runtime.clock()]
    receiver._runtime.guard._clock = lambda: now[0]
    receiver._runtime.enter()
    before = asked(bench)
    with pytest.raises(StoreUnavailableError, match="3 times in a row"):
        bench.process("k", Counter().quick)
    assert asked(bench) == before
    outage.over()
    now[0] += 1001
    assert bench.process("k", Counter().quick).value == "done"
    assert receiver._runtime.guard.state == "closed"


def test_a_batch_with_a_time_limit_ends_in_the_fallback_although_the_store_is_back(bench: Bench):
    """The second item starts after the circuit has closed. Its result went to the store, which does not
    know the claim: it was lost, and the effect repeated."""
    other = fallback(bench)
    receiver = guarded(
        bench,
        Breaker(failures=3, rest=1000, longest_rest=1000, fallback=other),
        policy=Policy(timeout=30),
    )
    outage = fail(bench)

    def handle(message: str) -> str:
        if message == "a":
            outage.over()
            receiver._runtime.guard.answered()  # another request of this process
        return message

    ended = bench.process_many(["a", "b"], handle, key=str)
    assert [getattr(one, "value", one) for one in ended] == ["a", "b"]
    assert receiver._runtime.guard.lent == set()


def test_a_consumer_that_began_before_the_outage_uses_it(bench: Bench):
    """Its run takes hours, and began when the store worked."""
    guarded(bench, Breaker(failures=1, rest=1000, longest_rest=1000, fallback=fallback(bench)))
    broker, ran = MemoryBroker(), []
    broker.send("orders", id="before")

    def fail_claims(request: Any) -> None:
        if asked(bench) > 10:
            consumer.stop()  # without a breaker it would ask for ever
        Outage("claim")(request)

    def handle(message: Message) -> None:
        ran.append(message.id)
        if message.id == "before":
            bench.store.before = fail_claims
            broker.send("orders", id="after")

    make = AsyncConsumer if bench.is_async else Consumer
    consumer: Any = make(broker.source("orders"), receiver=bench.receiver)
    bench.call(consumer.drain, bench.in_mode(handle), idle=0.05)
    bench.call(consumer.close)
    assert ran == ["before", "after"]
    # The first run may be recorded after the claim of the second has failed, which is an answer again.
    states = [event.state for event in bench.events(ev.BreakerChanged)]
    assert states in (["open"], ["open", "closed"])


def test_a_consumer_records_in_the_fallback_what_it_claimed_there(bench: Bench):
    lent = fallback(bench)
    receiver = guarded(bench, Breaker(failures=1, rest=1000, longest_rest=1000, fallback=lent))
    broker = MemoryBroker()
    broker.send("orders", id="a")
    outage = fail(bench, 1)

    def handle(message: Message) -> None:
        outage.over()
        receiver._runtime.guard.answered()  # another request found the store working

    make = AsyncConsumer if bench.is_async else Consumer
    consumer: Any = make(broker.source("orders"), receiver=receiver)
    report = bench.call(consumer.drain, bench.in_mode(handle), idle=0.05)
    bench.call(consumer.close)
    assert (report.ran, report.retried, report.dead) == (1, 0, 0)
    assert receiver._runtime.guard.lent == set()


@pytest.mark.parametrize("outage", ["refuse", "run"])
def test_who_waits_for_a_claim_of_the_fallback_does_not_ask_the_store(bench: Bench, outage: Any):
    """A store that wakes its waiters was asked for that, although it was down: the second of two deliveries
    was refused, and with outage="run" its handler ran beside the first one's."""
    other, settings = watched(bench), {"policy": Policy(outage=outage, wait=120)}

    def cut(*_: Any) -> Any:
        raise StoreUnavailableError("the connection is cut")

    async def cut_async(*_: Any) -> Any:
        cut()

    for store in (bench.store, second_store := bench.new_store()):
        store.capabilities = replace(store.capabilities, wake=True)
        store.watch = cut_async if bench.is_async else cut
        store.before = Outage(*ALL)
    first = guarded(bench, lending(other), **settings)
    second = bench.new_receiver(second_store, breaker=lending(other), **settings)
    for receiver in (first, second):
        for _ in range(3):
            receiver._runtime.guard.failed()
    counter = Counter()
    leads = bench.start(bench.receiver_process, first, "k", bench.in_mode(counter.slow))
    assert counter.entered.wait(60)
    waits = bench.start(bench.receiver_process, second, "k", bench.in_mode(counter.quick))
    until(lambda: waits.done() or other.ops().count("claim") > 3)
    counter.go_on.set()
    assert leads.result(120).value == "done"
    assert waits.result(120).replayed
    assert counter.runs == 1
    assert bench.events(ev.Unprotected) == []


def claim_one(bench: Bench, handler: Callable[..., Any]) -> Any:
    return bench.process("k", handler)


def claim_many(bench: Bench, handler: Callable[..., Any]) -> Any:
    return bench.process_many(["k"], handler, key=str)[0]


@pytest.mark.parametrize("process", [claim_one, claim_many])
def test_an_interrupted_claim_of_the_fallback_is_given_back_there(bench: Bench, process: Any):
    """It was given back to the store, which did not have it, and stayed in the fallback until its lease ended."""
    other = watched(bench)
    receiver = guarded(bench, lending(other), policy=Policy(takeover="hold"))
    fail(bench)

    def interrupt(request: Any) -> None:
        if request.op == "claim":
            raise asyncio.CancelledError if bench.is_async else KeyboardInterrupt

    other.after, counter = interrupt, Counter()
    with pytest.raises((KeyboardInterrupt, concurrent.futures.CancelledError)):
        process(bench, counter.quick)
    other.after = lambda request: None
    until(lambda: "abandon" in (*other.ops(), *bench.store.ops()))
    assert "abandon" not in bench.store.ops()
    assert process(bench, counter.quick).attempt == 1
    assert counter.runs == 1
    assert receiver._runtime.guard.lent == set()
