"""Pins what a type checker sees of `AsyncReceiver`: the same as of `Receiver`, with `await`. Never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, assert_type

from twicesafe import (
    AsyncClaim,
    AsyncInbox,
    AsyncMessageHandler,
    AsyncReceiver,
    AsyncSteps,
    Failure,
    Outcome,
    Receiver,
    Record,
)


async def charge(order: str, amount: int = 1) -> bytes:
    return order.encode() * amount


def blocking(order: str) -> bytes:
    return order.encode()


async def handle(message: dict[str, str]) -> int:
    return len(message)


receiver = AsyncReceiver.open("memory://")
assert_type(receiver, AsyncReceiver)


@receiver.idempotent(key="order")
async def keyed(order: str, *, amount: int) -> int:
    return amount


@receiver.idempotent
async def plain(order: str) -> bytes:
    return order.encode()


@receiver.idempotent(key="order", outcome=True)
async def with_outcome(order: str) -> int:
    return 1


class Shop:
    @receiver.idempotent(key="order")
    async def buy(self, order: str) -> int:
        return 1


class Payments(AsyncMessageHandler[dict[str, str], int]):
    def key(self, message: dict[str, str]) -> str:
        return message["id"]

    async def handle(self, message: dict[str, str]) -> int:
        return 1


async def main() -> None:
    assert_type(await receiver.process("k", charge, "o"), Outcome[bytes])
    assert_type((await receiver.process("k", charge, "o", amount=2)).value, bytes)
    await receiver.process("k", charge)  # pyright: ignore[reportCallIssue]
    await receiver.process("k", charge, 5)  # pyright: ignore[reportArgumentType]
    await receiver.process("k", blocking, "o")  # pyright: ignore[reportArgumentType]

    assert_type(await keyed("o", amount=1), int)
    assert_type(await plain("o"), bytes)
    assert_type(await Shop().buy("o"), int)
    await keyed("o")  # pyright: ignore[reportCallIssue]
    # A decorated coroutine function is still one: it can become a task.
    assert_type(asyncio.create_task(plain("o")), asyncio.Task[bytes])

    answers = await receiver.process_many([{"id": "1"}], handle, key=lambda m: m["id"])
    assert_type(answers, list[Outcome[int] | Failure])

    async with receiver.claim("k") as claim:
        assert_type(claim, AsyncClaim[Any])
        assert_type(await claim.complete(5), None)
        assert_type(claim.result, Any)
    async with receiver.claim("k", returns=int) as typed:
        assert_type(typed.result, int)
        await typed.complete("five")  # pyright: ignore[reportArgumentType]
    assert_type(receiver.records(), AsyncIterator[Record])
    assert_type(await receiver.records_page(), tuple[list[Record], str])
    assert_type(await receiver.count(stuck=True), int)
    assert_type(await with_outcome("o"), Outcome[int])

    assert_type(await receiver.record("k"), Record | None)
    assert_type(await Payments(receiver)({"id": "1"}), Outcome[int])
    receiver.idempotent(blocking)  # pyright: ignore[reportArgumentType]
    Payments(Receiver.open("memory://"))  # pyright: ignore[reportArgumentType]


# --- the inbox: the connection in front, or all arguments as they are -----------------------------


class Connection: ...


async def book(connection: Connection, order: str, amount: int = 1) -> bytes:
    return order.encode() * amount


async def received(inbox: AsyncInbox, connection: Connection) -> None:
    assert_type(await inbox.process(connection, "k", book, "o-1"), Outcome[bytes])
    assert_type(await inbox.process(connection, "k", book, order="o-1"), Outcome[bytes])
    assert_type(await inbox.process(connection, "k", book, connection, "o-1"), Outcome[bytes])
    assert_type(await inbox.process(connection, "k", charge, "o-1"), Outcome[bytes])
    await inbox.process("default", "k", book, "o-1")  # pyright: ignore[reportCallIssue]


# --- durable functions ----------------------------------------------------------------------------


@receiver.durable(key="order")
async def checkout(steps: AsyncSteps, order: str) -> bytes:
    assert_type(await steps.run("charge", charge, order), bytes)
    assert_type(await steps.wait("approval", returns=bool), bool)
    assert_type(await steps.wait("approval", timeout="1d", returns=bool), bool | None)
    assert_type(await steps.wait("approval", timeout="1d"), Any)
    return b""


@receiver.durable
async def refund(steps: AsyncSteps, order: str) -> bytes:
    return b""


async def checked_out() -> None:
    assert_type(await checkout("o-1"), bytes)
    assert_type(await refund("o-1"), bytes)
    checkout("o-1")  # pyright: ignore[reportUnusedCoroutine]
