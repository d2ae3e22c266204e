"""After `close` every call is refused in words; what was running can record its end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from tests.receiver.faults import FaultyStore
from twicesafe import (
    AsyncInbox,
    AsyncMessageHandler,
    AsyncOutbox,
    AsyncOutboxRelay,
    AsyncReceiver,
    Inbox,
    MessageHandler,
    Outbox,
    OutboxRelay,
    Receiver,
    UsageError,
)
from twicesafe._core.protocol import Renew
from twicesafe.stores import Store
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def refused(what: str) -> Any:
    return pytest.raises(UsageError, match=f"this {what} is closed; open a new one")


def work() -> int:
    return 1


async def work_async() -> int:
    return 1


class Handler(MessageHandler[str, int]):
    def key(self, message: str) -> str:
        return message

    def handle(self, message: str) -> int:
        return 1


class AsyncHandler(AsyncMessageHandler[str, int]):
    def key(self, message: str) -> str:
        return message

    async def handle(self, message: str) -> int:
        return 1


RECEIVER: dict[str, Callable[[Any], Any]] = {
    "process": lambda r: r.process("k", work),
    "a cached answer": lambda r: r.process("known", work),
    "process_many": lambda r: r.process_many(["k"], str, key=str),
    "claim": lambda r: r.claim("k").__enter__(),
    "idempotent": lambda r: r.idempotent(key="n", scope=["s"])(lambda n: n)(1),
    "options": lambda r: r.options(scope=["s"]).process("k", work),
    "a message handler": lambda r: Handler(r)("m"),
    "record": lambda r: r.record("k"),
    "release": lambda r: r.release("k", by="me"),
    "resolve": lambda r: r.resolve("k", 1, by="me"),
    "forget": lambda r: r.forget("k"),
    "sweep": lambda r: r.sweep(),
    "park_stuck": lambda r: r.park_stuck(),
    "maintain": lambda r: r.maintain(),
    "stats": lambda r: r.stats(),
    "audit": lambda r: r.audit("k"),
    "doctor": lambda r: r.doctor(),
}


@pytest.mark.parametrize("name", RECEIVER)
def test_a_receiver(url: str, name: str):
    receiver = Receiver.open(url, cache=10)
    receiver.process("known", work)
    receiver.close()
    with refused("receiver"):
        RECEIVER[name](receiver)
    receiver.close()


@pytest.mark.parametrize("scheme", ["sqlite", "memory"])
def test_an_async_receiver(url: str, scheme: str):
    async def main() -> None:
        receiver = AsyncReceiver.open(url if scheme == "sqlite" else "memory://", cache=10)
        await receiver.process("known", work_async)
        await receiver.close()
        calls: list[Callable[[], Any]] = [
            lambda: receiver.process("k", work_async),
            lambda: receiver.process("known", work_async),
            lambda: receiver.options(scope=["s"]).process("k", work_async),
            lambda: receiver.claim("k").__aenter__(),
            lambda: AsyncHandler(receiver)("m"),
            lambda: receiver.record("k"),
            receiver.doctor,
        ]
        for call in calls:
            with refused("receiver"):
                await call()
        with refused("receiver"):
            receiver.maintain()
        await receiver.close()

    asyncio.run(main())


def test_an_async_receiver_that_was_never_used(url: str):
    async def main() -> None:
        receiver = AsyncReceiver.open(url)
        await receiver.close()
        with refused("receiver"):
            await receiver.process("k", work_async)

    asyncio.run(main())


@pytest.mark.parametrize("used", [True, False])
def test_an_inbox(url: str, tmp_path: Path, used: bool):
    connection = sqlite3.connect(tmp_path / "shop.db")
    inbox = Inbox.open(url)
    copied = inbox.options(scope=["s"])
    if used:
        with connection:
            inbox.accept(connection, "m-1")
    inbox.close()
    calls: list[Callable[[], Any]] = [
        lambda: inbox.accept(connection, "m-2"),
        lambda: inbox.accept_many(connection, ["m-2"]),
        lambda: inbox.process(connection, "m-2", work),
        lambda: copied.process(connection, "m-2", work),
    ]
    for call in calls:
        with refused("inbox"):
            call()
    inbox.close()
    connection.close()


@pytest.mark.parametrize("used", [True, False])
def test_an_async_inbox(url: str, tmp_path: Path, used: bool):
    async def main() -> None:
        inbox = AsyncInbox.open(url)
        async with aiosqlite.connect(tmp_path / "shop.db") as connection:
            if used:
                await inbox.accept(connection, "m-1")
                await connection.commit()
            await inbox.close()
            for call in (
                lambda: inbox.accept(connection, "m-2"),
                lambda: inbox.process(connection, "m-2", work_async),
            ):
                with refused("inbox"):
                    await call()  # type: ignore[no-untyped-call]
            await inbox.close()

    asyncio.run(main())


def test_an_async_inbox_that_never_connected(postgres_url: str):
    async def main() -> None:
        inbox = AsyncInbox.open(postgres_url)
        await inbox.close()
        with refused("inbox"):
            await inbox.accept(object(), "m-1")

    asyncio.run(main())


def test_an_outbox_and_its_relay(url: str, tmp_path: Path):
    connection = sqlite3.connect(tmp_path / "shop.db")
    outbox = Outbox.open(url)
    relay = OutboxRelay.open(url, print)
    outbox.close()
    relay.close()
    calls: list[Callable[[], Any]] = [
        lambda: outbox.add(connection, topic="t", body={}),
        outbox.depth,
        outbox.parked,
        lambda: outbox.retry("0" * 32, by="me"),
    ]
    for call in calls:
        with refused("outbox"):
            call()
    for run in (relay.drain, relay.run, relay.start, relay.__enter__):
        with refused("relay"):
            run()
    outbox.close()
    relay.close()
    connection.close()


def test_an_async_outbox_and_its_relay(url: str, tmp_path: Path):
    async def main() -> None:
        outbox, relay = AsyncOutbox.open(url), AsyncOutboxRelay.open(url, print)
        await outbox.depth()
        await outbox.close()
        await relay.close()
        async with aiosqlite.connect(tmp_path / "shop.db") as connection:
            with refused("outbox"):
                await outbox.add(connection, topic="t", body={})
        for call in (outbox.depth, outbox.parked):
            with refused("outbox"):
                await call()
        for run in (relay.drain, relay.run, relay.start, relay.__aenter__):
            with refused("relay"):
                await run()
        await outbox.close()
        await relay.close()

    asyncio.run(main())


def test_the_store_of_a_relay_that_did_not_open_it_stays_open(url: str):
    outbox = Outbox.open(url)
    OutboxRelay(outbox.store, print).close()
    assert outbox.depth().pending == 0
    outbox.close()


def test_what_runs_when_it_is_closed_records_its_end(url: str, tmp_path: Path):
    receiver, inbox = Receiver.open(url), Inbox.open(url)
    connection = sqlite3.connect(tmp_path / "shop.db")
    assert receiver.process("k-1", lambda: receiver.close() or 7).value == 7
    with connection:
        assert inbox.process(connection, "k-2", lambda: inbox.close() or 8).value == 8
    connection.close()
    claiming = Receiver.open(url)
    with claiming.claim("k-3") as claim:
        claiming.close()
        claim.complete(9)
    with Receiver.open(url) as looking:
        assert [looking.process(f"k-{n}", work).value for n in (1, 2, 3)] == [7, 8, 9]


def test_a_with_block_opens_it_again(url: str, tmp_path: Path):
    receiver = Receiver.open(url)
    with receiver:
        receiver.process("k", work)
    with refused("receiver"):
        receiver.process("k", work)
    with receiver:
        assert receiver.process("k", work).replayed
    with Inbox.open(url) as inbox:
        pass
    connection = sqlite3.connect(tmp_path / "shop.db")
    with inbox, connection:
        connection.execute("BEGIN")
        assert inbox.accept(connection, "m-1")
    connection.close()


def test_the_end_of_one_block_does_not_close_it_for_another(url: str):
    """Two event loops in two threads: each has its own block around the shared receiver."""

    async def main() -> None:
        receiver = AsyncReceiver.open(url)
        async with receiver:
            async with receiver:
                await receiver.process("k", work_async)
            assert (await receiver.process("k", work_async)).replayed
        with refused("receiver"):
            await receiver.process("k", work_async)

    asyncio.run(main())


def test_what_is_closed_can_be_shown(url: str):
    receiver = Receiver.open(url)
    receiver.close()
    assert "shop.db" in repr(receiver)


class Reopened(AsyncMemoryStore):
    """As a server's store: each opening has a blocking store of its own, closed with it."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.made: list[FaultyStore] = []
        self.is_open = False

    def blocking_store(self) -> Store:
        if not self.is_open:
            self.made.append(FaultyStore(super().blocking_store()))
            self.is_open = True
        return self.made[-1]

    async def close(self) -> None:
        self.is_open = False


async def test_renewals_use_the_store_that_was_opened_last():
    """They went on with the closed one, and its new connection stayed open for ever."""
    store = Reopened()
    receiver = AsyncReceiver(store)
    for _ in range(2):
        async with receiver:
            receiver._runtime.keeper._perform_many([Renew(b"k" * 32, b"o" * 16, 1, 1000)])
    assert [made.ops() for made in store.made] == [["renew"], ["renew"]]
