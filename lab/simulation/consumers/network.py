"""The way to the store: the network of lease mode, under the eyes of another monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from twicesafe._values.records import State

from ..leases import network
from ..leases.network import describe, unavailable
from .works import LANES

if TYPE_CHECKING:
    from .world import World

__all__ = ["ReadLanes", "StoreNetwork", "unavailable"]


class ReadLanes(msgspec.Struct, frozen=True):
    """The request for the parked lanes."""

    op: str = "lanes"


class StoreNetwork(network.Network):
    def __init__(self, world: World) -> None:
        super().__init__(cast("Any", world))
        self.world = world

    def apply(self, ask: Any, who: str = "", transit: float = 0.0) -> Any:
        world = self.world
        rows = world.store._rows
        if type(ask) is ReadLanes:
            parked = [row for row in rows.values() if row.state is State.PARKED]
            return [row.value for row in parked if row.scope == LANES]
        before = rows.get(ask.id)
        answer = world.store.perform(ask)
        after = rows.get(ask.id)
        if world.say:
            world.say(describe(who, ask, answer, after))
        world.monitor.observed(ask, before, answer, after)
        return answer
