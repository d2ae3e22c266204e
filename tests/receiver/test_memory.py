"""Nothing of a delivery is kept once its caller let go of it: not its error, not its value."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from twicesafe import (
    AsyncReceiver,
    Backoff,
    Policy,
    Receiver,
    StillInProgressError,
    TwicesafeError,
    current_claim,
)

POLICY = Policy(backoff=Backoff(first=0))


class OrderError(Exception):
    pass


class Order:
    """A value that knows its outcome, as rows of an ORM come to know many things."""

    outcome: Any = None


@pytest.fixture
def seen() -> list[weakref.ref[Any]]:
    return []


def gone(seen: list[weakref.ref[Any]]) -> bool:
    gc.collect()
    return [ref() for ref in seen] == [None] * len(seen) != []


def test_errors_are_freed(seen: list[weakref.ref[Any]]):
    def fail(_: object = None) -> None:
        error = OrderError("no")
        seen.append(weakref.ref(error))
        raise error

    def deliver(receiver: Receiver) -> None:
        with pytest.raises(OrderError):
            receiver.process("k", fail)
        failures = receiver.process_many(["a", "b"], fail, key=str)
        assert [one.ok for one in failures] == [False, False]
        with pytest.raises(OrderError), receiver.claim("by hand"):
            fail()

    with Receiver.open("memory://", policy=POLICY) as receiver:
        deliver(receiver)
        assert gone(seen)


async def test_errors_of_async_handlers_are_freed(seen: list[weakref.ref[Any]]):
    async def fail(_: object = None) -> None:
        error = OrderError("no")
        seen.append(weakref.ref(error))
        raise error

    async def deliver(receiver: AsyncReceiver) -> None:
        with pytest.raises(OrderError):
            await receiver.process("k", fail)
        failures = await receiver.process_many(["a", "b"], fail, key=str)
        assert [one.ok for one in failures] == [False, False]

    async with AsyncReceiver.open("memory://", policy=POLICY) as receiver:
        await deliver(receiver)
        assert gone(seen)


def test_a_value_that_refers_to_its_outcome_is_freed(seen: list[weakref.ref[Any]]):
    def make() -> Order:
        order = Order()
        seen.append(weakref.ref(order))
        return order

    def deliver(receiver: Receiver) -> None:
        with pytest.raises(TwicesafeError) as told:  # done, but it cannot be stored
            receiver.process("k", make)
        told.value.value.outcome = told.value

    def answer() -> None:
        from twicesafe import Key, Outcome

        order = make()
        order.outcome = Outcome(order, False, 1, Key("k"), 1)

    with Receiver.open("memory://") as receiver:
        deliver(receiver)
        answer()
        assert gone(seen)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_failed_or_refused_call_leaves_nothing_to_the_garbage_collector():
    """A reference cycle would keep the arguments, the error and its frames until the next collection."""

    def fail(order: Order) -> None:
        raise OrderError("no")

    def call(receiver: Receiver, key: str) -> weakref.ref[Order]:
        order = Order()
        with pytest.raises((OrderError, TwicesafeError)):
            receiver.process(key, fail, order)
        return weakref.ref(order)

    with Receiver.open("memory://", policy=POLICY) as receiver:
        assert call(receiver, "fails")() is None
        receiver.options(fingerprint=b"1").process("known", lambda: 1)
        assert call(receiver.options(fingerprint=b"2"), "known")() is None
        with receiver.claim("busy"):
            rejecting = receiver.options(policy=Policy(in_flight="reject"))
            assert call(rejecting, "busy")() is None


@pytest.mark.usefixtures("no_collector")
async def test_a_failed_async_call_leaves_nothing_to_the_garbage_collector():
    async def fail(order: Order) -> None:
        raise OrderError("no")

    async def call(receiver: AsyncReceiver) -> weakref.ref[Order]:
        order = Order()
        with pytest.raises(OrderError):
            await receiver.process("fails", fail, order)
        return weakref.ref(order)

    async with AsyncReceiver.open("memory://", policy=POLICY) as receiver:
        assert (await call(receiver))() is None


LINKS = 30


def alive(refs: list[weakref.ref[Any]]) -> int:
    gc.collect()
    return sum(ref() is not None for ref in refs)


@pytest.mark.parametrize("limit", [None, 600])
async def test_a_chain_of_handlers_does_not_keep_those_that_ended(
    seen: list[weakref.ref[Any]], limit: float | None
):
    """Each handler starts the task that runs the next one, and ends."""
    ended = asyncio.get_running_loop().create_future()
    tasks: set[asyncio.Task[Any]] = set()

    async def link(receiver: AsyncReceiver, number: int) -> None:
        seen.append(weakref.ref(current_claim()))
        seen.append(weakref.ref(asyncio.current_task()))
        if number == LINKS:
            ended.set_result(alive(seen))
            return
        task = asyncio.create_task(
            receiver.process(f"link {number}", link, receiver, number + 1)  # type: ignore[arg-type]
        )
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async with AsyncReceiver.open("memory://", policy=Policy(timeout=limit)) as receiver:
        await receiver.process("first", link, receiver, 1)
        assert await ended < LINKS / 2


async def test_a_chain_of_manual_claims_does_not_keep_those_that_ended(
    seen: list[weakref.ref[Any]],
):
    async def link(receiver: AsyncReceiver, number: int) -> None:
        async with receiver.claim(f"link {number}"):
            seen.append(weakref.ref(current_claim()))
            following = asyncio.create_task(link(receiver, number + 1)) if number < LINKS else None
        if following is None:
            ended.set_result(alive(seen))
        else:
            tasks.add(following)
            following.add_done_callback(tasks.discard)

    ended = asyncio.get_running_loop().create_future()
    tasks: set[asyncio.Task[Any]] = set()
    async with AsyncReceiver.open("memory://") as receiver:
        await link(receiver, 1)
        assert await ended < LINKS / 2


async def test_a_handler_knows_the_claims_around_it_beyond_one_that_ended():
    """A task that an inner handler left running still belongs to the outer one, which waits for it."""
    refused: list[BaseException] = []

    async with AsyncReceiver.open("memory://") as receiver:

        async def left_running() -> None:
            await receiver.process("deeper", deeper)

        async def deeper() -> None:
            try:
                await receiver.process("outer", asyncio.sleep, 0)
            except StillInProgressError as error:
                refused.append(error)

        async def inner() -> None:
            tasks.append(asyncio.create_task(left_running()))

        async def outer() -> None:
            await receiver.process("inner", inner)
            await tasks[0]

        tasks: list[asyncio.Task[None]] = []
        await receiver.process("outer", outer)
    assert "would wait for itself" in str(*refused)
