"""A pass that takes long: what changed while it read must not be lost, nor be taken for copied."""

from __future__ import annotations

import pytest

from tests.regions.worlds import HOUR, OVERLAP, OWNER, Places, Stores, World
from twicesafe import Key, UsageError
from twicesafe._core.protocol import ClaimRequest, Complete, Read
from twicesafe._core.regions.epochs import Epoch, key_of
from twicesafe._core.regions.settling import Settling

EU = key_of("shop", "eu")


def test_what_is_recorded_behind_a_slow_pass_is_copied_by_the_next():
    """The pass reads from new to old. Behind it a key is recorded; long after, it sees a change of an old
    one, which is newer than that key."""
    stores = Stores()
    claim = ClaimRequest(Key("old"), OWNER, HOUR)
    fence = stores.source.perform(claim).fence
    stores.clock.advance(1000)
    for name in ("a", "b"):
        stores.do(name)

    def meanwhile(page: int) -> None:
        stores.clock.advance(1000)
        stores.do("behind")
        stores.clock.advance(10 * OVERLAP)
        stores.source.perform(Complete(claim.id, OWNER, fence, HOUR, b"late"))

    assert stores.follow(meanwhile).copied == 3
    stores.follow()
    for name in ("a", "b", "behind", "old"):
        row = stores.target.perform(Read(Key(name).id))
        assert row is not None, name
        assert row.result is not None, name


def test_a_lag_that_the_clocks_make_negative_is_unknown(
    places: Places, monkeypatch: pytest.MonkeyPatch
):
    """A follower whose clock is an hour ahead says that it has copied what is yet to come."""
    world = World(places)
    with monkeypatch.context() as ahead:
        from twicesafe.regions import _follower

        wall = _follower.wall_clock
        ahead.setattr(_follower, "wall_clock", lambda: wall() + HOUR)
        world.regions.follower("eu", "us").once()
    with pytest.raises(UsageError, match="clock"):
        world.regions.fail_over("eu", to="us")
    [status] = world.regions.status()
    assert (status.epoch.region, status.lags) == ("eu", {"us": None})


def test_a_late_claim_of_the_old_region_does_not_hide_work_that_was_started():
    """Its fence may be above the base of the next epoch, if fences are times: it would look like new work."""
    stores = Stores()
    claim = ClaimRequest(Key("a"), OWNER, HOUR)
    begun = stores.source.perform(claim).fence
    stores.follow()
    stores.clock.advance(2 * HOUR)
    late = stores.source.perform(ClaimRequest(Key("a"), b"p" * 16, HOUR)).fence
    assert late > begun
    epoch = Epoch(number=2, region="us", base=begun, source="eu", doubt=True)
    settling = Settling(epoch, None, lambda key: True, EU)
    stores.follow(settling=settling, older=settling, moving=True)
    assert stores.target.perform(Read(claim.id)).fence <= epoch.base
