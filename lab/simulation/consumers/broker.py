"""The broker: a queue that redelivers what is not settled in time, or a log in partitions.

    queue   a message is hidden for `ack_wait` from the consumer that fetched it; then it comes again
    log     each partition has one consumer, which commits how far it is; the next one begins there

A request is sent at one moment, taken at a later one, and answered later still. Its consumer may die or
stand still in between. The part of the log that a client does (`Prefixes`) is the shipped code.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec

from twicesafe._core.commands import Raised, Returned
from twicesafe._core.consuming.message import Message, Received
from twicesafe._core.consuming.prefix import Prefix
from twicesafe._core.consuming.state import FetchFailed, MessagesFetched, Revoked
from twicesafe.errors import BrokerUnavailableError

from .works import Copy

if TYPE_CHECKING:
    from .process import Process, Steps
    from .works import Start
    from .world import World

__all__ = ["Broker", "Receipt"]

FETCH = 1.0
POLL = 0.1
SESSION = 0.6
"""Seconds after which the partitions of a dead consumer go to another."""
REVOKE = 1.0
"""Seconds for which a consumer may finish what runs, when a partition is taken away."""


class Receipt:
    __slots__ = ("copy", "noticed", "number", "offset", "partition", "prefix", "process")

    def __init__(self, process: Process, copy: Copy, number: int) -> None:
        self.process = process
        self.copy = copy
        self.number = number
        self.partition = ""
        self.offset = 0
        self.prefix: Prefix | None = None
        self.noticed = False
        """Its partition was taken away, and the flow knows it."""


class Partition:
    __slots__ = ("committed", "copies", "name", "owner", "position", "returned", "revoking")

    def __init__(self, name: str) -> None:
        self.name = name
        self.returned: list[Receipt] = []
        """Given back by its owner, who gets these before the others."""
        self.copies: list[Copy] = []
        self.owner: Process | None = None
        self.position = 0
        self.committed = 0
        self.revoking: int | None = None
        """Its owner is to give it to this seat."""


def away() -> BrokerUnavailableError:
    return BrokerUnavailableError("the broker is away")


class Broker:
    def __init__(self, world: World) -> None:
        self._world = world
        self.away_until = 0.0
        self.letters_away_until = 0.0
        self._numbers = itertools.count(1)
        self.partitions = [Partition(f"p{number}") for number in range(world.plan.partitions)]
        self._named = {one.name: one for one in self.partitions}
        self._queue: list[Copy] = []
        self._visible: dict[Copy, float] = {}
        self._latest: dict[Copy, Receipt] = {}

    # -- messages -----------------------------------------------------------------------------

    def send(self, copy: Copy) -> None:
        if self.partitions:
            self.partitions[copy.partition].copies.append(copy)
        else:
            self._queue.append(copy)
            self._visible[copy] = 0.0

    def _receipt(self, process: Process, copy: Copy) -> Receipt:
        return Receipt(process, copy, next(self._numbers))

    def fetch(self, process: Process, most: int) -> None:
        world = self._world
        fault = world.fault("fetch")
        if fault == "away" or (fault is not None and fault.kind == "refused"):
            world.after(0.002, process, self._fetch_failed, process)
        elif fault is not None and fault.kind == "crash before":
            world.crash(process)
        else:
            late = fault.seconds if fault is not None and fault.kind == "late" else 0.0
            how = "" if fault is None else fault.kind
            asked, answered = (0.0, late) if self.partitions else (late, 0.0)
            until = world.now + asked + FETCH
            poll = (self._poll, process, most, until, how, answered)
            world.after(world.latency() + asked, process, *poll)

    def _fetch_failed(self, process: Process) -> None:
        process.report(FetchFailed(away()))

    def _poll(self, process: Process, most: int, until: float, how: str, late: float) -> None:
        world = self._world
        found = self._of_log(process, most) if self.partitions else self._of_queue(process, most)
        if not found and world.now < until:
            world.after(POLL, process, self._poll, process, most, until, how, late)
            return
        if how == "crash after":
            world.crash(process)
        elif how == "answer lost" and not self.partitions:
            world.after(world.latency(), process, self._fetch_failed, process)
        else:
            world.after(world.latency() + late, process, self._fetched, process, found)

    def _fetched(self, process: Process, found: list[Receipt]) -> None:
        for receipt in found:
            process.held[receipt.number] = receipt
            # They were taken before: the flow must know which of them it may not start.
            is_closed = receipt.prefix is not None and not receipt.prefix.is_open
            receipt.noticed = is_closed or self._is_revoked(receipt)
        self._world.monitor.fetched(process)
        if self._world.say and found:
            names = " ".join(one.copy.position for one in found)
            self._world.say(f"<- {process.name} fetches {names}")
        process.report(
            MessagesFetched([Received(self._message(one), one, one.partition) for one in found])
        )

    def _message(self, receipt: Receipt) -> Message:
        """A log does not count its deliveries."""
        message = receipt.copy.message
        if self.partitions:
            return message
        return msgspec.structs.replace(message, deliveries=receipt.copy.deliveries)

    def _is_revoked(self, receipt: Receipt) -> bool:
        return bool(receipt.partition) and self._named[receipt.partition].revoking is not None

    def _of_queue(self, process: Process, most: int) -> list[Receipt]:
        now, ack_wait = self._world.now, self._world.plan.ack_wait
        found: list[Receipt] = []
        for copy in self._queue:
            if len(found) < most and self._visible[copy] <= now:
                if copy in self._latest:
                    self._world.seen["broker", "redelivered"] += 1
                self._visible[copy] = now + ack_wait
                copy.deliveries += 1
                self._latest[copy] = receipt = self._receipt(process, copy)
                found.append(receipt)
        return found

    def _of_log(self, process: Process, most: int) -> list[Receipt]:
        found: list[Receipt] = []
        for partition in self.partitions:
            if partition.owner is not process or partition.revoking is not None:
                continue
            while partition.returned and len(found) < most:
                found.append(partition.returned.pop(0))
            while partition.position < len(partition.copies) and len(found) < most:
                offset = partition.position
                partition.position += 1
                receipt = self._receipt(process, partition.copies[offset])
                receipt.partition, receipt.offset = partition.name, offset
                receipt.prefix = process.prefixes.fetch(partition.name, offset)
                found.append(receipt)
        return found

    # -- settling -----------------------------------------------------------------------------

    def settle(
        self, process: Process, op: str, receipts: list[Receipt], seconds: float, steps: Steps
    ) -> None:
        world = self._world
        fault = world.fault(op)
        if fault == "away" or (fault is not None and fault.kind == "refused"):
            world.after(0.002, process, steps.go, None, away())
            return
        kind = "" if fault is None else fault.kind
        if kind == "crash before":
            world.crash(process)
            return
        late = world.latency() + (fault.seconds if kind == "late" else 0.0)
        world.delayed(late)
        world.after(late, None, self._settled, op, receipts, seconds)
        if kind == "crash after":
            world.crash(process)
        elif kind == "answer lost":
            world.after(world.plan.timeout, process, steps.go, None, away())
        else:
            world.after(late + world.latency(), process, steps.go)

    def _settled(self, op: str, receipts: list[Receipt], seconds: float) -> None:
        world = self._world
        if world.say:
            told = " ".join(one.copy.position for one in receipts)
            world.say(f"-> {receipts[0].process.name} {op} {seconds:g}: {told}")
        for receipt in receipts:
            if receipt.prefix is not None:
                if op == "acknowledge":
                    world.monitor.acknowledged(receipt.copy)
                    receipt.prefix.settle(receipt.offset)
                elif receipt.prefix.is_open and not self._is_revoked(receipt):
                    self._returned(receipt)
            elif self._latest[receipt.copy] is not receipt or receipt.copy.settled:
                world.seen["broker", "void receipt"] += 1
            elif op == "acknowledge":
                self._queue.remove(receipt.copy)
                world.monitor.settled(receipt.copy)
            else:
                wait = world.plan.ack_wait if op == "extend" else seconds
                self._visible[receipt.copy] = world.now + wait
        if self.partitions and op == "acknowledge":
            self._commit(receipts[0].process)

    def _returned(self, receipt: Receipt) -> None:
        again = self._receipt(receipt.process, receipt.copy)
        again.partition, again.offset = receipt.partition, receipt.offset
        again.prefix = receipt.prefix
        returned = self._named[receipt.partition].returned
        returned.append(again)
        returned.sort(key=lambda one: one.offset)

    def _commit(self, process: Process) -> None:
        for name, prefix, offset in process.prefixes.due():
            partition = self._named[name]
            if partition.owner is process:
                for copy in partition.copies[partition.committed : offset]:
                    self._world.monitor.settled(copy)
                partition.committed = max(partition.committed, offset)
                prefix.commit(offset)

    # -- partitions ---------------------------------------------------------------------------

    def balance(self) -> None:
        """Partitions without a consumer go to one that lives."""
        ready = [one for one in self._world.living() if not one.state.stopping]
        for number, partition in enumerate(self.partitions):
            if partition.owner is None and ready:
                self._assign(partition, ready[number % len(ready)])

    def _assign(self, partition: Partition, process: Process) -> None:
        partition.owner, partition.revoking = process, None
        partition.position, partition.returned = partition.committed, []
        process.prefixes.assign([partition.name])
        if self._world.say:
            self._world.say(f"== {partition.name} goes to {process.name}, {partition.position} on")

    def lose(self, process: Process) -> None:
        """This consumer is dead or has ended."""
        for partition in self.partitions:
            if partition.owner is process:
                partition.owner = partition.revoking = None
        self.balance()

    def move(self, seat: int) -> None:
        """All partitions go to this seat, if it is taken."""
        target = self._world.processes.get(seat)
        if target is None or not target.alive:
            return
        moved: dict[Process, list[Partition]] = {}
        for partition in self.partitions:
            owner = partition.owner
            if owner is not None and owner is not target and partition.revoking is None:
                partition.revoking = seat
                moved.setdefault(owner, []).append(partition)
        for owner, partitions in moved.items():
            names = frozenset(one.name for one in partitions)
            self._world.seen["broker", "revoked"] += 1
            self._world.after(0.0, owner, owner.report, Revoked(names))
            self._world.after(REVOKE, None, self._taken, owner, names)

    def _taken(self, process: Process, names: frozenset[str]) -> None:
        """The consumer has released them, or its time is over."""
        for name in sorted(names):
            partition = self._named[name]
            if partition.owner is process and partition.revoking is not None:
                target = self._world.processes.get(partition.revoking)
                process.prefixes.revoke([name])
                partition.owner = partition.revoking = None
                if target is not None and target.alive and not target.state.stopping:
                    self._assign(partition, target)
        self.balance()

    def release(self, process: Process, names: frozenset[str], steps: Steps) -> None:
        world = self._world
        world.monitor.releases(process, names)
        fault = world.fault("release")
        if fault is not None:
            if fault != "away" and fault.kind.startswith("crash"):
                world.crash(process)
            else:
                world.after(0.002, process, steps.go, None, away())
            return
        self._commit(process)
        late = world.latency()
        world.after(late, None, self._taken, process, names)
        world.after(late + world.latency(), process, steps.go)

    # -- dead letters -------------------------------------------------------------------------

    def publish(self, start: Start, error: Exception, done: Any) -> None:
        world, process = self._world, start.process
        fault = world.fault("publish")
        if world.now < self.letters_away_until and world.faulty:
            fault = "away"
        if fault == "away" or (fault is not None and fault.kind == "refused"):
            world.after(0.002, process, done, Raised(away()))
            return
        kind = "" if fault is None else fault.kind
        if kind == "crash before":
            world.crash(process)
            return
        late = world.latency() + (fault.seconds if kind == "late" else 0.0)
        world.delayed(late)
        world.after(late, None, world.monitor.published, start, error)
        if kind == "crash after":
            world.crash(process)
        elif kind == "answer lost":
            start.copy.unsure += 1
            world.after(world.plan.timeout, process, done, Raised(away()))
        else:
            world.after(late + world.latency(), process, done, Returned(None))
