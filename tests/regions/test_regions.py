"""The rule of regions: one region serves a key, and a takeover doubts what it cannot know."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.regions.worlds import Places, World
from twicesafe import HeldError, Key, NotHomeError, Policy, Receiver, ResultUnavailableError
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.encryption import KeyRing
from twicesafe.errors import (
    ConfigurationError,
    StoreUnavailableError,
    UnsupportedByStoreError,
    UsageError,
)
from twicesafe.regions import AsyncRegions, Follower, Regions, _late_stores, sent_at_of_uuid7
from twicesafe.stores import ClaimRequest, Read

KINDS = (("memory", "memory"), ("sqlite", "sqlite"))
later = datetime.now(UTC) + timedelta(days=1)
"""Of messages that are sent after every cut."""


def sent_later(key: Key) -> datetime | None:
    return later if "later" in key.value else None


@pytest.fixture
def world(places: Places) -> World:
    return World(places, sent_at=sent_later)


def failed_over(world: World) -> None:
    world.regions.follower("eu", "us").once()
    world.regions.fail_over("eu", to="us")


def test_only_the_home_region_starts_work(world: World):
    assert world.deliver("eu", "a").value == "done a"
    with pytest.raises(
        NotHomeError, match="region 'eu' serves the keys of 'eu', and this is 'us'"
    ) as e:
        world.deliver("us", "a")
    assert e.value.retryable
    assert world.effects == {"a": 1}


def test_a_failover_is_refused_if_the_lag_is_unknown_or_too_long(world: World):
    world.deliver("eu", "a")
    with pytest.raises(UsageError, match="lag of 'us' behind 'eu' is unknown"):
        world.regions.fail_over("eu", to="us")
    world.regions.follower("eu", "us").once()
    while not world.regions.follower("eu", "us").lag():
        pass
    with pytest.raises(UsageError, match="behind 'eu', and the most that was allowed is"):
        world.regions.fail_over("eu", to="us", max_lag=0)
    assert world.deliver("eu", "b").value == "done b"
    assert world.regions.status()[0].epoch.number == 1


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_after_a_failover_known_keys_replay_new_ones_run_and_the_rest_is_held(
    places: Places, kinds: Any
):
    world = World(places, kinds, sent_at=sent_later)
    world.deliver("eu", "copied")
    world.regions.follower("eu", "us").once()
    world.deliver("eu", "in the gap")
    epoch = world.regions.fail_over("eu", to="us")
    assert (epoch.number, epoch.region, epoch.source, epoch.doubt) == (2, "us", "eu", True)
    assert world.deliver("us", "copied").replayed
    assert world.deliver("us", "later").value == "done later"
    for _ in range(2):
        with pytest.raises(HeldError):
            world.deliver("us", "in the gap")
    assert world.effects == {"copied": 1, "in the gap": 1, "later": 1}
    [status] = world.regions.status()
    assert status.in_doubt == 1
    [record] = world.regions.in_doubt("us")
    assert (record.value, record.state, record.error) == (
        "in the gap",
        "held",
        "RegionDoubt 2: held",
    )
    assert record.fence > epoch.base


def test_the_old_region_starts_nothing_after_its_lease(world: World):
    receiver = world.regions.receiver("eu")
    receiver.process("a", world.handle, "a")
    failed_over(world)
    region = receiver.store._region
    region._known.clear()  # its lease is over
    with pytest.raises(NotHomeError, match="region 'us' serves"):
        receiver.process("b", world.handle, "b")
    assert world.effects == {"a": 1}


def test_a_claim_that_is_won_after_the_lease_is_given_back(world: World, monkeypatch):
    """The worker stood still between its look at the register and its claim."""
    receiver = world.regions.receiver("eu")
    store, region = receiver.store._store, receiver.store._region
    perform = store.perform

    def slowly(request: Any) -> Any:
        if isinstance(request, ClaimRequest) and request.key.value == "a":
            failed_over(world)
            region._known.clear()
        return perform(request)

    monkeypatch.setattr(store, "perform", slowly)
    with pytest.raises(NotHomeError):
        receiver.process("a", world.handle, "a")
    assert perform(Read(Key("a").id)).state == "released"
    assert not world.effects


def test_a_register_that_does_not_answer_stops_new_work(world: World, monkeypatch):
    from twicesafe import StoreUnavailableError

    receiver = world.regions.receiver("eu")
    receiver.process("a", world.handle, "a")

    def unavailable(_: Any) -> Any:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(world.regions._register, "perform", unavailable)
    receiver.store._region._known.clear()
    with pytest.raises(NotHomeError, match="cannot ask the register"):
        receiver.process("b", world.handle, "b")
    assert world.effects == {"a": 1}


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_run_counts_what_it_runs_in_doubt(places: Places, kinds: Any):
    world = World(places, kinds, unknown="run", sent_at=sent_later)
    world.regions.follower("eu", "us").once()
    world.deliver("eu", "gap")
    epoch = world.regions.fail_over("eu", to="us")
    outcome = world.deliver("us", "gap")
    assert not outcome.replayed
    assert outcome.fence > epoch.base
    assert world.deliver("us", "gap").replayed
    [record] = world.regions.in_doubt("us")
    assert (record.value, record.state, record.error) == ("gap", "completed", "RegionDoubt 2: ran")
    report = world.regions.settle("eu")
    assert (report.twice, report.twice_count, report.learned) == ((Key("gap").id[:4].hex(),), 1, 0)


def test_a_failed_attempt_in_doubt_stays_marked(places: Places):
    world = World(places, unknown="run")
    failed_over(world)
    receiver = world.regions.receiver("us")
    with pytest.raises(ZeroDivisionError):
        receiver.process("gap", lambda: 1 / 0)
    [record] = world.regions.in_doubt("us")
    assert record.error == "RegionDoubt 2: ran, ZeroDivisionError"
    receiver.release("gap", by="ann", why="now")
    receiver.process("gap", world.handle, "gap")
    [record] = world.regions.in_doubt("us")
    assert (record.state, record.error) == ("completed", "RegionDoubt 2: ran")


def test_a_probe_says_what_happened(places: Places):
    said: dict[str, Any] = {"done": True, "not done": False, "who knows": None}

    def probe(key: Key) -> bool | None:
        return said[key.value]

    world = World(places, unknown=probe)
    failed_over(world)
    with pytest.raises(ResultUnavailableError):
        world.deliver("us", "done")
    assert not world.deliver("us", "not done").replayed
    for key in ("who knows", "an error"):
        with pytest.raises(HeldError):
            world.deliver("us", key)
    assert world.effects == {"not done": 1}
    assert world.regions.status()[0].in_doubt == 4


def test_what_a_probe_said_was_done_is_kept_as_long_as_an_answer(places: Places):
    """Else a late duplicate would run, once the doubt has ended and the probe is not asked any more."""
    world = World(places, unknown=lambda key: True)
    failed_over(world)
    receiver = world.regions.receiver("us", policy=Policy(retention="30d"))
    with pytest.raises(ResultUnavailableError):
        receiver.process("done", world.handle, "done")
    record = receiver.record("done")
    assert record is not None
    assert record.expires_at == record.changed_at + timedelta(days=30)


def test_an_operator_decides_about_a_held_key(world: World):
    failed_over(world)
    for key in ("x", "y"):
        with pytest.raises(HeldError):
            world.deliver("us", key)
    receiver = world.regions.receiver("us")
    receiver.release("x", by="ann", why="eu never saw it")
    receiver.resolve("y", "by hand", by="ann", why="eu did it")
    assert not world.deliver("us", "x").replayed
    assert world.deliver("us", "y").value == "by hand"


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_settling_learns_the_answers_of_the_old_region_and_ends_the_doubt(
    places: Places, kinds: Any
):
    world = World(places, kinds)
    world.regions.follower("eu", "us").once()
    world.deliver("eu", "held there, done here")
    world.deliver("eu", "never asked")
    world.regions.fail_over("eu", to="us")
    with pytest.raises(HeldError):
        world.deliver("us", "held there, done here")
    with pytest.raises(UsageError, match="still in doubt"):
        world.regions.switch("eu", to="eu")
    world.regions.follower("eu", "us").once()  # a follower that was never stopped
    world.regions.follower("us", "eu").once()  # and one for the way back
    report = world.regions.settle("eu")
    assert (report.learned, report.twice) == (1, ())
    for key in ("held there, done here", "never asked"):
        assert world.deliver("us", key).replayed
    assert not world.deliver("us", "new").replayed
    assert world.regions.settle("eu").examined == 0  # nothing to do any more
    assert set(world.effects.values()) == {1}


def test_records_that_are_lost_end_the_doubt_by_an_operators_word(world: World):
    failed_over(world)
    world.regions.settle("eu", lost=True)
    assert not world.deliver("us", "unknown").replayed


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_a_switch_moves_all_records_and_leaves_no_doubt(places: Places, kinds: Any):
    world = World(places, kinds)
    first = world.deliver("eu", "a")
    epoch = world.regions.switch("eu", to="us")
    assert (epoch.number, epoch.doubt) == (2, False)
    assert world.deliver("us", "a").replayed
    assert world.deliver("us", "b").fence > epoch.base > first.fence
    back = world.regions.switch("eu", to="eu")
    assert world.deliver("eu", "b").replayed
    assert world.deliver("eu", "c").fence > back.base > epoch.base
    assert world.effects == {"a": 1, "b": 1, "c": 1}
    assert world.regions.status()[0].in_doubt == 0


def test_a_switch_that_cannot_copy_leaves_everything_as_it_was(world: World, monkeypatch):
    from twicesafe import StoreUnavailableError

    store = world.regions._stores["us"]
    perform, calls = store.perform_many, []

    def failing(requests: Any) -> Any:
        calls.append(requests)
        if len(calls) > 1:
            raise StoreUnavailableError("no answer")
        return perform(requests)

    world.deliver("eu", "a")
    monkeypatch.setattr(store, "perform_many", failing)
    with pytest.raises(StoreUnavailableError):
        world.regions.switch("eu", to="us")
    monkeypatch.undo()
    assert world.deliver("eu", "b").value == "done b"


@pytest.mark.parametrize("failing", ["us", "register", "reply"])
def test_a_failover_that_an_error_leaves_halfway_says_that_no_region_serves(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: str
):
    """A replica answers reads and refuses writes: it is found out when the epoch is closed."""
    store = world.regions._stores["us"] if failing == "us" else world.regions._register
    perform, writes = store.perform, []

    def refusing(request: Any) -> Any:
        if not isinstance(request, Read):
            writes.append(request)
            if failing == "us" or len(writes) > 1:
                raise StoreUnavailableError("us is a replica; nothing was written")
            if failing == "reply":
                perform(request)
                raise StoreUnavailableError("the connection was cut")
        return perform(request)

    world.deliver("eu", "a")
    world.regions.follower("eu", "us").once()
    monkeypatch.setattr(store, "perform", refusing)
    with pytest.raises(StoreUnavailableError) as told:
        world.regions.fail_over("eu", to="us")
    monkeypatch.undo()
    assert "the keys of 'eu' may have no region now" in str(told.value)
    assert "regions.switch('eu', to='eu')" in str(told.value)
    with pytest.raises(NotHomeError, match="are moving"):
        world.deliver("us", "a")
    assert world.regions.switch("eu", to="eu").number == 1
    assert world.deliver("eu", "a").replayed


def test_a_move_that_died_halfway_can_be_taken_back_or_repeated(world: World):
    from twicesafe._core.regions import epochs
    from twicesafe.regions._performing import perform

    def close() -> None:
        key = epochs.key_of("default", "eu")
        flow = epochs.look(key)
        places = {epochs.REGISTER: world.regions._register}
        _, document = perform(flow, places)
        perform(epochs.change(key, document, 1, closed=True), places)

    close()
    with pytest.raises(NotHomeError, match="are moving"):
        world.deliver("eu", "a")
    assert world.regions.switch("eu", to="eu").number == 1
    world.deliver("eu", "a")
    close()
    failed_over(world)
    assert world.deliver("us", "a").replayed


def test_work_that_the_old_region_still_does_is_not_started_beside_it(world: World):
    receiver = world.regions.receiver("eu")
    with receiver.claim("slow") as claim:
        assert claim.is_new
        world.regions.switch("eu", to="us")
        store = world.regions._stores["us"]
        row = store.perform(Read(Key("slow").id))
        store._rows[row.id].lease_until = 1  # its lease ends in us, and it still runs in eu
        with pytest.raises(HeldError):
            world.deliver("us", "slow")
        claim.complete("slow but done")
    assert not world.effects


def test_each_region_maintains_its_own_store(places: Places):
    """A round is no work of a home: not refused in the standby, not in doubt after a failover, and not copied, or the
    other region would take it for its own."""
    world = World(places)
    eu, us = (world.regions.receiver(region) for region in ("eu", "us"))
    for receiver in (eu, us):
        upkeep = receiver.maintain(every=86400)
        assert upkeep.round()
        upkeep.stop()
    assert world.regions.follower("eu", "us").once().examined == 0
    world.regions.fail_over("eu", to="us")
    upkeep = us.maintain(every=40000)
    assert upkeep.round()
    upkeep.stop()
    assert world.regions.in_doubt("us") == []


@pytest.mark.parametrize("act", ["archive", "reencrypt"])
def test_what_regions_keep_for_themselves_is_no_answer(places: Places, act: str):
    """An archive would erase how far the follower came, and a new key ring would encrypt it, so that no failover is
    possible; in the register, no region would start work."""
    world = World(places)
    regions = world.regions
    world.deliver("eu", "a")
    regions.follower("eu", "us").once()
    ring = KeyRing({"new": bytes(32)}, plaintext="read")
    for store in (*regions._stores.values(), regions._register):
        receiver = Receiver(store, policy=Policy(encryption=ring))
        if act == "archive":
            receiver.archive(str(places.folder / "archive"), older_than=0)
        else:
            receiver.reencrypt()
    regions.follower("eu", "us").once()
    assert regions.fail_over("eu", to="us").region == "us"
    regions.settle("eu")
    assert world.deliver("us", "b").value == "done b"


def test_each_home_moves_by_itself(places: Places):
    world = World(places, home=lambda key: key.value[:2])
    world.deliver("eu", "eu-1")
    world.deliver("us", "us-1")
    world.regions.switch("eu", to="us")
    assert world.deliver("us", "eu-1").replayed
    assert world.deliver("us", "us-1").replayed
    assert [(s.home, s.epoch.region) for s in world.regions.status()] == [
        ("eu", "us"),
        ("us", "us"),
    ]
    with pytest.raises(ConfigurationError, match="there is no region 'xx'"):
        world.deliver("us", "xx-1")


def test_settling_one_home_leaves_the_keys_of_another_alone(places: Places):
    """The old region has copies of them: an older answer of a key that was released, and runs again."""
    world = World(places, home=lambda key: key.value[:2])
    world.deliver("us", "us-running")
    world.deliver("us", "us-done")
    world.regions.follower("us", "eu").once()
    world.regions.follower("eu", "us").once()
    world.regions.fail_over("eu", to="us")
    us = world.regions.receiver("us")
    for key in ("us-running", "us-done"):
        us.release(key, by="ann", why="again", force=True)
    assert us.process("us-done", lambda: "done again").value == "done again"
    with us.claim("us-running") as claim:
        found = world.regions.settle("eu")
        claim.complete("run again")
    assert (found.learned, found.twice) == (0, ())
    assert us.process("us-running", str).value == "run again"
    assert us.process("us-done", str).value == "done again"


class Lost:
    """Regions whose store ``eu`` does not answer, for processes that start meanwhile."""

    def __init__(self, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stores = {"eu": places.url("sqlite"), "us": places.url("sqlite")}
        self._settings: Any = {"register": places.url("sqlite"), "lease": 0.05, "skew": 0.02}
        self._lost = False
        open_store = _late_stores.open_store

        def opened(url: str) -> Any:
            if self._lost and url == self._stores["eu"]:
                raise StoreUnavailableError("eu did not answer")
            return open_store(url)

        monkeypatch.setattr(_late_stores, "open_store", opened)
        with self.regions() as regions:
            regions.create()
            regions.receiver("eu").process("a", lambda: "done")
            regions.follower("eu", "us").once()
        self._lost = True

    def regions(self) -> Regions:
        return Regions.open(self._stores, **self._settings)

    def is_back(self) -> None:
        self._lost = False


def test_a_process_that_starts_while_a_region_is_lost_fails_over_and_works(
    places: Places, monkeypatch: pytest.MonkeyPatch
):
    lost = Lost(places, monkeypatch)
    with lost.regions() as regions:
        assert regions.fail_over("eu", to="us").region == "us"
        assert regions.receiver("us").process("a", str).value == "done"
        assert regions.status()[0].lags == {"eu": None}
        with pytest.raises(StoreUnavailableError):
            regions.receiver("eu")
        lost.is_back()
        assert regions.settle("eu").until
        assert regions.switch("eu", to="eu").region == "eu"


def test_a_region_that_is_lost_for_good_is_not_needed_to_end_the_doubt(
    places: Places, monkeypatch: pytest.MonkeyPatch
):
    with Lost(places, monkeypatch).regions() as regions:
        assert regions.fail_over("eu", to="us").doubt
        regions.settle("eu", lost=True)
        assert not regions.status()[0].epoch.doubt


def test_the_async_status_does_not_need_the_region_that_is_lost(
    places: Places, monkeypatch: pytest.MonkeyPatch
):
    async def lost(request: Any) -> Any:
        raise StoreUnavailableError("eu did not answer")

    async def run() -> None:
        stores = {"eu": places.url("memory"), "us": places.url("memory")}
        settings: Any = {"register": places.url("memory"), "lease": 0.05, "skew": 0.02}
        async with AsyncRegions.open(stores, **settings) as regions:
            await regions.create()
            await regions.follower("eu", "us").once()
            await regions.fail_over("eu", to="us")
            monkeypatch.setattr(regions._stores["eu"], "perform", lost)
            [status] = await regions.status()
            assert status.lags == {"eu": None}

    asyncio.run(run())


def test_a_new_register_does_not_start_by_itself(places: Places):
    stores = {"eu": places.url("memory"), "us": places.url("memory")}
    with Regions.open(stores, register=places.url("memory")) as regions:
        with pytest.raises(NotHomeError, match="no epoch for the keys of 'eu'"):
            regions.receiver("eu").process("a", lambda: 1)
        with pytest.raises(ConfigurationError, match="no epoch"):
            regions.status()
        assert [epoch.region for epoch in regions.create()] == ["eu"]
        assert regions.create()[0].number == 1
        assert regions.receiver("eu").process("a", lambda: 1).value == 1


def test_wrong_settings_are_refused(places: Places):
    one, other, register = (places.url("memory") for _ in range(3))
    for stores, settings, words in (
        ({"eu": one}, {}, "two regions"),
        ({"eu": one, "us": other}, {"unknown": "maybe"}, "'hold', 'run' or a function"),
        ({"eu": one, "us": other}, {"home": "asia"}, "no region 'asia'"),
        ({"eu": one, "us": other}, {"lease": 0}, "more than 0"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            Regions.open(stores, register=register, **settings)
    with pytest.raises(UnsupportedByStoreError, match="region 'us' takes no copies"):
        Regions.open({"eu": one, "us": places.url("etcd")}, register=register)


def test_transactions_and_durable_runs_are_not_offered(world: World):
    receiver = world.regions.receiver("eu")
    assert not receiver.store.capabilities.transactions

    def run(steps: Any, order: str) -> None: ...

    with pytest.raises(UnsupportedByStoreError):
        receiver.durable(key="order")(run)


def test_the_time_of_a_uuid7_is_the_time_of_its_message():
    before = datetime.now(UTC) - timedelta(seconds=1)
    found = sent_at_of_uuid7(Key.random())
    assert found is not None
    assert before < found < before + timedelta(seconds=30)
    assert sent_at_of_uuid7(Key("order-1")) is None
    assert sent_at_of_uuid7(Key("6ba7b810-9dad-11d1-80b4-00c04fd430c8")) is None
    assert sent_at_of_uuid7(Key("ffffffff-ffff-7fff-bfff-ffffffffffff")) is None  # after 9999


def test_a_batch_is_claimed_one_by_one(world: World):
    world.deliver("eu", "a")
    failed_over(world)
    keys = ["a", "gap", "later"]
    receiver = world.regions.receiver("us")
    found = receiver.process_many(keys, world.handle, key=lambda key: key)
    assert [type(getattr(each, "error", each)).__name__ for each in found] == [
        *("Outcome", "HeldError", "Outcome")
    ]
    assert world.effects == {"a": 1, "later": 1}


def test_the_async_regions_keep_the_same_rule(places: Places):
    async def main() -> None:
        stores = {"eu": places.url("sqlite"), "us": places.url("memory")}
        settings: dict[str, Any] = {"lease": 0.05, "skew": 0.02, "sent_at": sent_later}

        async def probe(key: Key) -> bool | None:
            return True if key.value == "done" else None

        async with AsyncRegions.open(
            stores, register=places.url("memory"), unknown=probe, **settings
        ) as regions:
            await regions.create()
            eu, us = regions.receiver("eu"), regions.receiver("us")

            async def work(text: str) -> str:
                return text

            assert (await eu.process("a", work, "a")).value == "a"
            with pytest.raises(NotHomeError):
                await us.process("a", work, "a")
            await regions.follower("eu", "us").once()
            await eu.process("gap", work, "gap")
            await regions.fail_over("eu", to="us")
            assert (await us.process("a", work, "a")).replayed
            with pytest.raises(HeldError):
                await us.process("gap", work, "again")
            with pytest.raises(ResultUnavailableError):
                await us.process("done", work, "again")
            many = await us.process_many(["later 1", "gap"], work, key=lambda key: key)
            assert many[0].value == "later 1"
            assert [each.value for each in await regions.in_doubt("us")] != []
            assert (await regions.settle("eu")).learned == 1
            assert (await us.process("gap", work, "again")).value == "gap"
            assert (await regions.switch("eu", to="eu")).number == 3
            [status] = await regions.status()
            assert status.epoch.region == "eu"
            assert (await eu.process("later 1", work, "again")).replayed

    asyncio.run(main())


def test_an_epoch_that_cannot_be_read_stops_all_work(world: World):
    from twicesafe._core.regions import epochs
    from twicesafe.stores import Rewrite, State

    register, key = world.regions._register, epochs.key_of("default", "eu")
    row = register.perform(Read(key.id))
    register.perform(Rewrite(key.id, State.COMPLETED, row.result, b"{"))
    with pytest.raises(NotHomeError, match="cannot be read"):
        world.deliver("eu", "a")


@pytest.mark.parametrize("name", ["lease", "skew", "overlap", "max_lag"])
def test_no_setting_is_negative(places: Places, name: str):
    """With a negative overlap a follower would skip records; with a negative skew the cut would be early."""
    stores = {"eu": places.url("memory"), "us": places.url("memory")}
    with pytest.raises(ConfigurationError, match=name):
        Regions.open(stores, register=places.url("memory"), **{name: -1})


@pytest.mark.parametrize("wrong", ["setting", "register"])
def test_what_was_opened_is_closed_if_the_rest_is_wrong(
    places: Places, monkeypatch: pytest.MonkeyPatch, wrong: str
):
    closed: list[str] = []
    close = SqliteStore.close

    def closing(store: SqliteStore) -> None:
        closed.append(store.url)
        close(store)

    monkeypatch.setattr(SqliteStore, "close", closing)
    stores = {"eu": places.url("sqlite"), "us": places.url("sqlite")}
    register = places.url("sqlite") if wrong == "setting" else "no-such://register"
    with pytest.raises(ConfigurationError):
        Regions.open(stores, register=register, lease=0 if wrong == "setting" else 1)
    assert len(closed) == (3 if wrong == "setting" else 2)


def test_stores_of_a_follower_that_is_refused_are_closed(
    places: Places, monkeypatch: pytest.MonkeyPatch
):
    closed: list[str] = []
    monkeypatch.setattr(SqliteStore, "close", lambda store: closed.append(store.url))
    with pytest.raises(ConfigurationError):
        Follower.open(places.url("sqlite"), places.url("sqlite"), overlap=-1)
    assert len(closed) == 2


@pytest.mark.parametrize("act", ["switch", "settle"])
def test_an_operator_that_another_one_overtook_copies_from_no_wrong_region(
    places: Places, monkeypatch: pytest.MonkeyPatch, act: str
):
    """The store to copy from was chosen by what the register said, and another operator moved the keys."""
    world = World(places)
    regions, key = world.regions, Key.random()
    regions.follower("eu", "us").once()
    seen = regions._current("eu")
    if act == "settle":
        regions.fail_over("eu", to="us")
        seen = replace(regions._current("eu"), source="us")
    else:
        regions.switch("eu", to="us")
        world.deliver("us", key)
    monkeypatch.setattr(regions, "_current", lambda home: seen)
    with pytest.raises(UsageError, match="moved by another operator"):
        regions.switch("eu", to="eu") if act == "switch" else regions.settle("eu")
    [status] = regions.status()
    assert (status.epoch.region, status.epoch.number) == ("us", 2)
