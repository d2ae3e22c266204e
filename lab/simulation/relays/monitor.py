"""The monitor: what may never happen, seen where requests reach the store and calls reach the broker.

It keeps its own book of who holds which slot, from what the store answered, and never asks a relay
what it believes: only what it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twicesafe._core.outbox.requests import Fetch, Fetched, Heartbeat, LeasedSlots, Setback, Settle

from .invariants import broken

if TYPE_CHECKING:
    from .broker import Call
    from .relay import Relay
    from .world import World
    from .writers import TrackedMessage

__all__ = ["Monitor"]


class Monitor:
    def __init__(self, world: World) -> None:
        self._world = world
        self._holders: dict[int, Relay] = {}
        self._fences: dict[int, int] = {}
        """The largest that was given out, per slot."""
        self._noted: dict[int, tuple[bytes, int]] = {}
        """By number: the last refusal that was written down, by whom and as which attempt."""
        self._rests: dict[bytes, int] = {}
        """By lane: until when it rests."""
        self.causes = 0
        """Deaths, lost leases, lost answers and lost settlements: each may repeat a batch."""

    # -- at the broker --------------------------------------------------------------------------

    def sending(self, call: Call) -> None:
        """A relay hands messages to its publisher."""
        relay, messages = call.relay, call.messages
        if relay.clock() >= relay.promised:
            late = relay.clock() - relay.promised
            broken("not past its deadline", f"{relay.name} sends {late:.2f} s behind it")
        under_way = sum(len(other.messages) for other in relay.flying.values())
        if under_way + len(relay.unsettled) + len(messages) > self._world.plan.batch:
            broken("one batch under way", f"{under_way}, {len(relay.unsettled)}, {len(messages)}")
        busy = {tracked.lane for other in relay.flying.values() for tracked in other.messages}
        last: dict[bytes, int] = {}
        for tracked in messages:
            beside = tracked.lane in busy or (tracked.lane in last and not relay.keeps_order)
            if beside or tracked.n <= last.get(tracked.lane, 0):
                broken(
                    "one group of a lane",
                    f"{tracked.message.id} beside or behind a later one",
                )
            last[tracked.lane] = tracked.n
            if relay.misled_since is None:
                self._sent(relay, tracked)

    def _sent(self, relay: Relay, tracked: TrackedMessage) -> None:
        what = tracked.message.id
        if tracked.slot not in relay.granted:
            broken("only from its slots", f"{relay.name} sends {what} of slot {tracked.slot}")
        elif relay.granted_until <= self._world.store_now():
            broken("only from its slots", f"{relay.name} sends {what}, and its lease is over")
        if tracked.skipped_at is not None:
            broken(
                "settled or skipped is never sent again",
                f"{relay.name} sends {what}, which was skipped",
            )
        if tracked.settled_by:
            broken(
                "settled or skipped is never sent again",
                f"{relay.name} sends {what}, which was settled",
            )

    def first(self, tracked: TrackedMessage) -> None:
        """It is published for the first time."""
        if tracked.skipped_at is not None:
            return  # sent before the operator's word, taken behind it
        for before in self._world.writers.lanes[tracked.lane][: tracked.place]:
            if not before.calls and before.skipped_at is None:
                broken("lanes are in order", f"{tracked.message.id} before {before.message.id}")

    def repeated(self, call: Call, tracked: TrackedMessage) -> None:
        now, id_ = call.relay, tracked.message.id
        for earlier in tracked.calls:
            then = earlier.relay
            lost = then.crashed or then.lapses or now.crashed or now.lapses
            if then is not now:
                lost = lost or then.settlements_lost
            if id_ in earlier.acknowledged and not lost:
                broken("repeats have a cause", f"{id_} by {then.name}, then by {now.name}")
        causes = self.causes + self._unanswered()
        most = causes * self._world.plan.batch
        if self._world.broker.repeats > most and not self._world.jumped:
            repeats = self._world.broker.repeats
            broken("one batch repeated", f"{repeats} repeats, {causes} causes")

    def _unanswered(self) -> int:
        """Calls that published something their relays do not know of."""
        calls = {
            id(call)
            for tracked in self._world.writers.messages.values()
            for call in tracked.calls
            if tracked.message.id not in call.acknowledged
        }
        return len(calls)

    # -- at the store -----------------------------------------------------------------------------

    def apply(self, relay: Relay, ask: Any) -> Any:
        """One request, atomically, under the monitor's eyes."""
        world = self._world
        if type(ask) is Settle:
            answer = self._settle(relay, ask)
        else:
            if type(ask) is Heartbeat:
                self._giving(relay, ask)
            answer = world.table.perform(ask)
            if type(answer) is LeasedSlots:
                self._held(relay, ask, answer)
            elif type(ask) is Fetch:
                self._fetched(answer)
        if world.say:
            world.say(f"→  {relay.name} {_told(ask)}: {_answered(answer)}")
        return answer

    def _fetched(self, fetched: Fetched) -> None:
        for row in fetched.rows:
            if self._rests.get(row.lane, 0) > self._world.store_now():
                broken("rests are kept", f"row {row.n} is fetched too early")

    def _giving(self, relay: Relay, ask: Heartbeat) -> None:
        given = [slot for slot in relay.granted if ask.leave or slot in ask.give]
        under_way = [tracked for call in relay.flying.values() for tracked in call.messages]
        left = {tracked.slot for tracked in (*under_way, *relay.unsettled.values())}
        for slot in given:
            if slot in left and not (ask.leave and relay.settlements_lost_in_a_row):
                broken(
                    "slots are released when nothing is pending",
                    f"{relay.name} gives slot {slot} back",
                )
            del relay.granted[slot], self._holders[slot]
        if given:
            self._world.seen["outcome", "left" if ask.leave else "gave back"] += 1

    def _held(self, relay: Relay, ask: Heartbeat, held: LeasedSlots) -> None:
        now = self._world.store_now()
        if held.slots != relay.granted:
            lost = {
                self._changes_hands(slot, fence, relay, now)
                for slot, fence in held.slots.items()
                if relay.granted.get(slot) != fence
            }
            for other in sorted(lost - {None}, key=lambda one: one.name):
                other.lapses += 1
                self.causes += not other.crashed
                self._world.seen["outcome", "taken over"] += 1
            relay.granted = dict(held.slots)
        relay.granted_until = now + ask.lease

    def _changes_hands(self, slot: int, fence: int, relay: Relay, now: int) -> Any:
        """Answer: the relay whose lease was over."""
        if fence <= self._fences.get(slot, 0):
            broken("fences grow", f"slot {slot} has fence {fence} again")
        if slot in relay.granted:
            broken("fences grow", f"slot {slot} of {relay.name} has another fence")
        other = self._holders.get(slot)
        self._holders[slot] = relay
        self._fences[slot] = fence
        if other is None:
            return None
        del other.granted[slot]
        if other.granted_until > now:
            broken(
                "one relay per slot",
                f"slot {slot} of {other.name} is taken, and its lease is not over",
            )
        sure = other.alive and other.misled_since is None and slot in other.state.slots
        if sure and other.clock() < other.promised:
            broken(
                "one relay per slot", f"slot {slot} is taken while {other.name} may publish from it"
            )
        return other

    def _settle(self, relay: Relay, ask: Settle) -> int:
        world = self._world
        for n in ask.done:
            if not world.writers.by_number[n].calls:
                broken("only published rows go", f"{relay.name} settles row {n}, unpublished")
        before = [world.table.trouble(one.lane) for one in ask.setbacks]
        there = world.table.waiting()
        answer: int = world.table.perform(ask)
        gone = there - world.table.waiting()
        if gone - set(ask.done):
            broken("only published rows go", f"{sorted(gone - set(ask.done))} went without a word")
        for n in gone:
            tracked = world.writers.by_number[n]
            tracked.settled_by = tracked.slot in relay.granted
        for lane in ask.cured:
            self._rests.pop(lane, None)
        for setback, trouble in zip(ask.setbacks, before, strict=True):
            self._set_back(relay, setback, trouble)
        world.ending.look()
        return answer

    def _set_back(self, relay: Relay, it: Setback, before: tuple[int, int, bool] | None) -> None:
        world = self._world
        tracked = world.writers.by_number[it.n]
        after = world.table.trouble(it.lane)
        if after is None or after == before or after[:2] != (it.n, it.attempts):
            world.seen["outcome", "refusal not noted"] += 1
            return
        if relay.granted.get(it.slot) != it.fence:
            broken(
                "only the holder records refusals",
                f"{relay.name} noted {tracked.message.id}",
            )
        counted = before[1] if before is not None and before[0] == it.n else 0
        again = self._noted.get(it.n) == (relay.owner, it.attempts) and relay.settlements_lost
        if before is not None and before[2] and not again:
            broken("refusals count once", f"{tracked.message.id} was parked already")
        if it.attempts != counted + 1:
            rule = "a repeated settlement changes nothing" if again else "refusals count once"
            broken(rule, f"{tracked.message.id}: {counted}, then {it.attempts}")
        if it.attempts > tracked.refusals:
            broken(
                "refusals count once",
                f"{tracked.message.id} was refused {tracked.refusals} times",
            )
        if it.park != (it.attempts >= world.plan.max_attempts):
            broken("refusals count once", f"{tracked.message.id} at attempt {it.attempts}")
        self._noted[it.n] = (relay.owner, it.attempts)
        self._rests[it.lane] = 0 if it.park else world.store_now() + it.delay
        world.seen["outcome", "parked" if it.park else "refused, and rests"] += 1
        if it.park:
            world.parked()


def _told(ask: Any) -> str:
    words = [ask.op.removeprefix("outbox_")]
    if type(ask) is Heartbeat:
        words += ["leave"] if ask.leave else [f"give {sorted(ask.give)}"] if ask.give else []
    elif type(ask) is Settle:
        words += [f"done {ask.done}"] if ask.done else []
        words += [f"cured {ask.cured}"] if ask.cured else []
        words += [
            f"row {one.n} attempt {one.attempts}{' PARK' if one.park else ''} fence {one.fence}"
            for one in ask.setbacks
        ]
        words += [f"aside {numbers}" for numbers in ask.aside.values()]
    return " ".join(words)


def _answered(answer: Any) -> str:
    if type(answer) is LeasedSlots:
        return f"{len(answer.slots)} slots of {answer.share}"
    if isinstance(answer, Fetched):
        rows = " ".join(f"{row.n}{'L' if row.last else ''}" for row in answer.rows)
        aside = [n for numbers in answer.aside.values() for n in numbers]
        return (rows or "nothing") + (f", aside {sorted(aside)}" if aside else "")
    return str(answer)
