"""Batched calls when the task that sends them is ended: no caller is left waiting for ever."""

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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ends_while_a_record_is_on_its_way_ends(valkey_url: str):
    """The same words are sent again before the task is over: the work was done, and is recorded."""
    from lab.field.cuts import end_in_mid_record
    from tests.servers import shared

    assert end_in_mid_record(shared("valkey"), valkey_url, "redis-py awaited") == (1, "done")
    gc.collect()  # the connections of the ended loop complain here, where it is expected
