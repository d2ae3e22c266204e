"""Fibres: shipped code that waits for a database, suspended and resumed by a scheduler.

Both inboxes run their statements in place; a fibre is its own stack, so either
mode is suspended in the midst of a statement without a thread. A *command* is what a fibre hands
over when it waits: it is called with whatever resumes the fibre.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from ..violations import Violation

__all__ = ["Condition", "Fiber", "Queue", "ask", "judge"]

Resume = Callable[..., None]
Command = Callable[[Resume], None]


class World(Protocol):
    """What fibres need of their world."""

    hub: Any
    found: Violation | None
    """What was found inside a fibre."""


class Fiber(greenlet):
    """One stack: a consumer at work, or the writer of deferred writes."""

    def __init__(self, world: World, run: Callable[[], Any], done: Callable[[Any], None]) -> None:
        super().__init__(run, world.hub)
        self._world = world
        self.over = False
        self._done = done
        self._turn = 0

    def go(self, turn: int = 0, value: Any = None, error: BaseException | None = None) -> None:
        """Resume, unless something else did in the meantime."""
        if self.over or turn != self._turn:
            return
        self._turn += 1
        if turn == 0:
            command = self.switch()
        else:
            command = self.switch(value) if error is None else self.throw(error)
        if self._world.found is not None:
            raise self._world.found
        if self.dead:
            self.over = True
            self._done(command)
        else:
            command(partial(self.go, self._turn))

    def interrupt(self, error: BaseException) -> None:
        """Raised where it waits."""
        self.go(self._turn, None, error)

    def kill(self) -> None:
        """Dead where it stands: nothing that it still wants is done."""
        if not self.over:
            self.over = True
            if bool(self) and not self.dead:
                self.throw(GreenletExit)


def ask(command: Command) -> Any:
    """Called inside a fibre: hand over this command, and wait."""
    fiber = getcurrent()
    if fiber.over:
        raise GreenletExit
    return fiber.parent.switch(command)


def judge(world: World, check: Callable[..., None], *args: Any) -> None:
    """Called inside a fibre: what is found here must not be caught by the code that is looked at."""
    try:
        check(*args)
    except Violation as violation:
        world.found = violation
        raise GreenletExit from None


class Queue:
    """`queue.SimpleQueue`, for fibres."""

    def __init__(self, wake: Callable[[Resume], None]) -> None:
        self._wake = wake
        self._items: deque[Any] = deque()
        self._waiting: Resume | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._wake(waiting)

    def get(self) -> Any:
        while not self._items:
            ask(self._wait)
        return self._items.popleft()

    def _wait(self, resume: Resume) -> None:
        self._waiting = resume


class Condition:
    """`threading.Condition`, for fibres, which are never interrupted between two waits."""

    def __init__(self, wake: Callable[..., None]) -> None:
        self._wake = wake
        self._waiting: list[Resume] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> None:
        late = False
        while not holds() and not late:
            late = bool(ask(partial(self._wait, seconds)))

    def _wait(self, seconds: float, resume: Resume) -> None:
        self._waiting.append(resume)
        self._wake(resume, seconds, True)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            self._wake(resume)
