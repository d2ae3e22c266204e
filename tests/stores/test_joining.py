"""Batched calls: who shares a batch; and when the task that sends them is ended, no caller waits for ever."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from twicesafe import StoreUnavailableError
from twicesafe.stores._batching import AsyncBatcher


class AsyncConnection:
    """A store that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.sent = asyncio.Event()
        self.answered = asyncio.Event()
        self.broken: BaseException | None = None

    async def one(self, request: Any) -> str:
        self.asked.append(request)
        self.sent.set()
        await self.answered.wait()
        if self.broken is not None:
            raise self.broken
        return f"{request}!"

    async def all(self, requests: list[Any]) -> list[str]:
        return [await self.one(request) for request in requests]


async def test_a_closing_loop_cancels_the_batch_and_its_caller_gets_an_error():
    connection = AsyncConnection()
    batcher = AsyncBatcher(connection.one, connection.all)
    answer = batcher.submit("a")
    await connection.sent.wait()
    assert batcher._pump is not None
    batcher._pump.cancel()
    with pytest.raises(StoreUnavailableError, match="the event loop ended"):
        await answer


async def test_what_gathered_meanwhile_flies_all_the_same():
    connection = AsyncConnection()
    batcher = AsyncBatcher(connection.one, connection.all)
    first = batcher.submit("a")
    await connection.sent.wait()
    second = batcher.submit("b")
    assert batcher._pump is not None
    batcher._pump.cancel()
    connection.answered.set()
    with pytest.raises(StoreUnavailableError):
        await first
    assert await second == "b!"


async def test_the_end_of_the_process_reaches_the_waiting_callers():
    class End(BaseException):
        pass

    connection = AsyncConnection()
    connection.broken = End()
    connection.answered.set()
    batcher = AsyncBatcher(connection.one, connection.all)
    with pytest.raises(End):
        await batcher.submit("a")
    connection.broken = None
    assert await batcher.submit("b") == "b!"  # and the batcher goes on


async def test_callers_that_come_back_together_share_a_batch():
    sizes: list[int] = []

    async def one(request: Any) -> Any:
        return (await every([request]))[0]

    async def every(requests: list[Any]) -> list[Any]:
        sizes.append(len(requests))
        await asyncio.sleep(0)
        return requests

    batcher = AsyncBatcher(one, every)

    async def calls() -> None:
        for number in range(3):
            await batcher.perform(number)

    await asyncio.gather(*(calls() for _ in range(5)))
    # The first of all comes alone, and the others share the next batch. From then on none goes alone.
    assert sizes == [1, 5, 5, 4]
    await batcher.perform("the last caller")
    await batcher.perform("is alone again")
    assert sizes[4:] == [1, 1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ends_while_a_record_is_on_its_way_ends(valkey_url: str):
    """The same words are sent again before the task is over: the work was done, and is recorded."""
    from lab.field.cuts import end_in_mid_record
    from tests.servers import shared

    assert end_in_mid_record(shared("valkey"), valkey_url, "redis-py awaited") == (1, "done")
    gc.collect()  # the connections of the ended loop complain here, where it is expected
