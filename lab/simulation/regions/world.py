"""The world: two regions with their workers and stores, the register, the follower, the operators."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

from msgspec.structs import replace

from twicesafe import Key
from twicesafe._core.protocol import (
    Ack,
    Adopt,
    Claimed,
    ClaimRequest,
    Complete,
    Fail,
    Page,
    RaiseFences,
    Rewrite,
    Verdict,
)
from twicesafe._core.regions import claiming, failover, following
from twicesafe._core.regions.epochs import REGISTER, SOURCE, TARGET, Epoch, On, create, key_of
from twicesafe._core.regions.following import Copied
from twicesafe._values.keys import new_owner
from twicesafe._values.records import Row, State
from twicesafe.errors import CorruptRecordError, NotHomeError, StoreUnavailableError, TwicesafeError
from twicesafe.stores.memory import MemoryStore

from ..plans import Fault, Incident
from ..study import Say
from ..virtual import Actor, VirtualWorld
from .flow_run import FlowRun
from .ledger import Ledger, broken
from .plan import (
    ACTS,
    KEYS,
    LATE_CLAIMS,
    LEASE,
    QUIET,
    REGIONS,
    SKEW,
    WINDOW,
    Delivery,
    Plan,
)

__all__ = ["World"]

EPOCH = 1_700_000_000_000
CLAIM_LEASE = 1_000
PAGE = 2
"""Records that a follower reads at once: less than there are."""
OVERLAP = 200
TRIES = 3
HOME = key_of("lab", "eu")
ALL_KEYS = [Key(f"key-{'x' * number}") for number in range(KEYS)]


class TimedStore(MemoryStore):
    """The fence of a claim is the time, if it is not higher."""

    def claim(self, ask: ClaimRequest) -> Claimed:
        before = self._rows.get(ask.key.id)
        answer = super().claim(ask)
        after = self._rows.get(ask.key.id)
        if after is None or after is before or not answer.fence:
            return answer
        fence = max(after.fence, self._now() * 1000)
        self._rows[after.id] = replace(after, fence=fence)
        return replace(answer, fence=fence)

    def raise_fences(self, ask: RaiseFences) -> Ack:
        return Ack.OK if self._now() * 1000 > ask.above else Ack.REFUSED


class Worker(Actor):
    def __init__(self, world: World, number: int) -> None:
        self.number, self.name = number, REGIONS[number % 2]
        rate = world.plan.rates[number]
        self.region = claiming.Region(
            self.name,
            "lab",
            home=lambda _: "eu",
            sent_at=world.sent_at,
            unknown=world.ledger.probe if world.plan.unknown == "ask" else world.plan.unknown,  # type: ignore[arg-type]
            lease=LEASE,
            clock=lambda: world.now * rate,
        )
        self.stores = {claiming.HERE: self.name, REGISTER: REGISTER}


class World(VirtualWorld):
    most_events = 20_000

    def __init__(self, plan: Plan, say: Say | None = None) -> None:
        super().__init__(plan, say)
        self.plan = plan
        places = (*REGIONS, REGISTER)
        self.stores = {
            name: (TimedStore if timed else MemoryStore)(now=partial(self._clock, offset))
            for name, timed, offset in zip(
                places, (*plan.timed, any(plan.timed)), plan.offsets[:3], strict=True
            )
        }
        self.ledger = Ledger(self)
        self._faults: dict[int, Fault] = {fault.nth: fault for fault in plan.faults}
        self._requests = itertools.count()
        self._numbers = itertools.count(1)
        self._cuts: dict[tuple[str, str], float] = {}
        self._silent: dict[str, float] = {}
        self._late: dict[str, tuple[float, float]] = {}
        self._operators: list[Actor] = []
        self._first_sent = {
            key: min((d.at for d in plan.deliveries if d.key == key), default=0.0)
            for key in range(KEYS)
        }
        self._quiet = False
        self.damaged: set[tuple[str, bytes]] = set()
        """Records that cannot be read any more: where, and their ids."""
        self.workers = [Worker(self, number) for number in range(len(plan.rates))]
        self._follower = Actor()

    def wall(self) -> int:
        return int(self.now * 1000) + EPOCH

    def _clock(self, offset: int) -> int:
        return self.wall() + offset

    def sent_at(self, key: Key) -> int:
        return int(self._first_sent[ALL_KEYS.index(key)] * 1000) + EPOCH + self.plan.offsets[3]

    def begin(self) -> None:
        flow = create(HOME, "eu", self.wall())
        self._directly(flow)
        for delivery in self.plan.deliveries:
            self.after(delivery.at, None, self._deliver, delivery)
        for at, back in self.plan.passes:
            self.after(at, None, self._follow, back)
        for incident in self.plan.incidents:
            self.after(incident.at, None, self._happen, incident)
        self.after(QUIET, None, self._last_moves)

    def endless(self, how: str) -> None:
        broken("everything ends", how)

    # -- the network ----------------------------------------------------------------------------

    def next_fault(self) -> Fault | None:
        number = next(self._requests)
        return None if self._quiet else self._faults.get(number)

    def is_cut(self, side: str, store: str) -> bool:
        return not self._quiet and self._cuts.get((side, store), 0.0) > self.now

    def lateness(self, side: str, store: str, request: Any) -> float:
        """Seconds by which this claim of a region arrives late."""
        until, seconds = self._late.get(side, (0.0, 0.0))
        late = side == store and type(request) is ClaimRequest and until > self.now
        return seconds if late and not self._quiet else 0.0

    def is_silent(self, side: str, store: str) -> bool:
        """The requests of a region's workers reach its store, and no reply reaches them."""
        return not self._quiet and side == store and self._silent.get(store, 0.0) > self.now

    def apply(self, store: str, request: Any) -> Any:
        held = self.stores[store]
        id_ = getattr(request, "id", b"")
        if (store, getattr(getattr(request, "row", request), "id", id_)) in self.damaged:
            return CorruptRecordError("damaged")
        before: Row | None = held._rows.get(id_)
        reply = held.perform(request)
        if type(reply) is Page:
            whole = [row for row in reply.rows if (store, row.id) not in self.damaged]
            others = tuple(row.id.hex() for row in reply.rows if (store, row.id) in self.damaged)
            return Page(whole, reply.after, others)
        if type(request) is Fail and reply is Ack.OK:
            self.ledger.failed.add((request.id, request.fence))
        after = held._rows.get(id_)
        self.ledger.wrote(store, before, after, held._now())
        if type(request) is Adopt and request.over is None and before is not None:
            self.ledger.copied(store, before, after, held._now())
        if type(request) is ClaimRequest and before is None and after is not None:
            self.ledger.made(store, after)
        if store == REGISTER and type(request) in (Rewrite, Complete) and reply is Ack.OK:
            row = held._rows[id_]
            if row.result is not None:
                self.ledger.registered(row.result)
        return reply

    def _directly(self, flow: Any) -> Any:
        """Without a network: the first epoch."""
        reply = None
        while True:
            try:
                command = flow.send(reply)
            except StopIteration as end:
                return end.value
            reply = self.apply(REGISTER, command.request)

    # -- workers --------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        worker = self.workers[delivery.worker]
        if worker.alive:
            key = ALL_KEYS[delivery.key]
            ask = ClaimRequest(key, new_owner(), CLAIM_LEASE, 100)
            self.after(0.0, worker, self._claim, worker, ask, delivery, 1, self.now)

    def _claim(
        self, worker: Worker, ask: ClaimRequest, delivery: Delivery, turn: int, sent: float
    ) -> None:
        """`sent`: the first time (P7)."""
        answered = partial(self._claimed, worker, ask, delivery, turn, sent)
        FlowRun(
            self, worker, worker.name, worker.stores, claiming.claim(worker.region, ask), answered
        )

    def _claimed(
        self,
        worker: Worker,
        ask: ClaimRequest,
        delivery: Delivery,
        turn: int,
        sent: float,
        answer: Any,
    ) -> None:
        if isinstance(answer, NotHomeError):
            self.seen["answer", "not home"] += 1
            return
        if isinstance(answer, StoreUnavailableError):
            self.seen["answer", "no store"] += 1
            if turn < TRIES:  # the same claim again: P2, P10
                self.after(0.05, worker, self._claim, worker, ask, delivery, turn + 1, sent)
            return
        if isinstance(answer, CorruptRecordError):
            self.seen["answer", "damaged"] += 1
            return
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Claimed)
        self.seen["answer", answer.verdict.name.lower()] += 1
        if answer.verdict is Verdict.REPLAY:
            self.ledger.answered(ask.key, answer.result)
        if answer.verdict is not Verdict.WON or self.now - sent > CLAIM_LEASE / 2000:
            return  # P7: an answer that comes late starts nothing
        epoch, _ = worker.region.known("eu")
        if epoch is None:
            self.ledger.start_without_epoch(worker.name)
            return
        self.ledger.start(ask.key, worker.name, epoch.number, answer.fence)
        if self.say:
            self.say(
                f"▶  w{worker.number} {worker.name} {ask.key.value} epoch {epoch.number} fence {answer.fence}"
            )
        result = b"%d" % next(self._numbers)
        id_, owner, fence = ask.key.id, ask.owner, answer.fence
        end: Complete | Fail = Complete(id_, owner, fence, 10**9, result)
        if delivery.fails:
            end = Fail(id_, owner, fence, 0, 100, 10**9, "Boom")
        self.after(delivery.seconds, worker, self._complete, worker, ask.key, end, 1)

    def _complete(self, worker: Worker, key: Key, end: Complete | Fail, turn: int) -> None:
        request = claiming.finishing(worker.region, end)

        def flow() -> Any:
            return (yield On(claiming.HERE, request))

        answered = partial(self._completed, worker, key, end, turn)
        FlowRun(self, worker, worker.name, worker.stores, flow(), answered)

    def _completed(
        self, worker: Worker, key: Key, end: Complete | Fail, turn: int, answer: Any
    ) -> None:
        if isinstance(answer, Exception):
            if turn < TRIES:
                self.after(0.05, worker, self._complete, worker, key, end, turn + 1)
        elif answer is Ack.OK and isinstance(end, Complete):
            self.ledger.answered(key, end.result)

    # -- the follower and the operators ---------------------------------------------------------

    def _serving(self) -> Any:
        return self._directly(failover.current(HOME))[0]

    def _follow(self, back: bool, done: Any = lambda found: None) -> None:
        source = self._serving().region
        source = REGIONS[source == "eu"] if back else source
        target = REGIONS[source == "eu"]
        places = {SOURCE: source, TARGET: target, REGISTER: REGISTER}
        clock = partial(self._clock, self.plan.offsets[6])
        flow = following.follow(source, clock, overlap=OVERLAP, steps=False, page=PAGE)
        FlowRun(self, self._follower, target, places, flow, done)

    def _act(self, kind: str, to: str, later: float = 0.0) -> None:
        """`later`: the operator is slow. What he looked at may have changed meanwhile."""
        epoch = self._serving()
        lease, skew = int(LEASE * 1000), int(SKEW * 1000)
        source = epoch.region
        clock = partial(self._clock, self.plan.offsets[4 + len(self._operators) % 2])
        move = failover.Move(HOME, to, lease, skew, OVERLAP, clock, page=PAGE, source=source)
        flow: Any
        if kind == "fail over":
            flow = failover.fail_over(move, 1e9)
        elif kind == "switch":
            flow = failover.switch(move)
        else:
            source = epoch.source or source
            move = move._replace(to=epoch.region, source=source)
            flow = failover.settle(move, lost=kind == "give up")
            # From now on: an operator who dies may have written it before.
            self.ledger.given_up |= kind == "give up"
        places = {SOURCE: source, TARGET: move.to, REGISTER: REGISTER}
        operator = Actor()
        if self.say:
            self.say(f"»      {kind} to {move.to}")
        self._operators.append(operator)
        run = partial(FlowRun, self, operator, "", places, flow, partial(self._acted, kind))
        if later:
            self.after(later, operator, run)
        else:
            run()

    def _acted(self, kind: str, found: Any) -> None:
        end = "done"
        if isinstance(found, StoreUnavailableError):
            end = "no answer"
        elif isinstance(found, TwicesafeError):
            end = "refused"
        elif isinstance(found, Exception):
            raise found
        self.seen["act", f"{kind} {end}"] += 1
        if self.say:
            self.say(f"«      {kind}: {found}")
        if isinstance(found, Copied):
            self.ledger.settled(found, self._serving().number)
        elif isinstance(found, Epoch) and not found.doubt:
            self.ledger.passes[found.number] = found.copied_until

    def _happen(self, incident: Incident) -> None:
        kind, target, until = incident.kind, incident.target, self.now + incident.seconds
        if kind in ACTS:
            self._act(kind, REGIONS[target], incident.seconds)
            return
        self.seen["incident", kind] += 1
        if self.say:
            self.say(f"!!     {kind} {target} {incident.seconds:+.2f}")
        worker = self.workers[target]
        if kind == "crash":
            worker.alive = False
            self.after(0.3, None, self._restart, target)
        elif kind == "pause":
            worker.paused_until = max(worker.paused_until, until)
        elif kind == "no register":
            self._cuts[worker.name, REGISTER] = until
        elif kind == "no other region":
            other = REGIONS[worker.name == "eu"]
            for side in (other, ""):
                self._cuts[side, worker.name] = until
        elif kind == LATE_CLAIMS:
            self._late[worker.name] = (self.now + WINDOW, incident.seconds)
        elif kind == "no replies":
            self._silent[worker.name] = until
        elif kind == "follower frozen":
            self._follower.paused_until = max(self._follower.paused_until, until)
        elif kind == "damaged record":
            where, key = self._serving().region, ALL_KEYS[target]
            if key.id in self.stores[where]._rows:
                self.damaged.add((where, key.id))
        else:
            for operator in self._operators:
                operator.alive = False

    def _restart(self, number: int) -> None:
        if not self.workers[number].alive:
            self.workers[number] = Worker(self, number)

    # -- the end --------------------------------------------------------------------------------

    def _last_moves(self) -> None:
        """No more faults: an operator ends what is half done, and every message comes once more."""
        self._quiet = True
        if self.now > QUIET + 60:
            broken("everything ends", "operators could not end the doubt")
        epoch = self._serving()
        if any(worker.paused_until > self.now for worker in self.workers):
            self.after(0.5, None, self._last_moves)
        elif epoch.closed or epoch.doubt:
            self._act("switch" if epoch.closed else "settle", epoch.region)
            self.after(1.5, None, self._last_moves)
        else:
            self.after(1.5, None, self._last_deliveries, 1)

    def _last_deliveries(self, turn: int) -> None:
        epoch = self._serving()
        if epoch.closed or epoch.doubt:  # by an operator's request that came late
            self._last_moves()
            return
        name = epoch.region
        rows = self.stores[name]._rows
        left = [
            number
            for number, key in enumerate(ALL_KEYS)
            if (name, key.id) not in self.damaged and not _is_over(rows.get(key.id))
        ]
        if not left:
            self._follow(False, partial(self._passed, turn))
            return
        if turn > 20:
            broken("everything ends", f"{ALL_KEYS[left[0]].value} has no end in {name}")
        for number in left:
            self._deliver(Delivery(0.0, number, REGIONS.index(name), 0.01))
        self.after(1.2, None, self._last_deliveries, turn + 1)

    def _passed(self, turn: int, found: Any) -> None:
        """Copies go on. If a move ended without its last write, the follower says so, and an operator repeats it."""
        assert isinstance(found, Copied), found
        epoch = self._serving()
        here, there = (self.stores[each]._rows for each in (epoch.region, self._other(epoch)))
        hidden = sum(  # a late claim is in their place, until the next move
            id_ in there and there[id_].fence > row.fence and not _is_answered(there[id_])
            for id_, row in here.items()
        )
        if found.late <= hidden and not found.in_doubt:
            return
        if turn > 20:
            broken("everything ends", f"nothing is copied: {found}")
        self._act("settle", self._serving().region)
        self.after(1.5, None, self._last_deliveries, turn + 7)

    def _other(self, epoch: Epoch) -> str:
        return REGIONS[epoch.region == "eu"]

    def end(self) -> None:
        rows: dict[bytes, list[Row]] = {}
        for name in REGIONS:
            for id_, row in self.stores[name]._rows.items():
                rows.setdefault(id_, []).append(row)
        epoch = self._serving()
        other = self.stores[self._other(epoch)]._rows
        for row in self.stores[epoch.region]._rows.values():
            self.seen["end", str(row.state)] += 1
            if not any((name, row.id) in self.damaged for name in REGIONS):
                self.ledger.learned(row, other.get(row.id), epoch)
        self.ledger.close(rows)


def _is_answered(row: Row) -> bool:
    return row.state in (State.COMPLETED, State.FAILED)


def _is_over(row: Row | None) -> bool:
    return row is not None and row.state in (State.COMPLETED, State.HELD)
