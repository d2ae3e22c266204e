"""Handlers of the lab: they take their time, have their effect, and end in every way there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twicesafe._core.commands import Raised, Reply, Returned
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._values.context import ActiveClaim
from twicesafe._values.keys import Key
from twicesafe.errors import LeaseLostError

from .plan import Behaviour
from .policies import RefusedError

if TYPE_CHECKING:
    from .process import Process

__all__ = ["PlannedHandler", "Run"]


class PlannedHandler:
    """What a call is to run. The lab never calls it: it makes a `Run` of it, which takes time."""

    __slots__ = ("behaviour", "key", "policy", "process")

    def __init__(
        self, process: Process, key: Key, policy: ResolvedPolicy, behaviour: Behaviour
    ) -> None:
        self.process = process
        self.key = key
        self.policy = policy
        self.behaviour = behaviour

    def __call__(self) -> Any:
        raise AssertionError("the lab runs its handlers in virtual time")


class Run:
    """One start of one handler."""

    __slots__ = ("_done", "_ended", "_handler", "_number", "claim")

    def __init__(
        self, handler: PlannedHandler, claim: ActiveClaim | None, timeout: float | None,
        done: Callable[[Reply], None],
    ) -> None:  # fmt: skip
        process, how = handler.process, handler.behaviour
        world = process.world
        self._handler = handler
        self.claim = claim
        self._done = done
        self._ended = False
        self._number = next(world.runs)
        if world.say:
            under = "without a claim" if claim is None else f"fence {claim.fence}"
            world.say(f"▶  p{process.number}  handler {self._number} starts, {under}: {how.end}")
        if claim is None:
            world.ledger.start_unprotected(handler.policy)
        else:
            world.ledger.start(claim, handler.policy, process.clock())
            world.ledger.running[claim.key.id, claim.fence] = process, claim
        world.ledger.spans.append((handler.key.id, world.now, world.now + how.seconds))
        world.after(how.seconds * how.effect, process, self._effect)
        world.after(how.seconds, process, self._end)
        if timeout is not None and timeout < how.seconds:
            world.after(timeout, process, self.stop, TimeoutError())

    def stop(self, error: BaseException | None = None) -> None:
        """Cancelled: a coroutine ends where it stands."""
        self._finish(Raised(error or asyncio.CancelledError()))

    def _effect(self) -> None:
        claim = self.claim
        if self._ended or claim is None:
            return
        if self._handler.behaviour.careful and claim.lost:
            self._finish(Raised(LeaseLostError("a careful handler stops here", key=claim.key)))
            return
        process = self._handler.process
        world = process.world
        world.ledger.effect(claim, world.store_now())
        if world.say:
            world.say(
                f"★  p{process.number}  effect of handler {self._number}, fence {claim.fence}"
            )

    def _end(self) -> None:
        if self._ended:
            return
        process, key = self._handler.process, self._handler.key
        value = f"{key.value}#{self._number}"
        how = self._handler.behaviour
        if self.claim is not None:
            process.world.ledger.ended(process, self.claim, how)
        match how.end:
            case "return":
                reply: Reply = Returned(value)
            case "refused" | "stuck":
                reply = Returned(f"{value}!{how.end}")
            case "remember refused" | "remember stuck":
                reply = Raised(RefusedError(f"{value}!{how.end.partition(' ')[2]}"))
            case "fail":
                reply = Raised(RuntimeError("try again"))
            case "remember":
                reply = Raised(RefusedError(value))
            case "cancel":
                reply = Raised(asyncio.CancelledError() if process.loop else KeyboardInterrupt())
            case "unstorable":
                reply = Returned(object())
            case "large":
                reply = Returned(value * 50)
            case "crash" if process.world.network.faulty:
                process.world.crash(process)
                return
            case "crash":  # faults are over
                reply = Raised(RuntimeError("not any more"))
            case other:
                raise AssertionError(other)
        self._finish(reply)

    def _finish(self, reply: Reply) -> None:
        if not self._ended:
            self._ended = True
            if self.claim is not None:
                ledger = self._handler.process.world.ledger
                ledger.running.pop((self.claim.key.id, self.claim.fence), None)
            self._done(reply)
