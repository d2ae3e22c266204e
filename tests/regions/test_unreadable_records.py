"""A record that cannot be read, or that the target refuses, stops no follower, and its key is never taken for new."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.regions.worlds import Places, World
from twicesafe import HeldError, Key, Receiver
from twicesafe._core.protocol import Adopt
from twicesafe.errors import StoreError
from twicesafe.regions import AsyncFollower, Follower
from twicesafe.stores.memory import MemoryStore


def damage(url: str, key: Key | str, state: int = 99) -> None:
    id_ = (key if isinstance(key, Key) else Key(key)).id[:16]
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        changed = connection.execute(
            "UPDATE twicesafe_keys SET state = ? WHERE id = ?", (state, id_)
        )
        assert changed.rowcount == 1
    connection.close()


@pytest.fixture
def source(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/source.db"
    with Receiver.open(url) as receiver:
        for number in range(3):
            receiver.process(f"k{number}", lambda: "v")
    return url


def test_a_follower_goes_on_and_names_the_record_in_every_pass(source: str, places: Places):
    damage(source, "k1")
    with Follower.open(source, target := places.url("memory"), name="eu") as follower:
        for copied in (2, 2):
            report = follower.once()
            assert (report.copied, report.unreadable_count) == (copied, 1)
            assert report.unreadable == (Key("k1").id[:16].hex(),)
            assert report.until > 0
        assert follower.lag() is not None
        with Receiver.open(target) as receiver:
            assert receiver.process("k2", lambda: "again").replayed
        damage(source, "k1", state=1)  # completed, as it was
        report = follower.once()
        assert (report.copied, report.unreadable) == (3, ())
        with Receiver.open(target) as receiver:
            assert receiver.process("k1", lambda: "again").replayed


def test_a_record_is_tried_again_long_after_it_changed(source: str, places: Places):
    """Later passes read only what changed of late."""
    damage(source, "k1")
    with Follower.open(source, places.url("memory"), name="eu", overlap=0) as follower:
        follower.once()
        with Receiver.open(source) as receiver:
            receiver.process("later", lambda: "v")
        assert follower.once().unreadable_count == 1
        damage(source, "k1", state=1)
        assert follower.once().copied >= 1
        with Receiver(follower._stores["target"]) as receiver:
            assert receiver.record("k1") is not None


def test_an_async_follower_goes_on(source: str, places: Places):
    damage(source, "k1")

    async def passes() -> list[tuple[int, int]]:
        async with AsyncFollower.open(source, places.url("memory"), name="eu") as follower:
            found = [await follower.once() for _ in range(2)]
            assert await follower.lag() is not None
            return [(report.copied, report.unreadable_count) for report in found]

    assert asyncio.run(passes()) == [(2, 1), (2, 1)]


def test_a_record_that_the_target_refuses_does_not_stop_the_progress(
    source: str, places: Places, monkeypatch: pytest.MonkeyPatch
):
    adopt = MemoryStore.adopt

    def refusing(self: MemoryStore, ask: Adopt) -> object:
        if ask.row.value == "k1":
            raise StoreError("too large")
        return adopt(self, ask)

    with Follower.open(source, places.url("memory"), name="eu", overlap=0) as follower:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "adopt", refusing)
            for _ in range(2):
                assert follower.once().failed_count == 1
                assert follower.lag() is not None
        report = follower.once()
        assert (report.failed_count, report.copied >= 1) == (0, True)


@pytest.fixture
def world(places: Places) -> World:
    return World(places, ("sqlite", "memory"))


def unreadable_in_eu(world: World) -> Key:
    key, other = Key.random(), Key.random()
    world.deliver("eu", key)
    world.deliver("eu", other)
    damage(world.regions._stores["eu"].url, key)
    assert world.regions.follower("eu", "us").once().copied == 1
    [status] = world.regions.status()
    assert status.uncopied == {"us": 1}
    return key


def test_after_a_failover_its_key_is_held_also_when_it_is_settled(world: World):
    key = unreadable_in_eu(world)
    world.regions.fail_over("eu", to="us")
    with pytest.raises(HeldError):
        world.deliver("us", key)
    report = world.regions.settle("eu")
    assert key.id.hex().startswith(report.unreadable)
    with pytest.raises(HeldError):
        world.deliver("us", key)
    assert world.effects[key.value] == 1


def test_settled_before_it_is_delivered_its_key_is_in_doubt_all_the_same(world: World):
    key = unreadable_in_eu(world)
    world.regions.fail_over("eu", to="us")
    world.regions.settle("eu")
    [status] = world.regions.status()
    assert (status.epoch.doubt, len(status.epoch.uncopied)) == (False, 1)
    with pytest.raises(HeldError):
        world.deliver("us", key)
    new = Key.random()
    assert world.deliver("us", new).value == f"done {new.value}"


def test_a_switch_leaves_its_key_in_doubt(world: World):
    key = unreadable_in_eu(world)
    world.regions.switch("eu", to="us")
    with pytest.raises(HeldError):
        world.deliver("us", key)
    assert [record.key for record in world.regions.in_doubt("us")] == [key]


def test_run_runs_it_and_counts_it(places: Places):
    world = World(places, ("sqlite", "memory"), unknown="run")
    key = unreadable_in_eu(world)
    world.regions.switch("eu", to="us")
    assert world.deliver("us", key).value == f"done {key.value}"
    assert [record.key for record in world.regions.in_doubt("us")] == [key]
