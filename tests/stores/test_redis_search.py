"""A search on Redis: which nodes are asked, and when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.stores.test_redis_conformance import MovedScripts
from twicesafe import AsyncReceiver, Key, Policy, Receiver
from twicesafe._cli.stats import _screenful
from twicesafe._core.protocol import Browse, Count, Read, Survey
from twicesafe._engines.redis import RedisStore
from twicesafe._engines.redis.programs import RedisPrograms
from twicesafe._engines.redis.record_scan import FIRST, NODES, TOGETHER, RecordSlice
from twicesafe._engines.redis.routed_commands import PlainCommand, ScriptCall
from twicesafe._engines.redis.scan_questions import _containing
from twicesafe._engines.redis.scripts import Scripts
from twicesafe._engines.redis.settings import Settings
from twicesafe._values.records import State
from twicesafe.dashboard import dashboard
from twicesafe.testing import FakeClock, Place


def _is_scan(call: Any) -> bool:
    return type(call) is PlainCommand and type(call.args) is tuple and call.args[0] == b"SCAN"


def test_the_nodes_of_a_cluster_are_searched_at_the_same_time(valkey_cluster_url: str):
    with Receiver.open(valkey_cluster_url) as receiver:
        receiver.process_many([str(n) for n in range(60)], lambda m: m, key=lambda m: m)
        asked: list[set[int]] = []
        receiver.store._tap = lambda when, calls: (  # type: ignore[attr-defined]
            asked.append({call.node for call in calls if _is_scan(call)})
            if when == "before"
            else None
        )
        assert receiver.count() == 60
        assert receiver.stats().by_state == {State.COMPLETED: 60}
        assert len(list(receiver.records(limit=100))) == 60
    # Each search begins at all nodes at once. A node on which other tests left many keys is asked again.
    assert asked.count(set(range(NODES))) == 3


class _Nodes:
    """Nodes with some slices each; every slice has one record in progress."""

    def __init__(self, slices: list[int]) -> None:
        self._slices = slices
        self.round_trips = 0

    def answer(self, program: Any) -> Any:
        try:
            calls = next(program)
            while True:
                self.round_trips += 1
                calls = program.send([self._reply(call) for call in calls])
        except StopIteration as end:
            return end.value

    def _reply(self, call: Any) -> Any:
        if call.node >= len(self._slices):
            return None
        if type(call) is ScriptCall:
            return 5000
        if _is_scan(call):
            cursor = int(call.args[1])
            following = (cursor + 1) % self._slices[call.node]
            name = b"ts:{.%032d}" % (1000 * call.node + cursor)
            return [b"%d" % following, [name]]
        record = struct.pack("<BBBQ", 0x20, 0, 1, 4_000_000)[:10] + bytes(25) + b"\x00"
        if call.args.data.startswith(b"*4\r\n$8\r\nGETRANGE"):
            number = call.args.data.count(b"GETRANGE")
            return [record] * number + [len(record)] * (call.args.count - number)
        return [[record] * group.count(b"ts:{.") for group in call.args.data.split(b"MGET")[1:]]


def test_every_slice_of_every_node_is_searched_once():
    programs = RedisPrograms("ts", Scripts(""))
    for slices in ([1], [3], [1, 5, 2], [2] * NODES, [1] * (NODES + 1), [3] * (2 * NODES + 5)):
        nodes = _Nodes(slices)
        assert nodes.answer(programs.count(Count(10_000))) == sum(slices)
        assert nodes.round_trips <= 1 + max(slices) + len(slices) // NODES, "all at the same time"
        stats = _Nodes(slices).answer(programs.survey(Survey()))
        assert stats.by_state == {State.IN_PROGRESS: sum(slices)}


def _scans(receiver: Receiver) -> list[PlainCommand]:
    """The SCANs from now on."""
    calls: list[PlainCommand] = []

    def tap(when: str, sent: list[Any]) -> None:
        if when == "before":
            calls.extend(filter(_is_scan, sent))

    receiver.store._tap = tap  # type: ignore[attr-defined]
    return calls


def test_a_screen_of_several_questions_takes_one_scan(own_server: Any):
    with Receiver.open(own_server("valkey").url) as receiver:
        receiver.process_many([str(n) for n in range(9)], lambda m: m, key=lambda m: m)
        calls = _scans(receiver)
        receiver.doctor()
        assert len(calls) == NODES, "one slice of each node that there may be"
        calls.clear()
        look, _ = _screenful(receiver, 80, None)
        assert (look.stats.total, len(calls)) == (9, NODES)


def test_names_are_compared_by_the_server_only_where_others_have_keys_too(own_server: Any):
    url = own_server("valkey").url
    with Receiver.open(url) as receiver, contextlib.closing(Redis.from_url(url)) as client:
        receiver.process_many([str(n) for n in range(900)], lambda m: m, key=lambda m: m)
        calls = _scans(receiver)
        assert receiver.count() == 900
        assert not any(b"MATCH" in call.args for call in calls)
        client.mset({f"session:{number:027}": number for number in range(900)})
        # These begin like ours, and are shorter.
        client.mset({f"ts:{{.{number}": number for number in range(90)})
        calls.clear()
        assert receiver.count() == receiver.stats().total == 900
        firsts = [call for call in calls if call.args[1] == b"0"]
        assert not any(b"MATCH" in call.args for call in firsts), "it is not known yet"
        assert all(b"MATCH" in call.args for call in calls if call not in firsts)
        assert len(calls) > len(firsts)


def test_a_dry_run_of_the_dashboard_takes_one_scan(own_server: Any):
    async def visit(receiver: Receiver) -> str:
        app = dashboard(receiver, resolve_access=lambda request: "all")
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            return (await client.get("/actions/release?state=parked&state=completed")).text

    with Receiver.open(own_server("valkey").url, policy=Policy(max_attempts=1)) as receiver:
        receiver.process("done", str)
        with contextlib.suppress(ZeroDivisionError):
            receiver.process("parked-1", lambda: 1 // 0)
        calls = _scans(receiver)
        page = asyncio.run(visit(receiver))
    assert len(calls) == NODES
    assert Key("parked-1").short in page


@pytest.mark.parametrize("size", [10, 5000], ids=["small", "large"])
def test_records_are_found_whatever_their_size(valkey_url: str, size: int):
    """Small ones are read together, large ones one by one."""
    names = [str(n) for n in range(2 * FIRST + TOGETHER + 7)]
    with Receiver.open(valkey_url) as receiver:
        receiver.process_many(names, lambda m: "x" * size, key=lambda m: m)
        receiver.process("large", lambda: "x" * 200_000)
        with receiver.claim("held") as claim:
            claim.hold("not known")
        assert receiver.stats().by_state == {State.COMPLETED: len(names) + 1, State.HELD: 1}
        assert [record.value for record in receiver.records(state="held")] == ["held"]
        assert receiver.count(value="7") == receiver.count(value="large") == 1
        assert receiver.count(error="not known") == 1


@pytest.mark.usefixtures("slices")
def test_results_that_came_with_the_scan_are_not_read_again(own_server: Any):
    """A page of small records is one round trip less."""
    with Receiver.open(own_server("valkey").url) as receiver:
        receiver.process_many([str(n) for n in range(200)], lambda m: m, key=lambda m: m)
        read: list[bytes] = []

        def tap(when: str, sent: list[Any]) -> None:
            if when == "before":
                read.extend(
                    call.keys[0]
                    for call in sent
                    if type(call) is ScriptCall and call.script.name == "read"
                )

        receiver.store._tap = tap  # type: ignore[attr-defined]
        page = receiver.store.perform(Browse(200))
        assert 0 < len(read) < 100, "those of the first slice"
        results = [receiver.store.perform(Read(row.id)).result for row in page.rows]
        assert [row.result for row in page.rows] == results
        assert len(set(results)) == 200


def test_records_with_some_bytes_are_found_wherever_one_ends_and_the_next_begins():
    some = (None, b"", b"a", b"b", b"ab", b"ba", b"aba", b"abab")
    for texts in itertools.product(some, repeat=4):
        names = [b"%d" % number for number in range(len(texts))]
        found = _containing(b"aba", RecordSlice(0, names, texts, True))
        assert len(dict(found)) == len(found)
        assert dict(found).items() >= {
            (name, text) for name, text in zip(names, texts, strict=True) if text and b"aba" in text
        }


def test_a_value_is_found_although_results_and_scopes_contain_it(valkey_url: str):
    with Receiver.open(valkey_url) as receiver:
        keys = [Key(f"tx-{n}", scope=(f"\x04tx-{n + 1}",)) for n in range(40)]
        for key in keys:
            receiver.process(key, lambda: "\x04tx-7 \x05tx-17")
        for value in ("tx-7", "tx-17"):
            assert [record.value for record in receiver.records(value=value)] == [value]
            assert receiver.count(value=value, error="none") == 0
        assert receiver.count(scope=("\x04tx-7",)) == 1


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones: a few records are many slices."""
    monkeypatch.setattr("twicesafe._engines.redis.record_scan.FIRST", 20)
    monkeypatch.setattr("twicesafe._engines.redis.record_scan.SLICE", 20)


@pytest.mark.usefixtures("slices")
def test_a_user_that_may_not_read_many_at_once_searches_too(own_server: Any):
    server = own_server("valkey")
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-mget")
    with Receiver.open(f"redis://app:pw@127.0.0.1:{server.port}/0") as receiver:
        receiver.process_many([str(n) for n in range(150)], lambda m: m, key=lambda m: m)
        assert receiver.count() == receiver.stats().total == 150


@pytest.mark.usefixtures("slices")
def test_a_cluster_of_one_node_stays_usable_after_a_search(own_server: Any):
    """It refuses to read keys of two slots at once. After a script that tries it, Valkey 9.1 refuses all keys to all scripts."""
    server = own_server("valkey", cluster_enabled="yes")
    with server.client() as admin:
        admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        _until_usable(admin)
    with Receiver.open(server.url) as receiver:
        receiver.process_many([str(n) for n in range(150)], lambda m: m, key=lambda m: m)
        assert receiver.count() == 150
        assert receiver.process("one more", lambda: 1).value == 1


def _until_usable(admin: Redis) -> None:
    while b"cluster_state:ok" not in admin.execute_command("CLUSTER", "INFO"):
        pass


@pytest.mark.usefixtures("slices")
def test_the_slices_of_a_cluster_are_read_slot_by_slot(valkey_cluster_url: str):
    scope, values = ("slot by slot",), [str(n) for n in range(300)]

    async def asked() -> tuple[int, int, list[str]]:
        async with AsyncReceiver.open(valkey_cluster_url, scope=scope) as receiver:
            found = [one.value async for one in receiver.records(scope=scope, limit=500)]
            stats = await receiver.stats()
            return await receiver.count(scope=scope), stats.total, sorted(found, key=int)

    with Receiver.open(valkey_cluster_url, scope=scope) as receiver:
        receiver.process_many(values, lambda m: m, key=lambda m: m)
        found = [one.value for one in receiver.records(scope=scope, limit=500)]
        answers = receiver.count(scope=scope), receiver.stats().total, sorted(found, key=int)
    assert (answers[0], answers[2]) == (300, values)
    assert asyncio.run(asked()) == answers


@pytest.mark.usefixtures("slices")
def test_a_search_that_meets_unknown_records_finds_the_others(own_server: Any):
    """They are found while the server works on the next slice: those replies go to no other request."""
    server = own_server("valkey")

    async def asked() -> None:
        async with AsyncReceiver.open(server.url) as receiver:
            for _ in range(3):
                assert (await receiver.stats()).unreadable == 150
                assert (await receiver.process("0", str)).value == "0"
                record = await receiver.record("0")
                assert record is not None
                assert record.value == "0"

    with Receiver.open(server.url) as receiver:
        receiver.process_many([str(n) for n in range(150)], lambda m: m, key=lambda m: m)
        with server.client() as admin:
            for number in range(150):
                admin.set(b"ts:{.%032d}" % number, b"\x31" + bytes(60))
        assert receiver.stats().unreadable == 150
        for search in (receiver.count, lambda: len(list(receiver.records()))):
            assert search() == 150
            assert receiver.process("0", str).value == "0"
    asyncio.run(asked())


@pytest.mark.usefixtures("slices")
def test_questions_of_one_scan_are_answered_as_if_each_were_asked_alone(valkey_url: str):
    """Also about records that are past their retention and not removed yet."""
    clock = FakeClock(round(time.time() * 1000))
    store = RedisStore(Settings.of(valkey_url), MovedScripts("PUBLISH", Place(Path(), clock=clock)))
    with Receiver(store, policy=Policy(max_attempts=1, retention=60)) as receiver:
        short, numbers = receiver.options(policy=Policy(retention=10)), range(150)
        receiver.process_many(numbers, str, key=str)
        clock.advance(50.001)
        short.process_many(numbers, str, key=lambda n: f"short-{n}")
        for n in numbers[:40]:
            with contextlib.suppress(ZeroDivisionError):
                receiver.process(f"parked-{n}", lambda: 1 // 0)
        asks = (
            Survey(),
            Browse(7),
            Browse(3, states=(State.PARKED,)),
            Browse(3, stuck=True),
            Count(1000, states=(State.COMPLETED, State.PARKED)),
        )
        for later, counted in ((9.998, 340), (0.001, 190), (0.001, 40)):
            clock.advance(later)
            alone = [store.perform(ask) for ask in asks]
            assert store.perform_many(list(asks)) == alone
            assert (alone[0].total, alone[4]) == (counted, counted)
