"""A completer that one of its own runs stops: it must not wait for that run, which waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.durable.shop import POLICY
from twicesafe import AsyncReceiver, Receiver, State, Steps
from twicesafe._core.protocol import Read
from twicesafe.errors import UsageError
from twicesafe.stores.memory import MemoryStore


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - it is the completer's own task that changes it
        await asyncio.sleep(0)


def test_a_step_in_another_thread_may_stop_the_completer_of_its_run() -> None:
    receiver = Receiver(MemoryStore(), policy=POLICY)
    completer, stopped = receiver.completer(every=0.01), threading.Event()

    @receiver.durable(key="order", scope=("x",))
    def checkout(steps: Steps, order: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(steps.run, "stop", completer.stop).result()
        stopped.set()

    with completer:
        checkout.submit("a")
        assert stopped.wait(120)


def test_tasks_of_an_async_run_may_stop_its_completer() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)
        completer, stopped = receiver.completer(every=0.01), asyncio.Event()

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> None:
            await asyncio.gather(completer.stop(), steps.run("stop", completer.stop))
            stopped.set()

        async with asyncio.timeout(120), completer:
            await checkout.submit("a")
            await stopped.wait()
        await receiver.close()

    asyncio.run(main())


def test_a_task_that_a_run_has_left_behind_waits_for_the_other_runs() -> None:
    async def main() -> None:
        receiver = AsyncReceiver.open("memory://", policy=POLICY)
        completer, slow, ends = receiver.completer(every=0.01), asyncio.Event(), asyncio.Event()
        left: list[asyncio.Task[None]] = []
        ended: list[str] = []

        async def stop() -> None:
            await ends.wait()
            await completer.stop()
            assert ended, "a run was still under way"

        @receiver.durable(key="order", scope=("x",))
        async def checkout(steps: Any, order: str) -> None:
            if order == "first":
                left.append(asyncio.create_task(stop()))
                return
            slow.set()
            await until(lambda: completer._stopped)
            ended.append(order)

        async with asyncio.timeout(120):
            await completer.start()
            first = await checkout.submit("first")
            store = receiver.store.blocking_store()
            await until(lambda: store.perform(Read(first.id)).state is State.COMPLETED)
            await checkout.submit("slow")
            await slow.wait()
            ends.set()
            await left[0]
        await receiver.close()

    asyncio.run(main())


def test_a_completer_that_works_is_not_started_again() -> None:
    """`stop` would wait for one of the two threads only, and for one of the two tasks."""
    with Receiver(MemoryStore()) as receiver, receiver.completer(every=60) as completer:
        with pytest.raises(UsageError, match="has been started"):
            completer.start()
        completer.stop()
        completer.start()

    async def main() -> None:
        receiver = AsyncReceiver.open("memory://")
        async with receiver, receiver.completer(every=60) as completer:
            with pytest.raises(UsageError, match="has been started"):
                await completer.start()
            await completer.stop()
            await completer.start()

    asyncio.run(main())
