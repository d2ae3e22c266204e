"""Handlers of the lab: those of messages, and those that publish dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twicesafe._core.call import Call
from twicesafe._core.commands import Raised, Returned
from twicesafe._core.consuming.message import lane_of
from twicesafe._core.consuming.recovery import DeadLetter, Retry, decide, default_recovery
from twicesafe._core.delivery import deliver
from twicesafe._values.keys import Key
from twicesafe.errors import ParkedError

from .works import LANE_POLICY, LANES

if TYPE_CHECKING:
    from .works import Copy, Start

__all__ = ["ERRORS", "RESTS", "DeadPublication", "Handling"]

Done = Callable[[Any], None]

ERRORS: Final[dict[str, Callable[[], Exception]]] = {
    "fail": lambda: RuntimeError("not today"),
    "retry": lambda: Retry(after=0.2),
    "retry later": lambda: Retry(after=1.3),
    "dead": lambda: DeadLetter("never"),
}
"""What handlers raise."""

RESTS: Final = {"retry": 0.2, "retry later": 1.3, "fail": 0.05}
"""Seconds until the next attempt, at least."""


class Handling:
    """The handler of a message: it takes its time, and ends as its plan says."""

    __slots__ = ("copy",)

    def __init__(self, copy: Copy) -> None:
        self.copy = copy

    def begin(self, start: Start, done: Done) -> None:
        process, work = start.process, self.copy.work
        nth = len(work.starts)
        if process.world.say:
            attempt = 0 if start.claim is None else start.claim.attempt
            process.world.say(f"▶  {process.name} {work.name} starts, attempt {attempt}")
        process.world.after(work.post.seconds, process, self._end, start, work.end_of(nth), done)

    def _end(self, start: Start, how: str, done: Done) -> None:
        world = start.process.world
        world.seen["end", how] += 1
        if how == "kill":
            world.crash(start.process, start.work)
            return
        start.failed, start.how = how != "ok", how
        done(Returned(start.work.name) if how == "ok" else Raised(ERRORS[how]()))


class DeadPublication:
    """What the consumers do with a dead message: park its lane if order matters, and publish it."""

    __slots__ = ("copy", "error")

    def __init__(self, copy: Copy, error: Exception) -> None:
        self.copy = copy
        self.error = error

    def begin(self, start: Start, done: Done) -> None:
        from .process import Steps

        process = start.process
        message = self.copy.message
        if not (process.world.plan.ordered and message.key):
            process.world.broker.publish(start, self.error, done)
            return

        def parked(value: Any, error: Exception | None) -> None:
            reply = value.error if isinstance(value, Raised) else error
            if isinstance(reply, (DeadLetter, ParkedError)):
                process.world.broker.publish(start, self.error, done)
            else:
                assert reply is not None
                done(Raised(reply))

        call = Call(
            Key(lane_of(message), scope=LANES), _park, LANE_POLICY, None, None, None, process.clock,
            lambda event: None, False,
        )  # fmt: skip
        call.decide = decide(default_recovery, message, LANE_POLICY)
        process.after(0.0, Steps(process, deliver(call), parked).go)


def _park() -> None:
    raise DeadLetter("a message of this key is dead")
