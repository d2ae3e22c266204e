"""The broker: a message is delivered until it is acknowledged, to one worker after the other."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from ..plans import Fault
from .invariants import broken
from .plan import Behaviour, Delivery
from .policies import CONSUMERS, KEYS
from .worker import Job

if TYPE_CHECKING:
    from .world import World

__all__ = ["Broker"]

MOST_TRIES = 12
"""Deliveries of one message once faults have stopped."""


class Parcel:
    """A message on its way: what was planned for it, and how often it was delivered."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.tries = self.late = 0
        self._faults = {fault.nth: fault for fault in delivery.faults}
        self._sent = count()

    def fault(self) -> Fault | None:
        """Of its next statement."""
        return self._faults.get(next(self._sent)) if self._faults else None


class Broker:
    def __init__(self, world: World) -> None:
        self._world = world
        self.unacknowledged = 0

    def take(self, delivery: Delivery) -> None:
        self.unacknowledged += 1
        self._world.after(delivery.at - self._world.now, None, self._deliver, Parcel(delivery))

    def _deliver(self, parcel: Parcel) -> None:
        world, delivery = self._world, parcel.delivery
        worker = world.workers[(delivery.worker + parcel.tries) % len(world.workers)]
        how = delivery.handlers[min(parcel.tries, len(delivery.handlers) - 1)]
        parcel.tries += 1
        if not worker.alive:
            world.after(0.1, None, self._deliver, parcel)
            return
        if not world.faulty:
            how = Behaviour()
        job = Job(worker, delivery, how, parcel.fault, parcel)
        if world.say:
            what = f"m-{delivery.message} for {CONSUMERS[delivery.consumer]}"
            world.say(f"◆  {job.name} gets {what}, delivery {parcel.tries}: {how.end}")
        for seconds in delivery.cancelled if parcel.tries == 1 else ():
            world.after(seconds, worker, job.cancel)

    def answered(self, job: Job, answer: Any) -> None:
        """A consumer is at its end."""
        world = self._world
        job.worker.jobs.pop(job, None)
        if world.say:
            world.say(f"◀  {job.name}: {str(getattr(answer, 'error', answer))[:90]}")
        what = world.ledger.answered(job, answer, world.database.now())
        if what == "done":
            self.unacknowledged -= 1
        elif what == "ask" and not world.faulty:  # an operator looks at it at last
            key = KEYS[job.delivery.consumer][job.delivery.message]
            world.operator("release", key, 60_000, lambda: self.again(job))
        else:
            self.again(job, 1.2 if what == "ask" else 0.0)

    def again(self, job: Job, more: float = 0.0) -> None:
        parcel = job.parcel
        if not self._world.faulty:
            parcel.late += 1
            if parcel.late > MOST_TRIES:
                broken("every delivery ends", f"not within {MOST_TRIES} deliveries")
        self._world.after(more + min(0.04 * 4**parcel.tries, 2.5), None, self._deliver, parcel)
