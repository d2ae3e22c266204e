"""PostgreSQL restarted, killed, frozen, its backends shot: callers recover by themselves, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.kill.gathering import crowd, runs
from tests.stores.drivers import KINDS, DriverReceiver, url_for
from tests.stores.load import RESTARTS, Tasks, Threads, survive
from twicesafe import AsyncReceiver, Key, Policy, Receiver, StoreUnavailableError
from twicesafe._core import settling
from twicesafe._core.durable.run_requests import LoadRun
from twicesafe._core.outbox.requests import Backlog, ParkedLanes, Prepare
from twicesafe._core.protocol import Browse, Read, Survey
from twicesafe._engines.postgresql import connections
from twicesafe._runtime import event_loop

LOADS = {"psycopg": Threads, "psycopg-async": Tasks, "asyncpg": Tasks}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- under load ------------------------------------------------------------------------------


def test_restarts_lose_no_recorded_result(kind: str, own_server: Callable[..., Any]):
    server = own_server("postgres", fsync="on")

    def restart(number: int) -> None:
        (server.kill if number % 4 == 3 else server.stop)()
        server.start()

    restarts = [functools.partial(restart, number) for number in range(RESTARTS)]
    survive(LOADS[kind](url_for(kind, server.url)), restarts, server.url)


def test_every_backend_shot_again_and_again(kind: str, postgres_url: str):
    everyone = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def shoot() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(everyone)

    survive(LOADS[kind](url_for(kind, postgres_url)), [shoot] * RESTARTS, postgres_url)


def test_a_thousand_callers_of_one_key_by_asyncpg(postgres_url: str, tmp_path: Path):
    url, ledger = url_for("asyncpg", postgres_url), tmp_path / "ledger"
    with crowd(url, ledger, "tasks", processes=10, callers=100) as everyone:
        for number in range(8):
            values, errors = everyone.round(f"key-{number}")
            assert not errors
            assert list(values.values()) == [1000], values
    assert runs(ledger) == {f"key-{number}": 1 for number in range(8)}


# --- a server that hangs ---------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds backends by /proc")
def test_a_frozen_server_is_not_waited_for_for_ever(kind: str, own_server: Callable[..., Any]):
    server = own_server("postgres")
    with DriverReceiver(kind, f"{server.url}?timeout=1") as client:
        client.process("before", str, 1)
        began = time.monotonic()
        server.pause()
        try:
            with pytest.raises(StoreUnavailableError):
                client.process("k", str, 1)
        finally:
            server.resume()
        assert time.monotonic() - began < 60
        assert client.process("before", str, "again").value == "1"
        # The awakened server may still do what timed out; then the claim is ours for a lease.
        assert client.process("other", str, "after").value == "after"


# --- pools, threads, loops, cancellation -----------------------------------------------------


def test_many_threads_share_two_connections(postgres_url: str):
    with Receiver.open(f"{postgres_url}?pool=2&wake=false&timeout=60") as receiver:
        errors: list[BaseException] = []

        def call(number: int) -> None:
            try:
                for key in range(20):
                    receiver.process(f"{number}-{key}", str, key)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            sql = (
                "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
                " AND backend_type = 'client backend'"  # autovacuum comes and goes
            )
            most = 0
            while any(thread.is_alive() for thread in threads):
                row = connection.execute(sql).fetchone()
                assert row is not None
                most = max(most, row[0])
        assert errors == []
        assert most <= 2
        assert receiver.stats().total == 40 * 20


@pytest.mark.parametrize("kind", ["psycopg-async", "asyncpg"])
def test_a_second_event_loop_gets_connections_of_its_own(kind: str, postgres_url: str):
    receiver = AsyncReceiver.open(url_for(kind, postgres_url))

    async def say(word: str) -> str:
        return word

    async def use(key: str, word: str) -> str:
        async with receiver:
            return (await receiver.process(key, say, word)).value

    assert asyncio.run(use("a", "first")) == "first"
    assert asyncio.run(use("a", "second")) == "first"
    assert asyncio.run(use("b", "third")) == "third"


@pytest.mark.parametrize("kind", ["psycopg-async", "asyncpg"])
@pytest.mark.parametrize("together", [1, 20])
async def test_cancelled_claims_are_given_back(
    kind: str, together: int, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """At every step of a claim; no later caller waits for the lease of a cancelled one."""
    # On a busy machine the server may take longer than the second that a cancelled caller waits.
    monkeypatch.setattr(connections, "SETTLING", 60.0)
    for module in (event_loop, settling):
        monkeypatch.setattr(module, "RELEASE_TIMEOUT", 60.0)

    async def stuck() -> None:
        await asyncio.sleep(60)

    async def say() -> str:
        return "done"

    policy = Policy(lease=600, wait=60)
    async with AsyncReceiver.open(url_for(kind, postgres_url), policy=policy) as receiver:
        await receiver.process("warm", say)
        for number in range(30):
            keys = [f"{number}-{each}" for each in range(together)]
            tasks = [asyncio.ensure_future(receiver.process(key, stuck)) for key in keys]
            await asyncio.sleep(number * 0.0002)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
            async with AsyncReceiver.open(url_for(kind, postgres_url), policy=policy) as other:
                again = await asyncio.gather(*(other.process(key, say) for key in keys))
            assert {outcome.value for outcome in again} == {"done"}


@pytest.mark.parametrize("kind", ["psycopg-async", "asyncpg"])
async def test_an_outage_is_no_cancellation_of_a_task_that_survived_an_earlier_one(
    kind: str, own_server: Callable[..., Any]
):
    """Before Python 3.13, a task group that fails counts as one in the task around it."""
    server = own_server("postgres")

    async def say() -> str:
        return "done"

    async def work() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        assert (await receiver.process("a", say)).value == "done"
        server.stop()
        with pytest.raises(StoreUnavailableError):
            await receiver.process("b", say)
        return "went on"

    async with AsyncReceiver.open(url_for(kind, server.url)) as receiver:
        assert await asyncio.ensure_future(work()) == "went on"


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_is_not_lost_as_the_connection_becomes_free(
    postgres_url: str, turns: int
):
    """In each turn of the loop from the moment when the connection becomes free."""
    async with AsyncReceiver.open(url_for("psycopg-async", postgres_url)) as receiver:
        assert (await receiver.stats()).by_state == {}
        connection = receiver.store._loops.here().other
        await connection._lock.acquire()
        waiting = asyncio.create_task(receiver.stats())
        while not connection._lock._waiters:  # noqa: ASYNC110
            await asyncio.sleep(0)
        connection._lock.release()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await receiver.stats()).by_state == {}


@pytest.mark.parametrize("kind", ["psycopg-async", "asyncpg"])
async def test_a_server_without_a_connection_left_records_what_it_let_run(
    kind: str, own_server: Callable[..., Any]
):
    server = own_server("postgres", max_connections="4", superuser_reserved_connections="0")
    runs: list[str] = []

    async def say() -> str:
        runs.append("ran")
        return "done"

    with contextlib.ExitStack() as others:
        for _ in range(3):
            others.enter_context(psycopg.connect(server.url))
        async with AsyncReceiver.open(url_for(kind, server.url)) as receiver:
            for _ in range(2):
                assert (await receiver.process("k", say)).value == "done"
    assert runs == ["ran"]


# --- an idle connection that was cut -----------------------------------------------------------


def test_a_read_after_the_server_cut_idle_connections(kind: str, postgres_url: str):
    """A pooler, a firewall or idle_session_timeout does it."""
    with DriverReceiver(kind, postgres_url) as client:
        client.process("k", str, 1)
        store = client.store
        outbox = store.outbox
        client.ask(outbox, Prepare())
        reads = [
            (store, Read(Key("k").id)),
            (store, Survey()),
            (store, Browse(limit=10)),
            (store, LoadRun(Key("k").id)),
            (outbox, Backlog()),
            (outbox, ParkedLanes(limit=10)),
        ]
        for port, request in reads:
            before = client.ask(port, request)
            cut_all(postgres_url)
            assert client.ask(port, request) == before
        cut_all(postgres_url)
        assert client.doctor()


def cut_all(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
