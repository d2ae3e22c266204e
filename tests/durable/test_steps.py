"""Durable functions: a recorded step never runs again, in any order, and only its own payload is it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.durable.shop import POLICY, Boom, Shop
from twicesafe import (
    AsyncReceiver,
    AsyncSteps,
    Backoff,
    Cause,
    ConfigurationError,
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
    StepMismatchError,
    Steps,
    UnsupportedByStoreError,
    UsageError,
    current_claim,
    current_key,
)
from twicesafe._core.durable.run_requests import LoadRun, StartRun
from twicesafe.stores.memory import MemoryStore


def test_a_run_that_fails_goes_on_where_it_was(shop: Shop) -> None:
    shop.failing["ship"] = 1
    charge, ship = shop.effect("charge", 7), shop.effect("ship", "label")

    def checkout(steps: Any, order: str) -> Any:
        paid = yield steps.run("charge", charge, 500)
        label = yield steps.run("ship", ship, order)
        return [paid, label]

    checkout = shop.durable(checkout)
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    record = shop.run(shop.receiver.record(checkout.key("a")))
    assert (record.state, record.error) == (State.RELEASED, "Boom")
    shop.clock.advance(ms=10)
    assert shop.run(checkout("a")) == [7, "label"]
    assert shop.run(checkout("a")) == [7, "label"]
    assert shop.done == {"charge": 1, "ship": 2}
    record = shop.run(shop.receiver.record(checkout.key("a")))
    assert (record.state, record.attempt, record.cause) == (State.COMPLETED, 2, Cause.FAILED)


def test_after_a_crash_the_next_worker_goes_on(shop: Shop) -> None:
    """The first worker stops for good between two steps; nothing tells the store."""
    charge, ship = shop.effect("charge", 7), shop.effect("ship", "label")
    dies = True

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("charge", charge, 500)
        if dies:
            steps._state.claim.pid = -1  # only the process that won the claim may end it
        label = yield steps.run("ship", ship, order)
        return [steps.attempt, str(steps.cause), label]

    checkout = shop.durable(checkout, policy=POLICY.replace(wait=0))
    with pytest.raises(LeaseLostError):
        shop.run(checkout("a"))
    dies = False
    shop.clock.advance(ms=31_000)
    assert shop.run(checkout("a")) == [2, "lease_expired", "label"]
    assert shop.done["charge"] == 1


def test_captured_values_are_the_same_on_every_resume(shop: Shop) -> None:
    seen: list[Any] = []
    fail = shop.effect("fail")
    shop.failing["fail"] = 2

    def checkout(steps: Any, order: str) -> Any:
        captured = [
            (yield steps.now()),
            (yield steps.now("later")),
            (yield steps.uuid()),
            (yield steps.random()),
            (yield steps.capture("price", lambda: Decimal("9.90"))),
        ]
        seen.append(captured)
        yield steps.run("fail", fail)
        return len(seen)

    checkout = shop.durable(checkout)
    for _ in range(2):
        with pytest.raises(Boom):
            shop.run(checkout("a"))
        shop.clock.advance(ms=10)
    assert shop.run(checkout("a")) == 3
    assert seen[0] == seen[1] == seen[2]
    at, _, token, dice, price = seen[0]
    assert isinstance(at, datetime)
    assert at.tzinfo is UTC
    assert (type(token), type(price)) == (UUID, Decimal)
    assert 0 <= dice < 1


def test_the_key_inside_a_step_is_derived_from_its_name(shop: Shop) -> None:
    seen: dict[str, Any] = {}

    def look(name: str) -> None:
        claim = current_claim()
        assert claim is not None
        assert not claim.lost
        seen[name] = (current_key(), claim.fence)

    async def look_async(name: str) -> None:
        look(name)

    function = look if shop.mode == "blocking" else look_async

    def checkout(steps: Any, order: str) -> Any:
        seen["run"] = (current_key(), current_claim().fence)  # type: ignore[union-attr]
        yield steps.run("charge", function, "charge")
        yield steps.run("ship", function, "ship")

    checkout = shop.durable(checkout)
    shop.run(checkout("a"))
    key = checkout.key("a")
    fence = shop.run(shop.receiver.record(key)).fence
    assert seen == {
        "run": (key, fence),
        "charge": (key.derive("charge"), fence),
        "ship": (key.derive("ship"), fence),
    }


def test_other_arguments_under_a_step_name_are_refused_before_anything_runs(shop: Shop) -> None:
    cents = [500]
    charge, fail = shop.effect("charge"), shop.effect("fail")
    shop.failing["fail"] = 1

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("charge", charge, cents[0])
        yield steps.run("fail", fail)

    checkout = shop.durable(checkout)
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    shop.clock.advance(ms=10)
    cents[0] = 600
    with pytest.raises(StepMismatchError, match="'charge'") as raised:
        shop.run(checkout("a"))
    assert raised.value.step == "charge"
    assert shop.done == {"charge": 1, "fail": 1}


def test_a_step_of_another_kind_under_the_name_is_refused(shop: Shop) -> None:
    version = 1
    act, fail = shop.effect("act"), shop.effect("fail")
    shop.failing["fail"] = 1

    def checkout(steps: Any, order: str) -> Any:
        if version == 1:
            yield steps.run("x", act)
        else:
            yield steps.capture("x", lambda: 1)
        yield steps.run("fail", fail)

    checkout = shop.durable(checkout)
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    shop.clock.advance(ms=10)
    version = 2
    with pytest.raises(StepMismatchError):
        shop.run(checkout("a"))


def test_a_new_version_may_add_drop_and_reorder_steps(shop: Shop) -> None:
    plan = ["a", "b", "stop"]
    effects = {name: shop.effect(name, name) for name in ("a", "b", "c", "stop")}
    shop.failing["stop"] = 1

    def checkout(steps: Any, order: str) -> Any:
        results = []
        for name in plan:
            results.append((yield steps.run(name, effects[name])))  # noqa: PERF401
        return results

    checkout = shop.durable(checkout)
    with pytest.raises(Boom):
        shop.run(checkout("x"))
    shop.clock.advance(ms=10)
    plan = ["b", "c", "a"]
    assert shop.run(checkout("x")) == ["b", "c", "a"]
    assert shop.done == {"a": 1, "b": 1, "c": 1, "stop": 1}


def test_a_name_is_used_once_per_run(shop: Shop) -> None:
    act = shop.effect("act")

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("x", act)
        yield steps.run("x", act)

    with pytest.raises(UsageError, match="used twice"):
        shop.run(shop.durable(checkout)("a"))
    assert shop.done["act"] == 1


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 201, "undo:x", "twicesafe:x", None, "\ud800"])
def test_names_that_cannot_be_used(shop: Shop, name: Any) -> None:
    act = shop.effect("act")

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run(name, act)

    with pytest.raises(UsageError):
        shop.run(shop.durable(checkout)("a"))
    assert not shop.done


def test_other_arguments_under_the_key_of_a_run_are_refused(shop: Shop) -> None:
    def checkout(steps: Any, order: Any) -> Any:
        return order["cents"]
        yield

    checkout = shop.durable(checkout, key=lambda order: order["id"])
    assert shop.run(checkout({"id": "a", "cents": 5})) == 5
    with pytest.raises(FingerprintMismatchError, match="cents"):
        shop.run(checkout({"id": "a", "cents": 6}))
    free = shop.durable(lambda steps, order: (yield), key=lambda order: "a", fingerprint=False)
    assert shop.run(free({"id": "b"})) == 5, "the same scope and key, and no comparison"


@dataclass
class Receipt:
    number: int
    total: Decimal


def test_rich_results_come_back_as_they_were() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    tries: list[Receipt] = []

    def charge(total: Decimal) -> Receipt:
        return Receipt(1, total)

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> Receipt:
        tries.append(steps.run("charge", charge, Decimal("9.90")))
        if len(tries) == 1:
            raise Boom
        return tries[-1]

    with pytest.raises(Boom):
        checkout("a")
    assert checkout("a") == Receipt(1, Decimal("9.90"))
    assert tries == [Receipt(1, Decimal("9.90"))] * 2


def test_a_result_that_cannot_be_kept_is_an_error_and_its_effect_is_not_repeated(
    shop: Shop,
) -> None:
    act = shop.effect("act", object())

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("act", act)

    checkout = shop.durable(checkout)
    with pytest.raises(NotStorableError):
        shop.run(checkout("a"))
    shop.clock.advance(ms=10)
    with pytest.raises(ResultUnavailableError, match="'act'"):
        shop.run(checkout("a"))
    assert shop.done["act"] == 1


def test_a_step_is_tried_as_often_as_its_options_say(shop: Shop) -> None:
    act = shop.effect("act", "ok")
    shop.failing["act"] = 2

    def checkout(steps: Any, order: str) -> Any:
        patient = steps.options(attempts=3, backoff=Backoff(first=0.001, most=0.001))
        return (yield patient.run("act", act))

    checkout = shop.durable(checkout)
    assert shop.run(checkout("a")) == "ok"
    assert shop.done["act"] == 3
    run = shop.store.perform(LoadRun(checkout.key("a").id))
    assert [step.attempt for step in run.steps] == [3]


def test_options_that_cannot_be_used(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        for wrong in ({"attempts": 0}, {"timeout": 0}, {"backoff": 1}, {"probe": 1}):
            with pytest.raises(ConfigurationError):
                steps.options(**wrong)
        return True
        yield

    assert shop.run(shop.durable(checkout)("a"))


def test_threads_record_their_steps_in_any_order() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    ran: list[int] = []
    fails = [True]

    @receiver.durable(key="order", scope=("x",))
    def fan_out(steps: Steps, order: str) -> list[int]:
        def square(n: int) -> int:
            ran.append(n)
            return n * n

        def branch(n: int) -> int:
            return steps.run(f"square-{n}", square, n)

        with ThreadPoolExecutor(4) as pool:
            numbers = range(8) if fails else reversed(range(8))
            results = sorted(pool.map(branch, numbers))
        if fails:
            fails.clear()
            raise Boom
        return results

    with pytest.raises(Boom):
        fan_out("a")
    assert fan_out("a") == [n * n for n in range(8)]
    assert sorted(ran) == list(range(8))


def test_tasks_record_their_steps_in_any_order() -> None:
    receiver = AsyncReceiver.open("memory://", policy=POLICY)
    ran: list[int] = []
    fails = [True]

    async def square(n: int) -> int:
        await asyncio.sleep(0)
        ran.append(n)
        return n * n

    @receiver.durable(key="order", scope=("x",))
    async def fan_out(steps: AsyncSteps, order: str) -> list[int]:
        numbers = range(8) if fails else reversed(range(8))
        found = await asyncio.gather(*(steps.run(f"square-{n}", square, n) for n in numbers))
        if fails:
            fails.clear()
            raise Boom
        return sorted(found)

    async def main() -> None:
        with pytest.raises(Boom):
            await fan_out("a")
        assert await fan_out("a") == [n * n for n in range(8)]

    asyncio.run(main())
    assert sorted(ran) == list(range(8))


def test_a_blocking_step_that_takes_too_long_ends_before_its_run() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    gate, ended = threading.Event(), threading.Event()

    def slow() -> str:
        gate.wait(60)
        ended.set()
        return "late"

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> str:
        try:
            return steps.options(timeout=0.02).run("slow", slow)
        except TimeoutError:
            gate.set()
            return "gave up"

    assert checkout("a") == "gave up"
    assert ended.is_set(), "the run ended while its step still ran"


def test_a_probe_answers_for_a_step_that_a_crash_interrupted(shop: Shop) -> None:
    asked: list[Any] = []
    happened: list[str] = []
    dies = True

    def charge(cents: int) -> str:
        happened.append("paid")
        if dies:
            claim = current_claim()
            claim.of_run.pid = claim.pid = -1  # type: ignore[union-attr]
        return "paid"

    async def charge_async(cents: int) -> str:
        return charge(cents)

    def did_it(cents: int) -> tuple[str] | None:
        asked.append(cents)
        return ("found",) if happened else None

    function = charge if shop.mode == "blocking" else charge_async

    def checkout(steps: Any, order: str) -> Any:
        return (yield steps.options(probe=did_it).run("charge", function, 500))

    checkout = shop.durable(checkout, policy=POLICY.replace(wait=0))
    with pytest.raises(LeaseLostError):
        shop.run(checkout("a"))
    assert asked == [], "it is not asked before a first start"
    dies = False
    shop.clock.advance(ms=31_000)
    assert shop.run(checkout("a")) == "found"
    assert (asked, happened) == ([500], ["paid"])


def test_under_hold_an_interrupted_step_holds_the_run_and_others_go_on(shop: Shop) -> None:
    dies_in = "charge"
    ran: list[str] = []

    def act(name: str) -> str:
        ran.append(name)
        if name == dies_in:
            claim = current_claim()
            claim.of_run.pid = claim.pid = -1  # type: ignore[union-attr]
        return name

    async def act_async(name: str) -> str:
        return act(name)

    function = act if shop.mode == "blocking" else act_async

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("charge", function, "charge")
        yield steps.run("ship", function, "ship")
        return "done"

    checkout = shop.durable(checkout, policy=POLICY.replace(wait=0, takeover="hold"))
    with pytest.raises(LeaseLostError):
        shop.run(checkout("a"))
    shop.clock.advance(ms=31_000)
    with pytest.raises(HeldError, match="'charge'"):
        shop.run(checkout("a"))
    with pytest.raises(HeldError):
        shop.run(checkout("a"))
    assert ran == ["charge"]
    assert shop.run(shop.receiver.record(checkout.key("a"))).state is State.HELD


def test_a_worker_that_lost_its_run_records_nothing(shop: Shop) -> None:
    act = shop.effect("act")

    def checkout(steps: Any, order: str) -> Any:
        if not shop.done:
            shop.clock.advance(ms=31_000)
            ask = StartRun(checkout.key("a"), b"other".ljust(16), 30_000)
            assert shop.store.perform(ask).attempt == 2
        yield steps.run("act", act)

    checkout = shop.durable(checkout)
    with pytest.raises(LeaseLostError):
        shop.run(checkout("a"))
    assert shop.store.perform(LoadRun(checkout.key("a").id)).steps == []


def test_a_run_that_keeps_failing_parks(shop: Shop) -> None:
    act = shop.effect("act")
    shop.failing["act"] = 99

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("act", act)

    checkout = shop.durable(checkout, policy=POLICY.replace(max_attempts=2))
    for _ in range(2):
        with pytest.raises(Boom):
            shop.run(checkout("a"))
        shop.clock.advance(ms=10)
    with pytest.raises(ParkedError):
        shop.run(checkout("a"))
    assert shop.done["act"] == 2


def test_decorating_refuses_what_cannot_work() -> None:
    receiver = Receiver(MemoryStore())
    with pytest.raises(ConfigurationError, match="steps first"):

        @receiver.durable(scope=("x",))
        def nothing() -> None: ...

    with pytest.raises(ConfigurationError, match="not a parameter"):

        @receiver.durable(key="order", scope=("x",))
        def other(steps: Steps, thing: str) -> None: ...

    with pytest.raises(ConfigurationError, match="outage"):

        @receiver.durable(policy=Policy(outage="run"), scope=("x",))
        def unprotected(steps: Steps) -> None: ...

    with pytest.raises(UsageError, match="async"):

        @receiver.durable(scope=("x",))
        async def wrong(steps: Steps) -> None: ...

    with pytest.raises(UsageError, match="generator"):

        @receiver.durable(scope=("x",))
        def generator(steps: Steps) -> Any:
            yield

    class NoSteps(MemoryStore):
        from twicesafe.stores import Capabilities

        capabilities = Capabilities(durable=False, shared=False)

    with pytest.raises(UnsupportedByStoreError, match="cannot keep steps"):

        @Receiver(NoSteps()).durable(scope=("x",))
        def homeless(steps: Steps) -> None: ...


def test_arguments_are_checked_before_the_claim() -> None:
    receiver = Receiver(MemoryStore())

    @receiver.durable(scope=("x",))
    def checkout(steps: Steps, order: str, *, express: bool = False) -> tuple[str, bool]:
        return order, express

    with pytest.raises(UsageError, match="cannot be called"):
        checkout()  # type: ignore[call-arg]
    assert checkout("a", express=True) == ("a", True)
    assert isinstance(checkout.key("a"), Key)
    assert checkout.key("a") != checkout.key("a", express=True)
    assert checkout.key(order="a") == checkout.key("a")
    assert checkout.__name__ == "checkout"


def test_an_argument_that_cannot_be_stored_is_named() -> None:
    receiver = Receiver(MemoryStore())

    @receiver.durable(key="order", scope=("x",), fingerprint=False)
    def checkout(steps: Steps, order: str, note: object = None) -> str:
        return order

    with pytest.raises(NotStorableError, match=r"'note' of .*checkout.*complete=False"):
        checkout("a", object())
    assert receiver.record(checkout.key("a")) is None
