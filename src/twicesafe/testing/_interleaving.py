"""Two concurrent deliveries of one message, interleaved on purpose.

Each delivery is a `Track`: a thread that pauses at a point until it may continue, so that only one of
the two runs at any moment. A schedule says where they pause:

    (3,)      A passes 3 points and pauses; B runs to its end; A continues
    (3, 5)    the same, but B pauses after 5 points, A runs to its end, and then B

With a receiver, the lease of a paused delivery expires: the other takes over, and the first one
continues without knowing it. In production that is a paused machine, a long garbage collection or a
lost network. No receiver can prevent it; only the handler can make it harmless.

What it shows: every schedule with one switch, and then those with two, in a random but fixed order, up
to the bound. What it cannot show: switches within a line, a library or the database, and what needs
three.
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

LONGEST_WAIT: Final = 3.0
"""Seconds after which a track that neither pauses nor ends counts as waiting for the other one."""

LITTLE: Final = 0.2
"""The same, once we know that they do wait for each other, for a lock or a row."""

MORE: Final = 10
"""How many more points than a clean run B may pass, because of the other delivery."""

SLOWER: Final = 4
"""How many times the clean run a track may take in addition: two at once, on a busy machine."""


class Paced(Life):
    """A life that pauses after a number of points, until `go_on` is called."""

    doomed = True  # it may lose its lease while it is paused

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False
        self.stop_after: int | None = None
        self.halted = threading.Event()
        self._go = threading.Event()

    def reach(self, name: str) -> None:
        super().reach(name)
        if len(self.passed) == self.stop_after:
            self.is_paused = True
            self.halted.set()
            self._go.wait()
            self._go.clear()
            self.is_paused = False

    def go_on(self) -> None:
        self._go.set()


class Track:
    """One delivery, in its own thread."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name, self.life = name, Paced()
        self.answer: Any = None
        self.waited = False
        self._ended = threading.Event()
        self._shown = 0

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

    def move(self, until: int | None, seconds: float, story: list[str]) -> bool:
        """Run until it has passed `until` points (None: to its end), or waits. True: it ended."""
        self.life.halted.clear()
        self.life.stop_after = until
        if self._thread.ident is None:
            self._thread.start()
        else:
            self.life.go_on()
        self.waited = not self.life.halted.wait(seconds)
        points = self.life.passed
        story += [f"{self.name}  {point}" for point in points[self._shown :]]
        self._shown = len(points)
        if self.waited:
            story.append(f"{self.name}  waits for the other one")
        return self.ended

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self.ended


@dataclass(frozen=True)
class Played:
    """The outcome of one schedule."""

    answers: tuple[Any, Any]
    story: tuple[str, ...]
    pauses: tuple[str, ...]
    """Which delivery paused, and where."""
    reached: bool
    """False: a delivery ended before the point at which it should have paused."""
    stuck: bool
    waited: bool
    """One delivery waited for the other."""


def play(stage: Stage, stops: tuple[int, ...], seconds: float, to_end: float) -> Played:
    """Two deliveries on this stage; A pauses after ``stops[0]`` points, B after ``stops[1]``.

    ``seconds``: seconds, while one may wait for the paused one; ``to_end``: when none is paused.
    """
    a, b = Track("A", stage), Track("B", stage)
    story: list[str] = []
    pauses: list[str] = []
    reached, waited = True, False
    turns = [(a, stops[0]), (b, stops[1] if len(stops) > 1 else None), (a, None), (b, None)]
    for track, until in turns:
        if track.ended:
            continue
        ended = track.move(until, seconds, story)
        waited = waited or track.waited
        if ended:
            reached = reached and until is None
        elif until is not None:
            pauses.append(f"{track.name} pauses {track.life.passed[-1]}")
            stage.pass_time()
            lease = "" if stage.case.bare else "; its lease expires"
            story.append(f"-  {track.name} pauses{lease}")
    stuck = not (a.join(to_end) and b.join(to_end))
    return Played((a.answer, b.answer), tuple(story), tuple(pauses), reached, stuck, waited)


def explore(
    stages: Callable[[], Stage], points: int, duration: float
) -> Iterator[tuple[Stage, Played]]:
    """Every schedule with one switch, then every one with two, each on a new stage.

    ``duration``: of a clean run, in seconds.
    """
    slow = SLOWER * duration
    seconds = LONGEST_WAIT + slow

    def tried(*stops: int) -> tuple[Stage, Played]:
        nonlocal seconds
        stage = stages()
        played = play(stage, stops, seconds, LONGEST_WAIT + slow)
        if played.waited and (stage.case.bare or stage.clock is not None):
            seconds = LITTLE + slow  # on a real clock they wait for leases, which takes longer
        return stage, played

    for first in range(1, points + 1):
        stage, played = tried(first)
        if played.reached:
            yield stage, played
    # For each pause of A: the last point that B reaches.
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
    """Shuffled, so that a bound does not cut off all pairs with a late first pause."""
    drawn = list(itertools.product(range(1, points + 1), range(1, points + 1)))
    random.Random(points).shuffle(drawn)
    yield from drawn
    yield from itertools.product(range(1, points + 1), range(points + 1, points + MORE))
