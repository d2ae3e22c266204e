"""The end of a run: once faults stop, everything must go out, in a bounded time, and nothing stay.

First poison is refused as before: all other lanes must go on, and the poisoned ones end up parked. New
messages keep coming until then: a relay that cannot check its broker compares poison with them.
Then the broker is repaired and an operator retries what is parked. Then the relays are stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twicesafe._core.outbox.relay_lease import REST
from twicesafe._core.outbox.requests import Backlog, Depth
from twicesafe._values.settings import seconds

from .invariants import broken
from .plan import LEASE, Post

if TYPE_CHECKING:
    from .world import World

__all__ = ["Ending"]

BOUND = LEASE + seconds(REST.most) + 4.0
"""A lease ends, the longest rest ends, and there is work to do."""

PAUSE = 0.1
"""Seconds between two messages that come in the end."""


class Ending:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rule = ""
        """What is to be reached now."""
        self.stopping = False
        self.reached = False

    def begin(self) -> None:
        self._tell("no more faults; poison is refused as before")
        self._expect("other lanes go on")
        if not self._world.plan.checks and any(post.chokes for post in self._world.plan.posts):
            self._world.after(PAUSE, None, self._add)

    def _add(self) -> None:
        if self._rule == "other lanes go on":
            self._world.writers.add(Post(self._world.now, -1))
            self._world.after(PAUSE, None, self._add)

    def _tell(self, what: str) -> None:
        if self._world.say:
            self._world.say(f"── {what}")

    def _expect(self, rule: str) -> None:
        self._rule = rule
        world = self._world
        world.after(world.delay() + BOUND, None, self._too_late, rule)
        world.after(0.0, None, self.look)

    def _too_late(self, rule: str) -> None:
        if self._rule == rule:
            depth = self._world.table.perform(Backlog())
            broken(rule, f"{depth} after {BOUND} s; {self._unpublished()}")

    def look(self) -> None:
        """Something was settled: is this part of the run over?"""
        world = self._world
        if not self._rule or self.stopping or world.writers.open:
            return
        depth: Depth = world.table.perform(Backlog())
        if depth.pending:
            return
        if self._rule == "other lanes go on":
            self._tell("the broker is repaired; an operator retries what is parked")
            world.broker.repaired = True
            self._expect("nothing is lost")
            self._retry()
        elif not depth.parked and not depth.parked_lanes:
            self._rule, self.stopping = "relays end", True
            world.after(0.0, None, self._stop)

    def _retry(self) -> None:
        if self._rule == "nothing is lost":
            self._world.operate(skip=False)
            self._world.after(0.3, None, self._retry)

    def _stop(self) -> None:
        world, lost = self._world, self._unpublished()
        if lost:
            broken("nothing is lost", f"{lost} never published")
        self._tell("all is published; the relays are stopped")
        for relay in list(world.relays.values()):
            if relay.alive:
                relay.stop()
        world.after(world.delay() + BOUND, None, self._check)

    def _unpublished(self) -> list[str]:
        messages = self._world.writers.messages.values()
        return [one.message.id for one in messages if not one.calls and one.skipped_at is None]

    def _check(self) -> None:
        for relay in self._world.relays.values():
            if relay.alive:
                broken("relays end", f"{relay.name} goes on")
        depth = self._world.table.perform(Backlog())
        if depth.pending or depth.parked or depth.parked_lanes or depth.resting_lanes:
            broken("nothing is left", str(depth))
        self.reached = True
