"""Virtual time: what happens when, and one run of one plan. Every study's world is made of this.

Everything happens at a moment of virtual time; equal moments keep the order in which they were
planned. A dead process does nothing more; what comes for a paused one waits.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, ClassVar, Self

from twicesafe._values import keys as tokens

from .study import Say
from .violations import Violation

__all__ = ["Actor", "VirtualWorld"]


class Actor:
    """A process that can die, and stand still."""

    alive: bool = True
    paused_until: float = 0.0


class VirtualWorld:
    most_events: ClassVar[int]
    """After which a run is taken for endless."""

    def __init__(self, plan: Any, say: Say | None = None) -> None:
        # Owner tokens come from a counter here: the same in every run of a plan.
        tokens._prefix, tokens._counter = b"lab-owner.", itertools.count()
        self.now = 0.0
        self.events = 0
        self.seen: Counter[Any] = Counter()
        self.say: Say | None = None
        if say is not None:
            self.say = lambda line: say(f"{self.now:8.4f} {line}")
        self._heap: list[
            tuple[float, int, Actor | None, Callable[..., object], tuple[Any, ...]]
        ] = []
        self._order = itertools.count()

    def after(
        self, seconds: float, whose: Actor | None, act: Callable[..., object], *args: Any
    ) -> None:
        heappush(self._heap, (self.now + seconds, next(self._order), whose, act, args))

    @classmethod
    def run(cls, plan: Any, say: Say | None = None) -> tuple[Self, Violation | None]:
        """Run a plan to its end, or to the first broken invariant."""
        world = cls(plan, say)
        try:
            world.begin()
            world._play()
            world.end()
        except Violation as violation:
            if world.say:
                world.say(f"✗      {violation}")
            return world, violation
        finally:
            world.close()
        return world, None

    def _play(self) -> None:
        heap = self._heap
        while heap:
            self.now, _, whose, act, args = heappop(heap)
            if whose is not None:
                if not whose.alive:
                    continue
                if whose.paused_until > self.now:
                    heappush(heap, (whose.paused_until, next(self._order), whose, act, args))
                    continue
            self.events += 1
            act(*args)
            if self.events > self.most_events:
                self.endless(f"still busy after {self.events} events")

    # -- what a study fills in ----------------------------------------------------------------

    def begin(self) -> None:
        """Plan what the plan says."""
        raise NotImplementedError

    def endless(self, how: str) -> None:
        """It does not come to an end."""
        raise NotImplementedError

    def end(self) -> None:
        """Nothing more happens: is everything as it must be?"""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing of this run reaches the next."""
