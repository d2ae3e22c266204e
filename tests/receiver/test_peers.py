"""What was seen to break in peers must never happen here. One test per line of that list.

The numbers are those of the list; the peer in which it was seen stands in a comment. What concerns
HTTP, brokers, outbox and user transactions is tested where those live.
"""

from __future__ import annotations

import ast
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import twicesafe
from tests.polling import until
from tests.receiver.bench import Bench, Counter
from tests.receiver.faults import Outage
from tests.receiver.test_waiting import riders
from twicesafe import (
    FingerprintMismatchError,
    LeaseLostError,
    NotStorableError,
    Policy,
    Receiver,
    ResultUnavailableError,
    State,
    UsageError,
)
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing._clock import FakeClock


def test_01_a_shared_receiver_is_not_reconfigured_by_its_users(bench: Bench) -> None:
    # powertools: the second decorator's settings were ignored, results filed under another's key
    def one(id: str) -> str:  # noqa: A002
        return "one"

    def two(id: str) -> str:  # noqa: A002
        return "two"

    first = bench.idempotent(one, key="id", policy=Policy(max_result_bytes=1000))
    second = bench.idempotent(two, key="id", policy=Policy(max_result_bytes=2))
    assert first("1") == "one"
    with pytest.raises(ResultUnavailableError.__mro__[1]):  # ResultError: two bytes are too few
        second("1")
    assert first("1") == "one"


def test_02_the_fingerprint_survives_completion(bench: Bench) -> None:
    # powertools (Redis), fastapi-idempotency-key: honest duplicates raised
    bench.receiver = bench.receiver.options(fingerprint=True)
    bench.process("k", Counter().quick, {"a": 1})
    assert bench.process("k", Counter().quick, {"a": 1}).replayed
    with pytest.raises(FingerprintMismatchError):
        bench.process("k", Counter().quick, {"a": 2})


@pytest.mark.parametrize(
    "value", [0, False, "", [], {}, None, object()], ids=lambda v: type(v).__name__
)
def test_03_falsy_and_unstorable_results(bench: Bench, value: Any) -> None:
    # powertools: falsy replayed as None; idemkit: unstorable re-ran every lease; idempotency: None
    counter = Counter(value)
    if type(value) is object:
        with pytest.raises(NotStorableError):
            bench.process("k", counter.quick)
        bench.clock.advance(3600)
        with pytest.raises(ResultUnavailableError):
            bench.process("k", counter.quick)
    else:
        bench.process("k", counter.quick)
        replay = bench.process("k", counter.quick).value
        assert replay == value
        assert type(replay) is type(value)
    assert counter.runs == 1


def test_04_async_functions_do_not_leave_a_stuck_key() -> None:
    # powertools: key stuck; idempotency: returned None
    async def work() -> int:
        return 1

    receiver = Receiver(MemoryStore())
    with pytest.raises(UsageError, match="AsyncReceiver"):
        receiver.process("k", work)
    assert receiver.record("k") is None
    with pytest.raises(UsageError, match="AsyncReceiver"):
        receiver.idempotent(work)


@pytest.mark.parametrize("ending", ["returns", "fails"])
def test_05_a_late_owner_cannot_touch_the_winners_record(bench: Bench, ending: str) -> None:
    # powertools, justonce, idempotency-kit: three executions; exactly-once: the stale commit won
    zombie, winner, other = Counter("stale"), Counter("winner"), bench.new_receiver()

    def late() -> str:
        zombie.slow()
        if ending == "fails":
            raise ValueError("late")
        return "stale"

    first = bench.start(bench.process, "k", late)
    assert zombie.entered.wait(60)
    bench.clock.advance(31)
    bench.call(other.process, "k", bench.in_mode(winner.quick))
    zombie.go_on.set()
    assert isinstance(first.exception(120), LeaseLostError if ending == "returns" else ValueError)
    assert bench.process("k", winner.quick).value == "winner"
    assert (zombie.runs, winner.runs) == (1, 1)


def test_06_bare_names_do_not_collide(bench: Bench) -> None:
    # idemkit: keys from bare function names collided across classes and modules
    class A:
        def run(self, id: str) -> str:  # noqa: A002
            return "A"

    class B:
        def run(self, id: str) -> str:  # noqa: A002
            return "B"

    a, b = bench.idempotent(A().run, key="id"), bench.idempotent(B().run, key="id")
    assert (a("1"), b("1")) == ("A", "B")


def test_08_retention_is_the_records_own_and_it_ends(bench: Bench) -> None:
    # idemkit: the sweeper ignored it; exactly-once: never expired; asgi-idempotency-header: 409 for ever
    short = bench.receiver.options(policy=bench.receiver.policy.replace(retention=10))
    bench.call(short.process, "short", bench.in_mode(Counter().quick))
    bench.process("long", Counter().quick)
    bench.clock.advance(11)
    assert bench.sweep().removed == 1
    assert bench.record("long") is not None
    bench.clock.advance(86400)
    assert not bench.process("long", Counter().quick).replayed


def test_08b_a_crash_is_not_for_ever(bench: Bench) -> None:
    # asgi-idempotency-header: 409 for ever after a crash
    from twicesafe import Key
    from twicesafe._core.protocol import ClaimRequest

    bench.call(bench.store.perform, ClaimRequest(Key("k"), b"dead", 30_000))
    bench.clock.advance(30)
    assert bench.process("k", Counter().quick).attempt == 2


def test_09_waiters_take_over_when_the_owner_fails(bench: Bench) -> None:
    # idemkit, justonce: they got a conflict
    counter = Counter("taken over")

    def owner() -> None:
        counter.slow()
        raise ValueError("owner")

    first = bench.start(bench.process, "k", owner)
    assert counter.entered.wait(60)
    waiter = bench.start(bench.process, "k", counter.quick)
    until(lambda: riders(bench) == 1)
    counter.go_on.set()
    assert isinstance(first.exception(120), ValueError)
    assert waiter.result(120).value == "taken over"


def test_11_concurrent_duplicates_run_once(bench: Bench) -> None:
    # django-idempotency-key: 3 of 5 ran; dbos until Dec 2025
    counter = Counter()
    receivers = [bench.receiver, bench.new_receiver(), bench.new_receiver()]
    gate = threading.Barrier(15)

    def deliver(receiver: Any) -> Any:
        gate.wait(60)
        return bench.call(receiver.process, "k", bench.in_mode(counter.quick))

    calls = [bench.start(deliver, receivers[n % 3]) for n in range(15)]
    assert {call.result(120).value for call in calls} == {"done"}
    assert counter.runs == 1


def test_12_an_exception_bricks_no_key_and_none_is_no_success(bench: Bench) -> None:
    # exactly-once: any exception bricked the key; justonce: a burned key replayed None as success
    counter = Counter("at last")
    for _ in range(3):
        with pytest.raises(ValueError, match="no luck"):
            bench.process("k", counter.failing)
    assert bench.process("k", counter.quick).value == "at last"


def test_13_one_failed_renewal_does_not_end_renewing(bench: Bench) -> None:
    # exactly-once: one heartbeat error ended renewal for good; a store that never reconnected
    bench.store = bench.new_store()
    bench.receiver = bench.new_receiver(bench.store, policy=Policy(lease=2))
    bench.store.before = Outage("renew", times=2)
    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    until(lambda: bench.store.ops().count("renew") >= 4)
    counter.go_on.set()
    assert first.result(120).value == "done"


def test_14_fingerprints_see_rich_types(bench: Bench) -> None:
    # justonce ignored Decimal, UUID, datetime; dbos returned the first result for other input
    bench.receiver = bench.receiver.options(fingerprint=True)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    pairs = [
        (Decimal("1.0"), Decimal("2.0")),
        (UUID(int=1), UUID(int=2)),
        (moment, moment.replace(day=2)),
    ]
    for number, (one, other) in enumerate(pairs):
        bench.process(str(number), Counter().quick, one)
        with pytest.raises(FingerprintMismatchError):
            bench.process(str(number), Counter().quick, other)


def test_15_no_pickle_anywhere() -> None:
    # dbos (default), idempotency, jaiminho
    banned = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
    for path in Path(twicesafe.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            else:
                continue
            assert not names & banned, path


def test_17_memory_neither_sweeps_on_claims_nor_evicts() -> None:
    # idemkit: swept everything on each claim; Brighter, Camel Kafka, Watermill: silent eviction
    clock = FakeClock()
    store = MemoryStore(now=clock)
    receiver = Receiver(store)
    for number in range(20_000):
        receiver.process(str(number), int)
    clock.advance(2 * 86400)
    receiver.process("new", int)
    assert len(store._rows) == 20_001
    assert receiver.sweep().removed == 20_000
    assert receiver.process("new", int).replayed


def test_18_only_the_owner_releases_and_failure_does_release(bench: Bench) -> None:
    # Spring Integration, Watermill: never released on failure; Camel: ownerless remove
    from twicesafe._core.protocol import Abandon, Ack, Fail

    counter = Counter()
    first = bench.start(bench.process, "k", counter.slow)
    assert counter.entered.wait(60)
    row = bench.record("k")
    stranger = Fail(row.id, b"stranger", row.fence, 0, 5, 1000)
    assert bench.call(bench.store.perform, stranger) is Ack.LOST
    assert bench.call(bench.store.perform, Abandon(row.id, b"stranger", 1000)) is Ack.LOST
    assert bench.record("k").state is State.IN_PROGRESS
    counter.go_on.set()
    first.result(120)
    with pytest.raises(ValueError, match="no luck"):
        bench.process("f", counter.failing)
    assert bench.record("f").state is State.RELEASED


def test_18b_finished_keys_are_not_kept_alive(bench: Bench) -> None:
    # Camel (orphan-aware JDBC): every key ever processed was kept alive
    for number in range(5):
        bench.process(str(number), Counter().quick)
    assert not bench.receiver._runtime.keeper._live
    assert not bench.receiver._runtime.flights.table


def test_19_the_claim_is_one_atomic_request(bench: Bench) -> None:
    # Brighter, Camel Caffeine, Oban OSS: check, then act
    bench.process("k", Counter().quick)
    assert bench.store.ops() == ["claim", "complete"]  # no read in front of it
