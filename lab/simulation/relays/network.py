"""The way to the store: requests that get lost, late or refused, and relays that die meanwhile.

A relay sees an answer, perhaps late, or `StoreUnavailableError`; what the store saw is another matter.
A request that its relay gave up is never applied later: it is a transaction, and its rows stay locked
until it has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twicesafe._core.outbox.requests import Heartbeat

from .plan import name_of

if TYPE_CHECKING:
    from .relay import Relay
    from .world import World

__all__ = ["LOST", "Network"]

LOST = object()
"""What arrives when nothing does."""

Arrived = Callable[[Any], None]


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self._faults = {(one.op, one.nth): one for one in world.plan.faults}
        self._asked: Counter[str] = Counter()

    def carry(self, relay: Relay, op: str, apply: Callable[[], Any], arrived: Arrived) -> None:
        """Take a request to the store and the answer back."""
        world = self._world
        fault = self._faults.get((op, self._asked[op])) if world.faulty else None
        self._asked[op] += 1
        if op == name_of(Heartbeat) and world.now < relay.cut_off_until and world.faulty:
            self._request_lost(relay, apply, 0.0, arrived)
            return
        if fault is None:
            world.after(world.latency(), None, self._reach, relay, apply, arrived, 0.0)
            return
        world.seen["fault", fault.kind] += 1
        if world.say:
            world.say(f"~~ {relay.name} {op}: {fault.kind} {fault.seconds:.2f}")
        _FAULTS[fault.kind](self, relay, apply, fault.seconds, arrived)

    def _reach(
        self, relay: Relay, apply: Callable[[], Any], arrived: Arrived | None, late: float
    ) -> None:
        answer = apply()
        if arrived is not None:
            self._world.after(self._world.latency() + late, relay, arrived, answer)

    # -- faults -------------------------------------------------------------------------------

    def _later(self, seconds: float, *reach: Any) -> None:
        self._world.delayed(seconds)
        self._world.after(seconds, None, self._reach, *reach)

    def _request_lost(self, relay: Relay, apply: Any, seconds: float, arrived: Arrived) -> None:
        self._world.after(self._world.plan.timeout, relay, arrived, LOST)

    def _refused(self, relay: Relay, apply: Any, seconds: float, arrived: Arrived) -> None:
        self._world.after(0.001, relay, arrived, LOST)

    def _reply_lost(self, relay: Relay, apply: Any, seconds: float, arrived: Arrived) -> None:
        self._later(self._world.latency(), relay, apply, None, 0.0)
        self._world.after(self._world.plan.timeout, relay, arrived, LOST)

    def _request_late(self, relay: Relay, apply: Any, seconds: float, arrived: Arrived) -> None:
        self._later(seconds, relay, apply, arrived, 0.0)

    def _reply_late(self, relay: Relay, apply: Any, seconds: float, arrived: Arrived) -> None:
        self._world.delayed(seconds)
        self._later(self._world.latency(), relay, apply, arrived, seconds)

    def _crash_before(self, relay: Relay, apply: Any, seconds: float, arrived: Arrived) -> None:
        self._world.crash(relay)

    def _crash_after(self, relay: Relay, apply: Any, seconds: float, arrived: Arrived) -> None:
        self._later(self._world.latency(), relay, apply, None, 0.0)
        self._world.crash(relay)

    def _crash_at_reply(self, relay: Relay, apply: Any, seconds: float, arrived: Arrived) -> None:
        self._later(self._world.latency(), relay, apply, lambda _: self._world.crash(relay), 0.0)


_FAULTS = {
    "request lost": Network._request_lost,
    "refused": Network._refused,
    "reply lost": Network._reply_lost,
    "request late": Network._request_late,
    "reply late": Network._reply_late,
    "crash before": Network._crash_before,
    "crash after": Network._crash_after,
    "crash at reply": Network._crash_at_reply,
}
