"""Every async store on uvloop, which servers of web applications use where it is installed.

Its transports, timers and cancellations are its own. A first delivery, a repeat, a herd, a caller that
gives up, and a close: the same answers as on asyncio's loop, and nothing is left open.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from pathlib import Path

import pytest

from twicesafe import AsyncReceiver, Policy, StillInProgressError

uvloop = pytest.importorskip("uvloop", reason="there is none for this platform")

ENGINES = (
    *("sqlite", "postgres", "asyncpg", "mariadb", "valkey", "valkey_cluster", "valkey_sentinel"),
    *("dynamodb", "etcd", "mongodb"),
)


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'keys.db'}"
    if request.param == "asyncpg":
        plain: str = request.getfixturevalue("postgres_url")
        return plain.replace("postgresql:", "postgresql+asyncpg:", 1)
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


async def conversation(url: str) -> None:
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    runs: list[str] = []
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def charge(order: str) -> str:
        runs.append(order)
        return f"{order} is paid"

    async def slowly(order: str) -> str:
        has_begun.set()
        await may_end.wait()
        return await charge(order)

    async with AsyncReceiver.open(url) as receiver:
        assert not (await receiver.process("a", charge, "a")).replayed
        again = await receiver.process("a", charge, "a")
        assert (again.value, again.replayed) == ("a is paid", True)

        herd = [asyncio.create_task(receiver.process("b", slowly, "b")) for _ in range(20)]
        await has_begun.wait()
        herd[-1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await herd.pop()
        impatient = receiver.options(policy=Policy(in_flight="reject"))
        with pytest.raises(StillInProgressError):
            await impatient.process("b", slowly, "b")
        may_end.set()
        assert {outcome.value for outcome in await asyncio.gather(*herd)} == {"b is paid"}
    assert runs == ["a", "b"]


@pytest.mark.filterwarnings("error")
def test_a_conversation_on_uvloop(url: str, monkeypatch: pytest.MonkeyPatch):
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: unraisable.append(found.exc_value))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(conversation(url))
    gc.collect()  # a transport that is open warns when it goes
    assert unraisable == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_connections_of_loops_that_have_ended_go(url: str):
    """A program that calls `asyncio.run` for each task kept all their connections, until the server had no more."""
    receiver, loops = AsyncReceiver.open(url), list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def task(number: int) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await receiver.process(f"task-{number}", asyncio.sleep, 0)

    for number in range(4):
        asyncio.run(task(number))
    gc.collect()
    assert [loop() for loop in loops[:-1]] == [None] * 3
    asyncio.run(receiver.close())
    gc.collect()  # those of the last loop warn here, and not in another test
