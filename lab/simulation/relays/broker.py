"""The broker: it takes messages, refuses some, and is away, slow or misunderstood at times.

A call is sent at one moment, taken at a later one, and answered later still. A relay may die or stand
still in between; what it has sent is taken all the same.

A publisher that keeps order takes a call from its beginning, and of a key nothing behind a refusal.
Any other one knows no keys: it begins at the end of the call, and each message is on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twicesafe._core.outbox.publisher import NOT_TRIED
from twicesafe._core.outbox.relay_lease import CheckBroker, Publish
from twicesafe.errors import BrokerUnavailableError

from ..plans import Fault
from .invariants import broken
from .plan import POISON

if TYPE_CHECKING:
    from .relay import Relay
    from .world import World
    from .writers import TrackedMessage

__all__ = ["Broker", "Call"]


class Call:
    """One call of a publisher."""

    __slots__ = (
        "acknowledged", "answers", "in_turn", "messages", "relay", "sent", "stopped", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        relay: Relay,
        command: Publish | CheckBroker,
        messages: list[TrackedMessage],
        sent: float,
    ) -> None:
        self.relay = relay
        self.ticket = command.ticket
        self.messages = messages
        self.sent = sent
        self.in_turn = messages if relay.keeps_order else messages[::-1]
        """As the broker takes them."""
        self.answers: dict[str, Any] = {}
        """By id: what the broker said."""
        self.stopped: set[bytes] = set()
        """Of a publisher that keeps order: lanes of which a message was refused; it tries no more."""
        self.acknowledged: set[str] = set()
        """The relay knows that these are safe."""

    def said(self) -> list[Any]:
        """An answer for each message, as a publisher gives them."""
        return [self.answers.get(tracked.message.id, NOT_TRIED) for tracked in self.messages]


class Broker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._mishaps = {one.nth: one for one in world.plan.calls}
        self._calls = 0
        self.away_until = 0.0
        self.repaired = False
        """What was poison is taken from now on."""
        self.repeats = 0

    def call(self, relay: Relay, command: Publish) -> Call:
        world = self._world
        messages = []
        for message in command.messages:
            tracked = world.writers.messages.get(message.id)
            if tracked is None or tracked.message != message:
                broken("same message", f"{message.id} is not what was committed under this id")
                continue
            messages.append(tracked)
        call = Call(relay, command, messages, world.now)
        world.monitor.sending(call)
        mishap = self._mishaps.get(self._calls) if world.faulty else None
        self._calls += 1
        if world.now < self.away_until:
            mishap = Fault(0, "away")
        if mishap is None:
            world.after(world.latency(), None, self._take_all, call, 0.0)
            return call
        world.seen["call", mishap.kind] += 1
        if world.say:
            world.say(f"~~ {relay.name} call {call.ticket}: {mishap.kind} {mishap.seconds:.2f}")
        _MISHAPS[mishap.kind](self, call, mishap.seconds)
        return call

    def check(self, relay: Relay, command: CheckBroker) -> Call:
        """Is it there?"""
        world = self._world
        call = Call(relay, command, [], world.now)
        away = world.now < self.away_until
        world.seen["outcome", "checked, and away" if away else "checked, and there"] += 1
        self._answer(call, BrokerUnavailableError("away", blames="none") if away else None, 0.0)
        return call

    # -- taking and answering -------------------------------------------------------------------

    def _take(self, call: Call, messages: Sequence[TrackedMessage]) -> None:
        for tracked in messages:
            if tracked.lane in call.stopped:
                continue
            if self._refuses(tracked):
                tracked.refused += 1
                if call.relay.keeps_order:
                    call.stopped.add(tracked.lane)
                call.answers[tracked.message.id] = ValueError("not this one")
            else:
                self._publish(call, tracked)
                call.answers[tracked.message.id] = None
        if self._world.say:
            told = " ".join(
                f"{tracked.message.id}{_MARKS.get(type(answer), '?')}"
                for tracked, answer in zip(call.messages, call.said(), strict=True)
            )
            self._world.say(f"** {call.relay.name} call {call.ticket} is taken: {told}")

    def _refuses(self, tracked: TrackedMessage) -> bool:
        planned = tracked.post.refused
        return not self.repaired if planned >= POISON else tracked.refused < planned

    def _publish(self, call: Call, tracked: TrackedMessage) -> None:
        world = self._world
        if tracked.calls:
            self.repeats += 1
            world.seen["outcome", "repeated"] += 1
            world.monitor.repeated(call, tracked)
        else:
            world.seen["outcome", "published"] += 1
            world.monitor.first(tracked)
        tracked.calls.append(call)

    def _answer(self, call: Call, answers: Any, seconds: float) -> None:
        world = self._world
        world.after(world.latency() + seconds, call.relay, call.relay.answered, call, answers)

    def _take_all(self, call: Call, late: float) -> None:
        for tracked in call.in_turn:
            if tracked.post.chokes and tracked.lane not in call.stopped and self._refuses(tracked):
                tracked.refused += 1
                self._world.seen["outcome", "hung up"] += 1
                self._answer(call, BrokerUnavailableError("hung up", blames="alone"), late)
                return
            self._take(call, [tracked])
        self._answer(call, call.said(), late)

    # -- mishaps --------------------------------------------------------------------------------

    def _away(self, call: Call, seconds: float) -> None:
        self._answer(call, BrokerUnavailableError("the broker is away", blames="none"), 0.0)

    def _answer_lost(self, call: Call, seconds: float) -> None:
        self._take(call, call.in_turn)
        self._answer(call, BrokerUnavailableError("no answer"), seconds)

    def _torn(self, call: Call, seconds: float) -> None:
        self._take(call, call.in_turn[: (len(call.messages) + 1) // 2])
        self._answer(call, BrokerUnavailableError("the connection broke"), seconds)

    def _broken(self, call: Call, seconds: float) -> None:
        self._answer(call, RuntimeError("something in this call"), 0.0)

    def _silent(self, call: Call, seconds: float) -> None:
        self._take(call, call.in_turn)
        self._answer(call, RuntimeError("who knows"), seconds)

    def _part(self, call: Call, seconds: float) -> None:
        self._take(call, call.in_turn[: (len(call.messages) + 1) // 2])
        self._answer(call, call.said(), 0.0)

    def _slow(self, call: Call, seconds: float) -> None:
        self._world.delayed(seconds)
        self._world.after(seconds / 2, None, self._take_all, call, seconds / 2)

    def _split(self, call: Call, seconds: float) -> None:
        """One by one, and the second half only if the relay still lives and goes on by then."""
        half = (len(call.messages) + 1) // 2
        self._take(call, call.in_turn[:half])
        self._world.delayed(seconds)
        self._world.after(seconds, call.relay, self._take_rest, call, half)

    def _take_rest(self, call: Call, half: int) -> None:
        self._take(call, call.in_turn[half:])
        self._answer(call, call.said(), 0.0)

    def _crash_in_call(self, call: Call, seconds: float) -> None:
        self._world.after(self._world.latency(), None, self._take, call, call.in_turn)
        self._world.crash(call.relay)


_MARKS = {type(None): "✓", ValueError: "✗", type(NOT_TRIED): "–"}

_MISHAPS = {
    "away": Broker._away,
    "answer lost": Broker._answer_lost,
    "torn": Broker._torn,
    "broken": Broker._broken,
    "silent": Broker._silent,
    "part": Broker._part,
    "slow": Broker._slow,
    "split": Broker._split,
    "crash in call": Broker._crash_in_call,
}
