"""A simulated process: one consumer, its flow performed as the two runtimes do. It can die and pause."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from twicesafe._core.call import Call
from twicesafe._core.commands import Invoke, PerformMany, Raised, Sleep
from twicesafe._core.consuming import flow as flows
from twicesafe._core.consuming import state as states
from twicesafe._core.consuming.message import Message
from twicesafe._core.consuming.prefix import Prefixes
from twicesafe._core.consuming.recovery import decide, default_recovery
from twicesafe._core.consuming.state import ConsumerState, HandlerEnded, Revoked
from twicesafe._core.protocol import ClaimRequest

from ..leases.process import SimulatedKeeper
from ..virtual import Actor
from .handlers import DeadPublication, Handling
from .invariants import broken
from .network import ReadLanes, unavailable
from .transactions import LookUp, Transaction
from .works import dead_policy, policy_of

if TYPE_CHECKING:
    from .broker import Receipt
    from .works import Copy, Start
    from .world import World

__all__ = ["Process", "Steps"]

MOST_AT_ONCE = 60
"""So often a flow may look for news in one moment without finding any."""


def _ignore(event: Any) -> None:
    """The events of simulated work have no observers."""


class Steps:
    """A flow under way in a process: it is stepped whenever a reply has come."""

    def __init__(self, process: Process, flow: Any, ended: Callable[[Any, Any], None]) -> None:
        self.process = process
        self._flow = flow
        self._ended = ended

    def go(self, reply: Any = None, error: Exception | None = None) -> None:
        try:
            command = self._flow.send(reply) if error is None else self._flow.throw(error)
        except StopIteration as end:
            self._ended(end.value, None)
            return
        except AssertionError:
            raise
        except Exception as trouble:
            self._ended(None, trouble)
            return
        self._perform(command)

    def _perform(self, command: Any) -> None:
        process = self.process
        if type(command) is PerformMany:
            process.ask(command.requests, partial(self._many, len(command.requests)))
        elif type(command) is Sleep:
            process.after(command.seconds, self.go)
        elif type(command) is Invoke:  # the marker of a lane: it ends at once
            try:
                command.run()
            except Exception as error:
                process.after(0.0, self.go, Raised(error))
        elif hasattr(command, "op"):
            process.ask([command], self._one)
        else:
            process.perform(self, command)

    def _many(self, count: int, answers: list[Any] | None) -> None:
        self.go([unavailable() for _ in range(count)] if answers is None else answers)

    def _one(self, answers: list[Any] | None) -> None:
        answer = unavailable() if answers is None else answers[0]
        if isinstance(answer, Exception):
            self.go(error=answer)
        else:
            self.go(answer)


class Process(Actor):
    def __init__(self, world: World, number: int, life: int) -> None:
        self.world = world
        self.number = number
        self.name = f"c{number}.{life}"
        plan = world.plan
        self.seat = seat = plan.seats[number % len(plan.seats)]
        self.rate = seat.rate
        self._since = 1000.0 * (number + 1) + 100.0 * life  # no two clocks read alike
        self.keeper = SimulatedKeeper(cast("Any", self))
        self.prefixes = Prefixes()
        self.held: dict[int, Receipt] = {}
        """By receipt number: fetched by the flow, and not settled by it."""
        self.running: list[Start] = []
        self.asked: dict[bytes, bytes] = {}
        """By key: the owner of a claim that neither started nor was released nor refused."""
        self.ended = False
        self._happened: list[Any] = []
        self._waits: Steps | None = None
        self._turn = 0
        self._empty = (0.0, 0)
        self.state = ConsumerState(
            call=self._call,
            dead_call=self._dead_call,
            mark=self._mark,
            look_up=self._look_up,
            concurrency=seat.concurrency,
            batch=seat.batch,
            most_held=plan.most_held,
            ordered=plan.ordered,
            leases=not plan.transactions,
            ack_wait=lambda: plan.ack_wait,
            can_delay=plan.can_delay,
            clock=self.clock,
            notify=_ignore,
        )

    # -- time, store --------------------------------------------------------------------------

    def clock(self) -> float:
        return self._since + self.world.now * self.rate

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """In so many seconds of this process's own clock, if it lives."""
        self.world.after(seconds / self.rate, self, act, *args)

    def ask(self, asks: list[Any], arrived: Callable[[list[Any] | None], None]) -> None:
        world = self.world
        fault = world.fault(asks[0].op)
        for ask in asks:
            world.monitor.asking(self, ask)
        claims = type(asks[0]) is ClaimRequest

        def heard(answers: list[Any] | None) -> None:
            if claims and answers is not None:
                for ask, answer in zip(asks, answers, strict=True):
                    world.monitor.heard(self, ask, answer)
            arrived(answers)

        world.network.carry(cast("Any", self), self.name, asks, fault, heard)

    # -- the consumer -------------------------------------------------------------------------

    def start(self) -> None:
        self.after(0.0, Steps(self, flows.consume(self.state), self._end).go)

    def stop(self) -> None:
        self.state.stopping = True
        self._wake()

    def _end(self, value: Any, error: Exception | None) -> None:
        if error is not None:
            raise AssertionError(f"the flow raised {error!r}") from error
        self.ended, self.alive = True, False
        self.world.consumer_ended(self)

    def _call(self, message: Message) -> Call:
        copy = self.world.copies[message.position]
        work = copy.work
        policy = policy_of(self.world.plan.max_attempts)
        run = Transaction(copy) if self.world.plan.transactions else Handling(copy)
        return Call(
            work.key, cast("Any", run), policy, None, work.fingerprint, None, self.clock,
            _ignore, False, decide=decide(default_recovery, message, policy),
        )  # fmt: skip

    def _dead_call(self, message: Message, error: Exception) -> Call:
        copy = self.world.copies[message.position]
        policy = dead_policy()
        return Call(
            copy.dead_key, cast("Any", DeadPublication(copy, error)), policy, None, None, None,
            self.clock, _ignore, False, decide=decide(default_recovery, message, policy),
        )  # fmt: skip

    def _mark(self, message: Message, call: Call, elsewhere: bool) -> Call | None:
        """As the consumers decide it: what was not delivered before needs no mark."""
        if message.deliveries == 1 and not elsewhere and self.world.plan.max_attempts > 1:
            return None
        self.world.seen["outcome", "marked"] += 1
        mark = self.world.copies[message.position].work.mark
        return Call(mark, call.run, call.policy, None, None, None, self.clock, _ignore, False)

    def _look_up(self, message: Message, error: Exception) -> Any:
        return LookUp(self.world.copies[message.position], error)

    # -- commands of the flow -----------------------------------------------------------------

    def perform(self, steps: Steps, command: Any) -> None:
        _ACTS[type(command)](self, steps, command)

    def _fetch(self, steps: Steps, command: Any) -> None:
        self.world.broker.fetch(self, command.most)
        self.after(0.0, steps.go)

    def _start(self, steps: Steps, command: Any) -> None:
        for number, job in command.jobs:
            run: Any = job.run
            if isinstance(run, partial):  # a transaction, and how many workers have died in it
                (spent,), run = run.args, run.func
                run.spent = spent
            receipt = self._receipt_of(run.copy)
            start = self.world.monitor.starts(self, receipt, job.claim, run)
            self.running.append(start)
            if job.claim is not None:
                self.keeper.add(job.claim)
            run.begin(start, partial(self._finished, number, start))
        self.after(0.0, steps.go)

    def _receipt_of(self, copy: Copy) -> Receipt:
        """The delivery that is held longest: the first of its lane. Rather one that is still ours."""
        mine = [one for one in self.held.values() if one.copy is copy]
        if not mine:
            broken("revoked starts nothing", f"{self.name} starts what it does not hold")
        return next((one for one in mine if not one.noticed), mine[0])

    def _finished(self, number: int, start: Start, reply: Any) -> None:
        start.ended = True
        self.running.remove(start)
        self.report(HandlerEnded(number, reply))

    def _acknowledge(self, steps: Steps, command: Any) -> None:
        self._drop(command.receipts)
        self.world.broker.settle(self, "acknowledge", command.receipts, 0.0, steps)

    def _give_back(self, steps: Steps, command: Any) -> None:
        for receipt in command.receipts:
            self.world.monitor.gives_back(self, receipt)
        self._drop(command.receipts)
        self.world.broker.settle(self, "give back", command.receipts, command.seconds, steps)

    def _drop(self, receipts: list[Receipt]) -> None:
        for receipt in receipts:
            self.held.pop(receipt.number, None)

    def _extend(self, steps: Steps, command: Any) -> None:
        self.world.broker.settle(self, "extend", command.receipts, 0.0, steps)

    def _release(self, steps: Steps, command: Any) -> None:
        self.world.broker.release(self, command.partitions, steps)

    def _parked_lanes(self, steps: Steps, command: Any) -> None:
        self.ask([ReadLanes()], steps._one)

    # -- what happens -------------------------------------------------------------------------

    def report(self, one: Any) -> None:
        self._happened.append(one)
        self._wake()

    def _collect(self, steps: Steps, command: Any) -> None:
        self._waits = steps
        self._turn += 1
        if self._happened or command.seconds <= 0:
            if not self._happened:
                self._look_for_spinning()
            self.after(0.0, self._hand_over, self._turn)
        else:
            self.after(command.seconds, self._hand_over, self._turn)

    def _look_for_spinning(self) -> None:
        at, count = self._empty
        self._empty = (self.world.now, count + 1 if at == self.world.now else 1)
        if self._empty[1] > MOST_AT_ONCE:
            broken("consumers pause", f"{self.name} found nothing {MOST_AT_ONCE} times in a moment")

    def _wake(self) -> None:
        if self._waits is not None:
            self._turn += 1
            self.after(0.0, self._hand_over, self._turn)

    def _hand_over(self, turn: int) -> None:
        if turn != self._turn or self._waits is None:
            return
        happened, self._happened = self._happened, []
        for one in happened:
            if isinstance(one, Revoked):
                self.world.monitor.notices(self, one.partitions)
        steps, self._waits = self._waits, None
        steps.go(happened)


_ACTS: dict[type, Callable[[Process, Steps, Any], None]] = {
    states.FetchMessages: Process._fetch,
    states.Start: Process._start,
    states.CollectEvents: Process._collect,
    states.Acknowledge: Process._acknowledge,
    states.GiveBack: Process._give_back,
    states.Extend: Process._extend,
    states.ReleasePartitions: Process._release,
    states.ReadParkedLanes: Process._parked_lanes,
}
