"""What is Redis's own: round trips, wake-ups, connections that break, options, the doctor."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.servers import free_port
from tests.stores.turns import Turns
from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    CorruptRecordError,
    Key,
    Policy,
    Receiver,
    SchemaVersionError,
    Steps,
    StoreUnavailableError,
    SuspendedError,
)
from twicesafe._core.protocol import (
    Abandon,
    Ack,
    ClaimRequest,
    Complete,
    Read,
    Release,
    Survey,
    Verdict,
)
from twicesafe._engines.redis import RedisStore
from twicesafe._engines.redis.async_store import AsyncRedisStore
from twicesafe._engines.redis.programs import RedisPrograms
from twicesafe._engines.redis.scripts import Scripts
from twicesafe._engines.redis.servers import slot_of
from twicesafe._engines.redis.settings import Settings
from twicesafe._engines.redis.wakeups import Waiter
from twicesafe._values.records import State
from twicesafe.stores._urls import open_store

OWNER = b"o" * 16


@pytest.fixture
def proxy(valkey: Any) -> Iterator[Turns]:
    with Turns(valkey.port) as turns:
        yield turns


def through(proxy: Turns, url: str) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0?{url.partition('?')[2]}"


# --- round trips, counted on the wire ---------------------------------------------------------


def test_round_trips_first_two_duplicate_one_batch_two(proxy: Turns, valkey_url: str):
    with Receiver.open(through(proxy, valkey_url)) as receiver:
        receiver.process("warm", str, 1)  # scripts are loaded, the connection stands
        round_trips: list[int] = []

        def spent(act: Callable[[], object]) -> int:
            before = proxy.count
            act()
            return proxy.count - before

        round_trips.append(spent(lambda: receiver.process("a", str, 1)))
        round_trips.append(spent(lambda: receiver.process("a", str, 1)))
        messages = [f"m{n}" for n in range(50)]
        round_trips.append(spent(lambda: receiver.process_many(messages, str, key=str)))
        round_trips.append(spent(lambda: receiver.process_many(messages, str, key=str)))
    assert round_trips == [2, 1, 2, 1]


async def test_the_same_with_asyncio(proxy: Turns, valkey_url: str):
    async def handle(text: str) -> str:
        return text

    async with AsyncReceiver.open(through(proxy, valkey_url)) as receiver:
        messages = [f"m{n}" for n in range(50)]
        await receiver.process("warm", handle, "x")
        await receiver.process_many(["warm too"], handle, key=str)
        counts = [proxy.count]
        for _ in range(2):
            await receiver.process("a", handle, "x")
            counts.append(proxy.count)
        for _ in range(2):
            await receiver.process_many(messages, handle, key=str)
            counts.append(proxy.count)
    assert [after - before for before, after in pairwise(counts)] == [2, 1, 2, 1]


async def test_concurrent_callers_share_round_trips(proxy: Turns, valkey_url: str):
    async def handle(number: int) -> int:
        return number

    async with AsyncReceiver.open(through(proxy, valkey_url)) as receiver:
        await receiver.process("warm", handle, 0)
        before = proxy.count
        outcomes = await asyncio.gather(
            *(receiver.process(f"k{number}", handle, number) for number in range(100))
        )
        round_trips = proxy.count - before
    assert [outcome.value for outcome in outcomes] == list(range(100))
    assert round_trips <= 8, "200 requests: one goes ahead, the others share"


def test_a_cluster_batch_is_one_round_trip_to_all_nodes(valkey_cluster_url: str):
    store = RedisStore.open(valkey_cluster_url)
    keys = [Key(f"k{number}") for number in range(60)]
    store.perform_many(
        [ClaimRequest(key, b"w" * 16, 1000) for key in [Key(f"w{n}") for n in range(60)]]
    )
    batches: list[Any] = []
    exchange = store._exchange
    store._exchange = lambda batch: batches.append(batch) or exchange(batch)  # type: ignore[method-assign, func-returns-value]
    answers = store.perform_many([ClaimRequest(key, OWNER, 1000) for key in keys])
    assert {answer.verdict for answer in answers} == {Verdict.WON}
    assert [len(batch.lines) for batch in batches] == [3]
    store.close()


# --- scripts that are not there ----------------------------------------------------------------


def test_flushed_scripts_lose_nothing(valkey: Any, valkey_url: str):
    store = open_store(valkey_url)
    won = store.perform(ClaimRequest(Key("a"), OWNER, 60_000))
    valkey.client().script_flush("SYNC")
    answers = store.perform_many(
        [
            Complete(Key("a").id, OWNER, won.fence, 60_000, b"x"),
            ClaimRequest(Key("b"), OWNER, 60_000),
            Read(Key("a").id),
            ClaimRequest(Key("b"), OWNER, 60_000),
        ]
    )
    assert answers[0] is Ack.OK
    assert answers[1] == answers[3]
    assert answers[1].verdict is Verdict.WON
    valkey.client().script_flush("SYNC")
    assert store.perform(Read(Key("a").id)).state is State.COMPLETED
    store.close()


# --- waking ------------------------------------------------------------------------------------


@pytest.fixture(params=["valkey", "valkey_cluster", "redis7"])
def any_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def test_a_waiter_elsewhere_is_woken(any_url: str):
    """Two receivers share nothing but the store; polling would take more round trips."""
    started, finish = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        assert finish.wait(60)
        return "done"

    with Receiver.open(any_url) as one, Receiver.open(any_url) as other:
        runner = threading.Thread(target=one.process, args=("k", slow))
        runner.start()
        assert started.wait(60)
        watched = threading.Event()
        watch = other._runtime.store.watch

        def watching(id_: bytes, seconds: float) -> None:
            watched.set()
            watch(id_, seconds)

        other._runtime.store.watch = watching
        answers: list[Any] = []
        waiter = threading.Thread(target=lambda: answers.append(other.process("k", slow)))
        waiter.start()
        assert watched.wait(60)
        finish.set()
        runner.join(60)
        waiter.join(60)
    assert [(answer.value, answer.replayed) for answer in answers] == [("done", True)]


@pytest.mark.parametrize("late", [False, True])
def test_watch_returns_when_the_claim_ends(any_url: str, late: bool):
    """Before or after the listener is subscribed: a waiter never sleeps through an end."""
    store, other = RedisStore.open(any_url), RedisStore.open(any_url)
    key = Key("k")
    for _ in range(20):
        claim = store.perform(ClaimRequest(key, OWNER, 60_000))
        end = Complete(key.id, OWNER, claim.fence, 60_000, b"x")
        if late:
            timer = threading.Timer(0.01, store.perform, (end,))
            timer.start()
        else:
            store.perform(end)
        began = time.monotonic()
        other.watch(key.id, 3600)
        while other.perform(Read(key.id)).state is not State.COMPLETED:
            other.watch(key.id, 3600)  # it was woken by the end before this one
        assert time.monotonic() - began < 120
        store.perform(Release(key.id, "me", "", 60_000, force=True))
    store.close()
    other.close()


async def test_async_watch_returns_when_the_claim_ends(any_url: str):
    store, other = AsyncRedisStore.open(any_url), AsyncRedisStore.open(any_url)
    for number in range(10):
        key = Key(f"k{number}")
        claim = await store.perform(ClaimRequest(key, OWNER, 60_000))
        watching = asyncio.ensure_future(other.watch(key.id, 3600))
        await asyncio.sleep(0.002 * (number % 3))
        await store.perform(Complete(key.id, OWNER, claim.fence, 60_000, b"x"))
        async with asyncio.timeout(120):
            await watching
    await store.close()
    await other.close()


def test_a_waiter_that_leaves_after_the_end_starts_no_listener(valkey_url: str):
    store = RedisStore.open(valkey_url)
    ready = threading.Event()
    waiter = Waiter(b"channel", ready.set, int)
    store.wakeups.watch(waiter)
    assert ready.wait(60)
    store.close()
    store.wakeups.unwatch(waiter)
    assert "twicesafe-redis-wakeups" not in [thread.name for thread in threading.enumerate()]


def test_without_wake_the_waiter_polls(valkey_url: str):
    store = RedisStore.open(valkey_url + "&wake=false")
    claim = store.perform(ClaimRequest(Key("k"), OWNER, 60_000))
    end = Complete(Key("k").id, OWNER, claim.fence, 60_000, b"x")
    threading.Timer(0.02, store.perform, (end,)).start()
    began = time.monotonic()
    store.watch(Key("k").id, 3600)
    assert time.monotonic() - began < 120
    store.close()


def test_no_subscription_stays(valkey: Any, valkey_url: str):
    store = RedisStore.open(valkey_url)
    store.perform(ClaimRequest(Key("k"), OWNER, 60_000))
    prefix = store.settings.prefix
    store.watch(Key("k").id, 0.05)
    until = time.monotonic() + 60
    while valkey.client().pubsub_channels(f"{prefix}*") and time.monotonic() < until:
        time.sleep(0.01)
    assert valkey.client().pubsub_channels(f"{prefix}*") == []
    store.close()


# --- connections that break --------------------------------------------------------------------


def test_a_cut_connection_is_not_noticed(proxy: Turns, valkey_url: str):
    with Receiver.open(through(proxy, valkey_url)) as receiver:
        for number in range(5):
            assert receiver.process(f"k{number}", str, number).value == str(number)
            proxy.cut()


async def test_a_cut_connection_is_not_noticed_by_tasks(proxy: Turns, valkey_url: str):
    async def handle(number: int) -> int:
        return number

    async with AsyncReceiver.open(through(proxy, valkey_url)) as receiver:
        for number in range(5):
            assert (await receiver.process(f"k{number}", handle, number)).value == number
            proxy.cut()


async def test_a_cancellation_while_it_connects_is_not_lost(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    """On Python 3.11 `asyncio.wait_for` loses one that meets its answer, and redis-py connects with it."""
    from redis.asyncio.connection import Connection

    connecting = asyncio.Event()

    async def connect(self: Connection) -> None:
        connecting.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    store = AsyncRedisStore.open(valkey_url)
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "connect", connect)
        asking = asyncio.ensure_future(store.perform(Survey()))
        await connecting.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert (await store.perform(Survey())).total == 0
    await store.close()


async def test_a_cancelled_call_leaves_no_reply_to_the_next(valkey_url: str):
    store = AsyncRedisStore.open(valkey_url)
    await store.perform(ClaimRequest(Key("a"), OWNER, 60_000))
    for _ in range(20):
        call = asyncio.ensure_future(store.perform(Read(Key("a").id)))
        await asyncio.sleep(0)
        call.cancel()
        assert await store.perform(Read(Key("nothing").id)) is None
    await store.close()


@pytest.mark.parametrize("way", ["perform", "submit"])
async def test_a_cancelled_claim_is_not_overtaken_by_what_gives_it_back(valkey_url: str, way: str):
    store = AsyncRedisStore.open(valkey_url)
    await store.perform(ClaimRequest(Key("warm"), OWNER, 60_000))
    async with store._loops.here()._claims._turn:
        first = asyncio.ensure_future(store.perform(ClaimRequest(Key("first"), OWNER, 60_000)))
        claim = asyncio.ensure_future(store.perform(ClaimRequest(Key("k"), OWNER, 60_000)))
        await asyncio.sleep(0)  # it has gathered behind the first
        claim.cancel()
        back = asyncio.ensure_future(getattr(store, way)(Abandon(Key("k").id, OWNER, 60_000)))
        await asyncio.sleep(0)
        assert await store.perform(Read(Key("k").id)) is None  # another lane is through by now
    assert (await first).verdict is Verdict.WON
    assert await back is Ack.OK
    assert (await store.perform(Read(Key("k").id))).state is State.RELEASED
    await store.close()


async def test_requests_on_their_way_are_sent_again_when_the_scripts_are_gone(
    valkey: Any, valkey_url: str
):
    """A request that the server refused takes the long way, and so do those that come meanwhile."""
    store = AsyncRedisStore.open(valkey_url)
    await store.ready()
    with valkey.client() as client:
        client.script_flush()
    asks = [ClaimRequest(Key(f"k{number}"), OWNER, 60_000) for number in range(200)]
    answers = await asyncio.gather(*[store.perform(ask) for ask in asks])
    assert [answer.verdict for answer in answers] == [Verdict.WON] * 200
    assert (await store.perform(ClaimRequest(Key("k0"), OWNER, 60_000))).fence == answers[0].fence
    await store.close()


@pytest.mark.parametrize("way", ["perform", "submit"])
async def test_requests_on_their_way_survive_a_cut_connection(
    proxy: Turns, valkey_url: str, way: str
):
    store = AsyncRedisStore.open(through(proxy, valkey_url))
    await store.ready()
    asks = [ClaimRequest(Key(f"k{number}"), OWNER, 60_000) for number in range(200)]
    tasks = [asyncio.ensure_future(getattr(store, way)(ask)) for ask in asks]
    cancelled = tasks.pop(7) if way == "perform" else None
    await asyncio.sleep(0)  # all are sent or packed
    if cancelled is not None:
        cancelled.cancel()
    proxy.cut()
    answers = await asyncio.gather(*tasks)
    assert [answer.verdict for answer in answers] == [Verdict.WON] * len(tasks)
    await store.close()


async def test_a_claim_that_was_cancelled_on_its_way_is_not_overtaken_by_its_release(
    valkey_url: str,
):
    store = AsyncRedisStore.open(valkey_url)
    await store.ready()
    others = [
        asyncio.ensure_future(store.perform(ClaimRequest(Key(f"k{number}"), OWNER, 60_000)))
        for number in range(5)
    ]
    claim = asyncio.ensure_future(store.perform(ClaimRequest(Key("k"), OWNER, 60_000)))
    await asyncio.sleep(0)
    claim.cancel()
    assert await store.perform(Abandon(Key("k").id, OWNER, 60_000)) is Ack.OK
    assert (await store.perform(Read(Key("k").id))).state is State.RELEASED
    assert {(await other).verdict for other in others} == {Verdict.WON}
    await store.close()


def test_a_store_serves_several_loops(valkey_url: str):
    store = AsyncRedisStore.open(valkey_url)

    async def use(number: int) -> Verdict:
        answer = await store.perform(ClaimRequest(Key(f"k{number}"), OWNER, 60_000))
        await store.close()
        return answer.verdict  # type: ignore[no-any-return]

    assert [asyncio.run(use(number)) for number in range(3)] == [Verdict.WON] * 3


def test_a_forked_child_has_its_own_connections(valkey_url: str):
    store = RedisStore.open(valkey_url)
    store.perform(ClaimRequest(Key("parent"), OWNER, 60_000))
    child = os.fork()
    if child == 0:
        try:
            good = all(
                store.perform(ClaimRequest(Key(f"child-{n}"), OWNER, 60_000)).verdict is Verdict.WON
                for n in range(50)
            )
            os._exit(0 if good else 1)
        except BaseException:
            os._exit(2)
    for number in range(50):
        answer = store.perform(ClaimRequest(Key(f"parent-{number}"), OWNER, 60_000))
        assert answer.verdict is Verdict.WON
    assert os.waitpid(child, 0)[1] == 0
    store.close()


def test_a_paused_server_is_unavailable_in_time(own_server: Callable[..., Any]):
    server = own_server("valkey")
    store = RedisStore.open(server.url + "?timeout=0.3")
    server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            store.perform(ClaimRequest(Key("a"), OWNER, 60_000))
        assert time.monotonic() - began < 60
    finally:
        server.resume()
    assert store.perform(ClaimRequest(Key("a"), OWNER, 60_000)).verdict is Verdict.WON
    store.close()


# --- what is in the store ----------------------------------------------------------------------


def test_only_what_is_over_has_a_ttl(valkey: Any, valkey_url: str):
    store = RedisStore.open(valkey_url)
    client, key = valkey.client(), Key("a")
    name = store.programs.key(key.id)
    claim = store.perform(ClaimRequest(key, OWNER, 1))
    assert client.pttl(name) == -1
    store.perform(Complete(key.id, OWNER, claim.fence, 60_000, b"x"))
    assert 60_000 + 29_000 < client.pttl(name) <= 60_000 + 60_000
    store.perform(Release(key.id, "me", "", 60_000, force=True))
    store.perform(ClaimRequest(key, OWNER, 1000))
    assert client.pttl(name) == -1
    store.close()


def test_fences_go_on_when_the_record_is_gone(valkey: Any, valkey_url: str):
    store = RedisStore.open(valkey_url)
    fences = []
    for _ in range(3):
        fences.append(store.perform(ClaimRequest(Key("a"), OWNER, 1000)).fence)
        valkey.client().delete(store.programs.key(Key("a").id))
    assert fences == sorted(set(fences))
    store.close()


@pytest.mark.parametrize(
    "damage", [b"", b"\x10", b"\x2f" * 40, b"\x11" + b"\0" * 22, b"\x1funk" * 20]
)
def test_damage_is_reported_and_never_run_over(valkey: Any, valkey_url: str, damage: bytes):
    ran: list[int] = []
    with Receiver.open(valkey_url) as receiver:
        name = receiver._runtime.store.programs.key(Key("a").id)
        valkey.client().set(name, damage)
        with pytest.raises((CorruptRecordError, SchemaVersionError)):
            receiver.process("a", ran.append, 1)
    assert ran == []
    assert valkey.client().get(name) == damage


def test_a_key_of_another_type_is_reported(valkey: Any, valkey_url: str):
    with Receiver.open(valkey_url) as receiver:
        valkey.client().rpush(receiver._runtime.store.programs.key(Key("a").id), "x")
        with pytest.raises(CorruptRecordError):
            receiver.process("a", str, 1)


def test_the_audit_trail_is_capped(valkey_url: str):
    with Receiver.open(valkey_url) as receiver:
        receiver.process("a", str, 1)
        for number in range(110):
            receiver.release("a", by="me", why=str(number), force=True)
        entries = receiver.audit("a")
    assert [entry.why for entry in entries] == [str(number) for number in range(10, 110)]


def test_a_record_and_its_companions_share_a_slot():
    programs = RedisPrograms("ts", Scripts(""))
    for first in (b"}", b"{", b"a}", b"{}", b"\0"):
        id_ = first.ljust(32, b"x")
        assert slot_of(programs.key(id_)) == slot_of(programs.trail(id_))


# --- options and errors ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url, says",
    [
        ("redis://", "host"),
        ("redis://host:99999/0", "host and port"),
        ("redis://host/zero", "number of a database"),
        ("redis://a,b/0", "redis\\+cluster"),
        ("redis://host?prefx=a", "did you mean 'prefix'"),
        ("redis://host?prefix=a{b}", "prefix"),
        ("redis://host?timeout=0", "timeout"),
        ("redis://host?timeout=soon", "number"),
        ("redis://host?pool=0", "pool"),
        ("redis+cluster://host/3", "Cluster"),
        ("redis+cluster://host?db=3", "Cluster"),
        ("redis+sentinel://host:26379", "names the primary"),
        ("redis+sentinel://host:26379/main/2", r"\?db=2"),
        ("redis://host/0?db=2", "two databases"),
        ("redis://host/3?db=0", "two databases"),
        ("redis://host?sentinel_password=a", "user:password@ before its host"),
        ("redis+cluster://host?sentinel_user=a", "user:password@ before its host"),
    ],
)
def test_a_url_that_cannot_be_used_is_reported(url: str, says: str):
    with pytest.raises(ConfigurationError, match=says):
        Settings.of(url)


def test_an_absent_server_is_reported_at_once_and_without_the_password():
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1\b") as caught:
        open_store("redis://me:hush@127.0.0.1:1/0")
    assert time.monotonic() - began < 60
    assert "hush" not in str(caught.value)
    with pytest.raises(StoreUnavailableError):
        open_store("redis+cluster://127.0.0.1:1")
    with pytest.raises(StoreUnavailableError, match="sentinels"):
        open_store("redis+sentinel://127.0.0.1:1/main")


def page() -> str:
    return (Path(__file__).parents[2] / "docs/how-to/redis.md").read_text()


def acl_of_the_page() -> list[str]:
    """What docs/how-to/redis.md says that a user needs."""
    words = page().partition("ACL SETUSER app on >password")[2].partition("```")[0].split()
    assert len(words) > 20
    return words


def more_rights_of_the_page() -> list[str]:
    """What durable functions need besides."""
    (line,) = [line for line in page().splitlines() if "also need `+hset" in line]
    return line.partition("`")[2].partition("`")[0].split()


def step_through(receiver: Receiver) -> None:
    """Every request of durable runs."""

    @receiver.durable(key="order", scope=("acl",))
    def checkout(steps: Steps, order: str) -> str:
        token = steps.run("token", lambda: "t")
        answer = steps.wait("approval", timeout=3600, returns=str)
        return f"{token} {answer}"

    with pytest.raises(SuspendedError):
        checkout("o-1")
    assert receiver.signal(checkout.key("o-1"), "approval", "yes")
    assert checkout("o-1") == "t yes"
    checkout.submit("o-2")
    assert receiver.complete_abandoned().found == 1
    receiver.restart(checkout.key("o-2"), by="me")
    receiver.sweep()


def test_users_and_passwords(own_server: Callable[..., Any]):
    server = own_server("valkey", requirepass="s3cret")
    port = server.port
    with Receiver.open(f"redis://:s3cret@127.0.0.1:{port}") as receiver:
        assert receiver.process("a", str, 1).value == "1"
        assert "s3cret" not in repr(receiver._runtime.store)
        assert "s3cret" not in repr(receiver._runtime.store.settings)
    for wrong in (f"redis://:hush@127.0.0.1:{port}", f"redis://127.0.0.1:{port}"):
        with pytest.raises(ConfigurationError, match="password") as caught:
            open_store(wrong)
        assert "hush" not in str(caught.value)
    rights = acl_of_the_page()
    server.client().execute_command("ACL", "SETUSER", "app", "on", ">pw", *rights)
    url = f"redis://app:pw@127.0.0.1:{port}"
    with Receiver.open(url) as receiver, Receiver.open(url) as other_receiver:
        assert receiver.process("b", str, 2).value == "2"
        receiver.release("b", by="me", force=True)
        assert [entry.action for entry in receiver.audit("b")] == ["release"]
        assert receiver.stats().total == 2
        receiver.sweep()
        claim = receiver._runtime.store.perform(ClaimRequest(Key("w"), OWNER, 60_000))
        end = Complete(Key("w").id, OWNER, claim.fence, 60_000, b"x")
        threading.Timer(0.02, receiver._runtime.store.perform, (end,)).start()
        other_receiver._runtime.store.watch(Key("w").id, 3600)
        assert other_receiver._runtime.store.wakeups.failures == 0
        assert receiver._runtime.store.doctor()
    server.client().execute_command("ACL", "SETUSER", "app", *more_rights_of_the_page())
    with Receiver.open(url) as receiver:
        step_through(receiver)
    other = f"redis://app:pw@127.0.0.1:{port}?prefix=other"
    with (
        Receiver.open(other) as receiver,
        pytest.raises(ConfigurationError, match="lacks a permission"),
    ):
        receiver.process("b", str, 2)


async def test_errors_of_the_async_store(own_server: Callable[..., Any]):
    server = own_server("valkey", requirepass="s3cret")
    store = AsyncRedisStore.open(f"redis://:hush@127.0.0.1:{server.port}")
    with pytest.raises(ConfigurationError, match="password"):
        await store.perform(Read(Key("a").id))
    store = AsyncRedisStore.open("redis://127.0.0.1:1")
    with pytest.raises(StoreUnavailableError):
        await store.perform(Read(Key("a").id))
    assert isinstance((await store.perform_many([Read(Key("a").id)]))[0], StoreUnavailableError)


def test_a_full_server_takes_results_and_no_claims(own_server: Callable[..., Any]):
    server = own_server("valkey")
    store = RedisStore.open(server.url)
    won = store.perform(ClaimRequest(Key("a"), OWNER, 60_000))
    store.perform(ClaimRequest(Key("b"), OWNER, 60_000))
    server.client().config_set("maxmemory", "1")
    with pytest.raises(StoreUnavailableError, match="memory"):
        store.perform(ClaimRequest(Key("c"), OWNER, 60_000))
    assert store.perform(Complete(Key("a").id, OWNER, won.fence, 60_000, b"x")) is Ack.OK
    assert store.perform(Read(Key("a").id)).result == b"x"
    assert store.perform(Release(Key("b").id, "me", "", 60_000)) is Ack.OK
    assert store.perform(Read(Key("c").id)) is None
    store.close()


@pytest.fixture
def tls(own_server: Callable[..., Any], tmp_path: Path) -> str:
    """A server that speaks TLS only, and the options that trust it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(cert),
        ],
        check=True,
        capture_output=True,
    )
    port = free_port()
    own_server(
        "redis7",
        tls_port=str(port),
        tls_cert_file=str(cert),
        tls_key_file=str(key),
        tls_ca_cert_file=str(cert),
        tls_auth_clients="no",
    )
    return f"rediss://127.0.0.1:{port}/0?ca_certs={cert}"


async def test_tls(tls: str):
    async def handle(number: int) -> int:
        return number

    store = RedisStore.open(tls)
    won = store.perform(ClaimRequest(Key("w"), OWNER, 60_000))
    end = Complete(Key("w").id, OWNER, won.fence, 60_000, b"x")
    async with AsyncReceiver.open(tls) as receiver:
        outcomes = await asyncio.gather(
            *(receiver.process(f"k{number}", handle, number) for number in range(50))
        )
        watching = asyncio.ensure_future(receiver._runtime.store.watch(Key("w").id, 3600))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(store.perform, end)
        async with asyncio.timeout(120):
            await watching
    assert [outcome.value for outcome in outcomes] == list(range(50))
    store.close()
    with pytest.raises(StoreUnavailableError, match="certificate"):
        RedisStore.open(tls.partition("?")[0])
    RedisStore.open(tls.partition("?")[0] + "?verify=false").close()


# --- the doctor --------------------------------------------------------------------------------


def levels(store: RedisStore) -> dict[str, str]:
    return {finding.what: finding.level for finding in store.doctor()}


def test_the_doctor(own_server: Callable[..., Any]):
    server = own_server("valkey", appendonly="yes")
    store = RedisStore.open(server.url)
    assert set(levels(store).values()) == {"ok"}
    server.client().config_set("maxmemory", "100mb")
    server.client().config_set("maxmemory-policy", "allkeys-lru")
    server.client().config_set("appendonly", "no")
    found = levels(store)
    assert [what for what, level in found.items() if level == "refuse"] == [
        next(what for what in found if "allkeys-lru" in what)
    ]
    assert [level for what, level in found.items() if "append-only" in what] == ["warn"]
    store.close()


def test_the_doctor_on_a_replica(valkey_sentinel: Any):
    store = RedisStore.open(valkey_sentinel.replica.url)
    assert any(f.level == "refuse" and "replica" in f.what for f in store.doctor())
    with pytest.raises(StoreUnavailableError, match="replica"):
        store.perform(ClaimRequest(Key("a"), OWNER, 1000))
    with pytest.raises(StoreUnavailableError, match="replica"):
        store.perform(Read(Key("a").id))
    store.close()


async def test_the_async_doctor_on_a_cluster(valkey_cluster_url: str):
    store = AsyncRedisStore.open(valkey_cluster_url)
    findings = await store.doctor()
    assert sum("node" in finding.what and "a primary" in finding.what for finding in findings) == 3
    assert any(finding.what == "cluster_state ok" for finding in findings)
    await store.close()


# --- replicas ----------------------------------------------------------------------------------


def test_wait_replicas(valkey_sentinel: Any, valkey_sentinel_url: str):
    store = RedisStore.open(valkey_sentinel_url + "&wait_replicas=1")
    won = store.perform(ClaimRequest(Key("a"), OWNER, 60_000))
    assert valkey_sentinel.replica.client().exists(store.programs.key(Key("a").id))
    done = store.perform(Complete(Key("a").id, OWNER, won.fence, 60_000, b"x"))
    assert done is Ack.OK
    assert store.perform(ClaimRequest(Key("a"), b"p" * 16, 60_000)).verdict is Verdict.REPLAY
    store.close()
    store = RedisStore.open(valkey_sentinel_url + "&wait_replicas=2&wait_timeout=0.05")
    with pytest.raises(StoreUnavailableError, match="1 of 2 replicas"):
        store.perform(ClaimRequest(Key("b"), OWNER, 60_000))
    replay, refused = store.perform_many(
        [ClaimRequest(Key("a"), b"p" * 16, 60_000), ClaimRequest(Key("c"), OWNER, 60_000)]
    )
    assert replay.verdict is Verdict.REPLAY
    assert isinstance(refused, StoreUnavailableError)
    assert any(f.level == "refuse" and "wait_replicas" in f.what for f in store.doctor())
    store.close()


def test_a_policy_of_waiting_reaches_the_owner(valkey_sentinel_url: str):
    """Too few replicas: the handler does not start (P9)."""
    ran: list[int] = []
    url = valkey_sentinel_url + "&wait_replicas=5&wait_timeout=0.01"
    policy = Policy(lease=0.5)
    with Receiver.open(url, policy=policy) as receiver, pytest.raises(StoreUnavailableError):
        receiver.process("a", ran.append, 1)
    assert ran == []


@pytest.mark.parametrize("form", ["one", "batch", "async"])
def test_a_claim_that_too_few_replicas_have_is_no_attempt(valkey_sentinel_url: str, form: str):
    """Else a replica that is away for some minutes would park, or hold, keys that never ran."""
    few = valkey_sentinel_url + "&wait_replicas=5&wait_timeout=0.01"
    policy = Policy(lease=0.5, max_attempts=1)
    ran: list[str] = []
    for _ in range(2):
        if form == "async":
            asyncio.run(_deliver_async(few, policy, ran))
            continue
        with Receiver.open(few, policy=policy) as receiver:
            if form == "one":
                with pytest.raises(StoreUnavailableError):
                    receiver.process("k", ran.append, "k")
            else:
                (answer,) = receiver.process_many(["k"], ran.append, key=lambda m: m)
                assert isinstance(answer.error, StoreUnavailableError)
    with Receiver.open(valkey_sentinel_url, policy=policy) as receiver:
        record = receiver.record("k")
        assert record is not None
        assert (record.state, record.attempt, ran) == (State.RELEASED, 0, [])
        assert receiver.process("k", lambda: "at once").attempt == 1


async def _deliver_async(url: str, policy: Policy, ran: list[str]) -> None:
    async with AsyncReceiver.open(url, policy=policy) as receiver:

        async def handler() -> None:
            ran.append("k")

        with pytest.raises(StoreUnavailableError):
            await receiver.process("k", handler)
