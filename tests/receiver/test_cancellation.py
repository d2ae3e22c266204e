"""asyncio: cancelled before, in and after the handler, timed out, on other loops, on a blocked loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.receiver.bench import Bench
from tests.receiver.test_waiting import riders
from twicesafe import AsyncReceiver, HeldError, Policy, State
from twicesafe._engines.sqlite import AsyncSqliteStore
from twicesafe.stores.memory import AsyncMemoryStore

pytestmark = pytest.mark.parametrize("bench", ["memory-async", "sqlite-async"], indirect=True)


class Pause:
    """Holds one kind of request, before or after the store did it, until the test lets it go on."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Any) -> None:
        if request.op == self.op and not self.reached.is_set():
            self.reached.set()
            await self.go_on.wait()

    async def cancel(self, task: asyncio.Future[Any]) -> None:
        """Cancel this call while its request is held; it gets to hear of it."""
        await self.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        self.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 120)


async def one() -> int:
    return 1


async def forever() -> int:
    await asyncio.Event().wait()
    return 1


@pytest.mark.parametrize("side", ["before", "after"])
def test_cancelled_before_the_claim_was_answered(bench: Bench, side: str) -> None:
    async def run() -> None:
        pause = Pause("claim")
        setattr(bench.store, side, pause)
        task = asyncio.ensure_future(bench.receiver.process("k", forever))
        await pause.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        outcome = await bench.receiver.process("k", one)  # at once: no lease to wait for
        assert (outcome.value, outcome.replayed, outcome.attempt) == (1, False, 1)

    bench._wait(run())


def test_cancelled_in_the_handler_is_released_at_once(bench: Bench) -> None:
    async def run() -> None:
        started = asyncio.Event()

        async def handle() -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(bench.receiver.process("k", handle))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bench.receiver.record("k")).state is State.RELEASED
        assert (await bench.receiver.process("k", one)).attempt == 2

    bench._wait(run())


def test_cancelled_in_the_handler_is_held_if_at_most_once(bench: Bench) -> None:
    async def run() -> None:
        receiver = bench.receiver.options(policy=Policy(takeover="hold"))
        started = asyncio.Event()

        async def handle() -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(receiver.process("k", handle))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(HeldError):
            await receiver.process("k", one)

    bench._wait(run())


@pytest.mark.parametrize("side", ["before", "after"])
def test_cancelled_during_complete_is_still_recorded(bench: Bench, side: str) -> None:
    async def run() -> None:
        pause = Pause("complete")
        setattr(bench.store, side, pause)
        task = asyncio.ensure_future(bench.receiver.process("k", one))
        await pause.reached.wait()
        for _ in range(3):  # however often
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        pause.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bench.receiver.process("k", forever)).value == 1

    bench._wait(run())


def test_cancelled_again_while_the_claim_is_given_back(bench: Bench) -> None:
    async def run() -> None:
        pause = Pause("fail")
        bench.store.before = pause
        started = asyncio.Event()

        async def handle() -> None:
            started.set()
            await forever()

        task = asyncio.ensure_future(bench.receiver.process("k", handle))
        await started.wait()
        task.cancel()
        await pause.cancel(task)
        assert (await bench.receiver.record("k")).state is State.RELEASED

    bench._wait(run())


def test_cancelled_while_waiting_leaves_the_owner_alone(bench: Bench) -> None:
    async def run() -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def handle() -> str:
            started.set()
            await go_on.wait()
            return "owner"

        owner = asyncio.ensure_future(bench.receiver.process("k", handle))
        await started.wait()
        waiter = asyncio.ensure_future(bench.receiver.process("k", handle))
        while not riders(bench):  # noqa: ASYNC110 - the flight does not notify us
            await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        go_on.set()
        assert (await owner).value == "owner"

    bench._wait(run())


def test_asyncio_timeout_around_process(bench: Bench) -> None:
    async def run() -> None:
        limit = asyncio.timeout(None)

        async def too_long() -> None:  # the time is over as soon as the handler has begun
            limit.reschedule(asyncio.get_running_loop().time())
            await forever()

        with pytest.raises(TimeoutError):
            async with limit:
                await bench.receiver.process("k", too_long)
        assert (await bench.receiver.process("k", one)).attempt == 2

    bench._wait(run())


def test_the_policys_timeout_stops_the_handler(bench: Bench) -> None:
    async def run() -> None:
        stopped = asyncio.Event()

        async def handle() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        receiver = bench.receiver.options(policy=bench.receiver.policy.replace(timeout=0.05))
        with pytest.raises(TimeoutError):
            await receiver.process("k", handle)
        assert stopped.is_set()
        record = await receiver.record("k")
        assert (record.state, record.error) == (State.RELEASED, "TimeoutError")

    bench._wait(run())


def test_a_timeout_is_an_unknown_outcome(bench: Bench) -> None:
    async def run() -> None:
        receiver = bench.receiver.options(policy=Policy(timeout=0.05, takeover="hold"))
        with pytest.raises(TimeoutError):
            await receiver.process("k", forever)
        assert (await receiver.record("k")).state is State.HELD

    bench._wait(run())


def test_a_hung_store_does_not_hold_a_cancelled_caller_for_long(bench: Bench) -> None:
    async def run() -> None:
        pause = Pause("claim")
        hung = Pause("abandon")

        async def both(request: Any) -> None:
            await pause(request)
            await hung(request)

        bench.store.before = both
        task = asyncio.ensure_future(bench.receiver.process("k", forever))
        await pause.reached.wait()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=120)
        assert done
        hung.go_on.set()

    bench._wait(run())


def test_a_batch_that_is_cancelled_gives_its_claims_back(bench: Bench) -> None:
    async def run() -> None:
        started = asyncio.Event()

        async def handle(message: str) -> str:
            if message == "a":
                return "done"
            started.set()
            await asyncio.Event().wait()
            return "never"

        task = asyncio.ensure_future(
            bench.receiver.process_many(["a", "b", "c", "d"], handle, key=str, concurrency=2)
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        states = [(await bench.receiver.record(key)).state for key in "abcd"]
        assert states == [State.COMPLETED, State.RELEASED, State.RELEASED, State.RELEASED]
        assert (await bench.receiver.record("d")).attempt == 0  # never started

    bench._wait(run())


def test_a_batch_that_is_cancelled_in_an_item_that_had_to_wait(bench: Bench) -> None:
    """The cancellation was a failure of that item, and the call returned."""

    async def run() -> None:
        started = asyncio.Event()
        ran: list[str] = []

        async def handle(message: str) -> str:
            ran.append(message)
            if len(ran) == 1:
                raise ValueError
            started.set()
            await asyncio.Event().wait()
            return "never"

        task = asyncio.ensure_future(
            bench.receiver.process_many(["k 1", "k 2", "k 3"], handle, key=lambda one: one[0])
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 120)
        assert ran == ["k 1", "k 2"]
        assert (await bench.receiver.record("k")).state is State.RELEASED

    bench._wait(run())


def test_contextvars_reach_the_handler(bench: Bench) -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")

    async def run() -> str:
        var.set("mine")

        async def handle() -> str:
            return var.get()

        return (await bench.receiver.process("k", handle)).value

    assert bench._wait(run()) == "mine"


# --- loops -----------------------------------------------------------------------------------------


def fresh(bench: Bench, **settings: Any) -> Callable[[], AsyncReceiver]:
    if bench.kind == "memory":
        return lambda: AsyncReceiver(AsyncMemoryStore(), **settings)
    url = f"sqlite:///{bench._folder / 'loops.db'}"
    return lambda: AsyncReceiver(AsyncSqliteStore.open(url), **settings)


def test_one_receiver_on_one_loop_after_another(bench: Bench) -> None:
    receiver = fresh(bench)()
    assert asyncio.run(receiver.process("k", one)).replayed is False
    assert asyncio.run(receiver.process("k", one)).replayed is True
    asyncio.run(receiver.close())


def test_one_receiver_on_two_loops_at_once(bench: Bench) -> None:
    receiver = fresh(bench)()
    runs: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    async def handle() -> str:
        runs.append(threading.current_thread().name)
        entered.set()
        await asyncio.to_thread(go_on.wait, 10)
        return "once"

    values: list[Any] = []

    def other_loop() -> None:
        values.append(asyncio.run(receiver.process("k", handle)).value)

    threads = [threading.Thread(target=other_loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert (values, len(runs)) == (["once"] * 3, 1)
    asyncio.run(receiver.close())


def test_a_loop_that_died_in_mid_work_leaves_no_caller_stuck(bench: Bench) -> None:
    """asyncio.run cancels what is left over: the claim goes back and a new loop takes it."""
    receiver = fresh(bench)()

    left_alone: list[Any] = []

    async def abandon_ship() -> None:
        started = asyncio.Event()

        async def handle() -> None:
            started.set()
            await forever()

        left_alone.append(asyncio.ensure_future(receiver.process("k", handle)))
        await started.wait()

    asyncio.run(abandon_ship())
    assert asyncio.run(receiver.process("k", one)).attempt == 2
    asyncio.run(receiver.close())


def test_a_blocked_event_loop_keeps_its_claim(bench: Bench) -> None:
    """The keeper is a thread: it renews while the handler blocks the loop for two leases."""
    make = fresh(bench, policy=Policy(lease=0.15, wait=60))
    receiver = make()
    other = make() if bench.kind == "sqlite" else receiver
    runs: list[int] = []

    async def rude() -> str:
        runs.append(1)
        time.sleep(0.4)  # noqa: ASYNC251 - the rudeness is the point
        return "kept"

    async def run() -> str:
        return (await receiver.process("k", rude)).value

    values: list[str] = []
    thread = threading.Thread(target=lambda: values.append(asyncio.run(run())))
    thread.start()
    while not runs:
        time.sleep(0.001)
    duplicate = asyncio.run(other.process("k", rude))
    thread.join(60)
    assert (values, duplicate.value, duplicate.replayed, len(runs)) == (["kept"], "kept", True, 1)
    for each in {receiver, other}:
        asyncio.run(each.close())
