"""Durable functions that are used wrongly, or that go wrong themselves: told clearly, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.durable.shop import POLICY, Boom, Shop
from twicesafe import AsyncReceiver, AsyncSteps, Receiver, State, Steps, current_claim
from twicesafe._core.durable.run_requests import FindDue, StartRun
from twicesafe.errors import (
    CompensationFailedError,
    ConfigurationError,
    HeldError,
    LeaseLostError,
    StillInProgressError,
    SuspendedError,
    UsageError,
)
from twicesafe.stores.memory import MemoryStore

HOUR = 3_600_000


def as_function(shop: Shop, act: Any) -> Any:
    """A function for a step of this shop, which calls `act` and awaits what it returns."""
    if shop.mode == "blocking":
        return act

    async def act_async(*args: Any) -> Any:
        found = act(*args)
        return await found if hasattr(found, "__await__") else found

    return act_async


@pytest.mark.parametrize("what", ["run", "sleep", "wait", "now"])
def test_a_step_inside_a_step_is_refused(shop: Shop, what: str) -> None:
    """On a resume the outer one is not run, so the inner one, and its undo, would be lost."""

    def checkout(steps: Any, order: str) -> Any:
        inner = {
            "run": lambda: steps.run("inner", shop.effect("inner")),
            "sleep": lambda: steps.sleep("inner", 3600),
            "wait": lambda: steps.wait("inner"),
            "now": lambda: steps.now("inner"),
        }[what]
        yield steps.run("outer", as_function(shop, inner))

    checkout = shop.durable(checkout)
    with pytest.raises(UsageError, match="inside a step"):
        shop.run(checkout("a"))
    assert shop.done["inner"] == 0


@pytest.mark.parametrize("what", ["run", "abort"])
def test_an_undo_that_uses_the_steps_parks_the_run(shop: Shop, what: str) -> None:
    def checkout(steps: Any, order: str) -> Any:
        uses = {
            "run": lambda _: steps.run("more", shop.effect("more")),
            "abort": lambda _: steps.abort("again"),
        }[what]
        yield steps.run("a", shop.effect("a"), undo=as_function(shop, uses))
        raise Boom

    checkout = shop.durable(checkout, policy=POLICY.replace(max_attempts=1))
    with pytest.raises(CompensationFailedError, match="inside a step or an undo"):
        shop.run(checkout("a"))
    assert shop.run(shop.receiver.record(checkout.key("a"))).state is State.PARKED


@pytest.mark.parametrize("what", ["run", "capture", "undo"])
def test_a_generator_is_no_function_of_a_step(memory_shop: Shop, what: str) -> None:
    """It would be recorded as done when it is called, although none of its work has run."""
    shop = memory_shop

    def works_later(*_: Any) -> Any:
        shop.done["later"] += 1
        yield

    def checkout(steps: Any, order: str) -> Any:
        if what == "undo":
            yield steps.run("act", shop.effect("act"), undo=works_later)
        else:
            yield getattr(steps, what)("act", works_later)

    checkout = shop.durable(checkout)
    with pytest.raises(UsageError, match="is a generator"):
        shop.run(checkout("a"))
    record = shop.run(shop.receiver.record(checkout.key("a")))
    assert (shop.done, record.steps) == ({}, ())


def test_an_async_undo_needs_async_steps() -> None:
    receiver, done = Receiver(MemoryStore(), policy=POLICY), []

    async def refund(_: Any) -> None: ...

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None:
        steps.run("charge", lambda: done.append(order), undo=refund)

    with pytest.raises(UsageError, match="refund is an async function"):
        checkout("a")
    assert done == []


@pytest.mark.parametrize(
    "undo, told",
    [("refund", "undo='refund' is not valid"), (lambda: None, "the step's result")],
    ids=["no function", "takes no argument"],
)
def test_an_undo_that_cannot_be_called_is_refused_before_the_effect(
    memory_shop: Shop, undo: Any, told: str
) -> None:
    shop = memory_shop

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("charge", shop.effect("charge"), undo=undo)

    checkout = shop.durable(checkout)
    with pytest.raises(UsageError, match=told):
        shop.run(checkout("a"))
    assert shop.done == {}


def test_a_step_whose_arguments_do_not_fit_is_refused_before_the_effect(memory_shop: Shop) -> None:
    shop = memory_shop
    effect = shop.effect("charge")

    def charge(cents: int) -> Any:
        return effect()

    async def charge_async(cents: int) -> Any:
        return await effect()

    fitting = charge if shop.mode == "blocking" else charge_async

    def checkout(steps: Any, order: str) -> Any:
        if order == "step":
            yield steps.run("charge", fitting, cent=5)
        elif order == "setting":
            yield steps.run("charge", fitting, 5, timeout=1)
        elif order == "probe":
            yield steps.options(probe=lambda: None).run("charge", fitting, 5)
        else:
            yield steps.transact("charge", object(), lambda connection: None, 5)

    checkout = shop.durable(checkout)
    for order, told in {
        "step": r"cannot be called like this.*\(did you mean 'cents'\?\)",
        "probe": "cannot be called like this: too many positional arguments",
        "transact": "cannot be called like this: too many positional arguments",
        "setting": r"use steps\.options\(timeout=…\)\.run",
    }.items():
        with pytest.raises(UsageError, match=told):
            shop.run(checkout(order))
    assert shop.done == {}


@pytest.mark.parametrize("what", ["run", "capture"])
def test_a_step_that_gets_a_value_instead_of_a_function_shows_how_steps_are_called(
    memory_shop: Shop, what: str
) -> None:
    shop = memory_shop

    def checkout(steps: Any, order: str) -> Any:
        yield getattr(steps, what)("charge", "receipt")

    with pytest.raises(UsageError, match=rf'steps\.{what}\("\w+", charge, order\), not steps'):
        shop.run(shop.durable(checkout)("a"))


def test_a_durable_function_without_steps_says_where_they_go() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)

    def checkout(order: str) -> str:
        return order

    with pytest.raises(ConfigurationError, match=r"'order' is not a parameter.*gets the steps"):
        receiver.durable(key="order", scope=("x",))(checkout)  # type: ignore[arg-type]


def test_arguments_of_a_step_that_cannot_be_compared(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("act", as_function(shop, lambda connection: None), object())

    checkout = shop.durable(checkout)
    with pytest.raises(UsageError, match=r"the step 'act' cannot be compared.*closure") as told:
        shop.run(checkout("a"))
    assert "fingerprint=" not in str(told.value), "a step has no such setting"


async def test_an_async_step_whose_time_is_over_says_so() -> None:
    """asyncio's own TimeoutError has no text, and this one is shown to operators."""
    async with AsyncReceiver.open("memory://", policy=POLICY) as receiver:

        @receiver.durable(key="order", scope=("slow",))
        async def checkout(steps: AsyncSteps, order: str) -> Any:
            return await steps.options(timeout=0.01).run("slow", asyncio.Event().wait)

        with pytest.raises(TimeoutError, match=r"did not end within timeout=0\.01 s"):
            await checkout("o")


def test_a_fork_in_the_function_runs_no_step_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Receiver.open(f"sqlite:///{tmp_path}/keys.db", policy=POLICY) as receiver:

        def act() -> None:
            with log.open("a") as file:
                file.write("x")

        @receiver.durable(key="order", scope=("x",))
        def checkout(steps: Steps, order: str) -> int:
            child = os.fork()
            if child == 0:
                try:
                    steps.run("act", act)
                except LeaseLostError:
                    os._exit(7)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            steps.run("act", act)
            return os.waitstatus_to_exitcode(status)

        assert checkout("o") == 7
    assert log.read_text() == "x"


# --- takeover="hold" --------------------------------------------------------------------------


def test_under_hold_a_step_that_raised_is_tried_again(shop: Shop) -> None:
    """Its own exception says that it failed. Only an interrupted step has an unknown outcome."""
    shop.failing["charge"] = 1

    def checkout(steps: Any, order: str) -> Any:
        return (yield steps.run("charge", shop.effect("charge", 5)))

    checkout = shop.durable(checkout, policy=POLICY.replace(takeover="hold"))
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    shop.clock.advance(ms=10)
    assert shop.run(checkout("a")) == 5


def test_a_step_that_raised_is_not_probed(shop: Shop) -> None:
    shop.failing["charge"] = 1

    def checkout(steps: Any, order: str) -> Any:
        probed = steps.options(probe=shop.effect("probe"))
        return (yield probed.run("charge", shop.effect("charge", 5)))

    checkout = shop.durable(checkout)
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    shop.clock.advance(ms=10)
    assert shop.run(checkout("a")) == 5
    assert shop.done["probe"] == 0


def test_under_hold_a_step_that_took_too_long_holds_the_run(shop: Shop) -> None:
    def slow() -> None:
        raise TimeoutError

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("charge", as_function(shop, slow))

    checkout = shop.durable(checkout, policy=POLICY.replace(takeover="hold"))
    with pytest.raises(TimeoutError):
        shop.run(checkout("a"))
    shop.clock.advance(ms=10)
    with pytest.raises(HeldError):
        shop.run(checkout("a"))


@pytest.mark.parametrize("then", ["aborts", "returns"])
def test_under_hold_a_function_that_catches_the_error_is_held_all_the_same(
    shop: Shop, then: str
) -> None:
    """Found by the simulation, seed 15328: it was undone, although its step may have happened."""

    def slow() -> None:
        raise TimeoutError

    def checkout(steps: Any, order: str) -> Any:
        try:
            yield steps.run("charge", as_function(shop, slow), undo=shop.effect("refund"))
        except HeldError:
            if then == "aborts":
                yield steps.abort("the charge failed")
        return "done"

    checkout = shop.durable(checkout, policy=POLICY.replace(takeover="hold"))
    with pytest.raises(TimeoutError):
        shop.run(checkout("a"))
    shop.clock.advance(ms=10)
    with pytest.raises(HeldError, match="'charge'"):
        shop.run(checkout("a"))
    assert shop.run(shop.receiver.record(checkout.key("a"))).state is State.HELD
    assert not shop.done


def test_under_hold_a_suspended_inner_run_does_not_hold_the_outer_one(shop: Shop) -> None:
    def inner(steps: Any, order: str) -> Any:
        return (yield steps.wait("approval", timeout=3600))

    inner = shop.durable(inner, scope=("inner",))

    def outer(steps: Any, order: str) -> Any:
        return [(yield steps.run("inner", inner, order))]

    outer = shop.durable(outer, scope=("outer",), policy=POLICY.replace(takeover="hold"))
    with pytest.raises(SuspendedError):
        shop.run(outer("a"))
    shop.run(shop.receiver.signal(inner.key("a"), "approval", "yes"))
    shop.clock.advance(ms=31_000)
    assert shop.run(outer("a")) == ["yes"]


def test_release_runs_a_held_step_again(shop: Shop) -> None:
    """The operator found out that it did not happen. Otherwise only a restart would help."""
    dies = True

    def act() -> str:
        shop.done["charge"] += 1
        if dies:
            claim = current_claim()
            claim.of_run.pid = claim.pid = -1  # type: ignore[union-attr]
        return "paid"

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("reserve", shop.effect("reserve"))
        return (yield steps.run("charge", as_function(shop, act)))

    checkout = shop.durable(checkout, policy=POLICY.replace(wait=0, takeover="hold"))
    with pytest.raises(LeaseLostError):
        shop.run(checkout("a"))
    shop.clock.advance(ms=31_000)
    with pytest.raises(HeldError):
        shop.run(checkout("a"))
    dies = False
    shop.run(shop.receiver.release(checkout.key("a"), by="ann"))
    assert shop.run(checkout("a")) == "paid"
    assert shop.done == {"reserve": 1, "charge": 2}


def test_a_lost_claim_is_no_failure_of_an_undo(shop: Shop) -> None:
    """The next worker undoes it: an operator would have nothing to repair."""
    loses = True

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("a", shop.effect("a"), undo=shop.effect("undo a"))
        if loses:
            steps._state.claim.expires = 0.0
        raise Boom

    checkout = shop.durable(checkout, policy=POLICY.replace(max_attempts=1))
    with pytest.raises(LeaseLostError):
        shop.run(checkout("a"))
    loses = False
    shop.clock.advance(ms=31_000)
    shop.run(shop.receiver.complete_abandoned())
    assert shop.run(shop.receiver.record(checkout.key("a"))).state is State.FAILED
    assert shop.order == ["a", "undo a"]


@pytest.mark.parametrize("policy", [{"in_flight": "reject"}, {"wait": 0}])
def test_a_run_that_calls_itself_fails(shop: Shop, policy: dict[str, Any]) -> None:
    """It would be suspended until it has ended, so for ever."""

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("again", run, order)

    run = shop.durable(checkout, policy=POLICY.replace(**policy))
    with pytest.raises(StillInProgressError, match="wait for itself"):
        shop.run(run("a"))
    assert shop.run(shop.receiver.record(run.key("a"))).state is State.RELEASED


# --- the completer ----------------------------------------------------------------------------


def test_a_run_that_needs_more_arguments_now_is_parked_and_others_run(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        return order
        yield

    old = shop.durable(checkout, name="checkout")
    key = shop.run(old.submit("a"))
    good = shop.run(shop.durable(checkout, name="good", scope=("good",)).submit("b"))

    def changed(steps: Any, order: str, more: str) -> None: ...

    async def changed_async(steps: Any, order: str, more: str) -> None: ...

    function: Any = changed if shop.mode == "blocking" else changed_async
    shop.receiver.durable(name="checkout", scope=("shop",))(function)
    report = shop.run(shop.receiver.complete_abandoned())
    assert (report.skipped, report.completed) == (1, 1)
    shop.clock.advance(ms=HOUR)
    assert shop.run(shop.receiver.complete_abandoned()).parked == 1
    assert shop.run(shop.receiver.record(key)).state is State.PARKED
    assert shop.run(shop.receiver.record(good)).state is State.COMPLETED


def test_a_run_whose_arguments_the_codec_cannot_read_is_parked(shop: Shop) -> None:
    class Renamed:
        def encode(self, value: Any, declared: Any = Any) -> bytes:
            return b"an order"

        def decode(self, payload: bytes, declared: Any = Any) -> Any:
            raise KeyError("order_id")

    def checkout(steps: Any, order: str) -> Any:
        return order
        yield

    run = shop.durable(checkout, policy=POLICY.replace(codec=Renamed()))
    key = shop.run(run.submit("a"))
    shop.clock.advance(ms=HOUR)
    assert shop.run(shop.receiver.complete_abandoned()).parked == 1
    record = shop.run(shop.receiver.record(key))
    assert record.state is State.PARKED
    assert "'order' no longer fits (KeyError" in record.error


def test_the_completer_compares_no_fingerprints(shop: Shop) -> None:
    """A stored run has its own: a `fingerprint=` that raises today must not stop the completer."""

    def checkout(steps: Any, order: Any) -> Any:
        return order
        yield

    settings: dict[str, Any] = {"name": "checkout", "key": None}
    old = shop.durable(checkout, fingerprint=lambda order: order["x"], **settings)
    shop.run(old.submit({"x": 1}))
    shop.durable(checkout, fingerprint=lambda order: order["y"], **settings)
    assert shop.run(shop.receiver.complete_abandoned()).completed == 1


def test_a_run_that_fails_with_the_error_of_an_inner_key_is_not_one_that_another_worker_took(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = shop.receiver.options(policy=POLICY.replace(remember=(Boom,)))
    shop.failing["pay"] = 1

    def checkout(steps: Any, order: str) -> Any:
        yield refusing.process(f"pay-{order}", shop.effect("pay"))

    checkout = shop.durable(checkout, policy=POLICY.replace(max_attempts=1))
    with pytest.raises(Boom):
        shop.run(refusing.process("pay-a", shop.effect("pay")))
    shop.run(checkout.submit("a"))
    caplog.clear()
    report = shop.run(shop.receiver.complete_abandoned())
    assert (report.failed, report.skipped) == (1, 0)
    assert "a durable run failed" in caplog.text
    assert shop.run(shop.receiver.record(checkout.key("a"))).state is State.PARKED


def test_a_run_that_holds_itself_is_not_one_that_another_worker_took(shop: Shop) -> None:
    def slow() -> None:
        raise TimeoutError

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("pay", as_function(shop, slow))

    checkout = shop.durable(checkout, policy=POLICY.replace(takeover="hold"))
    with pytest.raises(TimeoutError):
        shop.run(checkout("a"))
    shop.clock.advance(ms=1000)
    report = shop.run(shop.receiver.complete_abandoned())
    assert (report.failed, report.skipped) == (1, 0)
    assert shop.run(shop.receiver.record(checkout.key("a"))).state is State.HELD


def test_a_run_whose_last_worker_died_is_parked_and_counted(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("pay", shop.effect("pay"))

    checkout = shop.durable(checkout, policy=POLICY.replace(max_attempts=1), name="checkout")
    key = shop.run(checkout.submit("a"))
    [run] = shop.store.perform(FindDue(1, 1)).runs
    shop.store.perform(
        StartRun(key, b"o" * 16, 1000, 1, function="checkout", arguments=run.arguments)
    )
    shop.clock.advance(ms=2000)
    report = shop.run(shop.receiver.complete_abandoned())
    assert (report.failed, report.skipped) == (1, 0)
    assert shop.run(shop.receiver.record(key)).state is State.PARKED


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit(3), Stop(), GeneratorExit()], ids=repr)
def test_a_run_that_exits_does_not_stop_the_completer(error: BaseException) -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY.replace(max_attempts=1))
    raised, completed = threading.Event(), threading.Event()

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None:
        if order == "bad":
            raised.set()
            raise error
        completed.set()

    with receiver.completer(every=0.01):
        checkout.submit("bad")
        assert raised.wait(60)
        checkout.submit("good")
        assert completed.wait(60)


def test_the_decorator_needs_no_settings() -> None:
    receiver, async_receiver = Receiver(MemoryStore()), AsyncReceiver.open("memory://")

    @receiver.durable
    def checkout(steps: Steps, order: str) -> str:
        return str(steps.uuid())

    @async_receiver.durable
    async def checkout_async(steps: AsyncSteps, order: str) -> str:
        return str(await steps.uuid())

    async def run() -> None:
        async with async_receiver:
            assert await checkout_async("a") == await checkout_async("a")
            assert await checkout_async("a") != await checkout_async("b")

    assert checkout("a") == checkout("a")
    assert checkout("a") != checkout("b")
    asyncio.run(run())
    for each in (receiver, async_receiver):
        with pytest.raises(
            ConfigurationError, match="not 'order': name its settings, such as key="
        ):
            each.durable("order")  # type: ignore[call-overload]
