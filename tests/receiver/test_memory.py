"""Nothing of a delivery is kept once its caller let go of it: not its error, not its value."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from twicesafe import AsyncReceiver, Backoff, Policy, Receiver, TwicesafeError

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
