"""What may never happen, seen from the store, from the broker and at every start."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from twicesafe._core.consuming.starting import FollowsDeadLetter
from twicesafe._core.protocol import Abandon, Ack, Complete, Fail, Renew, Verdict
from twicesafe._values.context import ActiveClaim
from twicesafe._values.records import Cause, State

from .handlers import RESTS, DeadPublication
from .invariants import broken
from .transactions import PARKED, LookUp, Transaction
from .works import LANES, Start, Work

if TYPE_CHECKING:
    from .broker import Receipt
    from .process import Process
    from .works import Copy
    from .world import World

__all__ = ["Monitor"]

_DONE = (State.COMPLETED, State.FAILED)
_GIVEN_UP = (State.PARKED, State.HELD)


class Monitor:
    def __init__(self, world: World) -> None:
        self._world = world
        self._works: dict[bytes, Work] = {}
        self._marks: dict[bytes, Work] = {}
        self._started: dict[bytes, Start] = {}
        """By owner; those without a claim by a number."""
        self._revoked: Counter[tuple[Process, frozenset[str]]] = Counter()

    def add(self, work: Work) -> None:
        self._works[work.key.id] = work
        self._marks[work.mark.id] = work

    def _row(self, id_: bytes) -> Any:
        return self._world.store._rows.get(id_)

    # -- the store ----------------------------------------------------------------------------

    def observed(self, ask: Any, before: Any, answer: Any, after: Any) -> None:
        """A request has reached the store."""
        world = self._world
        if before is after:
            return
        world.progress()
        work = self._works.get(ask.id)
        start = self._started.get(getattr(ask, "owner", b""))
        if type(ask) in (Complete, Fail) and start is not None and answer is Ack.OK:
            start.recorded = True
        if type(ask) is Abandon and start is not None and answer is Ack.OK:
            start.recorded = True
        if type(ask) is Renew and start is not None and start.ended and ask.lease > 1:
            world.seen["outcome", "renewed after its end"] += 1
            start.renewal = "granted"
        marked = self._marks.get(ask.id)
        if marked is not None:
            self._count_lost(marked, ask, before)
        if work is None:
            return
        world.seen["outcome", f"{after.state}"] += 1
        if after.state in _DONE:
            work.done = True
            late = before is not None and before.state in _GIVEN_UP
            if late and start is not None and not start.presumed:
                work.late = True
                world.seen["outcome", "done after it was given up"] += 1
        if type(ask) is Fail and start is not None:
            work.failed_until = world.now + RESTS.get(start.how, 0.0)
        if ask.op == "claim" and getattr(answer, "cause", None) is Cause.LEASE_EXPIRED:
            world.seen["outcome", "taken over"] += 1
        self._count_lost(work, ask, before)

    def _count_lost(self, work: Work, ask: Any, before: Any) -> None:
        if ask.op == "claim" and before is not None and before.state is State.IN_PROGRESS:
            started = self._started.get(before.owner)
            claim = None if started is None else started.claim
            lost = claim is None or claim.fence != before.fence
            work.lost_claims += lost or started not in work.starts

    def asking(self, process: Process, ask: Any) -> None:
        """A process sends a request."""
        start = self._started.get(getattr(ask, "owner", b""))
        if start is not None and ask.op == "renew" and ask.lease > 1:
            start.renewal = "asked"
        if start is not None and ask.op == "complete":
            start.presumed = start.renewal == "asked"
        if ask.op in ("abandon", "complete", "fail"):
            process.asked.pop(ask.id, None)
        elif ask.op == "claim" and ask.key.scope != LANES:  # the runtime releases those
            other = process.asked.get(ask.id)
            if other is not None and other != ask.owner:
                name = self._works[ask.id].name if ask.id in self._works else "a dead letter"
                broken(
                    "attempts count starts",
                    f"{process.name} claims {name} again, and has not released its unanswered claim",
                )
            process.asked[ask.id] = ask.owner

    def heard(self, process: Process, ask: Any, answer: Any) -> None:
        """A process has the answer to its claim."""
        verdict = getattr(answer, "verdict", None)
        if verdict is not None:
            self._world.seen["verdict", verdict.name.lower()] += 1
            if verdict is not Verdict.WON:
                process.asked.pop(ask.id, None)

    # -- handlers -----------------------------------------------------------------------------

    def starts(
        self, process: Process, receipt: Receipt, claim: ActiveClaim | None, run: Any
    ) -> Start:
        world = self._world
        world.progress()
        dead = isinstance(run, DeadPublication)
        start = Start(process, receipt, claim, dead)
        name = start.copy.position
        if claim is not None:
            process.asked.pop(claim.key.id, None)
            if process.clock() >= claim.expires:
                broken("late claims start nothing", f"{name} starts in {process.name}")
        if len(process.running) >= process.seat.concurrency:
            broken("concurrency is kept", f"{name} is one too many in {process.name}")
        beside = [one.copy.position for one in process.running]
        if beside and (start.suspect or any(one.suspect for one in process.running)):
            broken("suspects run alone", f"{name} starts beside {beside} in {process.name}")
        if receipt.noticed:
            broken("revoked starts nothing", f"{name} starts in {process.name}")
        number = len(self._started).to_bytes(4, "big")
        self._started[number if claim is None else claim.owner] = start
        world.seen["start", "no claim" if claim is None else f"{claim.cause}"] += 1
        if not dead and not isinstance(run, (Transaction, LookUp)):
            self.handles(start)
        return start

    def handles(self, start: Start) -> None:
        """The handler of a message starts."""
        world, work, name = self._world, start.work, start.copy.position
        process = start.process
        if work.done:
            broken("done is not run again", f"{name} starts in {process.name}")
        if work.starts and not work.starts[-1].is_over():
            broken("starts have a cause", f"{name} starts while it runs elsewhere")
        # An inbox keeps no back-off: in transaction mode only the delivery that failed rests.
        same = bool(work.starts) and work.starts[-1].receipt is start.receipt
        if world.now + 0.002 < work.failed_until and (same or not world.plan.transactions):
            broken("retries rest", f"{name} starts {work.failed_until - world.now:.3f} s early")
        work.starts.append(start)
        if len(work.starts) > world.plan.max_attempts + self._uncounted(work):
            broken("max_attempts is kept", f"{name} starts for the {len(work.starts)}th time")
        if world.plan.ordered and work.post.key >= 0:
            self._in_order(start)

    def _uncounted(self, work: Work) -> int:
        """In transaction mode: a COMMIT that the database refused, and the first delivery of each copy, which
        has no mark, if its worker dies or still runs it."""
        if not self._world.plan.transactions:
            return 0
        refused = sum(one.left and not one.failed for one in work.starts)
        last = work.starts[-1]
        first = sum(
            one.claim is None and not one.left and (one.died or one is last) for one in work.starts
        )
        return refused + (min(len(work.copies), first) if self._world.plan.max_attempts > 1 else 0)

    def _in_order(self, start: Start) -> None:
        world, work = self._world, start.work
        if world.plan.partitions:
            for earlier in world.lane(work):
                if not earlier.done:
                    broken(
                        "lanes are in order", f"{work.name} starts before {earlier.name} is done"
                    )
        for receipt in start.process.held.values():
            other = receipt.copy.work
            if receipt is start.receipt:
                return
            settled = other.done or receipt.copy.published or receipt.noticed
            if other is not work and other.post.key == work.post.key and not settled:
                broken("lanes wait", f"{work.name} starts before {other.name}")

    def died(self, process: Process, killer: Work | None) -> None:
        for start in self._started.values():
            if start.process is process and not start.recorded:
                claim = start.claim
                # A claim that had expired was lost before, in an outage of the store.
                lost = claim is not None and process.clock() >= claim.expires
                start.died, start.dies_for = True, None if lost else killer
                start.copy.unsure += start.dead

    # -- the broker ---------------------------------------------------------------------------

    def fetched(self, process: Process) -> None:
        most = max(process.seat.batch, self._world.plan.most_held)
        held = sum(not one.noticed for one in process.held.values())
        if held > most:
            broken("most_held is kept", f"{process.name} holds {held}")

    def gives_back(self, process: Process, receipt: Receipt) -> None:
        self._world.seen["outcome", "given back"] += 1

    def acknowledged(self, copy: Copy) -> None:
        row, dead = self._row(copy.work.key.id), self._row(copy.dead_key.id)
        if copy.work.effects or (row is not None and row.state in _DONE):
            return
        if copy.published and dead is not None and dead.state is State.COMPLETED:
            return
        state = "no record" if row is None else row.state
        broken("recorded, then acknowledged", f"{copy.position} is acknowledged; it has {state}")

    def settled(self, copy: Copy) -> None:
        self.acknowledged(copy)
        copy.settled = True
        self._world.seen["broker", "settled"] += 1
        self._world.progress()

    def published(self, start: Start, error: Exception) -> None:
        world, copy, work = self._world, start.copy, start.work
        world.progress()
        if world.say:
            world.say(f"✝  {copy.position} is dead-lettered: {error}")
        behind = isinstance(error, FollowsDeadLetter)
        world.seen["outcome", "followed the dead" if behind else "dead-lettered"] += 1
        # A worker that seemed dead may complete it after its letter was published: that letter may repeat.
        # Or it completes it while the letter waits: nothing withdraws that letter.
        expected = copy.published or work.late
        if start.was_done and not expected and (world.plan.partitions or not behind):
            broken("done is not dead", f"{copy.position} is published: {error}")
        row = self._row(work.key.id)
        other = None
        if row is not None and row.state is State.IN_PROGRESS:
            other = self._started.get(row.owner)
        if other is not None and not behind and not other.is_over():
            broken("done is not dead", f"{copy.position} is published, and runs: {error}")
        assert start.claim is not None
        attempts = [one.claim.attempt for one in self._of(copy) if one.claim is not None]
        lapsed = any(attempt != start.claim.attempt for attempt in attempts)
        if copy.published > copy.unsure + lapsed:
            broken("dead letters repeat with a cause", f"{copy.position} is published again")
        copy.published += 1
        if behind:
            others = world.lane(work) if world.plan.partitions else world.works
            same = [one for one in others if one.post.key == work.post.key and one is not work]
            rows = [self._row(key.id) for one in same for key in (one.key, one.mark)]
            parked = any(row is not None and row.state is State.PARKED for row in rows)
            copies = [one for other in (*same, work) for one in other.copies if one is not copy]
            given_up = any(one.failures >= PARKED or one.late for one in same)
            # In transaction mode a lane may be parked by the message itself, in an earlier delivery.
            own, neighbours = work.counted(world.plan.transactions)
            given_up |= world.plan.transactions and own + neighbours >= world.plan.max_attempts
            if not parked and not given_up and not any(one.published for one in copies):
                broken("innocents are not dead-lettered", f"{work.name} follows no dead one")
            return
        own, neighbours = work.counted(world.plan.transactions)
        if "dead" not in work.post.ends and own + neighbours < world.plan.max_attempts:
            why = f"after {own} attempts and {neighbours} deaths beside others: {error}"
            broken("innocents are not dead-lettered", f"{work.name}, {why}")

    def _of(self, copy: Copy) -> list[Start]:
        return [one for one in self._started.values() if one.dead and one.copy is copy]

    # -- partitions ---------------------------------------------------------------------------

    def notices(self, process: Process, partitions: frozenset[str]) -> None:
        """The flow learns that these are taken away."""
        self._revoked[process, partitions] += 1
        for receipt in process.held.values():
            receipt.noticed = receipt.noticed or receipt.partition in partitions
        running = {id(one.receipt) for one in process.running}
        process.held = {
            number: one
            for number, one in process.held.items()
            if not one.noticed or id(one) in running
        }

    def releases(self, process: Process, partitions: frozenset[str]) -> None:
        world = self._world
        world.seen["broker", "released"] += 1
        self._revoked[process, partitions] -= 1
        if self._revoked[process, partitions] < 0:
            broken("released when nothing runs", f"{process.name} releases {set(partitions)} again")
        for start in process.running:
            if start.receipt.noticed and start.receipt.partition in partitions:
                broken("released when nothing runs", f"{start.copy.position} runs still")

    def unreleased(self) -> list[str]:
        return [
            f"{process.name} {sorted(names)}"
            for (process, names), count in self._revoked.items()
            if count and process.alive
        ]
