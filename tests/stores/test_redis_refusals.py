"""What a server refuses, told in the right words: an ACL, a slot that is on its way, a hole in the map."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.polling import until
from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    Key,
    Receiver,
    StoreError,
    StoreUnavailableError,
)
from twicesafe._core.protocol import (
    Ack,
    Browse,
    ClaimRequest,
    Complete,
    Count,
    Forget,
    History,
    Release,
    Resolve,
    Survey,
    Verdict,
)
from twicesafe._engines.redis import RedisStore
from twicesafe._engines.redis.async_store import AsyncRedisStore
from twicesafe._engines.redis.servers import slot_of
from twicesafe._values.records import State
from twicesafe.stores._urls import open_async_store, open_store

OWNER = b"o" * 16


# --- a user who may not --------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["valkey", "redis7"])
@pytest.mark.parametrize("lacking", ["-set", "-get", "-time", "-evalsha", "-script|load"])
def test_what_an_acl_refuses_is_not_a_corrupt_record(
    own_server: Callable[..., Any], engine: str, lacking: str
):
    server = own_server(engine)
    rights = ("on", ">pw", "~ts:*", "&ts:*", "+@all", lacking)
    server.client().execute_command("ACL", "SETUSER", "app", *rights)
    url = f"redis://app:pw@127.0.0.1:{server.port}"
    with (
        Receiver.open(url) as receiver,
        pytest.raises(ConfigurationError, match="lacks a permission") as caught,
    ):
        receiver.process("a", str, 1)
    assert caught.value.__cause__ is not None

    async def awaited() -> None:
        async with AsyncReceiver.open(url) as receiver:
            await receiver.process("a", str, 1)

    with pytest.raises(ConfigurationError, match="lacks a permission"):
        asyncio.run(awaited())


def test_a_search_says_which_permission_is_missing(own_server: Callable[..., Any]):
    server = own_server("valkey")
    rights = ("on", ">pw", "~ts:*", "&ts:*", "+@all", "-scan")
    server.client().execute_command("ACL", "SETUSER", "app", *rights)
    url = f"redis://app:pw@127.0.0.1:{server.port}"

    async def searched() -> None:
        async with AsyncReceiver.open(url) as receiver:
            await receiver.records_page()

    with Receiver.open(url) as receiver:
        searches: list[Callable[[], object]] = [
            receiver.records_page,
            lambda: list(receiver.records(stuck=True)),
            lambda: receiver._runtime.run(receiver._together(Survey(), Browse(5))),
            receiver.stats,
            lambda: asyncio.run(searched()),
        ]
        for search in searches:
            with pytest.raises(ConfigurationError, match=r"lacks a permission .*scan"):
                search()


# --- driver errors keep their cause -------------------------------------------------------------

NOWHERE = [
    "redis://127.0.0.1:1/0",
    "redis+cluster://127.0.0.1:1",
    "redis+sentinel://127.0.0.1:1/main",
    "postgresql://127.0.0.1:1/x",
    "postgresql+asyncpg://127.0.0.1:1/x",
    "mysql://127.0.0.1:1/x",
]


@pytest.mark.parametrize("url", NOWHERE)
def test_an_outage_keeps_its_cause(url: str):
    with pytest.raises(StoreUnavailableError) as caught:
        open_store(url)
    assert caught.value.__cause__ is not None

    async def awaited() -> None:
        store = open_async_store(url)
        try:
            await store.perform(ClaimRequest(Key("a"), OWNER, 60_000))
        finally:
            await store.close()

    with pytest.raises(StoreUnavailableError) as caught:
        asyncio.run(awaited())
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("engine", ["valkey", "postgres", "mariadb"])
def test_an_outage_under_an_open_store_keeps_its_cause(own_server: Callable[..., Any], engine: str):
    server = own_server(engine)
    with server.fresh() as url:
        store = open_store(url)
        store.perform(ClaimRequest(Key("a"), OWNER, 60_000))
        server.kill()
        with pytest.raises(StoreError) as caught:
            store.perform(ClaimRequest(Key("a"), OWNER, 60_000))
        (answer,) = store.perform_many([ClaimRequest(Key("a"), OWNER, 60_000)])
        assert isinstance(answer, StoreError)
        assert caught.value.__cause__ is not None
        assert answer.__cause__ is not None
        store.close()
        server.start()


# --- a Cluster in motion ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from tests.servers.fixtures import launch

    with launch("valkey_cluster", cluster_require_full_coverage="no") as server:
        yield server


def home_of(cluster: Any, slot: int) -> tuple[Any, Any]:
    """The node that serves a slot, and another one."""
    index = slot * 3 // 16384
    return cluster.nodes[index], cluster.nodes[(index + 1) % 3]


@contextmanager
def on_its_way(cluster: Any, slot: int) -> Iterator[tuple[Any, Any]]:
    home, other = home_of(cluster, slot)
    with home.client() as here, other.client() as there:
        ids = [client.execute_command("CLUSTER MYID") for client in (here, there)]
        there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        here.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        try:
            yield here, other
        finally:
            for client in (here, there):
                client.execute_command("CLUSTER SETSLOT", slot, "STABLE")


class AsyncInBlockingForm:
    """The async store, called as the blocking one."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._store = AsyncRedisStore.open(url)
        self.programs = self._store.programs

    def perform(self, request: Any) -> Any:
        return self._runner.run(self._store.perform(request))

    def perform_many(self, requests: list[Any]) -> list[Any]:
        return self._runner.run(self._store.perform_many(requests))

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()


@pytest.fixture(params=[RedisStore.open, AsyncInBlockingForm])
def store(request: pytest.FixtureRequest, cluster: Any) -> Iterator[Any]:
    with cluster.fresh() as url:
        store = request.param(url)
        yield store
        store.close()


@pytest.mark.parametrize("arrived", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_an_operator_acts_while_the_slot_moves(cluster: Any, store: Any, arrived: bool, many: bool):
    def act(request: Any) -> Any:
        return store.perform_many([request])[0] if many else store.perform(request)

    key = Key(f"k{arrived}{many}")
    claim = store.perform(ClaimRequest(key, OWNER, 60_000))
    name = store.programs.key(key.id)
    with on_its_way(cluster, slot_of(name)) as (here, other):
        if arrived:
            here.execute_command("MIGRATE", "127.0.0.1", other.port, name, 0, 30_000)
        assert act(Release(key.id, "me", "why not", 60_000)) is Ack.OK
        again = store.perform(ClaimRequest(key, OWNER, 60_000))
        assert again.fence > claim.fence
        assert act(Resolve(key.id, "me", "", 60_000, b"x")) is Ack.OK
        assert act(Resolve(key.id, "me", "", 60_000, b"x")) is Ack.REFUSED
        assert act(Forget(key.id, "me", "", 60_000)) is Ack.OK
        assert act(Forget(Key("nothing").id, "me", "", 60_000)) is Ack.MISSING
        trail = store.perform(History(key.id))
    assert [(entry.action, entry.by, entry.state_before) for entry in trail] == [
        ("release", "me", State.IN_PROGRESS),
        ("resolve", "me", State.IN_PROGRESS),
        ("forget", "me", State.COMPLETED),
    ]
    assert trail[0].why == "why not"


def test_an_unserved_slot_is_found_when_it_is_served(cluster: Any, store: Any):
    key = Key("k")
    slot = slot_of(store.programs.key(key.id))
    clients = [node.client() for node in cluster.nodes]
    home = home_of(cluster, slot)[0].client()
    home.execute_command("CLUSTER DELSLOTS", slot)  # the others keep what they heard last
    try:
        for client in clients:
            if _covers(client, slot):
                client.execute_command("CLUSTER DELSLOTS", slot)
        with pytest.raises(StoreUnavailableError):
            store.perform(ClaimRequest(key, OWNER, 60_000))
    finally:
        home.execute_command("CLUSTER ADDSLOTS", slot)
    until(lambda: all(_covers(client, slot) for client in clients), 60)
    claim = store.perform(ClaimRequest(key, OWNER, 60_000))
    assert claim.verdict is Verdict.WON
    assert store.perform(Complete(key.id, OWNER, claim.fence, 60_000, b"x")) is Ack.OK


def _covers(client: Any, slot: int) -> bool:
    return any(low <= slot <= high for low, high, *_ in client.execute_command("CLUSTER SLOTS"))


# --- the doctor on a primary that could be replaced without knowing it ---------------------------


def test_the_doctor_asks_what_stops_a_replaced_primary(valkey_sentinel: Any):
    def level(query: str = "") -> list[str]:
        store = RedisStore.open(valkey_sentinel.url + query)
        try:
            found = [each for each in store.doctor() if "min-replicas-to-write" in each.what]
        finally:
            store.close()
        return [each.level for each in found]

    assert level() == ["warn"]
    assert level("?wait_replicas=1") == ["ok"]
    client = valkey_sentinel.primary.client()
    client.config_set("min-replicas-to-write", "1")
    try:
        assert level() == ["ok"]
    finally:
        client.config_set("min-replicas-to-write", "0")


# --- results stay where they are ----------------------------------------------------------------


def carried(servers: list[Any], act: Callable[[], Any]) -> int:
    """Bytes that these servers sent to their clients meanwhile."""

    def sent() -> int:
        return sum(int(one.client().info("stats")["total_net_output_bytes"]) for one in servers)

    before = sent()
    act()
    return sent() - before


def test_walks_over_all_keys_do_not_carry_results(own_server: Callable[..., Any]):
    server = own_server("valkey")
    with Receiver.open(server.url) as receiver:
        for number in range(40):
            receiver.process(f"k{number}", lambda: "x" * 100_000)

        assert carried([server], receiver.stats) < 100_000
        assert carried([server], receiver.sweep) < 100_000
        store = receiver._runtime.store
        one = carried([server], lambda: store.perform(Browse(1)))
        assert one < 300_000, "one is shown, one is carried"
        (row,) = store.perform(Browse(1)).rows
        assert len(row.result) > 100_000
        assert receiver.stats().by_state == {State.COMPLETED: 40}


def test_the_audit_log_does_not_carry_results(own_server: Callable[..., Any]):
    """It asks for the record of every entry, to show its key."""
    server = own_server("valkey")
    with Receiver.open(server.url) as receiver:
        for number in range(20):
            with receiver.claim(f"k{number}") as claim:
                claim.hold("the outcome is not known")
            receiver.resolve(f"k{number}", "x" * 100_000, by="ann", why="asked the bank")
        log: list[Any] = []
        assert carried([server], lambda: log.extend(receiver.audit_log())) < 100_000
        assert {entry.value for entry in log} == {f"k{number}" for number in range(20)}
        assert len(receiver.process("k0", str).value) == 100_000


@pytest.mark.parametrize("ask", [Survey(), Count(9), Browse(9, states=(State.RELEASED,))])
def test_a_search_while_a_slot_moves_does_not_carry_results(cluster: Any, store: Any, ask: Any):
    """The node to which the record has moved lists it, and cannot read it: it is asked for by itself."""
    key = Key("k")
    claim = store.perform(ClaimRequest(key, OWNER, 60_000))
    done = Complete(key.id, OWNER, claim.fence, 60_000, b"x" * 300_000)
    assert store.perform(done) is Ack.OK
    name = store.programs.key(key.id)
    with on_its_way(cluster, slot_of(name)) as (here, other):
        here.execute_command("MIGRATE", "127.0.0.1", other.port, name, 0, 30_000)
        assert carried(cluster.nodes, lambda: store.perform(ask)) < 100_000
        assert store.perform(Survey()).by_state == {State.COMPLETED: 1}, "it was asked for"


async def test_a_server_without_a_connection_left_records_what_it_let_run(own_server: Any):
    import redis

    server = own_server("valkey")
    runs: list[str] = []

    async def say() -> str:
        runs.append("ran")
        return "done"

    with redis.Redis.from_url(server.url) as one, redis.Redis.from_url(server.url) as two:
        one.config_set("maxclients", 3)
        two.ping()
        async with AsyncReceiver.open(server.url) as receiver:
            for _ in range(2):
                assert (await receiver.process("k", say)).value == "done"
    assert runs == ["ran"]
