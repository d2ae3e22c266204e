"""Two deliveries of one message at once, in an order that is chosen, not hoped for.

Each delivery is a `Track`: a thread whose life stands still at a point until it is told to go on, so
that only one of the two moves at any moment. A schedule says where they stop:

    (3,)      A passes 3 points and stands still; B runs to its end; A goes on
    (3, 5)    the same, but B stands still after 5 points, A runs to its end, and then B

Through a receiver, a lease ends whenever somebody stands still: the other takes over, and the first
is a zombie that does not know it. That is a paused machine, a long collection of garbage, a network
that is cut; no receiver can prevent it, only the handler can make it harmless.

What it shows: every order of one switch, and then of two, in an order of its own (drawn, and always
the same), as far as the bound goes. What it cannot show: switches inside a line, inside a library or
inside the database, and what needs three.
"""

from __future__ import annotations

import contextvars
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ._crash import Life
from ._simulated_process import Stage

__all__ = ["Played", "explore", "play"]

PATIENCE: Final = 3.0
"""Seconds after which a track that neither stops nor ends is taken to wait for the other one."""

LITTLE: Final = 0.2
"""The same, once it is known that they do wait for each other: for a lock, or a row."""

MORE: Final = 10
"""So many points more than a clean run B may pass, that meets another."""

SLOWER: Final = 4
"""So many times its clean run a track may take on top of that: two at once, on a busy machine."""


class Paced(Life):
    """A life that stands still after so many points, until it is told to go on."""

    doomed = True  # whatever it holds when it stands still is lost

    def __init__(self) -> None:
        super().__init__()
        self.stands_still = False
        self.stop_after: int | None = None
        self.halted = threading.Event()
        self._go = threading.Event()

    def reach(self, name: str) -> None:
        super().reach(name)
        if len(self.passed) == self.stop_after:
            self.stands_still = True
            self.halted.set()
            self._go.wait()
            self._go.clear()
            self.stands_still = False

    def go_on(self) -> None:
        self._go.set()


class Track:
    def __init__(self, name: str, stage: Stage) -> None:
        self.name, self.life = name, Paced()
        self.answer: Any = None
        self.waited = False
        self._ended = threading.Event()
        self._told = 0

        def run() -> None:
            try:
                self.answer = stage.deliver(self.life)
            finally:
                self._ended.set()
                self.life.halted.set()

        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(run,), daemon=True)

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def move(self, until: int | None, patience: float, story: list[str]) -> bool:
        """Run until it has passed so many points (None: to its end), or is stuck. True: it ended."""
        self.life.halted.clear()
        self.life.stop_after = until
        if self._thread.ident is None:
            self._thread.start()
        else:
            self.life.go_on()
        self.waited = not self.life.halted.wait(patience)
        points = self.life.passed
        story += [f"{self.name}  {point}" for point in points[self._told :]]
        self._told = len(points)
        if self.waited:
            story.append(f"{self.name}  waits for the other one")
        return self.ended

    def join(self, patience: float) -> bool:
        self._thread.join(patience)
        return self.ended


@dataclass(frozen=True)
class Played:
    """What became of one schedule."""

    answers: tuple[Any, Any]
    story: tuple[str, ...]
    pauses: tuple[str, ...]
    """Who stood still, and where."""
    reached: bool
    """False: somebody ended before the point at which it should have stood still."""
    stuck: bool
    waited: bool
    """One of them waited for the other."""


def play(stage: Stage, stops: tuple[int, ...], patience: float, to_end: float) -> Played:
    """Two deliveries on this stage; A stands still after ``stops[0]`` points, B after ``stops[1]``.

    ``patience``: for who may wait for one that stands still; ``to_end``: when nobody does any more.
    """
    a, b = Track("A", stage), Track("B", stage)
    story: list[str] = []
    pauses: list[str] = []
    reached, waited = True, False
    turns = [(a, stops[0]), (b, stops[1] if len(stops) > 1 else None), (a, None), (b, None)]
    for track, until in turns:
        if track.ended:
            continue
        ended = track.move(until, patience, story)
        waited = waited or track.waited
        if ended:
            reached = reached and until is None
        elif until is not None:
            pauses.append(f"{track.name} stands still {track.life.passed[-1]}")
            stage.pass_time()
            lease = "" if stage.case.bare else "; its lease ends"
            story.append(f"-  {track.name} stands still{lease}")
    stuck = not (a.join(to_end) and b.join(to_end))
    return Played((a.answer, b.answer), tuple(story), tuple(pauses), reached, stuck, waited)


def explore(
    stages: Callable[[], Stage], points: int, duration: float
) -> Iterator[tuple[Stage, Played]]:
    """Every schedule with one switch, then every one with two, each on a stage of its own.

    ``duration``: of a clean run, in seconds.
    """
    slow = SLOWER * duration
    patience = PATIENCE + slow

    def tried(*stops: int) -> tuple[Stage, Played]:
        nonlocal patience
        stage = stages()
        played = play(stage, stops, patience, PATIENCE + slow)
        if played.waited and (stage.case.bare or stage.clock is not None):
            patience = (
                LITTLE + slow
            )  # on a real clock they wait for leases: that takes what it takes
        return stage, played

    for first in range(1, points + 1):
        stage, played = tried(first)
        if played.reached:
            yield stage, played
    # By the point of A: B comes to no point after this one.
    last = dict.fromkeys(range(1, points + 1), points + MORE)
    for first, second in _pairs(points):
        if second > last[first]:
            continue
        stage, played = tried(first, second)
        if played.reached:
            yield stage, played
        if played.waited or not played.reached:
            last[first] = second - 1


def _pairs(points: int) -> Iterator[tuple[int, int]]:
    """In an order in which a bound cuts off something of everything, and not the end of it all."""
    drawn = list(itertools.product(range(1, points + 1), range(1, points + 1)))
    random.Random(points).shuffle(drawn)
    yield from drawn
    yield from itertools.product(range(1, points + 1), range(points + 1, points + MORE))
