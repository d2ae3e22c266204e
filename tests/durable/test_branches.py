"""Branches of one run: threads, `gather`, task groups, cancellations. None stops the others' work."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.durable.shop import POLICY, Boom, Shop
from twicesafe import AsyncReceiver, Backoff, Receiver, State, Steps
from twicesafe.errors import CompensatedError, SuspendedError, UsageError
from twicesafe.stores.memory import MemoryStore


def test_waits_in_a_task_group_suspend_the_run() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            async with asyncio.TaskGroup() as group:
                a = group.create_task(steps.wait("a"))
                b = group.create_task(steps.wait("b"))
            return [a.result(), b.result()]

        with pytest.raises(SuspendedError):
            await checkout("o")
        assert (await receiver.record(checkout.key("o"))).attempt == 0
        await receiver.signal(checkout.key("o"), "b", 2)
        assert (await receiver.complete_abandoned()).suspended == 1
        await receiver.signal(checkout.key("o"), "a", 1)
        assert (await receiver.complete_abandoned()).completed == 1
        assert await checkout("o") == [1, 2]

    asyncio.run(main())


def test_the_first_of_two_signals_may_end_the_run() -> None:
    """The run was suspended until the other signal came, too."""

    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            approved = asyncio.ensure_future(steps.wait("approved"))
            cancelled = asyncio.ensure_future(steps.wait("cancelled"))
            both = {approved, cancelled}
            done, late = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in late:
                task.cancel()
            return [task.result() for task in done]

        with pytest.raises(SuspendedError):
            await checkout("o")
        await receiver.signal(checkout.key("o"), "cancelled", "too late")
        assert await checkout("o") == await checkout("o") == ["too late"]

    asyncio.run(main())


def test_an_error_beside_a_wait_in_a_task_group_is_a_failure() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY.replace(max_attempts=1))

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            async def fails() -> None:
                try:
                    await asyncio.sleep(3600)
                finally:
                    raise Boom

            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(steps.wait("a"))

        with pytest.raises(BaseExceptionGroup):
            await checkout("o")
        assert (await receiver.record(checkout.key("o"))).state is State.PARKED

    asyncio.run(main())


def test_a_suspended_inner_run_in_a_task_group_suspends_the_outer_one() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)

        @receiver.durable(key="order", scope=("inner",))
        async def inner(steps: Any, order: str) -> Any:
            return await steps.wait("go")

        @receiver.durable(key="order", scope=("outer",))
        async def outer(steps: Any, order: str) -> Any:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(steps.run("inner", inner, order))
            return task.result()

        with pytest.raises(SuspendedError):
            await outer("o")
        record = await receiver.record(outer.key("o"))
        assert (record.state, record.attempt) == (State.SUSPENDED, 0)

    asyncio.run(main())


@pytest.mark.parametrize("waits_first", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_branch_that_waits_lets_the_others_go_on(waits_first: bool, grouped: bool) -> None:
    """Without that, the others would have to wait for its signal, too."""

    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY.replace(wait=60))
        done: list[int] = []

        async def mail(number: int) -> None:
            await asyncio.sleep(0.01)
            done.append(number)

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            async def work() -> None:
                for number in range(3):
                    await steps.run(f"mail-{number}", mail, number)
                    await steps.sleep(f"nap-{number}", 0.05)

            both = [steps.wait("go"), work()]
            branches = both if waits_first else both[::-1]
            if not grouped:
                return await asyncio.gather(*branches)
            async with asyncio.TaskGroup() as group:
                for each in branches:
                    group.create_task(each)
            return None

        with pytest.raises(SuspendedError):
            await checkout("o")
        assert done == [0, 1, 2]

    asyncio.run(main())


def test_a_thread_that_waits_lets_the_others_go_on() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    done: list[int] = []

    def mail(number: int) -> None:
        time.sleep(0.01)
        done.append(number)

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> Any:
        def work() -> None:
            for number in range(3):
                steps.run(f"mail-{number}", mail, number)

        with ThreadPoolExecutor(2) as pool:
            branches = [pool.submit(steps.wait, "go"), pool.submit(work)]
            return [each.result() for each in branches]

    with pytest.raises(SuspendedError):
        checkout("o")
    assert done == [0, 1, 2]
    receiver.signal(checkout.key("o"), "go", 7)
    assert checkout("o") == [7, None]


def test_a_wait_that_the_function_gave_up_does_not_suspend_the_run() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)
        release = asyncio.Event()

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            working = asyncio.create_task(steps.run("work", release.wait))
            waiting = asyncio.create_task(steps.wait("go"))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait({waiting})
            release.set()
            return await working

        assert await checkout("o") is True

    asyncio.run(main())


@pytest.mark.parametrize("where", ["between two tries", "in the function"])
def test_a_cancelled_step_does_not_keep_its_run_waiting(where: str) -> None:
    """Its error is kept for the caller, and references the step: the step is over all the same."""

    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY.replace(max_attempts=1))
        tries = Backoff(first=60, most=60)

        async def act() -> None:
            if where == "in the function":
                await asyncio.sleep(60)
            raise Boom

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> Any:
            step = steps.options(attempts=5, backoff=tries).run("act", act)
            await asyncio.wait_for(step, 0.05)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(checkout("o"), 120)
        assert (await receiver.record(checkout.key("o"))).state is State.PARKED

    asyncio.run(main())


def test_nothing_starts_after_the_function_has_ended(shop: Shop) -> None:
    kept: list[Any] = []

    def checkout(steps: Any, order: str) -> Any:
        kept.append(steps)
        yield steps.run("a", shop.effect("a"))

    checkout = shop.durable(checkout)
    shop.run(checkout("a"))
    for late in (
        lambda: kept[0].run("b", shop.effect("b")),
        lambda: kept[0].sleep("nap", 1),
        lambda: kept[0].wait("go"),
        lambda: kept[0].abort("late"),
    ):
        with pytest.raises(UsageError, match="has ended"):
            shop.run(late())
    assert shop.done["b"] == 0


def test_an_undo_waits_for_steps_that_run_and_no_other_one_starts() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    told: list[str] = []
    started, refused = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        time.sleep(0.1)
        told.append("slow")

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None:
        def branch() -> None:
            steps.run("slow", slow, undo=lambda _: told.append("undo slow"))
            try:
                steps.run("next", told.append, "next")
            except BaseException:
                refused.set()

        threading.Thread(target=branch).start()
        assert started.wait(60)
        steps.abort("changed my mind")

    with pytest.raises(CompensatedError):
        checkout("o")
    assert refused.wait(60)
    assert told == ["slow", "undo slow"]
