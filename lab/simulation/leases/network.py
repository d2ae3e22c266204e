"""The network: what can happen to a message between a worker and the store, and to its reply.

A message holds one request, or the many of a batch. Whatever goes wrong, the worker sees one of
two things: an answer, perhaps late, or `StoreUnavailableError`. What the store saw is another
matter: the request may have been applied, twice, later, or after newer ones.

Some results the store refuses, with an error that says so; and some never get through, whatever they
travel with. Both for good: another try meets the same end. In an outage nothing gets through. A key that
an open transaction of an inbox holds is busy, and nothing announces the end of that transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from twicesafe._core.lifecycle import is_expired
from twicesafe._core.protocol import Ack, Claimed, Sweep, Verdict
from twicesafe._values.records import Cause
from twicesafe.errors import StoreError, StoreUnavailableError

from .policies import MAX_LEASE

if TYPE_CHECKING:
    from ..plans import Fault
    from .process import Process
    from .world import World

__all__ = ["Network", "unavailable"]

Arrived = Callable[[list[Any] | None], None]


def unavailable() -> StoreUnavailableError:
    return StoreUnavailableError("lost in the lab's network")


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self._latency = cycle(world.plan.latencies)
        self.faulty = True
        self.down_until = 0.0
        """An outage: until then nothing gets through."""
        self._held: dict[bytes, float] = {}
        """Keys that an open transaction of an inbox holds, until when. It is rolled back then."""
        self.watchers: dict[bytes, list[Callable[[], None]]] = {}

    def carry(
        self, process: Process, who: str, asks: Sequence[Any], fault: Fault | None, arrived: Arrived
    ) -> None:
        """Take requests to the store and the answers back; None = the store is unavailable."""
        world = self._world
        if (world.now < self.down_until and self.faulty) or any(
            _marked(ask, b"!stuck") for ask in asks
        ):
            self._refused(process, who, asks, 0.0, arrived)
            return
        if fault is not None and self.faulty:
            kind = fault.kind
            if kind != "part lost" or len(asks) > 1:
                world.seen["fault", kind] += 1
                if world.say:
                    world.say(f"~~ {who} {asks[0].op}: {kind} {fault.seconds:.2f}")
                _FAULTS[kind](self, process, who, asks, fault.seconds, arrived)
                return
        world.after(next(self._latency), None, self._reach, process, who, asks, world.now, arrived)

    def _reach(
        self, process: Process, who: str, asks: Sequence[Any], sent: float, arrived: Arrived | None,
        late: float = 0.0,
    ) -> None:  # fmt: skip
        world = self._world
        answers = [self.apply(ask, who, world.now - sent) for ask in asks]
        if arrived is not None:
            world.after(next(self._latency) + late, process, arrived, answers)

    def hold(self, id_: bytes, seconds: float) -> None:
        """An inbox inserts this key, if it is free, and its caller's transaction stays open."""
        world = self._world
        row = world.store._rows.get(id_)
        if row is None or is_expired(row, world.store_now()):
            self._held[id_] = world.now + seconds

    def apply(self, ask: Any, who: str = "operator", transit: float = 0.0) -> Any:
        """One request, atomically, under the monitor's eyes."""
        world = self._world
        now = world.store_now()
        rows = world.store._rows
        if type(ask) is Sweep:
            before_sweep = dict(rows)
            answer = world.store.perform(ask)
            for id_, row in before_sweep.items():
                if id_ not in rows:
                    world.monitor.swept(row, now)
            return answer
        if ask.op == "claim" and self.faulty and world.now < self._held.get(ask.id, 0.0):
            world.seen["verdict", "locked"] += 1
            return Claimed(Verdict.BUSY, wait=500, locked=True)
        if _marked(ask, b"!refused"):
            return StoreError("the lab's store says no to this payload")
        id_ = ask.id
        before = rows.get(id_)
        answer = world.store.perform(ask)
        after = rows.get(id_)
        if world.say:
            world.say(describe(who, ask, answer, after))
        world.monitor.observe(
            ask, before, answer, after, now, world=world.now, transit=transit, max_lease=MAX_LEASE
        )
        taken = before is not after and getattr(answer, "cause", None) is Cause.LEASE_EXPIRED
        if before is not None and taken:
            world.ledger.taken_over(id_, before.fence, world.plan)
        if ask.op == "complete" and before is not after:
            world.ledger.recorded(ask)
        if ask.op == "abandon" and answer is Ack.OK:
            world.ledger.abandon(id_, ask.owner)
        if before is not after and id_ in self.watchers:
            for wake in self.watchers.pop(id_):
                wake()
        return answer

    # -- faults -------------------------------------------------------------------------------

    def _later(self, seconds: float, *reach: Any) -> None:
        world = self._world
        world.settled_by = max(world.settled_by, world.now + seconds)
        world.after(seconds, None, self._reach, *reach)

    def _request_lost(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        self._world.after(self._world.plan.timeout, process, arrived, None)

    def _refused(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        self._world.after(0.001, process, arrived, None)

    def _reply_lost(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        self._later(next(self._latency), process, who, asks, self._world.now, None)
        self._world.after(self._world.plan.timeout, process, arrived, None)

    def _request_late(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        self._later(s, process, who, asks, self._world.now, arrived)

    def _reply_late(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        world = self._world
        world.settled_by = max(world.settled_by, world.now + s)
        self._later(next(self._latency), process, who, asks, world.now, arrived, s)

    def _ghost(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        """The worker gave up waiting; the request arrives all the same, much later."""
        world = self._world
        world.after(world.plan.timeout, process, arrived, None)
        self._later(world.plan.timeout + s, process, f"{who}(ghost)", asks, world.now, None)

    def _twice(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        world = self._world
        self._later(next(self._latency), process, who, asks, world.now, arrived)
        self._later(s, process, f"{who}(again)", asks, world.now, None)

    def _part_lost(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        """Of a batch, every second item has no answer, and was not applied."""

        def repair(answers: list[Any] | None) -> None:
            assert answers is not None
            found = iter(answers)
            arrived([unavailable() if i % 2 else next(found) for i in range(len(asks))])

        self._later(next(self._latency), process, who, asks[::2], self._world.now, repair)

    def _crash_before(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        self._world.crash(process)

    def _crash_after(self, process: Any, who: str, asks: Any, s: float, arrived: Arrived) -> None:
        self._later(next(self._latency), process, who, asks, self._world.now, None)
        self._world.crash(process)

    def _crash_at_reply(
        self, process: Any, who: str, asks: Any, s: float, arrived: Arrived
    ) -> None:
        def die(answers: list[Any] | None) -> None:
            if self.faulty:
                self._world.crash(process)
            else:  # faults ended while the request was on its way
                arrived(answers)

        self._later(next(self._latency), process, who, asks, self._world.now, die)


def _marked(ask: Any, mark: bytes) -> bool:
    return mark in (getattr(ask, "result", None) or b"")


_FAULTS = {
    "request lost": Network._request_lost,
    "refused": Network._refused,
    "reply lost": Network._reply_lost,
    "request late": Network._request_late,
    "reply late": Network._reply_late,
    "ghost": Network._ghost,
    "twice": Network._twice,
    "part lost": Network._part_lost,
    "crash before": Network._crash_before,
    "crash after": Network._crash_after,
    "crash at reply": Network._crash_at_reply,
}


def describe(who: str, ask: Any, answer: Any, row: Any) -> str:
    """One line of a trace: who asked what, what the store said, and the row it left."""
    owner = getattr(ask, "owner", b"")
    name = f"#{int.from_bytes(owner[10:], 'big')}" if owner else ""
    fence = f" fence {ask.fence}" if hasattr(ask, "fence") else ""
    said = getattr(getattr(answer, "verdict", answer), "name", "row" if answer else "nothing")
    if getattr(answer, "cause", None) is not None and said == "WON":
        said += f" ({answer.cause})"
    left = "no row" if row is None else f"{row.state} fence {row.fence} attempt {row.attempt}"
    return f"→  {who} {ask.op}{name}{fence}: {said}   [{ask.id[:2].hex()} {left}]"
