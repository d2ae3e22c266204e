"""A search of a Cluster finds the keys that move to another node while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers.fixtures import launch
from tests.stores.test_redis_search import _is_scan
from twicesafe import AsyncReceiver, Key, Receiver
from twicesafe._engines.redis.servers import slot_of
from twicesafe.errors import StoreUnavailableError

VALUES = [str(number) for number in range(300)]
LAST = 5460
"""The last slot of the first node."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with launch("valkey_cluster") as server:
        yield server


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones: all nodes are read in several."""
    monkeypatch.setattr("twicesafe._engines.redis.record_scan.FIRST", 20)
    monkeypatch.setattr("twicesafe._engines.redis.record_scan.SLICE", 20)


class Move:
    """After the first slice, the last keys of the first node move to the third, which is past their slot by then."""

    def __init__(self, cluster: Any, scope: str) -> None:
        self._here, self._there = (cluster.nodes[number].client() for number in (0, 2))
        self._port = cluster.nodes[2].port
        names = [b"ts:{." + Key(value, scope=(scope,)).id + b"}" for value in VALUES]
        self.slot = max(slot for slot in map(slot_of, names) if slot <= LAST)
        self._names = [name for name in names if slot_of(name) == self.slot]
        self.is_over = self.is_finished = False

    def begin(self) -> None:
        ids = [client.execute_command("CLUSTER MYID") for client in (self._here, self._there)]
        self._there.execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", ids[0])
        self._here.execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", ids[1])

    def move(self) -> None:
        self.is_over = True
        where = ("127.0.0.1", self._port, "", 0, 60_000, "KEYS")
        self._here.execute_command("MIGRATE", *where, *self._names)

    def end(self) -> None:
        if not self.is_finished:
            target = self._there.execute_command("CLUSTER MYID")
            for client in (self._there, self._here):
                client.execute_command("CLUSTER SETSLOT", self.slot, "NODE", target)
        self.is_finished = True


@contextmanager
def moving(cluster: Any, scope: str, kind: str) -> Iterator[Any]:
    """A tap that moves them. `kind`: the slot begins to move, or arrives, or both, during the search."""
    move = Move(cluster, scope)
    if kind == "arrives":
        move.begin()

    def tap(when: str, calls: list[Any]) -> None:
        if when == "after" and not move.is_over and any(map(_is_scan, calls)):
            if kind != "arrives":
                move.begin()
            move.move()
            if kind != "begins":
                move.end()

    try:
        yield tap
        assert move.is_over
    finally:
        for node in cluster.nodes:
            with node.client() as client:
                client.flushall()
        move.end()


@pytest.mark.parametrize("kind", ["begins", "arrives", "both"])
def test_a_page_has_the_keys_that_move_to_another_node_meanwhile(cluster: Any, kind: str):
    with Receiver.open(cluster.url, scope=(kind,)) as receiver:
        receiver.process_many(VALUES, lambda m: m, key=lambda m: m)
        with moving(cluster, kind, kind) as receiver.store._tap:  # type: ignore[attr-defined]
            found, _ = receiver.records_page(scope=(kind,), limit=500)
    assert sorted((one.value for one in found), key=int) == VALUES


def test_so_has_that_of_the_async_store(cluster: Any):
    async def found(kind: str) -> list[str]:
        async with AsyncReceiver.open(cluster.url, scope=(kind,)) as receiver:
            await receiver.process_many(VALUES, lambda m: m, key=lambda m: m)
            with moving(cluster, kind, "both") as receiver.store._tap:  # type: ignore[attr-defined]
                found, _ = await receiver.records_page(scope=(kind,), limit=500)
                return [one.value for one in found]

    assert sorted(asyncio.run(found("async")), key=int) == VALUES


def test_a_slot_with_very_many_keys_is_an_error(cluster: Any, monkeypatch: pytest.MonkeyPatch):
    """The node would be busy with the list of its keys for long."""
    monkeypatch.setattr("twicesafe._engines.redis.moved_slots.MOST", 1)
    with Receiver.open(cluster.url, scope=("full",)) as receiver:
        receiver.process_many(VALUES, lambda m: m, key=lambda m: m)
        with (
            moving(cluster, "full", "both") as receiver.store._tap,  # type: ignore[attr-defined]
            pytest.raises(StoreUnavailableError, match=r"slot \d+ moves .* search again"),
        ):
            receiver.records_page()


@pytest.mark.parametrize("refused", ["nodes", "getkeysinslot"])
def test_a_user_who_may_not_ask_for_slots_may_search(cluster: Any, refused: str):
    for node in cluster.nodes:
        with node.client() as admin:
            admin.acl_setuser(
                refused,
                enabled=True,
                passwords=["+pw"],
                keys=["*"],
                channels=["*"],
                commands=["+@all", f"-cluster|{refused}"],
            )
    url = cluster.url.replace("://", f"://{refused}:pw@")
    with Receiver.open(url, scope=(refused,)) as receiver:
        receiver.process_many(VALUES, lambda m: m, key=lambda m: m)
        with moving(cluster, refused, "both") as receiver.store._tap:  # type: ignore[attr-defined]
            found, _ = receiver.records_page(scope=(refused,), limit=500)
    assert len(found) == 299  # docs/how-to/redis.md says so
