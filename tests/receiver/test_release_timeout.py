"""A cancelled caller waits a second at most for a store that does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twicesafe import AsyncReceiver, StoreUnavailableError
from twicesafe.stores.memory import AsyncMemoryStore


async def test_a_store_that_hangs_delays_a_cancellation_by_a_second_at_most() -> None:
    class Hanging(AsyncMemoryStore):
        immediate = False

        async def perform(self, request: Any) -> Any:
            if request.op == "fail":
                await asyncio.Event().wait()
            return await super().perform(request)

    receiver = AsyncReceiver(Hanging())
    started = asyncio.Event()

    async def handler() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(receiver.process("k", handler))
    await started.wait()
    task.cancel()
    async with asyncio.timeout(120):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_cancelled_between_two_tries_to_record_still_records() -> None:
    class Recovering(AsyncMemoryStore):
        immediate = False
        tries = 0

        async def perform(self, request: Any) -> Any:
            if request.op == "complete":
                self.tries += 1
                tried.set()
                if self.tries < 4:
                    raise StoreUnavailableError("down")
            return await super().perform(request)

    tried = asyncio.Event()
    receiver = AsyncReceiver(Recovering())

    async def handler() -> str:
        return "done"

    task = asyncio.create_task(receiver.process("k", handler))
    await tried.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await receiver.process("k", handler)).replayed
