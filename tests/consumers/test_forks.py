"""A process that was forked from a consumer: messages, claims, signals and connections stay with the parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.test_forking import forked
from twicesafe import AsyncReceiver, Receiver
from twicesafe.consumers import AsyncConsumer, Consumer, Message, Report
from twicesafe.errors import UsageError
from twicesafe.testing import MemoryBroker

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def drained(broker: MemoryBroker, act: Callable[[], object], is_async: bool) -> Report:
    """What a consumer did whose handler calls `act`."""

    async def handle_async(message: Message) -> None:
        act()

    async def drain_async() -> Report:
        async with (
            AsyncReceiver.open("memory://") as receiver,
            AsyncConsumer(broker.source("orders"), receiver=receiver) as consumer,
        ):
            return await consumer.drain(handle_async, idle=0.05)

    def handle(message: Message) -> None:
        act()

    if is_async:
        return asyncio.run(drain_async())
    with (
        Receiver.open("memory://") as receiver,
        Consumer(broker.source("orders"), receiver=receiver) as consumer,
    ):
        return consumer.drain(handle, idle=0.05)


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker()
    made.send("orders", b"{}", id="m-1")
    return made


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_child_is_the_childs(
    broker: MemoryBroker, is_async: bool, number: signal.Signals
) -> None:
    """`Process.terminate` of multiprocessing is a SIGTERM: the child must not take it for the consumer's stop."""
    before, codes = signal.signal(number, signal.SIG_DFL), []
    try:
        report = drained(
            broker, lambda: codes.append(forked(lambda: signal.raise_signal(number))), is_async
        )
    finally:
        signal.signal(number, before)
    assert codes == [-number]
    assert report.ran == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_deaf", [False, True], ids=["", "no stderr"])
@pytest.mark.parametrize(
    "raised, status",
    [(None, 0), (SystemExit(), 0), (SystemExit(7), 7), (SystemExit("no"), 1), (OSError("no"), 1)],
)
def test_a_child_that_comes_back_from_a_handler_ends(
    broker: MemoryBroker, is_async: bool, raised: BaseException | None, status: int, is_deaf: bool
) -> None:
    parent, codes = os.getpid(), []

    def act() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: a fork beside threads
            child = os.fork()
        if child:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)  # if it waits for ever
        if is_deaf:
            sys.stderr = open(os.devnull)  # noqa: SIM115 - a write to it raises
        if raised is not None:
            raise raised

    try:
        report = drained(broker, act, is_async)
    finally:
        if os.getpid() != parent:
            os._exit(99)
    assert codes == [status]
    assert report.ran == 1
    assert [one.id for one in broker.acknowledged] == ["m-1"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_child_does_not_close_the_connection_of_its_parent(
    broker: MemoryBroker, is_async: bool
) -> None:
    source: Any = broker.source("orders")
    closed: list[int] = []
    close = source.close

    def closing() -> object:
        closed.append(os.getpid())
        return close()

    source.close = closing
    kind: Any = AsyncConsumer if is_async else Consumer
    receiver: Any = (AsyncReceiver if is_async else Receiver).open("memory://")
    consumer = kind(source, receiver=receiver)

    def done(result: Any) -> Any:
        return asyncio.run(result) if is_async else result

    async def nothing_async(message: Message) -> None: ...

    def nothing(message: Message) -> None: ...

    def in_the_child() -> None:
        with pytest.raises(UsageError, match="forked"):
            done(consumer.drain(nothing_async if is_async else nothing, idle=0.05))
        done(consumer.close())
        assert closed == []

    done(consumer.check())
    assert forked(in_the_child) == 0
    done(consumer.close())
    assert closed == [os.getpid()]
    done(receiver.close())
