"""A pass that takes long: what changed while it read must not be lost, nor be taken for copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.regions.worlds import Places, World
from twicesafe import Key, UsageError
from twicesafe._core.protocol import Browse, ClaimRequest, Complete, RaiseFences, Read
from twicesafe._core.regions.epochs import SOURCE, TARGET, Epoch, On
from twicesafe._core.regions.following import follow
from twicesafe._core.regions.pausing import announce
from twicesafe._core.regions.settling import Settling
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing import FakeClock

OVERLAP = 60_000
HOUR = 3_600_000
OWNER = b"o" * 16


class Stores:
    """A source and a target with one clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.source, self.target = (MemoryStore(now=self.clock) for _ in range(2))

    def do(self, name: str) -> None:
        """Work of the source: from claim to answer, at this moment."""
        key = Key(name)
        fence = self.source.perform(ClaimRequest(key, OWNER, HOUR)).fence
        self.source.perform(Complete(key.id, OWNER, fence, 1000 * HOUR, name.encode()))

    def follow(self, between: Callable[[int], None] = lambda page: None, **more: Any) -> Any:
        """One pass, two records at a time; `between` happens before each page but the first."""
        flow = follow("eu", self.clock, overlap=OVERLAP, steps=False, page=2, **more)
        return self.run(flow, between)

    def run(self, flow: Any, between: Callable[[int], None] = lambda page: None) -> Any:
        places = {SOURCE: self.source, TARGET: self.target}
        reply: Any = None
        pages = 0
        while True:
            try:
                command = flow.send(reply)
            except StopIteration as end:
                return end.value
            assert isinstance(command, On)
            if isinstance(command.request, Browse):
                pages += 1
                if pages > 1:
                    between(pages)
            store = places[command.place]
            many = isinstance(command.request, list)
            reply = (store.perform_many if many else store.perform)(command.request)


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
    settling = Settling(epoch, None, lambda key: True)
    stores.follow(settling=settling, older=settling, moving=True)
    assert stores.target.perform(Read(claim.id)).fence <= epoch.base


@pytest.mark.parametrize("moved", [False, True])
def test_a_follower_that_was_not_stopped_does_not_replace_what_the_new_region_has_begun(
    moved: bool,
):
    """The old region's store gets a claim after the cut, and a pass that knows of no epoch copies it."""
    stores = Stores()
    begun = stores.target.perform(ClaimRequest(Key("a"), OWNER, HOUR))
    late = ClaimRequest(Key("a"), b"p" * 16, HOUR)
    stores.source.perform(RaiseFences(begun.fence))
    assert stores.source.perform(late).fence > begun.fence
    if moved:
        stores.run(announce(TARGET, Key("eu", scope=("regions", "shop")), stores.clock()))
    stores.follow()
    row = stores.target.perform(Read(late.id))
    assert (row.owner == OWNER) is moved
