"""Regions: only the home region of a key starts work for it; another region can take over.

regions = Regions.open(
    {"eu": "postgresql://eu/shop", "us": "postgresql://us/shop"}, register="etcd://quorum:2379/twicesafe"
)
regions.create()                                    # once
receiver = regions.receiver("eu")                   # in the workers of eu
regions.follower("eu", "us").run()                  # somewhere, all the time
regions.fail_over("eu", to="us")                    # eu is lost
regions.settle("eu")                                # its store is back
regions.switch("eu", to="eu")                       # home again
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from .._core.regions.claiming import HERE
from .._core.regions.epochs import REGISTER, SOURCE, TARGET, Epoch
from .._core.regions.failover import current, fail_over, settle, switch
from .._core.regions.following import Copied
from .._values.records import Record
from .._values.settings import Duration, seconds
from ..errors import StoreUnavailableError
from ..receiver import AsyncReceiver, Receiver
from ..stores._base import AsyncStore, Store
from ..stores._urls import open_async_store
from ._base import (
    RegionsBase,
    RegionStatus,
    copies_of,
    count_doubts,
    list_doubts,
    status_of,
)
from ._follower import AsyncFollower, Follower
from ._late_stores import LateStores, opened
from ._performing import perform, perform_async
from ._region_store import AsyncRegionStore, RegionStore

__all__ = ["AsyncRegions", "Regions"]


class Regions(RegionsBase[Store]):
    """The stores of all regions, and the register that says which of them serves a key."""

    @classmethod
    def open(cls, stores: Mapping[str, str], *, register: str, **settings: Any) -> Self:
        """Open the stores at these URLs, by the names of their regions, and the register.

        The store of a region that does not answer now is opened when it is needed.

        ``home``: the home of a key: a region, or a function of the key that names one; default: the
        first region. ``unknown``: what to do with a key in doubt: ``"hold"``, ``"run"``, or a function
        of the key that says True (it was done), False (it was not) or None (not known: hold it).
        ``sent_at``: when the message of a key was sent, or None. ``lease``: for how many seconds a
        region may act on what the register said. ``skew``: how far clocks may differ, those of senders
        too. ``overlap``: how much of the last pass a follower reads again. ``max_lag``: the most
        seconds of copying that a failover may miss.
        """
        with ExitStack() as stack:
            found = LateStores(stores)
            stack.callback(found.close)
            found.open()
            regions = cls(found, register=opened(stack, register), **settings)
            stack.pop_all()
        regions._owned = (found, regions._register)
        return regions

    def create(self) -> list[Epoch]:
        """Write the first epoch of each home into the register, unless it has one."""
        return perform(self._create(), {REGISTER: self._register})

    def receiver(self, region: str, **settings: Any) -> Receiver:
        """A receiver for the workers of this region; settings as of `Receiver`."""
        worker = self._worker(region)
        store = RegionStore(self._stores[region], self._register, worker)
        receiver = Receiver(store, **settings)
        worker.retention = receiver._resolved.retention_ms
        return receiver

    def follower(self, source: str, target: str) -> Follower:
        """A follower that copies the records of one region to another."""
        places = self._places(source, target)
        found = Follower(places[SOURCE], places[TARGET], name=source, overlap=self._overlap)
        found._may_be_of = self._may_be_of
        return found

    def fail_over(self, home: str, to: str, *, max_lag: Duration | None = None) -> Epoch:
        """Let another region serve the keys of this home, even if the old one cannot be reached.

        Refused if the lag of the copies is unknown, or longer than ``max_lag``. From then on the new
        region holds, runs or asks about (`unknown`) every key in doubt.
        """
        move = self._move(home, to)
        most = self._max_lag if max_lag is None else seconds(max_lag, "max_lag")
        return perform(fail_over(move, most), self._places(to, to))

    def switch(self, home: str, to: str) -> Epoch:
        """Let another region serve the keys of this home, while both are up. Only work that the old region
        is still doing will be in doubt.

        No region starts work for `lease` + `skew` seconds and one pass of copying. Use it also to move back
        after a failover, once that is settled.
        """
        source = self._current(home).region
        return perform(switch(self._move(home, to, source)), self._places(source, to))

    def settle(self, home: str, *, lost: bool = False) -> Copied:
        """Copy what the old region did before the failover, and end the doubt.

        Held keys that it completed get its answer. Keys that both regions worked on are counted and
        named. ``lost=True``: its records are gone; unknown keys count as new from now on.
        """
        epoch = self._current(home)
        source = epoch.region if lost or not epoch.source else epoch.source
        move = self._move(home, epoch.region, source)
        return perform(settle(move, lost), self._places(source, epoch.region))

    def status(self) -> list[RegionStatus]:
        """Return one status for each home. Needs the register, and the stores of the regions that serve.
        The lag of a region whose store does not answer is unknown."""
        found = []
        for home, epoch in perform(self._epochs(), {REGISTER: self._register}).items():
            others = [other for other in self._stores if other != epoch.region]
            copies = {other: self._copies(epoch.region, other) for other in others}
            here = {HERE: self._stores[epoch.region]}
            doubts = perform(count_doubts(), here) if epoch.cut else 0
            found.append(status_of(home, epoch, copies, doubts))
        return found

    def _copies(self, region: str, other: str) -> tuple[float | None, int]:
        try:
            return perform(copies_of(region), {TARGET: self._stores[other]})
        except StoreUnavailableError:
            return None, 0

    def in_doubt(self, region: str, *, limit: int = 1000) -> list[Record]:
        """Return the records of this region that were in doubt, newest first."""
        return perform(list_doubts(limit), {HERE: self._stores[self._region(region)]})

    def _current(self, home: str) -> Epoch:
        return perform(current(self._epoch_key(home)), {REGISTER: self._register})[0]

    def close(self) -> None:
        """Close the stores that `open` has opened. Close the receivers first."""
        for store in self._owned:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncRegions(RegionsBase[AsyncStore]):
    """The async version of `Regions`: the same names; what talks to a store is awaited."""

    @classmethod
    def open(cls, stores: Mapping[str, str], *, register: str, **settings: Any) -> Self:
        """As `Regions.open`; connects on first use."""
        opened = {region: open_async_store(url) for region, url in stores.items()}
        regions = cls(opened, register=open_async_store(register), **settings)
        regions._owned = (*opened.values(), regions._register)
        return regions

    async def create(self) -> list[Epoch]:
        """Write the first epoch of each home into the register, unless it has one."""
        return await perform_async(self._create(), {REGISTER: self._register})

    def receiver(self, region: str, **settings: Any) -> AsyncReceiver:
        """A receiver for the workers of this region; settings as of `AsyncReceiver`."""
        worker = self._worker(region)
        store = AsyncRegionStore(self._stores[region], self._register, worker)
        receiver = AsyncReceiver(store, **settings)
        worker.retention = receiver._resolved.retention_ms
        return receiver

    def follower(self, source: str, target: str) -> AsyncFollower:
        """A follower that copies the records of one region to another."""
        places = self._places(source, target)
        found = AsyncFollower(places[SOURCE], places[TARGET], name=source, overlap=self._overlap)
        found._may_be_of = self._may_be_of
        return found

    async def fail_over(self, home: str, to: str, *, max_lag: Duration | None = None) -> Epoch:
        """Let another region serve the keys of this home, even if the old one cannot be reached.

        Refused if the lag of the copies is unknown, or longer than ``max_lag``. From then on the new
        region holds, runs or asks about (`unknown`) every key in doubt.
        """
        move = self._move(home, to)
        most = self._max_lag if max_lag is None else seconds(max_lag, "max_lag")
        return await perform_async(fail_over(move, most), self._places(to, to))

    async def switch(self, home: str, to: str) -> Epoch:
        """Let another region serve the keys of this home, while both are up. Only work that the old region
        is still doing will be in doubt.

        No region starts work for `lease` + `skew` seconds and one pass of copying. Use it also to move back
        after a failover, once that is settled.
        """
        source = (await self._current(home)).region
        move = self._move(home, to, source)
        return await perform_async(switch(move), self._places(source, to))

    async def settle(self, home: str, *, lost: bool = False) -> Copied:
        """Copy what the old region did before the failover, and end the doubt.

        Held keys that it completed get its answer. Keys that both regions worked on are counted and
        named. ``lost=True``: its records are gone; unknown keys count as new from now on.
        """
        epoch = await self._current(home)
        source = epoch.region if lost or not epoch.source else epoch.source
        move = self._move(home, epoch.region, source)
        return await perform_async(settle(move, lost), self._places(source, epoch.region))

    async def status(self) -> list[RegionStatus]:
        """Return one status for each home. Needs the register, and the stores of the regions that serve.
        The lag of a region whose store does not answer is unknown."""
        found = []
        epochs = await perform_async(self._epochs(), {REGISTER: self._register})
        for home, epoch in epochs.items():
            others = [other for other in self._stores if other != epoch.region]
            copies = {other: await self._copies(epoch.region, other) for other in others}
            here = {HERE: self._stores[epoch.region]}
            doubts = await perform_async(count_doubts(), here) if epoch.cut else 0
            found.append(status_of(home, epoch, copies, doubts))
        return found

    async def _copies(self, region: str, other: str) -> tuple[float | None, int]:
        try:
            return await perform_async(copies_of(region), {TARGET: self._stores[other]})
        except StoreUnavailableError:
            return None, 0

    async def in_doubt(self, region: str, *, limit: int = 1000) -> list[Record]:
        """Return the records of this region that were in doubt, newest first."""
        return await perform_async(list_doubts(limit), {HERE: self._stores[self._region(region)]})

    async def _current(self, home: str) -> Epoch:
        flow = current(self._epoch_key(home))
        return (await perform_async(flow, {REGISTER: self._register}))[0]

    async def close(self) -> None:
        """Close the stores that `open` has opened. Close the receivers first."""
        for store in self._owned:
            await store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
