"""Pins what a type checker sees of an outbox port, the reply of every request, and of your own publisher. Never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from twicesafe import OutboxRelay
from twicesafe.outbox.publishers import Answer, Message
from twicesafe.stores import (
    AsyncOutboxPort,
    AsyncStore,
    Awake,
    Backlog,
    Depth,
    Fetch,
    Fetched,
    Heartbeat,
    LeasedSlots,
    OutboxPort,
    ParkedLane,
    ParkedLanes,
    Prepare,
    Read,
    Settle,
    Store,
    Unpark,
)


def blocking(store: Store) -> None:
    port = store.outbox
    assert_type(port, OutboxPort)
    assert_type(port.perform(Prepare()), list[str])
    assert_type(port.perform(Heartbeat(b"me", 1000)), LeasedSlots)
    assert_type(port.perform(Fetch([1], 10, [])), Fetched)
    assert_type(port.perform(Settle(b"me", [], {}, [], {})), int)
    assert_type(port.perform(Awake(b"me")), None)
    assert_type(port.perform(Backlog()), Depth)
    assert_type(port.perform(ParkedLanes(10)), list[ParkedLane])
    assert_type(port.perform(Unpark(b"lane", False, "ann", "")), bool)
    port.perform(Read(b"id"))  # pyright: ignore[reportArgumentType]
    store.perform(Backlog())  # pyright: ignore[reportArgumentType]


async def awaited(store: AsyncStore) -> None:
    port = store.outbox
    assert_type(port, AsyncOutboxPort)
    assert_type(await port.perform(Heartbeat(b"me", 1000)), LeasedSlots)
    assert_type(await port.perform(Backlog()), Depth)
    await port.perform(Read(b"id"))  # pyright: ignore[reportArgumentType]
    await store.perform(Backlog())  # pyright: ignore[reportArgumentType]


class Shelf:
    """As the page about publishers writes it."""

    batch = 100
    concurrency = 1

    def publish(self, messages: list[Message]) -> list[Answer]:
        return [None for _ in messages]

    def close(self) -> None: ...


class AsyncShelf:
    batch = 100
    concurrency = 1

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        return [None for _ in messages]

    async def close(self) -> None: ...


class NoShelf:
    batch = 100
    concurrency = 1

    def publish(self, messages: list[str]) -> list[Answer]:
        return [None for _ in messages]

    def close(self) -> None: ...


def relays(store: Store) -> None:
    OutboxRelay(store, Shelf())
    OutboxRelay(store, AsyncShelf())
    OutboxRelay(store, NoShelf())  # pyright: ignore[reportArgumentType]
