"""The network: the faults of `leases`, and every request under the monitor's eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from twicesafe._values.steps import Step

from ..leases.network import Network as LeaseNetwork
from ..leases.network import describe

if TYPE_CHECKING:
    from .world import World

__all__ = ["Network"]


class Network(LeaseNetwork):
    def __init__(self, world: World) -> None:
        super().__init__(cast("Any", world))
        self._steps_world = world

    def apply(self, ask: Any, who: str = "operator", transit: float = 0.0) -> Any:
        """One request, atomically, under the monitor's eyes."""
        world = self._steps_world
        store, monitor, now = world.store, world.monitor, world.store_now()
        if not hasattr(ask, "id") or ask.op in ("tidy_runs", "sweep", "find_due"):
            return monitor.look_around(ask, lambda: store.perform(ask), now)
        id_ = ask.id
        row, steps = store._rows.get(id_), dict(store._steps.get(id_, ()))
        answer = store.perform(ask)
        after = store._rows.get(id_)
        if world.say:
            name = f" {ask.name} {getattr(ask, 'state', '')}" if hasattr(ask, "name") else ""
            world.say(describe(who + name, ask, answer, after))
        found: dict[str, Step] = store._steps.get(id_, {})
        monitor.observe(ask, row, steps, answer, after, found, now)
        return answer
