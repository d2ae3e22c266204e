"""Sleeping, waiting, signals and the completer: no worker waits, and what is due is found."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.durable.shop import POLICY, Boom, Shop
from tests.polling import until
from twicesafe import (
    AsyncReceiver,
    CompensatedError,
    FingerprintMismatchError,
    Key,
    Receiver,
    State,
    Steps,
    SuspendedError,
    TooLargeError,
    UsageError,
)
from twicesafe._core.durable.run_requests import LoadRun, Signal, StartRun
from twicesafe._core.protocol import Abandon, Complete, Renew
from twicesafe._values.codecs import DEFAULT_CODEC
from twicesafe.stores.memory import MemoryStore

HOUR = 3_600_000


def state_of(shop: Shop, key: Key) -> Any:
    return shop.run(shop.receiver.record(key)).state


def complete(shop: Shop, **settings: Any) -> Any:
    return shop.run(shop.receiver.complete_abandoned(**settings))


def test_a_long_sleep_suspends_the_run(shop: Shop) -> None:
    before, after = shop.effect("before"), shop.effect("after", "done")

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("before", before)
        yield steps.sleep("cool-off", 3600)
        return (yield steps.run("after", after))

    checkout = shop.durable(checkout)
    with pytest.raises(SuspendedError) as raised:
        shop.run(checkout("a"))
    due = datetime.fromtimestamp(shop.clock() / 1000, UTC) + timedelta(hours=1)
    assert abs(raised.value.resume_at - due) < timedelta(minutes=5)  # type: ignore[operator]
    assert raised.value.retryable
    record = shop.run(shop.receiver.record(checkout.key("a")))
    assert (record.state, record.attempt) == (State.SUSPENDED, 0)
    with pytest.raises(SuspendedError):
        shop.run(checkout("a"))
    assert complete(shop).found == 0
    shop.clock.advance(ms=HOUR)
    assert complete(shop).completed == 1
    assert shop.run(checkout("a")) == "done"
    assert shop.done == {"before": 1, "after": 1}
    record = shop.run(shop.receiver.record(checkout.key("a")))
    assert (record.attempt, record.cause) == (1, "resumed")
    assert [step.name for step in record.steps] == ["before", "cool-off", "after"]


def test_a_short_sleep_happens_in_place(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        yield steps.sleep("blink", 0.01)
        yield steps.sleep("nothing", 0)
        return "done"

    assert shop.run(shop.durable(checkout)("a")) == "done"


def test_a_sleep_that_its_lease_does_not_outlast_suspends_the_run(shop: Shop) -> None:
    """A loop of short sleeps in place came to `max_lease`, lost its claim, and used up an attempt each time."""
    policy = POLICY.replace(lease=60, max_lease=60, wait=600, max_attempts=1)

    def naps(steps: Any, order: str) -> Any:
        yield steps.sleep("nap", 59)
        return (yield steps.wait("go", timeout=59))

    naps = shop.durable(naps, policy=policy)
    for _ in range(2):
        with pytest.raises(SuspendedError):
            shop.run(naps("a"))
        record = shop.run(shop.receiver.record(naps.key("a")))
        assert (record.state, record.attempt) == (State.SUSPENDED, 0)
        shop.clock.advance(ms=59_001)
    assert shop.run(naps("a")) is None


def test_sleeping_is_not_an_attempt(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        for night in range(8):
            yield steps.sleep(f"night-{night}", 3600)
        return steps.attempt

    checkout = shop.durable(checkout, policy=POLICY.replace(max_attempts=2))
    with pytest.raises(SuspendedError):
        shop.run(checkout("a"))
    for _ in range(8):
        shop.clock.advance(ms=HOUR)
        complete(shop)
    assert shop.run(checkout("a")) == 1


def test_a_function_cannot_catch_its_own_suspension(shop: Shop) -> None:
    act = shop.effect("act")

    def checkout(steps: Any, order: str) -> Any:
        try:
            yield steps.sleep("night", 3600)
        except Exception:
            yield steps.run("act", act)
        return "done"

    checkout = shop.durable(checkout)
    with pytest.raises(SuspendedError):
        shop.run(checkout("a"))
    assert not shop.done


def test_a_signal_ends_a_wait(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        return [(yield steps.wait("approval"))]

    checkout = shop.durable(checkout)
    with pytest.raises(SuspendedError) as raised:
        shop.run(checkout("a"))
    assert raised.value.resume_at is None
    key = checkout.key("a")
    assert state_of(shop, key) is State.SUSPENDED
    assert shop.run(shop.receiver.signal(key, "approval", {"by": "ann"})) is True
    assert shop.run(shop.receiver.signal(key, "approval", "second")) is False
    assert complete(shop).completed == 1
    assert shop.run(checkout("a")) == [{"by": "ann"}]
    assert shop.run(shop.receiver.signal(key, "approval", "late")) is False


def test_a_signal_is_no_larger_than_a_result(memory_shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        return (yield steps.wait("approval", timeout=3600))

    checkout = memory_shop.durable(checkout)
    signal = memory_shop.receiver.signal
    with pytest.raises(TooLargeError, match="the signal has"):
        memory_shop.run(signal(checkout.key("a"), "approval", "x" * 300_000))
    assert memory_shop.run(signal(checkout.key("a"), "approval", "x" * 200_000)) is True


def test_a_signal_may_come_before_its_run(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        return (yield steps.wait("approval", timeout=3600))

    checkout = shop.durable(checkout)
    assert shop.run(shop.receiver.signal(checkout.key("a"), "approval", False)) is True
    assert shop.run(checkout("a")) is False


def test_a_wait_ends_with_its_time_out(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        return [(yield steps.wait("approval", timeout=3600))]

    checkout = shop.durable(checkout)
    with pytest.raises(SuspendedError):
        shop.run(checkout("a"))
    shop.clock.advance(ms=HOUR)
    assert shop.run(checkout("a")) == [None]
    assert shop.run(shop.receiver.signal(checkout.key("a"), "approval")) is False


def test_a_short_wait_happens_in_place() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY.replace(wait=30))

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> Any:
        waiting.set()
        return steps.wait("approval", timeout=30), steps.wait("never", timeout=0.01)

    waiting = threading.Event()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(checkout("a")))
    thread.start()
    assert waiting.wait(60)
    receiver.signal(checkout.key("a"), "approval", 7)
    thread.join(60)
    assert answers == [(7, None)]


def test_branches_that_wait_for_different_signals() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            return await asyncio.gather(steps.wait("a"), steps.wait("b", timeout=3600))

        with pytest.raises(SuspendedError):
            await checkout("o")
        await receiver.signal(checkout.key("o"), "b", 2)
        await receiver.complete_abandoned()
        await receiver.signal(checkout.key("o"), "a", 1)
        await receiver.complete_abandoned()
        assert await checkout("o") == [1, 2]

    asyncio.run(main())


def test_submitted_runs_are_run_by_the_completer(shop: Shop) -> None:
    act = shop.effect("act", "done")

    def checkout(steps: Any, order: Any) -> Any:
        return [(yield steps.run("act", act)), order["cents"]]

    checkout = shop.durable(checkout, key=lambda order: order["id"])
    key = shop.run(checkout.submit({"id": "a", "cents": 5}))
    assert key == checkout.key({"id": "a", "cents": 5})
    assert shop.run(checkout.submit({"id": "a", "cents": 5})) == key
    with pytest.raises(FingerprintMismatchError):
        shop.run(checkout.submit({"id": "a", "cents": 6}))
    assert not shop.done
    assert complete(shop).completed == 1
    assert shop.run(checkout({"id": "a", "cents": 5})) == ["done", 5]
    assert shop.run(checkout.submit({"id": "a", "cents": 5})) == key
    assert complete(shop).found == 0
    assert shop.done["act"] == 1


def test_only_completed_functions_can_be_submitted(shop: Shop) -> None:
    def checkout(steps: Any, order: str) -> Any:
        raise Boom
        yield

    checkout = shop.durable(checkout, complete=False)
    with pytest.raises(UsageError, match="complete=False"):
        shop.run(checkout.submit("a"))
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    shop.clock.advance(ms=HOUR)
    assert complete(shop).found == 0, "only callers run it"


def test_failed_and_abandoned_runs_belong_to_the_completer(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    act = shop.effect("act", "done")
    shop.failing["act"] = 2

    def checkout(steps: Any, order: str) -> Any:
        return (yield steps.run("act", act))

    checkout = shop.durable(checkout)
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    assert complete(shop).found == 0, "its back-off is not over"
    shop.clock.advance(ms=10)
    with caplog.at_level(logging.WARNING, "twicesafe"):
        assert complete(shop).failed == 1
    shop.clock.advance(ms=10)
    assert complete(shop).completed == 1
    assert shop.done["act"] == 3


def test_a_run_whose_code_is_gone_is_parked_when_no_completer_knows_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    def checkout(steps: Any, order: str) -> Any:
        return order
        yield

    checkout = shop.durable(checkout)
    key = shop.run(checkout.submit("a"))
    shop.receiver._durables.clear()
    assert complete(shop).found == 0, "another service may have its code"
    shop.clock.advance(ms=HOUR)
    with caplog.at_level(logging.WARNING, "twicesafe"):
        assert complete(shop).parked == 1
    record = shop.run(shop.receiver.record(key))
    assert record.state is State.PARKED
    assert "no durable function" in record.error


def test_a_run_whose_arguments_the_code_does_not_take_is_parked(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    def checkout(steps: Any, order: str) -> Any:
        return order
        yield

    old = shop.durable(checkout, name="checkout")
    key = shop.run(old.submit("a"))
    receiver = shop.receiver
    if shop.mode == "blocking":

        @receiver.durable(name="checkout", scope=("shop",))
        def changed(steps: Any, basket: str) -> None: ...
    else:

        @receiver.durable(name="checkout", scope=("shop",))
        async def changed(steps: Any, basket: str) -> None: ...

    with caplog.at_level(logging.WARNING, "twicesafe"):
        report = complete(shop)
        assert (report.skipped, report.parked) == (1, 0), (
            "in a rolling deployment an old node takes them"
        )
    assert "left to other completers" in caplog.text
    assert state_of(shop, key) is State.SUSPENDED
    shop.clock.advance(ms=HOUR)
    assert complete(shop).parked == 1
    assert state_of(shop, key) is State.PARKED


def test_a_run_with_a_new_argument_is_left_to_the_nodes_that_take_it(shop: Shop) -> None:
    def old(steps: Any, order: str) -> Any: ...

    async def old_async(steps: Any, order: str) -> Any: ...

    def new(steps: Any, order: str, express: bool = False) -> Any:
        return "new"

    async def new_async(steps: Any, order: str, express: bool = False) -> Any:
        return "new"

    named = shop.receiver.durable(name="checkout", scope=("shop",), key="order")
    run = named(new if shop.mode == "blocking" else new_async)
    key = shop.run(run.submit("a"))
    named(old if shop.mode == "blocking" else old_async)
    assert complete(shop).skipped == 1
    named(new if shop.mode == "blocking" else new_async)
    shop.clock.advance(ms=60_000)
    assert complete(shop).completed == 1
    assert shop.run(run("a")) == "new"
    assert state_of(shop, key) is State.COMPLETED


def test_a_run_whose_worker_died_late_is_not_parked_by_a_node_without_its_code(shop: Shop) -> None:
    """Since when it waits is what its lease says, not when a completer looked at it last."""

    def checkout(steps: Any, order: str) -> Any:
        return order
        yield

    checkout = shop.durable(checkout, name="checkout")
    key = shop.run(checkout.submit("a"))
    known = dict(shop.receiver._durables)
    owner = b"o" * 16
    fence = shop.store.perform(StartRun(key, owner, 1000, 5, function="checkout")).fence
    shop.store.perform(Renew(key.id, owner, fence, 2 * HOUR))
    shop.clock.advance(ms=2 * HOUR + 1000)
    shop.receiver._durables.clear()
    assert complete(shop).parked == 0
    shop.receiver._durables.update(known)
    assert state_of(shop, key) is State.IN_PROGRESS


def test_a_suspended_inner_run_suspends_the_outer_one(shop: Shop) -> None:
    def inner(steps: Any, order: str) -> Any:
        return (yield steps.wait("approval", timeout=3600))

    inner = shop.durable(inner, scope=("inner",))

    def outer(steps: Any, order: str) -> Any:
        return [(yield steps.run("inner", inner, order))]

    outer = shop.durable(outer, scope=("outer",))
    with pytest.raises(SuspendedError):
        shop.run(outer("a"))
    record = shop.run(shop.receiver.record(outer.key("a")))
    assert (record.state, record.attempt) == (State.SUSPENDED, 0)
    assert shop.run(shop.receiver.signal(inner.key("a"), "approval", "yes"))
    complete(shop)
    assert state_of(shop, inner.key("a")) is State.COMPLETED
    complete(shop)
    assert state_of(shop, outer.key("a")) is State.COMPLETED, "the end of the inner run woke it"
    assert shop.run(outer("a")) == ["yes"]


def test_an_inner_run_that_another_worker_has_suspends_the_outer_one(shop: Shop) -> None:
    """It is slow, which is no failure of the outer run: no attempt is used up, and nothing is undone."""
    act, undo = shop.effect("act", 7), shop.effect("undo")
    policy = POLICY.replace(wait=0, max_attempts=1)

    def inner(steps: Any, order: str) -> Any:
        return (yield steps.run("act", act))

    inner = shop.durable(inner, scope=("inner",), name="inner", policy=policy)

    def outer(steps: Any, order: str) -> Any:
        yield steps.run("first", shop.effect("first"), undo=undo)
        return [(yield steps.run("inner", inner, order))]

    outer = shop.durable(outer, scope=("outer",), policy=policy)
    key = inner.key("a")
    other = shop.store.perform(StartRun(key, b"o" * 16, 60_000, 5, function="inner"))
    for _ in range(3):
        with pytest.raises(SuspendedError):
            shop.run(outer("a"))
        record = shop.run(shop.receiver.record(outer.key("a")))
        assert (record.state, record.attempt) == (State.SUSPENDED, 0)
        shop.clock.advance(ms=1_001)
    shop.store.perform(Abandon(key.id, b"o" * 16, 60_000))
    shop.clock.advance(ms=1_001)
    assert other.fence
    assert shop.run(outer("a")) == [7]
    assert (shop.done["first"], shop.done["undo"]) == (1, 0)


def test_an_inner_run_that_is_suspended_again_is_looked_at_later(shop: Shop) -> None:
    """Its signal wakes once. After that the outer run must not be due all the time."""

    def inner(steps: Any, order: str) -> Any:
        return (yield steps.wait("approval", timeout=3600))

    def middle(steps: Any, order: str) -> Any:
        return (yield steps.run("inner", inner, order))

    def outer(steps: Any, order: str) -> Any:
        return [(yield steps.run("middle", middle, order))]

    inner = shop.durable(inner, scope=("inner",))
    middle = shop.durable(middle, scope=("middle",))
    outer = shop.durable(outer, scope=("outer",))
    with pytest.raises(SuspendedError):
        shop.run(outer("a"))
    assert complete(shop).found == 0
    for run in (inner, middle):  # an operator ends the first one, and that wakes no caller
        shop.run(shop.receiver.resolve(run.key("a"), "by hand", by="ann", why="lost"))
        shop.run(shop.receiver.restart(run.key("a"), by="ann", why="after all", force=True))
    complete(shop)
    assert state_of(shop, outer.key("a")) is State.SUSPENDED
    shop.clock.advance(ms=31_000)
    complete(shop)
    assert complete(shop).found == 0
    assert shop.run(shop.receiver.signal(inner.key("a"), "approval", "yes"))
    for _ in range(3):
        complete(shop)
        shop.clock.advance(ms=31_000)
    assert shop.run(outer("a")) == ["yes"]


def test_a_failed_inner_run_wakes_the_outer_one(memory_shop: Shop) -> None:
    shop = memory_shop

    def inner(steps: Any, order: str) -> Any:
        yield steps.wait("approval", timeout=3600)
        yield steps.abort("refused")

    def outer(steps: Any, order: str) -> Any:
        try:
            yield steps.run("inner", inner, order)
        except CompensatedError as undone:
            return undone.reason

    inner = shop.durable(inner, scope=("inner",))
    outer = shop.durable(outer, scope=("outer",))
    with pytest.raises(SuspendedError):
        shop.run(outer("a"))
    shop.run(shop.receiver.signal(inner.key("a"), "approval", "no"))
    complete(shop)
    complete(shop)
    assert state_of(shop, outer.key("a")) is State.COMPLETED
    assert shop.run(outer("a")) == "refused"


def test_an_inner_run_that_goes_on_before_it_knows_its_caller_is_looked_at_soon(
    memory_shop: Shop,
) -> None:
    """Its worker loaded its steps before the outer run asked to be woken, so it wakes no caller."""
    shop = memory_shop

    def inner(steps: Any, order: str) -> Any:
        return (yield steps.wait("approval", timeout=3600))

    def outer(steps: Any, order: str) -> Any:
        return [(yield steps.run("inner", inner, order))]

    inner = shop.durable(inner, scope=("inner",), name="inner")
    outer = shop.durable(outer, scope=("outer",))
    perform, started = shop.store.perform, []

    def racing(request: Any) -> Any:
        if isinstance(request, Signal) and request.name.startswith("twicesafe:outer:"):
            shop.store.perform = perform  # type: ignore[method-assign]
            payload = DEFAULT_CODEC.encode("yes", Any)
            assert perform(Signal(request.id, "twicesafe:signal:approval", payload, HOUR))
            ask = StartRun(inner.key("a"), b"o" * 16, HOUR, 5, function="inner")
            started.append(perform(ask).fence)
        return perform(request)

    shop.store.perform = racing  # type: ignore[method-assign]
    with pytest.raises(SuspendedError):
        shop.run(outer("a"))
    result = DEFAULT_CODEC.encode("yes", Any)
    perform(Complete(inner.key("a").id, b"o" * 16, started[0], HOUR, result))
    shop.clock.advance(ms=1_001)
    complete(shop)
    assert state_of(shop, outer.key("a")) is State.COMPLETED
    assert shop.run(outer("a")) == ["yes"]


def test_a_run_that_ends_while_its_caller_is_suspended_wakes_it(memory_shop: Shop) -> None:
    """The signal comes after the inner run was suspended, and before the outer one is."""
    shop = memory_shop

    def inner(steps: Any, order: str) -> Any:
        return (yield steps.wait("approval", timeout=3600))

    def outer(steps: Any, order: str) -> Any:
        return [(yield steps.run("inner", inner, order))]

    inner = shop.durable(inner, scope=("inner",))
    outer = shop.durable(outer, scope=("outer",))
    perform = shop.store.perform

    def racing(request: Any) -> Any:
        if isinstance(request, Signal) and request.name.startswith("twicesafe:outer:"):
            shop.store.perform = perform  # type: ignore[method-assign]
            row, result = shop.store._rows[request.id], DEFAULT_CODEC.encode("yes", Any)
            ended = replace(
                row, state=State.COMPLETED, result=result, expires_at=shop.clock() + HOUR
            )
            shop.store._rows[request.id] = ended
        return perform(request)

    shop.store.perform = racing  # type: ignore[method-assign]
    with pytest.raises(SuspendedError):
        shop.run(outer("a"))
    complete(shop)
    assert state_of(shop, outer.key("a")) is State.COMPLETED
    assert shop.run(outer("a")) == ["yes"]


def test_an_operator_restarts_or_releases_a_run(shop: Shop) -> None:
    act, stop = shop.effect("act"), shop.effect("stop")
    shop.failing["stop"] = 2

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("act", act)
        yield steps.run("stop", stop)

    checkout = shop.durable(checkout, policy=POLICY.replace(max_attempts=1))
    key = checkout.key("a")
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    assert state_of(shop, key) is State.PARKED
    shop.run(shop.receiver.release(key, by="ann"))
    shop.clock.advance(ms=2 * 86_400_000)
    shop.run(shop.receiver.sweep())
    with pytest.raises(Boom):
        shop.run(checkout("a"))
    assert shop.done["act"] == 1, "a released run is never swept, and keeps its steps"
    shop.run(shop.receiver.restart(key, by="ann", why="start over"))
    shop.run(checkout("a"))
    assert shop.done["act"] == 2
    assert [entry.action for entry in shop.run(shop.receiver.audit(key))] == ["release", "restart"]


def test_finished_runs_are_swept_with_their_steps(shop: Shop) -> None:
    act = shop.effect("act")

    def checkout(steps: Any, order: str) -> Any:
        yield steps.run("act", act)

    checkout = shop.durable(checkout)
    shop.run(checkout("a"))
    shop.clock.advance(ms=2 * 86_400_000)
    shop.run(shop.receiver.sweep())
    assert shop.store.perform(LoadRun(checkout.key("a").id)) is None


def test_the_completer_runs_until_it_is_stopped() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    ran = threading.Event()

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> str:
        ran.set()
        return order

    with receiver.completer(every=0.01) as completer:
        key = checkout.submit("a")
        assert ran.wait(60)
        until(lambda: receiver.record(key).state is State.COMPLETED)  # type: ignore[union-attr]
    completer.stop()
    with pytest.raises(ValueError, match="every"):
        receiver.completer(every=0)
    foreground = receiver.completer(every=0.01)
    thread = threading.Thread(target=foreground.run)
    thread.start()
    foreground.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_the_async_completer_runs_until_it_is_stopped() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)
        ran = asyncio.Event()

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> str:
            ran.set()
            return order

        async with receiver.completer(every=0.01):
            await checkout.submit("a")
            async with asyncio.timeout(120):
                await ran.wait()
        await receiver.close()

    asyncio.run(main())


def test_a_run_that_takes_long_does_not_keep_the_completer_from_others() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    began, ends, ran = threading.Event(), threading.Event(), threading.Event()

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None:
        if order != "slow":
            ran.set()
            return
        began.set()
        assert ends.wait(60)

    with receiver.completer(every=0.01, concurrency=2):
        checkout.submit("slow")
        assert began.wait(60)
        checkout.submit("quick")
        assert ran.wait(60), "the quick run waited for the slow one"
        ends.set()


def test_an_async_run_that_takes_long_does_not_keep_the_completer_from_others() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)
        began, ends, ran = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> None:
            if order != "slow":
                ran.set()
                return
            began.set()
            await ends.wait()

        async with asyncio.timeout(120), receiver.completer(every=0.01, concurrency=2):
            await checkout.submit("slow")
            await began.wait()
            await checkout.submit("quick")
            await ran.wait()
            ends.set()
        await receiver.close()

    asyncio.run(main())


def test_an_interrupted_completer_starts_no_more_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the foreground: the runs that have started end, and those that were only found do not start."""
    receiver = Receiver(MemoryStore(), policy=POLICY)
    completer, started, both = receiver.completer(every=60, concurrency=2), [], threading.Barrier(3)

    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Any, order: str) -> None:
        started.append(order)
        both.wait(120)
        assert completer._stopped.wait(120)

    for number in range(6):
        checkout.submit(f"o-{number}")

    def interrupt(*_: Any) -> None:
        both.wait(120)
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        completer.run()
    assert len(started) == 2


def test_a_run_may_stop_its_completer() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    completer, stopped = receiver.completer(every=0.01), threading.Event()

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None:
        completer.stop()
        stopped.set()

    with completer:
        checkout.submit("a")
        assert stopped.wait(60)


def test_an_async_run_may_stop_its_completer() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)
        completer, stopped = receiver.completer(every=0.01), asyncio.Event()

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> None:
            await completer.stop()
            stopped.set()

        async with asyncio.timeout(120), completer:
            await checkout.submit("a")
            await stopped.wait()
        await receiver.close()

    asyncio.run(main())
