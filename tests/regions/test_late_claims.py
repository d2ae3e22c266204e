"""Late claims: a follower that was not stopped, or was frozen, changes nothing in the region that serves.

A claim may reach the old region after the cut. Where fences are times, its fence is above those of the new region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.regions.worlds import HOUR, OVERLAP, OWNER, Places, Stores, World
from twicesafe import Key, UsageError
from twicesafe._core.protocol import Adopt, ClaimRequest, Fail, Read
from twicesafe._core.regions import failover
from twicesafe._core.regions.epochs import TARGET, Epoch, key_of
from twicesafe._core.regions.following import follow
from twicesafe._core.regions.pausing import announce, homes_of, pause, serve
from twicesafe._core.regions.settling import Settling
from twicesafe._values.records import Row, State
from twicesafe.errors import StoreUnavailableError
from twicesafe.regions._performing import perform

EU = key_of("shop", "eu")
BASE = 1_000
KEY = Key("a")


def epoch(since: int, base: int = BASE) -> Epoch:
    return Epoch(number=2, region="us", base=base, since=since)


@pytest.fixture
def stores() -> Stores:
    return Stores()


def say(stores: Stores, where: str, what: Callable[..., Any], *told: Any) -> None:
    store = getattr(stores, where)
    perform(what(TARGET, EU, *told, stores.clock()), {TARGET: store})


def put(stores: Stores, where: str, fence: int, state: State = State.IN_PROGRESS) -> Row:
    """A record of this store. Each one has another owner."""
    now = stores.clock()
    ended = state in (State.RELEASED, State.COMPLETED)
    row = Row(
        KEY.id, KEY.scope, KEY.value, state, fence, 1, b"%016d" % fence, now + HOUR, now, now,
        now + HOUR if ended else 0, result=b"x" if state is State.COMPLETED else None,
    )  # fmt: skip
    getattr(stores, where).perform(Adopt(row))
    return row


def found(stores: Stores, where: str = "target") -> Any:
    return getattr(stores, where).perform(Read(KEY.id))


UNANSWERED = (State.IN_PROGRESS, State.RELEASED, State.HELD, State.PARKED)


@pytest.mark.parametrize("state", UNANSWERED)
@pytest.mark.parametrize("here", [*UNANSWERED, None])
def test_a_late_claim_does_not_reach_the_region_that_serves(
    stores: Stores, state: State, here: State | None
):
    """Whatever became of it: it may have been given back, or closed by another late claim."""
    say(stores, "target", serve, epoch(5))
    begun = put(stores, "target", BASE + 1, here) if here else None
    put(stores, "source", BASE + 7, state)
    for _ in range(2):
        report = stores.follow()
        assert (report.late, report.copied, report.failed_count) == (1, 0, 0)
        assert found(stores) == begun


def test_what_the_old_region_knew_before_the_cut_is_copied(stores: Stores):
    """Its worker goes on, and fails: the new region may run the key."""
    say(stores, "target", serve, epoch(5))
    put(stores, "target", BASE - 9)
    failed = put(stores, "source", BASE - 9, State.RELEASED)
    assert stores.follow().late == 0
    assert found(stores) == failed


@pytest.mark.parametrize("unclear", [announce, pause])
def test_answers_are_copied_at_all_times(stores: Stores, unclear: Any):
    say(stores, "target", unclear, 5)
    answered = put(stores, "source", BASE + 7, State.COMPLETED)
    assert stores.follow().late == 0
    assert found(stores) == answered


def test_while_keys_are_moved_neither_store_gets_unfinished_work(stores: Stores):
    say(stores, "source", serve, epoch(4))
    put(stores, "source", BASE - 9)
    assert stores.follow().late == 0
    say(stores, "target", announce, 5)
    put(stores, "source", BASE - 8)
    assert stores.follow().late == 1
    stores.source, stores.target = stores.target, stores.source
    put(stores, "source", BASE - 7)
    assert stores.follow().late == 1


def test_what_was_late_is_copied_when_its_region_serves_again(stores: Stores):
    """And when the move has failed. The record has not changed for long, so a pass does not read it otherwise."""
    say(stores, "target", announce, 5)
    begun = put(stores, "source", BASE + 7)
    assert stores.follow().late == 1
    stores.clock.advance(10 * OVERLAP // 1000)
    stores.do("b")
    assert stores.follow().late == 1
    stores.clock.advance(10 * OVERLAP // 1000)
    say(stores, "source", serve, epoch(6))
    assert stores.follow().late == 0
    assert found(stores) == begun


def test_a_copy_of_the_records_of_the_target_itself_is_not_late(stores: Stores):
    """Followers in both directions: after a move, the source has what the target did."""
    say(stores, "target", serve, epoch(5))
    put(stores, "source", BASE + 1)
    begun = put(stores, "target", BASE + 1)
    assert stores.follow().late == 0
    assert found(stores) == begun


def test_a_late_claim_of_which_a_later_page_shows_the_answer_is_not_late(stores: Stores):
    say(stores, "target", serve, epoch(5))
    put(stores, "source", BASE + 7)
    assert stores.follow().late == 1
    stores.clock.advance(1)
    stores.do("b")
    stores.do("c")
    stores.clock.advance(1)
    answered = []

    def meanwhile(page: int) -> None:
        answered.append(put(stores, "source", BASE + 7, State.COMPLETED))

    assert stores.follow(meanwhile).late == 0
    assert found(stores) == answered[0]


def test_a_follower_that_was_frozen_copies_nothing_above_the_base(stores: Stores):
    """It has read a page, and that nothing was moved. It writes when the other region has long been at work."""
    row = put(stores, "source", BASE - 9)
    flow = follow("eu", stores.clock, overlap=OVERLAP, steps=False)
    reply: Any = None
    begun: Any = None
    while True:
        try:
            command = flow.send(reply)
        except StopIteration:
            break
        many = isinstance(command.request, list)
        if many and type(command.request[0]) is Adopt:
            assert [each.row for each in command.request] == [row]
            say(stores, "target", announce, 5)
            say(stores, "target", serve, epoch(6))
            begun = put(stores, "target", BASE + 1)
        store = {"source": stores.source, "target": stores.target}[command.place]
        reply = (store.perform_many if many else store.perform)(command.request)
    assert begun is not None
    assert found(stores) == begun


def test_only_keys_of_the_home_that_was_moved_can_be_late(places: Places):
    world = World(places, home=lambda key: key.value[:2])
    eu, us = (world.regions._stores[each] for each in ("eu", "us"))
    known, ask = world.regions.follower("eu", "us"), world.regions.follower("eu", "us")
    ask._may_be_of = lambda row, label: True  # as the command
    known.once()
    world.regions.switch("eu", to="us")
    base = world.regions.status()[0].epoch.base
    for name in ("eu-1", "us-1"):
        key = Key(name)
        fence = eu.perform(ClaimRequest(key, OWNER, HOUR)).fence
        row = eu.perform(Read(key.id))
        eu.perform(Adopt(replace(row, fence=base + 7), over=fence))
    assert ask.once().late == 2
    assert [us.perform(Read(Key(each).id)) for each in ("eu-1", "us-1")] == [None, None]
    assert known.once().late == 1
    assert us.perform(Read(Key("eu-1").id)) is None
    assert us.perform(Read(Key("us-1").id)).fence == base + 7


def test_homes_of_other_regions_are_not_known_to_a_follower(places: Places):
    regions = World(places, name="shop", home="eu").regions
    row = Row(KEY.id, KEY.scope, KEY.value, State.IN_PROGRESS, 1, 1, OWNER, 1, 1, 1)
    assert regions._may_be_of(row, "shop/eu")
    assert regions._may_be_of(row, "another/eu")


# --- moves --------------------------------------------------------------------------------------------


def test_a_pass_of_a_move_ends_if_another_operator_moves_the_keys(stores: Stores):
    """The other one may have chosen a lower base."""
    put(stores, "source", BASE + 7)
    settling = Settling(epoch(5), None, lambda key: True, EU)
    say(stores, "target", announce, 5)
    stores.follow(settling=settling, older=settling, moving=True)
    assert found(stores).fence == BASE
    say(stores, "target", announce, 6)
    with pytest.raises(UsageError, match="another operator") as error:
        stores.follow(settling=settling, older=settling, moving=True)
    assert error.value.key == EU


@pytest.fixture
def world(places: Places) -> World:
    return World(places)


def said(world: World, region: str) -> Any:
    return perform(homes_of(TARGET), {TARGET: world.regions._stores[region]}).get("default/eu")


def test_a_switch_that_failed_is_taken_back_for_followers_too(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    def fails(move: Any, *more: Any) -> Any:
        if len(more) > 1:
            raise StoreUnavailableError("no answer")
        yield from copied(move, *more)

    copied = failover._copied
    monkeypatch.setattr(failover, "_copied", fails)
    with pytest.raises(StoreUnavailableError):
        world.regions.switch("eu", to="us")
    monkeypatch.undo()
    assert not said(world, "us").serves
    with world.regions.receiver("eu").claim("slow"):
        assert world.regions.follower("eu", "us").once().late == 0
    assert world.regions.status()[0].epoch.number == 1


def test_a_switch_that_died_before_its_last_write_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    def dies(*_: Any) -> Any:
        raise StoreUnavailableError("no answer")
        yield

    monkeypatch.setattr(failover, "serve", dies)
    with pytest.raises(StoreUnavailableError):
        world.regions.switch("eu", to="us")
    monkeypatch.undo()
    with world.regions.receiver("us").claim("slow"):
        assert world.regions.follower("us", "eu").once().late == 0  # eu never took over from us
        world.regions.follower("us", "eu")
        with pytest.raises(UsageError, match="already serves"):
            world.regions.switch("eu", to="us")
        assert said(world, "us").serves
        assert said(world, "us").base == world.regions.status()[0].epoch.base


def test_the_cut_rises_whatever_the_clock_of_the_operator_says(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Counters would not have room between two bases."""
    from twicesafe.regions import _base

    first = world.regions.switch("eu", to="us")
    wall = _base.wall_clock
    monkeypatch.setattr(_base, "wall_clock", lambda: wall() - 60)
    second = world.regions.switch("eu", to="eu")
    assert second.cut >= first.cut + 70
    assert second.since > first.since


def test_an_epoch_that_was_closed_twice_is_opened_by_the_second_operator_only(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    world.regions.follower("eu", "us").once()
    until = failover._until

    def meanwhile(move: Any, cut: int) -> Any:
        monkeypatch.setattr(failover, "_until", until)
        world.regions.fail_over("eu", to="us")
        yield from until(move, cut)

    monkeypatch.setattr(failover, "_until", meanwhile)
    with pytest.raises(UsageError, match="changed by another process"):
        world.regions.switch("eu", to="us")
    [status] = world.regions.status()
    assert (status.epoch.number, status.epoch.doubt) == (2, True)
    assert said(world, "us").lasts


def test_a_failed_attempt_of_a_late_claim_is_late_too(stores: Stores):
    say(stores, "target", serve, epoch(5))
    late = put(stores, "source", BASE + 7)
    stores.source.perform(Fail(KEY.id, late.owner, late.fence, 0, 5, HOUR, "Boom"))
    assert found(stores, "source").state is State.RELEASED
    assert stores.follow().late == 1


# --- late claims in the store that is copied to -------------------------------------------------------


@pytest.mark.parametrize("state", [State.IN_PROGRESS, State.COMPLETED])
def test_a_record_that_a_late_claim_hides_is_read_again_by_every_pass(stores: Stores, state: State):
    """The target served the key before. Its late claim looks newer than the work of the region that serves."""
    say(stores, "target", serve, epoch(4))
    say(stores, "source", serve, epoch(5))
    put(stores, "source", BASE + 1, state)
    late = put(stores, "target", BASE + 7, State.RELEASED)
    for _ in range(2):
        report = stores.follow()
        assert (report.late, report.newer) == (1, 1)
        assert found(stores) == late
        stores.clock.advance(10 * OVERLAP // 1000)
        stores.do("b")


def test_a_move_finds_the_answer_that_a_late_claim_hides(stores: Stores):
    say(stores, "target", serve, epoch(4))
    say(stores, "source", serve, epoch(5))
    answered = put(stores, "source", BASE + 1, State.COMPLETED)
    put(stores, "target", BASE + 7, State.RELEASED)
    stores.follow()
    stores.clock.advance(10 * OVERLAP // 1000)
    stores.do("b")
    stores.follow()
    settling = Settling(epoch(9, base=BASE + 100), None, lambda key: True, EU)
    report = stores.follow(settling=settling, older=settling, moving=True)
    assert (report.learned, report.late) == (1, 0)
    assert found(stores).result == answered.result


def test_a_newer_record_of_the_region_that_serves_hides_nothing(stores: Stores):
    """The source has an old copy, and the target goes on with the key."""
    say(stores, "target", serve, epoch(5))
    put(stores, "source", BASE - 9)
    put(stores, "target", BASE + 1)
    assert stores.follow().late == 0


def test_a_claim_without_a_decision_that_took_over_stays_in_doubt_where_fences_are_times(
    places: Places,
):
    """Its worker died before its decision was written, and its fence is above the base."""
    world = World(places, unknown="run")
    with world.regions.receiver("eu").claim("slow"):
        base = world.regions.switch("eu", to="us").base
        us = world.regions._stores["us"]
        id_ = Key("slow").id
        us._rows[id_].lease_until = 1
        us.perform(ClaimRequest(Key("slow"), OWNER, HOUR, 100))
        us._rows[id_] = replace(us._rows[id_], fence=base + 7, lease_until=1)
        world.deliver("us", "slow")
    assert [each.error for each in world.regions.in_doubt("us")] == ["RegionDoubt 2: ran"]
