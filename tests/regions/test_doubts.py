"""What stays in doubt, and stays counted: copies, lost decisions, takeovers, lost reports, older answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.regions.worlds import Places, World
from twicesafe import HeldError, Key, LeaseLostError, NotHomeError
from twicesafe._core.regions import claiming
from twicesafe._core.regions.epochs import REGISTER, Epoch, keep_document, key_of
from twicesafe._core.regions.pausing import DOCUMENT, homes_of, in_doubt, pause, serve
from twicesafe._values.keys import new_owner
from twicesafe.errors import CorruptRecordError, StoreUnavailableError
from twicesafe.regions import AsyncRegions
from twicesafe.regions._performing import perform
from twicesafe.stores import Ack, Adopt, ClaimRequest, Forget, Read

HERE = "here"


@pytest.fixture
def world(places: Places) -> World:
    return World(places)


@pytest.fixture
def running(places: Places) -> World:
    return World(places, unknown="run")


def failed_over(world: World) -> None:
    world.regions.follower("eu", "us").once()
    world.regions.fail_over("eu", to="us")


def row_of(world: World, region: str, key: str) -> Any:
    return world.regions._stores[region].perform(Read(Key(key).id))


def lease_ends(world: World, region: str, key: str) -> None:
    world.regions._stores[region]._rows[Key(key).id].lease_until = 1


class Claim:
    """A claim in a region, whose replies can be lost."""

    def __init__(self, world: World, region: str, key: str) -> None:
        self.region = world.regions._worker(region)
        self.ask = ClaimRequest(Key(key), new_owner(), 30_000, 100)
        self._stores = {HERE: world.regions._stores[region], REGISTER: world.regions._register}

    def make(self, after: Callable[[], None] | None = None) -> Any:
        """`after`: what happens right after the claim has arrived."""
        flow, reply = claiming.claim(self.region, self.ask), None
        while True:
            try:
                command = flow.send(reply)
            except StopIteration as end:
                return end.value
            reply = self._stores[command.place].perform(command.request)
            if after is not None and isinstance(command.request, ClaimRequest):
                after()

    def lose_reply(self) -> None:
        """The claim arrives, and its worker does not learn the answer."""

        def dies() -> None:
            raise StoreUnavailableError("no answer")

        with pytest.raises(StoreUnavailableError):
            self.make(dies)


# --- copies out of a region in doubt ---------------------------------------------------------------


def test_a_region_in_doubt_is_not_copied_so_the_old_worker_keeps_its_key(running: World):
    world = running
    world.regions.follower("eu", "us").once()
    with world.regions.receiver("eu").claim("slow") as old:
        world.regions.fail_over("eu", to="us")
        with world.regions.receiver("us").claim("slow") as new:
            assert new.is_new
            report = world.regions.follower("us", "eu").once()
            assert (report.in_doubt, report.copied) == (("eu",), 0)
            assert world.regions.follower("us", "eu").lag() is None
            new.complete("new")
        old.complete("old")
    assert row_of(world, "eu", "slow").result is not None
    assert world.regions.settle("eu").twice_count == 1
    report = world.regions.follower("us", "eu").once()
    assert (report.in_doubt, report.copied) == ((), 1)


def test_an_epoch_before_the_cut_gets_no_fence_of_the_next(running: World):
    """A failed attempt of the new region, copied back, would give the old one's claim a higher fence."""
    world = running
    failed_over(world)
    with pytest.raises(ZeroDivisionError):
        world.regions.receiver("us").process("x", lambda: 1 / 0)
    world.regions.follower("us", "eu").once()
    assert row_of(world, "eu", "x") is None


def test_giving_up_and_switching_let_copies_go_on(world: World):
    failed_over(world)
    assert world.regions.follower("us", "eu").once().in_doubt
    world.regions.settle("eu", lost=True)
    assert not world.regions.follower("us", "eu").once().in_doubt
    world.regions.switch("eu", to="eu")
    assert not world.regions.follower("eu", "us").once().in_doubt


def test_a_switch_after_a_failover_that_died_halfway_lets_copies_go_on(world: World, monkeypatch):
    world.regions.follower("eu", "us").once()
    register = world.regions._register
    requests = register.perform

    def dies(request: Any) -> Any:
        if getattr(request, "after", b"").find(b'"number":2') > 0:
            raise StoreUnavailableError("no answer")
        return requests(request)

    monkeypatch.setattr(register, "perform", dies)
    with pytest.raises(StoreUnavailableError):
        world.regions.fail_over("eu", to="us")
    monkeypatch.undo()
    assert world.regions.follower("us", "eu").once().in_doubt
    world.regions.switch("eu", to="us")
    assert not world.regions.follower("us", "eu").once().in_doubt


def epoch_of(since: int) -> Epoch:
    return Epoch(number=2, region="us", since=since)


def test_what_is_said_of_a_later_change_stays(places: Places):
    store = World(places, ("sqlite", "sqlite")).regions._stores["us"]
    stores, eu, ap = {HERE: store}, key_of("shop", "eu"), key_of("shop", "ap")

    def homes() -> Any:
        return in_doubt(perform(homes_of(HERE), stores))

    assert homes() == ()
    perform(serve(HERE, eu, epoch_of(2), 1), stores)
    assert homes() == ()
    perform(pause(HERE, eu, 3, 1), stores)
    perform(pause(HERE, ap, 5, 1), stores)
    assert set(homes()) == {"eu", "ap"}
    perform(pause(HERE, eu, 6, 1), stores)
    perform(serve(HERE, eu, epoch_of(4), 1), stores)  # late
    assert set(homes()) == {"eu", "ap"}
    perform(serve(HERE, eu, epoch_of(7), 1), stores)
    perform(pause(HERE, eu, 6, 1), stores)  # late
    assert homes() == ("ap",)


def test_an_unreadable_list_of_doubts_copies_nothing(world: World):
    perform(keep_document(HERE, DOCUMENT, b"{", None, 1), {HERE: world.regions._stores["eu"]})
    with pytest.raises(CorruptRecordError, match="nothing is copied from or to it") as error:
        world.regions.follower("eu", "us").once()
    assert error.value.key == DOCUMENT


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_list_of_doubts_that_was_forgotten_is_written_again(places: Places, kind: str):
    """The advice for a list that is damaged."""
    store = World(places, (kind, kind)).regions._stores["us"]
    asked: list[Any] = []

    def bounded(request: Any) -> Any:
        asked.append(request)
        assert len(asked) < 20
        return store.perform(request)

    stores: Any = {HERE: SimpleNamespace(perform=bounded)}
    eu = key_of("shop", "eu")
    perform(pause(HERE, eu, 2, 1), stores)
    for _ in range(2):
        assert store.perform(Forget(DOCUMENT.id, "ann", "damaged", 3_600_000)) is Ack.OK
        assert perform(homes_of(HERE), stores) == {}
        perform(serve(HERE, eu, epoch_of(2), 1), stores)
        assert list(perform(homes_of(HERE), stores)) == ["shop/eu"]
    perform(pause(HERE, eu, 3, 1), stores)
    assert in_doubt(perform(homes_of(HERE), stores)) == ("eu",)


def test_an_async_follower_waits_for_the_end_of_the_doubt(places: Places):
    async def run() -> None:
        stores = {"eu": places.url("memory"), "us": places.url("memory")}
        settings: Any = {"register": places.url("memory"), "lease": 0.05, "skew": 0.02}
        async with AsyncRegions.open(stores, **settings) as regions:
            await regions.create()
            await regions.follower("eu", "us").once()
            await regions.fail_over("eu", to="us")
            assert (await regions.follower("us", "eu").once()).in_doubt == ("eu",)
            await regions.settle("eu")
            assert (await regions.follower("us", "eu").once()).in_doubt == ()

    asyncio.run(run())


# --- decisions that were lost ----------------------------------------------------------------------


@pytest.mark.parametrize("unknown", ["hold", "run"])
def test_a_key_without_a_decision_stays_in_doubt_after_settling(places: Places, unknown: str):
    world = World(places, unknown=unknown)
    world.regions.follower("eu", "us").once()
    with world.regions.receiver("eu").claim("slow"):
        world.regions.fail_over("eu", to="us")
        claim = Claim(world, "us", "slow")
        claim.lose_reply()
        world.regions.settle("eu")
        assert row_of(world, "us", "slow").error == "RegionDoubt 2: undecided"
        assert claim.make().verdict.name == "BUSY"  # sent again: the key is in doubt now
        lease_ends(world, "us", "slow")
        if unknown == "run":
            world.deliver("us", "slow")
        else:
            with pytest.raises(HeldError):
                world.deliver("us", "slow")
    [record] = world.regions.in_doubt("us")
    assert record.error == ("RegionDoubt 2: ran" if unknown == "run" else "RegionDoubt 2: held")


def test_an_operator_decides_about_a_key_without_a_decision(world: World):
    world.regions.follower("eu", "us").once()
    with world.regions.receiver("eu").claim("slow"):
        world.regions.fail_over("eu", to="us")
        Claim(world, "us", "slow").lose_reply()
        world.regions.settle("eu")
        world.regions.receiver("us").release("slow", by="ann", why="eu is dead", force=True)
        assert not world.deliver("us", "slow").replayed
    assert [each.error for each in world.regions.in_doubt("us")] == ["RegionDoubt 2: ran"]


def test_a_key_that_was_not_done_elsewhere_runs_again_if_its_worker_dies(places: Places):
    """The policy decides about a crash here: nothing is in doubt any more."""
    world = World(places, unknown=lambda key: False)
    failed_over(world)
    receiver = world.regions.receiver("us")
    with receiver.claim("slow") as claim:
        assert claim.is_new
        lease_ends(world, "us", "slow")
        assert world.deliver("us", "slow").attempt == 2
    assert [each.error for each in world.regions.in_doubt("us")] == ["RegionDoubt 2: ran"]


def test_a_claim_that_was_decided_on_a_held_key_never_takes_over_what_settling_copied(
    world: World,
):
    """The old region's record gets a higher fence than the copy had, by a claim before the cut that was not copied.
    Between the look of a claim at the held key and its arrival, settling reads it."""
    with world.regions.receiver("eu").claim("slow"):
        failed_over(world)
        lease_ends(world, "us", "slow")
        assert Claim(world, "us", "slow").make().verdict.name == "HELD"
        [status] = world.regions.status()
        decided = row_of(world, "us", "slow")
        assert decided.fence > status.epoch.base
        assert (decided.lease_until, decided.expires_at) == (0, 0)
        eu, old = world.regions._stores["eu"], row_of(world, "eu", "slow")
        eu.perform(Adopt(replace(old, fence=status.epoch.base - 1, lease_until=1), over=old.fence))
        world.regions.settle("eu")
        assert row_of(world, "us", "slow") == decided
        assert Claim(world, "us", "slow").make().verdict.name == "HELD"


def test_a_held_key_that_no_worker_could_mark_is_marked_when_it_is_settled(world: World):
    world.regions.follower("eu", "us").once()
    with world.regions.receiver("eu").claim("slow"):
        world.regions.fail_over("eu", to="us")
        Claim(world, "us", "slow").lose_reply()
        lease_ends(world, "us", "slow")
        Claim(world, "us", "slow").lose_reply()  # it closes the key, and dies
        assert (row_of(world, "us", "slow").state, row_of(world, "us", "slow").error) == (
            "held",
            "",
        )
        world.regions.settle("eu")
    assert [each.error for each in world.regions.in_doubt("us")] == ["RegionDoubt 2: held"]


def test_a_claim_that_is_sent_again_stays_in_doubt_where_fences_are_times(world: World):
    with world.regions.receiver("eu").claim("slow"):
        epoch = world.regions.switch("eu", to="us")
        lease_ends(world, "us", "slow")
        claim = Claim(world, "us", "slow")
        claim.lose_reply()
        world.regions._stores["us"]._rows[Key("slow").id].fence = epoch.base + 7
        assert claim.make().verdict.name == "HELD"
    assert [each.error for each in world.regions.in_doubt("us")] == ["RegionDoubt 2: held"]


def test_a_claim_that_took_over_is_not_given_back_as_if_nothing_had_begun(world: World):
    with world.regions.receiver("eu").claim("slow"):
        lease_ends(world, "eu", "slow")
        claim = Claim(world, "eu", "slow")

        def moves() -> None:
            world.regions.switch("eu", to="us")
            claim.region._known.clear()

        with pytest.raises(NotHomeError):
            claim.make(moves)
        assert row_of(world, "eu", "slow").state == "in_progress"


# --- repeats that are counted ------------------------------------------------------------------------


def test_the_record_says_that_both_regions_worked_even_if_the_report_is_lost(running: World):
    world = running
    world.regions.follower("eu", "us").once()
    world.deliver("eu", "x")
    world.regions.fail_over("eu", to="us")
    with world.regions.receiver("us").claim("x") as claim:
        assert claim.is_new
        assert world.regions.settle("eu").twice_count == 1
        with pytest.raises(LeaseLostError):
            claim.complete("of us")
    assert world.regions.receiver("us").process("x", str).value == "done x"
    assert [each.error for each in world.regions.in_doubt("us")] == ["RegionDoubt 2: ran"]


def test_what_ran_in_doubt_stays_marked_when_a_later_epoch_runs_it_again(running: World):
    world = running
    failed_over(world)
    with pytest.raises(ZeroDivisionError):
        world.regions.receiver("us").process("x", lambda: 1 / 0)
    world.regions.receiver("us").release("x", by="ann", why="now")
    world.regions.settle("eu")
    world.regions.switch("eu", to="eu")
    world.deliver("eu", "x")
    assert [each.error for each in world.regions.in_doubt("eu")] == ["RegionDoubt 3: ran"]


# --- older answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", ["switch", "settle"])
def test_a_held_key_learns_an_answer_older_than_the_last_pass(world: World, move: str):
    world.regions.follower("eu", "us").once()
    world.deliver("eu", "x")
    world.regions.fail_over("eu", to="us")
    with pytest.raises(HeldError):
        world.deliver("us", "x")
    world.regions.settle("eu", lost=True)
    world.regions.switch("eu", to="eu")  # its records are there after all
    assert world.deliver("eu", "x").replayed
    world.regions._overlap = 0
    for _ in range(2):
        world.deliver("eu", "y")
        world.regions.follower("eu", "us").once()
    assert row_of(world, "us", "x").state == "held"
    if move == "switch":
        world.regions.switch("eu", to="us")
    else:
        world.regions.fail_over("eu", to="us")
        assert world.regions.settle("eu").learned == 1
    assert world.deliver("us", "x").replayed
    assert world.effects["x"] == 1


def test_an_answer_of_the_serving_region_goes_before_a_failed_attempt_in_doubt(running: World):
    world = running
    with world.regions.receiver("eu").claim("slow") as old:
        world.regions.switch("eu", to="us")
        lease_ends(world, "us", "slow")
        with pytest.raises(ZeroDivisionError):
            world.regions.receiver("us").process("slow", lambda: 1 / 0)
        old.complete("old")
    world.regions.switch("eu", to="eu")
    world.regions.switch("eu", to="us")
    assert world.deliver("us", "slow").value == "old"
    assert not world.effects
    assert [each.error for each in world.regions.in_doubt("us")] == ["RegionDoubt 3: ran"]
