"""Transaction mode in the lab: a message's handler runs inside a transaction, with its record.

The inbox is a model here, and a small one: a lock per message, what is committed, and how many attempts
have failed. (The study `transactions` runs the shipped inbox.) What is studied is the consumer around it:
what it counts outside of the transaction, and what it sends to the dead letters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twicesafe import Outcome, ParkedError, StillInProgressError, StoreUnavailableError
from twicesafe._core.commands import Raised, Returned
from twicesafe._core.consuming.recovery import DeadLetter, decide, default_recovery

from .handlers import ERRORS, RESTS
from .invariants import broken
from .works import policy_of

if TYPE_CHECKING:
    from .works import Copy, Start, Work
    from .world import World

__all__ = ["Database", "LookUp", "Transaction"]

PARKED = 99
"""Failures of a message that its handler gave up on."""

Done = Callable[[Any], None]


class Database:
    """Which transaction holds which message."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._holders: dict[Work, Start] = {}

    def is_held(self, work: Work) -> bool:
        """A dead worker's transaction is rolled back, unless its COMMIT is under way."""
        holder = self._holders.get(work)
        return holder is not None and (holder.process.alive or holder.committing)

    def hold(self, start: Start) -> None:
        self._holders[start.work] = start

    def let_go(self, start: Start) -> None:
        if self._holders.get(start.work) is start:
            del self._holders[start.work]

    def commit(self, start: Start) -> None:
        work = start.work
        work.effects += 1
        if work.effects > 1:
            broken("effects are applied once", f"{work.name} is committed for the second time")
        work.done, start.committing, start.left = True, False, True
        self._world.seen["outcome", "committed"] += 1
        self._world.progress()
        self.let_go(start)


def _outage() -> Raised:
    return Raised(StoreUnavailableError("the database does not answer"))


class _Entering:
    __slots__ = ("copy", "spent")

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.spent = 0

    def __call__(self, spent: int = 0) -> Any:
        raise AssertionError("the lab runs its handlers in virtual time")

    def begin(self, start: Start, done: Done) -> None:
        process = start.process
        process.world.after(process.world.latency(), process, self._enter, start, done)

    def _enter(self, start: Start, done: Done) -> None:
        world, work = start.process.world, self.copy.work
        if world.now < world.network.down_until and world.faulty:
            done(_outage())
        elif work.done:
            done(Returned(Outcome(work.name, True, 1, work.key, 1)))
        elif world.database.is_held(work):
            done(Raised(StillInProgressError("another transaction has it", key=work.key)))
        else:
            self._entered(start, done)

    def _entered(self, start: Start, done: Done) -> None:
        raise NotImplementedError


class LookUp(_Entering):
    """Ask for the recorded outcome only."""

    __slots__ = ("error",)

    def __init__(self, copy: Copy, error: Exception) -> None:
        super().__init__(copy)
        self.error = error

    def _entered(self, start: Start, done: Done) -> None:
        start.process.world.seen["outcome", "looked up"] += 1
        work = self.copy.work
        given_up = ParkedError("too many attempts", key=work.key)
        done(Raised(given_up if work.failures >= PARKED else self.error))


class Transaction(_Entering):
    """The handler of a message, from BEGIN to COMMIT."""

    __slots__ = ()

    def _entered(self, start: Start, done: Done) -> None:
        world, work = start.process.world, self.copy.work
        if work.failures >= world.plan.max_attempts - self.spent:
            done(Raised(ParkedError("too many attempts", key=work.key)))
            return
        world.database.hold(start)
        world.monitor.handles(start)
        if world.say:
            world.say(f"▶  {start.process.name} {work.name} starts, {self.spent} have died")
        how = work.end_of(len(work.starts))
        world.after(work.post.seconds, start.process, self._end, start, how, done)

    def _end(self, start: Start, how: str, done: Done) -> None:
        world, work = start.process.world, start.work
        world.seen["end", how] += 1
        if how == "kill":
            world.crash(start.process, work)
        elif how == "ok":
            self._commit(start, done)
        else:
            world.database.let_go(start)
            work.failures += 1
            start.failed = start.left = True
            policy = policy_of(world.plan.max_attempts)
            decision = decide(default_recovery, self.copy.message, policy)
            error = decision(ERRORS[how](), work.failures + self.spent)
            if isinstance(error, DeadLetter):
                work.failures = PARKED
            else:
                work.failed_until = world.now + 0.95 * RESTS[how]  # by the worker's clock
            done(Raised(error))

    def _commit(self, start: Start, done: Done) -> None:
        world, process = start.process.world, start.process
        fault = world.fault("commit")
        kind = "" if fault is None else fault.kind
        if kind == "crash before":
            world.crash(process)
            return
        if kind == "refused":
            world.database.let_go(start)
            start.left = True
            world.after(0.002, process, done, _outage())
            return
        start.committing = True
        late = world.latency() + (fault.seconds if kind == "late" else 0.0)
        world.delayed(late)
        world.after(late, None, world.database.commit, start)
        if kind == "crash after":
            world.crash(process)
        elif kind == "answer lost":
            world.after(late + world.plan.timeout, process, done, _outage())
        else:
            value = Outcome(start.work.name, False, 1, start.work.key, 1)
            world.after(late + world.latency(), process, done, Returned(value))
