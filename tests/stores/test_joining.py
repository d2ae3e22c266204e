"""Joined calls when their flight itself is ended: nobody is left waiting for ever."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from twicesafe import StoreUnavailableError
from twicesafe.stores._batching import AsyncBatcher


class AsyncConnection:
    """A store that answers when it is told to."""

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


async def test_a_closing_loop_cancels_the_flight_and_its_caller_is_told():
    wire = AsyncConnection()
    lane = AsyncBatcher(wire.one, wire.all)
    answer = lane.submit("a")
    await wire.sent.wait()
    assert lane._pump is not None
    lane._pump.cancel()
    with pytest.raises(StoreUnavailableError, match="the event loop ended"):
        await answer


async def test_what_gathered_meanwhile_flies_all_the_same():
    wire = AsyncConnection()
    lane = AsyncBatcher(wire.one, wire.all)
    first = lane.submit("a")
    await wire.sent.wait()
    second = lane.submit("b")
    assert lane._pump is not None
    lane._pump.cancel()
    wire.answered.set()
    with pytest.raises(StoreUnavailableError):
        await first
    assert await second == "b!"


async def test_the_end_of_the_process_reaches_whoever_waits():
    class End(BaseException):
        pass

    wire = AsyncConnection()
    wire.broken = End()
    wire.answered.set()
    lane = AsyncBatcher(wire.one, wire.all)
    with pytest.raises(End):
        await lane.submit("a")
    wire.broken = None
    assert await lane.submit("b") == "b!"  # and the lane goes on


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ends_while_a_record_is_on_its_way_ends(valkey_url: str):
    """The same words are sent again before the task is over: the work was done, and is recorded."""
    from lab.field.cuts import end_in_mid_record
    from tests.servers import shared

    assert end_in_mid_record(shared("valkey"), valkey_url, "redis-py awaited") == (1, "done")
    gc.collect()  # the connections of the ended loop complain here, where it is expected
