"""A primary that falls silent, is replaced, and wakes: it does not know, and takes writes for seconds.

Stopped with SIGSTOP, so that nothing is refused and nothing is cut: time-outs are all that a client
sees. Each test asks what a worker of the same fleet must get: the answer of the server that the
sentinels name, never that of the one which was replaced.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.polling import until
from twicesafe import Key, StoreUnavailableError
from twicesafe._core.protocol import Ack, ClaimRequest, Complete, Read, Verdict
from twicesafe._engines.redis import RedisStore
from twicesafe._engines.redis.async_store import AsyncRedisStore
from twicesafe._values.records import State

TIME_LIMIT = 90.0
OWNER, OTHER = b"o" * 16, b"p" * 16


class BlockingClient:
    def __init__(self, url: str) -> None:
        self.store: Any = RedisStore.open(url)

    def perform(self, request: Any) -> Any:
        return self.store.perform(request)

    def perform_many(self, requests: list[Any]) -> list[Any]:
        return self.store.perform_many(requests)

    def close(self) -> None:
        self.store.close()


class AsyncClient:
    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.store: Any = AsyncRedisStore.open(url)

    def perform(self, request: Any) -> Any:
        return self._runner.run(self.store.perform(request))

    def perform_many(self, requests: list[Any]) -> list[Any]:
        return self._runner.run(self.store.perform_many(requests))

    def close(self) -> None:
        if self.store is not None:
            self._runner.run(self.store.close())
            self._runner.close()
            self.store = None


@pytest.fixture(params=[BlockingClient, AsyncClient])
def worker(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    opened: list[Any] = []

    def open_worker(url: str) -> Any:
        opened.append(request.param(url))
        return opened[-1]

    yield open_worker
    for each in opened:
        each.close()


@pytest.fixture
def pair(own_server: Callable[..., Any]) -> Iterator[Any]:
    pair = own_server("valkey_sentinel", down_after="1500")
    yield pair
    pair.primary.resume()


def named(pair: Any) -> int:
    """The port that the sentinel names."""
    with pair.sentinel.client() as client:
        return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1])


def replaced(pair: Any) -> None:
    """Wait until the replica is the primary."""
    until = time.monotonic() + TIME_LIMIT
    while time.monotonic() < until:
        with pair.replica.client() as client:
            if named(pair) == pair.replica.port and client.info("replication")["role"] == "master":
                return
        time.sleep(0.05)
    raise AssertionError("the sentinel did not replace the silent primary")


def until_it_works(act: Callable[[], Any]) -> Any:
    until = time.monotonic() + TIME_LIMIT
    while True:
        try:
            return act()
        except StoreUnavailableError:
            assert time.monotonic() < until


def complete(worker: Any, key: Key, owner: bytes) -> None:
    claim = worker.perform(ClaimRequest(key, owner, 60_000))
    assert claim.verdict is Verdict.WON
    done = worker.perform(Complete(key.id, owner, claim.fence, 60_000, b"x"))
    assert done is Ack.OK


def test_a_silent_primary_is_left(pair: Any, worker: Callable[[str], Any]):
    """It is never cut, so a time-out must do: the next call asks the sentinels again."""
    store = worker(f"{pair.url}?timeout=1")
    complete(store, Key("before"), OWNER)
    pair.primary.pause()
    won = until_it_works(lambda: store.perform(ClaimRequest(Key("after"), OWNER, 60_000)))
    assert won.verdict is Verdict.WON
    with pair.replica.client() as client:
        assert client.exists(store.store.programs.key(Key("after").id))


def test_an_idle_worker_does_not_write_to_the_primary_that_wakes(
    pair: Any, worker: Callable[[str], Any]
):
    """It met no time-out: its connection stands, and the server at its end says that it is primary."""
    idle = worker(f"{pair.url}?timeout=30")
    complete(idle, Key("warm"), OWNER)
    keys = [Key(f"k{number}") for number in range(200)]
    pair.primary.pause()
    replaced(pair)
    busy = worker(f"{pair.url}?timeout=30")
    for key in keys:
        complete(busy, key, OWNER)
    pair.primary.resume()
    verdicts = [idle.perform(ClaimRequest(key, OTHER, 60_000)).verdict for key in keys[:100]]
    verdicts += [
        answer.verdict
        for answer in idle.perform_many([ClaimRequest(key, OTHER, 60_000) for key in keys[100:]])
    ]
    assert set(verdicts) == {Verdict.REPLAY}


def test_an_answer_of_a_primary_that_was_replaced_meanwhile_does_not_count(
    pair: Any, worker: Callable[[str], Any]
):
    """The claim waits in the stopped server's socket, and is won there when it wakes."""
    store = worker(f"{pair.url}?timeout=120")
    complete(store, Key("warm"), OWNER)
    pair.primary.pause()
    answers: list[Any] = []
    late = threading.Thread(
        target=lambda: answers.append(store.perform(ClaimRequest(Key("late"), OTHER, 600_000)))
    )
    late.start()
    replaced(pair)
    busy = worker(f"{pair.url}?timeout=30")
    complete(busy, Key("late"), OWNER)
    pair.primary.resume()
    late.join(TIME_LIMIT)
    assert [answer.verdict for answer in answers] == [Verdict.REPLAY]


def test_a_completion_that_met_the_silence_is_recorded_where_it_counts(
    pair: Any, worker: Callable[[str], Any]
):
    store = worker(f"{pair.url}?timeout=1&wait_replicas=1&wait_timeout=30")
    claim = store.perform(ClaimRequest(Key("a"), OWNER, 600_000))
    store.close()
    store = worker(f"{pair.url}?timeout=1")
    store.perform(Read(Key("a").id))
    pair.primary.pause()
    end = Complete(Key("a").id, OWNER, claim.fence, 600_000, b"x")
    assert until_it_works(lambda: store.perform(end)) is Ack.OK
    pair.primary.resume()
    assert store.perform(Read(Key("a").id)).state is State.COMPLETED


def test_a_primary_that_was_demoted_is_left_within_the_call(
    pair: Any, worker: Callable[[str], Any]
):
    """READONLY: nothing was written, and the sentinels know who writes now."""
    store = worker(f"{pair.url}?timeout=30")
    complete(store, Key("warm"), OWNER)
    with pair.sentinel.client() as client:
        client.execute_command("SENTINEL", "FAILOVER", "main")
    replaced(pair)
    with pair.primary.client() as client:  # until then it takes writes, and loses them
        until(lambda: client.info("replication")["role"] == "slave", TIME_LIMIT)
    complete(store, Key("after"), OWNER)
    with pair.replica.client() as client:
        assert client.exists(store.store.programs.key(Key("after").id))
