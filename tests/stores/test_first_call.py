"""The first async call: the driver is imported, and connecting does not use up the claim's time.

A lease counts from the first send (P7). A connection that takes longer than the lease must not make
the first claim of a process a refused one.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.receiver.faults import AsyncFaultyStore
from twicesafe import AsyncReceiver, ConfigurationError, Policy, StoreUnavailableError
from twicesafe._engines.postgresql.connections import SerialConnection
from twicesafe._engines.redis import async_connection as stream
from twicesafe.stores import ThreadedStore
from twicesafe.stores.memory import AsyncMemoryStore

SLOW, LEASE = 2.5, 2.0


@pytest.fixture(params=["valkey", "valkey_cluster", "postgres", "asyncpg", "mariadb", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'keys.db'}"
    if request.param == "asyncpg":
        plain: str = request.getfixturevalue("postgres_url")
        return plain.replace("postgresql:", "postgresql+asyncpg:", 1)
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections take longer than a lease."""
    connect, open_, blocking_store = (
        stream.AsyncLink.connect,
        SerialConnection._open,
        ThreadedStore.blocking_store,
    )

    async def slow_connect(self: Any) -> None:
        await asyncio.sleep(SLOW)
        await connect(self)

    async def slow_open(self: Any) -> Any:
        await asyncio.sleep(SLOW)
        return await open_(self)

    def slow_blocking_store(self: Any) -> Any:
        if self._opened is None:
            time.sleep(SLOW)
        return blocking_store(self)

    monkeypatch.setattr(stream.AsyncLink, "connect", slow_connect)
    monkeypatch.setattr(SerialConnection, "_open", slow_open)
    monkeypatch.setattr(ThreadedStore, "blocking_store", slow_blocking_store)


async def double(number: int) -> int:
    return 2 * number


@pytest.mark.usefixtures("slow")
async def test_a_slow_connection_is_not_the_claim_s_time(url: str):
    receiver = AsyncReceiver.open(url, policy=Policy(lease=LEASE))
    outcomes = await asyncio.gather(*(receiver.process(f"k{n}", double, n) for n in range(5)))
    assert [outcome.value for outcome in outcomes] == [0, 2, 4, 6, 8]
    assert [outcome.attempt for outcome in outcomes] == [1] * 5
    await receiver.close()


async def test_who_waited_for_cancelled_connections_connects():
    """The third had to connect with its claim, so connecting used up its lease."""
    store = AsyncFaultyStore(AsyncMemoryStore())
    asked: list[str] = []
    connecting = asyncio.Semaphore(0)

    async def ready() -> None:
        asked.append("ready")
        connecting.release()
        if len(asked) < 3:
            await asyncio.Event().wait()

    store.ready = ready  # type: ignore[method-assign]
    store.before = lambda request: asked.append(request.op)
    async with asyncio.timeout(120):
        receiver = AsyncReceiver(store)
        *cancelled, last = (asyncio.create_task(receiver.process(key, double, 2)) for key in "abc")
        for call in cancelled:
            await connecting.acquire()
            call.cancel()
        assert (await last).value == 4
    assert asked[:4] == ["ready", "ready", "ready", "claim"]


@pytest.mark.usefixtures("slow")
async def test_a_manual_claim_too(valkey_url: str):
    receiver = AsyncReceiver.open(valkey_url, policy=Policy(lease=LEASE))
    async with receiver.claim("k") as claim:
        assert claim.is_new
        await claim.complete(1)
    await receiver.close()


async def test_the_block_connects_and_the_first_call_does_not(url: str):
    async with AsyncReceiver.open(url) as receiver:
        tries: list[int] = []

        async def ready() -> None:
            tries.append(1)

        receiver.store.ready = ready  # type: ignore[method-assign]
        assert (await receiver.process("k", double, 2)).value == 4
        assert tries == []


LOADS = """
import asyncio, sys
from twicesafe import AsyncReceiver, StoreUnavailableError
receiver = AsyncReceiver.open(sys.argv[1])
before = set(sys.modules)

async def first():
    try:
        await receiver.process("k", None or (lambda: None))
    except Exception:
        pass
    await receiver.close()

asyncio.run(first())
drivers = ("redis", "hiredis", "psycopg", "psycopg_binary", "asyncpg", "pymysql", "sqlite3")
print(sorted(n for n in set(sys.modules) - before if n in drivers))
"""


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0",
        "redis+sentinel://127.0.0.1:1/main",
        "postgresql://127.0.0.1:1/x",
        "postgresql+asyncpg://127.0.0.1:1/x",
        "mysql://127.0.0.1:1/x",
        "sqlite:///first.db",
    ],
)
def test_the_driver_is_imported_by_open(url: str, tmp_path: Any):
    done = subprocess.run(
        [sys.executable, "-c", LOADS, url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


async def test_a_store_that_is_away_is_met_by_the_first_call_and_once():
    """A hundred callers share one try to connect; each gets its own error."""
    async with AsyncReceiver.open("redis://127.0.0.1:1/0", policy=Policy(lease=5)) as receiver:
        answers = await asyncio.gather(
            *(receiver.process(f"k{n}", double, n) for n in range(10)), return_exceptions=True
        )
    assert {type(answer) for answer in answers} == {StoreUnavailableError}
    assert len({id(answer) for answer in answers}) == 10


async def test_a_store_that_is_away_may_be_run_without():
    policy = Policy(lease=5, outage="run")
    async with AsyncReceiver.open("redis://127.0.0.1:1/0", policy=policy) as receiver:
        assert (await receiver.process("k", double, 2)).value == 4


async def test_a_wrong_setting_is_met_by_the_block(valkey: Any):
    url = f"redis://app:hush@127.0.0.1:{valkey.port}/0"
    with pytest.raises(ConfigurationError, match="password"):
        async with AsyncReceiver.open(url):
            raise AssertionError("not reached")


async def test_a_store_that_comes_back_is_connected_to(own_server: Any):
    server = own_server("valkey")
    server.kill()
    receiver = AsyncReceiver.open(server.url, policy=Policy(lease=5))
    with pytest.raises(StoreUnavailableError):
        await receiver.process("k", double, 2)
    server.start()
    assert (await receiver.process("k", double, 2)).value == 4
    await receiver.close()
