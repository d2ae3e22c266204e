"""A simulated process: its clock, its shared flights, its lease keeper, its flow runs. It can die and pause.

The keeper is the shipped one without its thread: who is due, what is asked, what an answer means
and when to look again are its own decisions. Only the round trip to the store takes virtual time here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twicesafe._core.batch import deliver_many
from twicesafe._core.call import Call
from twicesafe._core.delivery import deliver
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._runtime.lease_keeper import LeaseKeeper
from twicesafe._runtime.single_flight import SingleFlight
from twicesafe._values.context import ActiveClaim

from ..virtual import Actor
from .fast_delivery import fast_delivery
from .flow_run import FlowRun
from .invariants import broken
from .network import unavailable
from .plan import Delivery
from .policies import FINGERPRINTS, KEYS, POLICIES
from .running import PlannedHandler

if TYPE_CHECKING:
    from .world import World

__all__ = ["Process"]


def _ignore(event: Any) -> None:
    """The events of simulated work have no observers."""


class Process(Actor):
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        plan = world.plan
        self.loop = plan.loops[number] if number < len(plan.loops) else True
        self.rate = plan.rates[number] if number < len(plan.rates) else 1.0
        self._since = 1000.0 * (number + 1)  # no two clocks read alike
        self.flights = SingleFlight()
        self.keeper = SimulatedKeeper(self)
        self.open: dict[FlowRun, None] = {}
        """Flows under way."""

    def clock(self) -> float:
        return self._since + self.world.now * self.rate

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """In so many seconds of this process's own clock, if it lives."""
        self.world.after(seconds / self.rate, self, act, *args)

    def receive(
        self,
        delivery: Delivery,
        policy: ResolvedPolicy | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """A message arrives: one exchange, or that of a batch."""
        policy = policy or POLICIES[delivery.policy]
        fingerprint = FINGERPRINTS[delivery.fingerprint]
        calls = [
            Call(
                KEYS[key],
                PlannedHandler(self, KEYS[key], policy, behaviour),
                policy,
                None,
                fingerprint,
                None,
                self.clock,
                _ignore,
                False,
            )
            for key, behaviour in zip(delivery.keys, delivery.handlers, strict=True)
        ]
        name = f"p{self.number}.{delivery.at:.3f}"
        flow_run = FlowRun(self, name, {fault.nth: fault for fault in delivery.faults})
        flow_run.on_end = partial(self._answered, calls, ended)
        for seconds in delivery.cancelled:
            self.after(seconds, flow_run.cancel)
        if len(calls) == 1:
            call, flight = calls[0], flow_run.join(calls[0])
            fast = self.world.plan.fast
            flow = fast_delivery(call, flight, self.loop) if fast else deliver(call, flight)
            flow_run.start_flow(flow)
        else:
            flow_run.concurrency = 1 + delivery.policy % 2
            flow_run.start_flow(deliver_many(calls, flow_run.concurrency))

    def _answered(
        self, calls: list[Call], ended: Callable[[], None] | None, flow_run: FlowRun, answer: Any
    ) -> None:
        answers: Sequence[Any] = answer if isinstance(answer, list) else [answer] * len(calls)
        ledger = self.world.ledger
        for call, one in zip(calls, answers, strict=False):
            ledger.answered(call, one)
        if ended is not None:
            name = type(getattr(answer, "error", None)).__name__
            if name in ("StillInProgressError", "StoreUnavailableError", "LeaseLostError"):
                broken("every key ends", f"the last delivery got {name}")
            ended()


class SimulatedKeeper(LeaseKeeper):
    def __init__(self, process: Process) -> None:
        self._process = process
        self._round_number = 0
        self._flying = False
        self._asks: Sequence[Any] = ()
        self._answers: list[Any] | None = None
        super().__init__(self._exchange, process.clock, _ignore)

    def _exchange(self, asks: Sequence[Any]) -> list[Any]:
        if self._answers is not None:
            return self._answers
        self._asks = asks
        raise unavailable()  # not there yet: the answers come in a second call

    def _rouse(self, pace: float) -> None:
        self._pace = min(self._pace, pace)
        self._awake = True
        self._next(0.0)

    def _next(self, seconds: float) -> None:
        self._round_number += 1
        self._process.after(seconds, self._wake, self._round_number)

    def _wake(self, number: int) -> None:
        if number != self._round_number or self._flying:
            return
        self._renew_due()
        pause = self._next_round()
        if pause is not None and not self._flying:
            self._next(pause)

    def _renew(self, due: list[ActiveClaim], sent: float) -> None:
        super()._renew(due, sent)  # for what it asks
        self._flying = True
        process = self._process
        world = process.world
        faults = world.plan.renewals
        nth = world.seen["keeper", "rounds"]
        world.seen["keeper", "rounds"] += 1
        fault = next((one for one in faults if one.nth == nth), None)
        arrived = partial(self._arrived, due, sent)
        world.network.carry(process, f"p{process.number}.keeper", self._asks, fault, arrived)

    def _arrived(self, due: list[ActiveClaim], sent: float, answers: list[Any] | None) -> None:
        self._flying = False
        self._answers = [unavailable() for _ in due] if answers is None else answers
        super()._renew(due, sent)  # for what the answers mean
        self._answers = None
        self._next(0.0)
