"""Runs a flow over the network: every request may be lost, late, answered late, or cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twicesafe._core.regions.claiming import Probe
from twicesafe._core.regions.epochs import On
from twicesafe._core.regions.failover import Wait
from twicesafe.errors import StoreUnavailableError

from ..plans import Fault
from ..virtual import Actor

if TYPE_CHECKING:
    from .world import World

__all__ = ["FlowRun"]

HOP = 0.002


class FlowRun:
    """`stores`: by place. `side`: where the actor is: a region, or none. `done` gets the value or the error."""

    def __init__(
        self,
        world: World,
        whose: Actor,
        side: str,
        stores: dict[str, str],
        flow: Any,
        done: Callable[[Any], None],
    ) -> None:
        self._world, self._whose, self._side = world, whose, side
        self._stores, self._flow, self._done = stores, flow, done
        self.over = False
        self._send(None)

    def kill(self) -> None:
        self.over = True
        self._flow.close()

    def _send(self, reply: Any) -> None:
        if self.over:
            return
        try:
            command = (
                self._flow.throw(reply) if isinstance(reply, Exception) else self._flow.send(reply)
            )
        except StopIteration as end:
            self.over = True
            self._done(end.value)
            return
        except Exception as error:
            self.over = True
            self._done(error)
            return
        if type(command) is Wait:
            self._world.after(command.seconds, self._whose, self._send, None)
        elif type(command) is Probe:
            self._world.after(HOP, self._whose, self._send, self._world.ledger.probe(command.key))
        else:
            assert type(command) is On
            self._request(self._stores[command.place], command.request)

    def _request(self, store: str, request: Any) -> None:
        world = self._world
        fault = world.next_fault()
        kind = "" if fault is None else fault.kind
        if fault is not None:
            world.seen["fault", kind] += 1
            if world.say:
                world.say(f"~      {kind}: {self._side or 'operator'} → {store}")
        if kind == "request lost":
            self._fail()
            return
        late = fault.seconds if isinstance(fault, Fault) else 0.0
        if kind != "late" and (seconds := world.lateness(self._side, store, request)):
            kind, late = "late", seconds
        there = HOP + (late if kind == "late" else 0.0)
        world.after(there, None, self._arrive, store, request, kind, late)
        if kind in ("late", "answered late") and late > world.plan.time_limit:
            self._fail()

    def _fail(self) -> None:
        error = StoreUnavailableError("no answer")
        self._world.after(self._world.plan.time_limit, self._whose, self._send, error)

    def _arrive(self, store: str, request: Any, kind: str, late: float) -> None:
        world = self._world
        if world.is_cut(self._side, store):
            self._fail()
            return
        if type(request) is list:
            reply: Any = [world.apply(store, each) for each in request]
        else:
            reply = world.apply(store, request)
        if kind == "reply lost" or world.is_silent(self._side, store):
            self._fail()
        elif kind in ("late", "answered late") and late > world.plan.time_limit:
            pass  # its sender has given up
        else:
            back = HOP + (late if kind == "answered late" else 0.0)
            world.after(back, self._whose, self._send, reply)
