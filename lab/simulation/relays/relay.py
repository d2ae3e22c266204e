"""A simulated relay: its clock, its state, and its two flows, performed as the two runtimes do.

The slot keeper and the publishing flow are the shipped ones. A command that takes time waits for its turn in the world;
whatever wakes a flow early (an answer of the broker, a wake-up, a stop) does so here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from twicesafe import Backoff
from twicesafe._core.outbox import relay_lease, relay_publish
from twicesafe._core.outbox.relay_lease import (
    CheckBroker,
    Collect,
    KeeperPause,
    Listen,
    Publish,
    RelayState,
)
from twicesafe._core.outbox.requests import LeasedSlots, Settle
from twicesafe.errors import BrokerUnavailableError, StoreUnavailableError

from ..virtual import Actor
from .invariants import broken
from .network import LOST
from .plan import LEASE, Seat

if TYPE_CHECKING:
    from .broker import Call
    from .world import World
    from .writers import TrackedMessage

__all__ = ["Relay"]

BACKOFF = Backoff(first=0.15, factor=2, most=0.4, jitter=0.5)
FOREVER = 1e9
"""Seconds: no call is given up."""
GIVES_UP = 8
"""Settlements in a row that must have failed before a relay that stops may leave without."""


class _Hand:
    """One of the two flows: what it waits for, and whether that is still so."""

    __slots__ = ("flow", "turn", "waits")

    def __init__(self, flow: Any) -> None:
        self.flow = flow
        self.turn = 0
        self.waits: type | None = None


class Relay(Actor):
    def __init__(self, world: World, number: int, life: int) -> None:
        plan = world.plan
        seat = plan.seats[number] if number < len(plan.seats) else Seat()
        self.world = world
        self.number = number
        self.name = f"r{number}" if life == 1 else f"r{number}'{life}"
        self.ended = False
        self.cut_off_until = 0.0
        self.rate = seat.rate
        self.state = RelayState(
            lease=LEASE,
            batch=plan.batch,
            group=seat.group,
            concurrency=seat.concurrency,
            max_attempts=plan.max_attempts,
            backoff=BACKOFF,
            publish_timeout=FOREVER,
            wake=plan.wakes,
            clock=self.clock,
            notify=lambda event: None,
            checks=plan.checks,
            keeps_order=seat.keeps_order,
        )
        self.keeps_order = seat.keeps_order
        self._inline = seat.threads and seat.concurrency == 1
        self._keeper = _Hand(relay_lease.keep_slots(self.state))
        self._publishing = _Hand(relay_publish.publish_pending(self.state))
        self._landed: list[Call] = []
        self._answers: dict[int, Any] = {}
        # What the monitor looks at:
        self.flying: dict[int, Call] = {}
        self.unsettled: dict[int, TrackedMessage] = {}
        """By number: published, and the relay knows it, but it does not know them settled."""
        self.granted: dict[int, int] = {}
        """What the store says that it holds: slots and fences."""
        self.granted_until = 0
        self.promised = 0.0
        """It may publish until then, by its own clock: counted from the renewal that was sent."""
        self.crashed = False
        self.lapses = 0
        self.settlements_lost = 0
        self.settlements_lost_in_a_row = 0
        self.misled_since: float | None = None
        """The store's clock was set: it may be wrong about its leases until it has asked again."""

    @property
    def owner(self) -> bytes:
        return self.state.owner

    def clock(self) -> float:
        return 1000.0 * (self.number + 1) + self.world.now * self.rate

    def start(self) -> None:
        self._go(self._keeper, None)
        self._go(self._publishing, None)

    def stop(self) -> None:
        self.state.stopping = True
        if self._publishing.waits in (Collect, Listen):
            self._collected()

    # -- the driver -------------------------------------------------------------------------------

    def _go(self, hand: _Hand, reply: Any) -> None:
        hand.turn += 1
        hand.waits = None
        try:
            while True:
                if reply is LOST:
                    command = hand.flow.throw(StoreUnavailableError("lost on the way"))
                else:
                    command = hand.flow.send(reply)
                if type(command) is Collect and self._landed:
                    reply = self._hand_over()
                elif type(command) in (Publish, CheckBroker) and not self._inline:
                    self._publish(command)
                    if not self.alive:
                        return
                    reply = None
                else:
                    break
        except StopIteration:
            self._ends(hand)
            return
        hand.waits = type(command)
        if hand.waits in (Publish, CheckBroker):
            self._publish(command)
        elif hand.waits in (Collect, KeeperPause):
            self._later(hand, hand.turn, command.seconds)
        elif hand.waits is Listen:
            self._ask(hand, "listen", partial(self._sleep, hand, hand.turn, command.seconds))
        else:
            self._request(hand, command)

    def _later(self, hand: _Hand, turn: int, seconds: float) -> None:
        self.world.after(seconds / self.rate, self, self._time_is_over, hand, turn)

    def _time_is_over(self, hand: _Hand, turn: int) -> None:
        if hand.turn == turn:
            self._go(hand, [] if hand.waits is Collect else None)

    def _ends(self, hand: _Hand) -> None:
        if hand is self._publishing:
            self.state.publishing_ended = True
            if self.unsettled and self.settlements_lost_in_a_row < GIVES_UP:
                broken("stopped means settled", f"{self.name} leaves {sorted(self.unsettled)}")
            if self.flying:
                broken("stopped means settled", f"{self.name} leaves calls under way")
            if self._keeper.waits is KeeperPause:
                self._go(self._keeper, None)
            return
        self.ended = True
        self.alive = False
        self.world.relay_ended(self)

    # -- the broker -------------------------------------------------------------------------------

    def _publish(self, command: Publish | CheckBroker) -> None:
        broker = self.world.broker
        if isinstance(command, CheckBroker):
            self.flying[command.ticket] = broker.check(self, command)
        else:
            self.flying[command.ticket] = broker.call(self, command)

    def answered(self, call: Call, answers: Any) -> None:
        """A call has ended: its answers lie there until the publishing flow collects them."""
        self._landed.append(call)
        self._answers[call.ticket] = answers
        waits = self._publishing.waits
        if waits in (Publish, CheckBroker):
            self._go(self._publishing, None)
        elif waits is Collect:
            self._collected()

    def _collected(self) -> None:
        self._go(self._publishing, self._hand_over() if self._publishing.waits is Collect else None)

    def _hand_over(self) -> list[tuple[int, Any]]:
        ended = []
        for call in self._landed:
            del self.flying[call.ticket]
            answers = self._answers.pop(call.ticket)
            self._note(call, answers)
            ended.append((call.ticket, answers))
        self._landed = []
        return ended

    def _note(self, call: Call, answers: Any) -> None:
        if not call.messages:
            return  # a check
        if isinstance(answers, Exception):
            said = isinstance(answers, BrokerUnavailableError) and answers.blames == "none"
            if len(call.messages) == 1 and not said:
                call.messages[0].refusals += 1
            return
        for tracked, answer in zip(call.messages, answers, strict=True):
            if answer is None:
                call.acknowledged.add(tracked.message.id)
                self.unsettled[tracked.n] = tracked
            elif isinstance(answer, ValueError):
                tracked.refusals += 1

    # -- the store --------------------------------------------------------------------------------

    def _request(self, hand: _Hand, ask: Any) -> None:
        sent = self.world.now, self.clock()
        apply = partial(self.world.monitor.apply, self, ask)
        op = ask.op.removeprefix("outbox_")
        self._ask(hand, op, apply, partial(self._replied, hand, ask, sent))

    def _ask(self, hand: _Hand, op: str, apply: Any, arrived: Any = None) -> None:
        turn = hand.turn

        def arrive(answer: Any) -> None:
            if hand.turn != turn:
                return
            if arrived is not None:
                arrived(answer)
            elif answer is not None:
                self._go(hand, None if answer is not LOST else LOST)

        self.world.network.carry(self, op, apply, arrive)

    def _replied(self, hand: _Hand, ask: Any, sent: tuple[float, float], answer: Any) -> None:
        if type(ask) is Settle:
            if answer is LOST:
                self.settlements_lost += 1
                self.settlements_lost_in_a_row += 1
            else:
                self.settlements_lost_in_a_row = 0
                for n in ask.done:
                    self.unsettled.pop(n, None)
        elif type(answer) is LeasedSlots:
            self.promised = sent[1] + 0.9 * LEASE
            if self.misled_since is not None and sent[0] > self.misled_since:
                self.misled_since = None
        self._go(hand, answer)

    # -- wake-ups ---------------------------------------------------------------------------------

    def _sleep(self, hand: _Hand, turn: int, seconds: float) -> Any:
        """At the store: it will be woken, unless there is something already."""
        if self.world.table.sleep(self.owner):
            self._later(hand, turn, seconds)
            return None
        return True

    def ring(self) -> None:
        if self._publishing.waits is Listen:
            self.world.seen["outcome", "woken"] += 1
            self._go(self._publishing, None)
