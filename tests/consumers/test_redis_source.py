"""Redis Streams as a source: the rules on Valkey, its own behaviour on Valkey and on Redis 7."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from lab.field.proxy import Fault
from tests.consumers.proxied import BehindProxies, problems
from tests.polling import until
from twicesafe._core.consuming.message import key_of
from twicesafe.consumers.sources.redis import RedisStreamSource
from twicesafe.errors import BrokerUnavailableError, ConfigurationError
from twicesafe.testing import ConsumerConformance
from twicesafe.testing._sources import SETTINGS, BlockingSource

_numbers = itertools.count(1)


class Streams(BehindProxies):
    """A stream and a group on a server; its sources are members of the group."""

    def use(self, server: Any) -> None:
        self.port, self.stream = server.port, f"source{next(_numbers)}_{os.getpid()}"
        self.client = self.stack.enter_context(server.client())

    def open_source(self, **options: str) -> Any:
        chosen = {"stream": self.stream, "group": "billing", "ack_wait": "1s", "timeout": "1"}
        query = urlencode(chosen | options)
        return self.through_proxy(
            lambda port: RedisStreamSource.open(f"redis://127.0.0.1:{port}/0?{query}")
        )

    def publisher_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?stream={self.stream}"

    def topic(self) -> str:
        return "orders"

    def dead_letters(self) -> list[str]:
        entries = self.client.xrange(f"{self.stream}.dead")
        return [fields[b"id"].decode() for _, fields in entries]

    def unsettled(self) -> int:
        (group,) = self.client.xinfo_groups(self.stream)
        return int(group["pending"] + (group["lag"] or 0))

    def own_broker(self) -> Callable[[], object]:
        server = self.launch("valkey", appendonly="yes", appendfsync="always")
        self.use(server)
        return server.restart  # type: ignore[no-any-return]


class TestRedisStreams(Streams, ConsumerConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, _proxies: None, valkey: Any) -> None:
        self.use(valkey)


class Stage(Streams, ConsumerConformance):
    """For the tests below, which are not rules of all sources."""

    @contextmanager
    def source(self, **options: str) -> Iterator[BlockingSource]:
        member = BlockingSource(self.open_source(**options))
        try:
            yield member
        finally:
            member.end()

    def consumers(self) -> dict[str, int]:
        """The names in the group, with what is pending."""
        found = self.client.xinfo_consumers(self.stream, "billing")
        return {one["name"].decode(): one["pending"] for one in found}


Stage.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(params=["valkey", "redis7"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage()
    with ExitStack() as made.stack:
        made.proxies = {}
        made.use(request.getfixturevalue(request.param))
        yield made


def test_entries_of_others_become_json(stage: Stage):
    with stage.source() as member:
        entry = stage.client.xadd(stage.stream, {"id": "7", "sum": "1,50 €", "photo": b"\xff\x00"})
        (got,) = member.fetch(1, stage.seconds)
        photo = {"base64": base64.b64encode(b"\xff\x00").decode()}
        assert got.message.json() == {"id": "7", "sum": "1,50 €", "photo": photo}
        assert (got.message.id, got.message.topic) == (None, stage.stream)
        assert key_of(got.message) == f"position:{stage.stream}/{entry.decode()}"
        member.acknowledge([got.receipt])


@pytest.mark.parametrize("headers", [b"no json", b'{"a": 1}', b"[]"])
def test_an_entry_that_only_looks_like_ours_is_one_of_others(stage: Stage, headers: bytes):
    with stage.source() as member:
        fields = {"id": "7", "topic": "t", "headers": headers, "body": b"b"}
        stage.client.xadd(stage.stream, fields)
        (got,) = member.fetch(1, stage.seconds)
        assert got.message.json()["body"] == "b"


def test_after_a_restart_under_its_name_its_own_messages_come_first(stage: Stage):
    with stage.source(consumer="one", ack_wait="1h") as member:
        (sent,) = stage.send()
        stage.gather(member, sent.id)
        assert stage.consumers()["one"] == 1
        stage.lose(member.source)
    with stage.source(consumer="one", ack_wait="1h") as member:
        stage.send()
        first, _ = stage.gather(member, sent.id).values()
        assert (first.message.id, first.message.deliveries) == (sent.id, 2)


def test_many_own_messages_come_in_parts(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("twicesafe.consumers.sources.redis.PAGE", 3)
    with stage.source(consumer="one", ack_wait="1h") as member:
        ids = [sent.id for sent in stage.send(10)]
        stage.gather(member, *ids)
        stage.lose(member.source)
    with stage.source(consumer="one", ack_wait="1h") as member:
        parts = [[one.message.id for one in member.fetch(4, 0)] for _ in range(4)]
        assert parts == [ids[:4], ids[4:8], ids[8:], []]


def test_a_cancelled_fetch_loses_no_message(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """Redis has sent it, and the task that waited for it is gone."""
    monkeypatch.setattr("twicesafe.consumers.sources.redis.LOOK_EVERY", 3600)
    with stage.source(ack_wait="1h", timeout="30") as member:
        member.fetch(1, 0)
        (sent,) = stage.send()
        stage.proxies[id(member.source)].arm(Fault("reply", 0, "silence"))
        asking = asyncio.run_coroutine_threadsafe(member.source.fetch(10, 20), member.loop)
        until(lambda: member.source._consumer in stage.consumers())
        until(lambda: stage.consumers()[member.source._consumer] == 1)
        asking.cancel()
        (again,) = member.fetch(10, 0)
        assert (again.message.id, again.message.deliveries) == (sent.id, 2)


def test_a_group_that_is_gone_starts_again_from_the_beginning(stage: Stage):
    with stage.source(**{"from": "$"}) as member:
        member.fetch(1, 0)
        (before,) = stage.send()
        (got,) = stage.gather(member, before.id).values()
        stage.client.delete(stage.stream)
        (sent,) = stage.send()  # there is no group that it would be new for
        with pytest.raises(BrokerUnavailableError, match="NOGROUP"):
            member.acknowledge([got.receipt])
        member.acknowledge([got.receipt])
        found = stage.gather(member, sent.id)
        stage.settle(member, list(found.values()), [sent.id])


@pytest.mark.parametrize("start, expected", [("0", 2), ("$", 1)])
def test_where_a_new_group_starts(stage: Stage, start: str, expected: int):
    old = stage.send()
    with stage.source(**{"from": start}) as member:
        member.check(SETTINGS)  # connects
        new = stage.send()
        found = stage.gather(member, new[0].id)
        assert len(found) == expected
        assert (old[0].id in found) == (start == "0")


def test_entries_that_were_deleted_while_pending_are_acknowledged_with_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
):
    with stage.source() as lost, stage.source() as other:
        ids = [sent.id for sent in stage.send(3)]
        got = stage.gather(lost, *ids)
        stage.client.xdel(stage.stream, *(got[id_].receipt.entry for id_ in ids[:2]))
        stage.lose(lost.source)
        (left,) = stage.gather(other, ids[2]).values()
        other.acknowledge([left.receipt])
        assert stage.unsettled() == 0
    assert "2 messages of the stream" in caplog.text
    assert "are lost" in caplog.text


def test_own_entries_that_were_deleted_are_acknowledged_too(
    stage: Stage, caplog: pytest.LogCaptureFixture
):
    with stage.source(consumer="one", ack_wait="1h") as member:
        ids = [sent.id for sent in stage.send(2)]
        got = stage.gather(member, *ids)
        stage.client.xdel(stage.stream, got[ids[0]].receipt.entry)
        stage.lose(member.source)
    with stage.source(consumer="one", ack_wait="1h") as member:
        (left,) = stage.gather(member, ids[1]).values()
        member.acknowledge([left.receipt])
        assert stage.client.xpending(stage.stream, "billing")["pending"] == 0
    assert "are lost" in caplog.text


def test_an_extension_counts_no_delivery(stage: Stage):
    with stage.source() as holder, stage.source() as other:
        (sent,) = stage.send()
        (got,) = stage.gather(holder, sent.id).values()
        for _ in range(3):
            holder.extend([got.receipt])
        stage.lose(holder.source)
        (again,) = stage.gather(other, sent.id).values()
        assert again.message.deliveries == 2
        other.acknowledge([again.receipt])


def test_what_is_given_back_need_not_wait_for_the_ack_wait(stage: Stage):
    with stage.source(ack_wait="1h") as giver, stage.source(ack_wait="1h") as other:
        (sent,) = stage.send()
        (got,) = stage.gather(giver, sent.id).values()
        giver.give_back([got.receipt], 0)
        stage.lose(giver.source)
        (again,) = stage.gather(other, sent.id).values()
        assert again.message.deliveries == 2


def test_what_is_given_back_is_there_for_the_next_fetch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Without waiting for the next look: a `drain` right after a `stop` would end before it."""
    monkeypatch.setattr("twicesafe.consumers.sources.redis.LOOK_EVERY", 3600)
    with stage.source(ack_wait="1h") as member:
        (sent,) = stage.send()
        (got,) = stage.gather(member, sent.id).values()
        member.give_back([got.receipt], 0)
        assert [one.message.id for one in member.fetch(1, 0)] == [sent.id]


def test_a_delay_is_kept_however_often_we_look(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("twicesafe.consumers.sources.redis.LOOK_EVERY", 0.01)
    with stage.source(ack_wait="1h") as member:
        (sent,) = stage.send()
        (got,) = stage.gather(member, sent.id).values()
        begun = time.monotonic()
        member.give_back([got.receipt], 0.5)
        stage.gather(member, sent.id)
        assert time.monotonic() - begun >= 0.45


def test_the_receipt_of_an_earlier_delivery_to_the_same_consumer_is_void(stage: Stage):
    with stage.source() as member:
        (sent,) = stage.send()
        (old,) = stage.gather(member, sent.id).values()
        (new,) = stage.gather(member, sent.id).values()
        member.acknowledge([old.receipt])
        assert stage.unsettled() == 1
        member.acknowledge([new.receipt])
        assert stage.unsettled() == 0


def test_consumers_that_are_gone_are_forgotten_unless_they_have_messages(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    with stage.source(consumer="idle") as idle, stage.source(consumer="busy") as busy:
        (first,) = stage.send()
        idle.acknowledge([one.receipt for one in stage.gather(idle, first.id).values()])
        (sent,) = stage.send()
        stage.gather(busy, sent.id)
        stage.lose(idle.source)
        stage.lose(busy.source)
    assert stage.consumers() == {"idle": 0, "busy": 1}
    monkeypatch.setattr("twicesafe.consumers.sources.redis.FORGET_AFTER", 0)
    until(lambda: stage.client.xinfo_consumers(stage.stream, "billing")[0]["idle"] > 0)
    with stage.source(consumer="new", ack_wait="1h") as member:
        (sent,) = stage.send()
        member.acknowledge([one.receipt for one in stage.gather(member, sent.id).values()])
        assert stage.consumers() == {"busy": 1, "new": 0}
    assert stage.consumers() == {"busy": 1}  # it removed itself


def test_a_key_of_another_type_is_an_outage_that_says_why(stage: Stage):
    stage.client.set(stage.stream, "text")
    with stage.source() as member, pytest.raises(BrokerUnavailableError, match="WRONGTYPE"):
        member.fetch(1, 0)


def test_check_says_that_a_delay_is_cut(stage: Stage):
    with stage.source(ack_wait="10s") as member:
        (problem,) = problems(member, replace(SETTINGS, longest_backoff=60))
        assert "cut to ack_wait=10" in problem


def test_check_says_that_redis_may_delete_the_stream(own_server: Any):
    server = own_server("valkey", maxmemory="100mb", **{"maxmemory-policy": "allkeys-lru"})
    source = RedisStreamSource.open(f"{server.url}?stream=s&group=g")
    member = BlockingSource(source)
    try:
        (problem,) = problems(member, SETTINGS)
        assert "allkeys-lru" in problem
    finally:
        member.end()


@pytest.mark.parametrize(
    "query, remedy",
    [
        ("stream=s", "add group="),
        ("group=g", "add stream="),
        ("stream=s&group=g&from=7", r"use 0 .* or \$"),
        ("stream=s&group=g&ack_wait=soon", "is not a duration"),
        ("stream=s&group=g&ack_wait=0", "ack_wait"),
    ],
)
def test_a_url_that_cannot_be_used(query: str, remedy: str):
    with pytest.raises(ConfigurationError, match=remedy):
        RedisStreamSource.open(f"valkey://127.0.0.1:1/0?{query}")


def test_the_password_is_kept_for_dead_letters_and_shown_in_no_error():
    member = BlockingSource(
        RedisStreamSource.open("redis://me:secret@127.0.0.1:1/3?stream=s&group=g")
    )
    try:
        assert member.source.dead_url == "redis://me:secret@127.0.0.1:1/3?stream=s.dead"
        with pytest.raises(BrokerUnavailableError) as raised:
            member.fetch(1, 0)
        assert "secret" not in str(raised.value)
    finally:
        member.end()
