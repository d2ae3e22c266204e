"""`call_in`: every step of a server's function runs in the server's context, whatever happens to it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from twicesafe.asgi._exchange import call_in

place: ContextVar[str] = ContextVar("place", default="server")


@pytest.fixture
def own() -> Any:
    """The server's context; from here on the test is somewhere else."""
    return copy_context()


async def test_it_answers_raises_and_is_cancelled_in_the_servers_context(own: Any):
    place.set("claim")
    seen: list[str] = []

    async def answer(word: str) -> str:
        seen.append(place.get())
        await asyncio.sleep(0)
        seen.append(place.get())
        return word

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ConnectionError("gone")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(place.get())
            raise

    async def shrug() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return place.get()
        return ""

    assert await call_in(own, answer, "yes") == "yes"
    with pytest.raises(ConnectionError):
        await call_in(own, fail)
    for work in (wait, shrug):
        task = asyncio.ensure_future(_awaited(own, work))
        await asyncio.sleep(0)
        task.cancel()
        if work is wait:
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert await task == "server"
    assert seen == ["server"] * 3
    assert place.get() == "claim"


async def _awaited(own: Any, work: Any) -> Any:
    return await call_in(own, work)


async def test_what_it_starts_is_in_the_servers_context_too(own: Any):
    place.set("claim")
    found: list[str] = []

    async def start() -> None:
        asyncio.get_running_loop().call_soon(lambda: found.append(place.get()))
        await asyncio.ensure_future(look())

    async def look() -> None:
        found.append(place.get())

    await call_in(own, start)
    assert found == ["server", "server"]


def test_it_is_closed_in_the_servers_context(own: Any):
    place.set("claim")
    found: list[str] = []

    class Never:
        def __await__(self) -> Any:
            yield

    async def wait() -> None:
        try:
            await Never()
        finally:
            found.append(place.get())

    work = _awaited(own, wait)
    work.send(None)
    work.close()
    assert found == ["server"]
