"""A worker: one process, with its inbox, its deferred writes, and the consumers that run in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit

from twicesafe._core.commands import Raised
from twicesafe._core.inbox_requests import DeferredWrite
from twicesafe._runtime.deferred_writes import DeferredWrites
from twicesafe._values.context import current_claim
from twicesafe.stores._base import Program

from ..virtual import Actor
from .connection import Connection
from .engine import INSIDE, VirtualTransaction, inbox_for
from .fibers import Condition, Fiber, Queue, Resume, ask, judge
from .policies import FINGERPRINTS, KEYS, RefusedError
from .statements import Commit, DriverError, Effect, Write, Wrong

if TYPE_CHECKING:
    from ..plans import Fault
    from .monitor import Truth
    from .plan import Behaviour, Delivery
    from .world import World

__all__ = ["Job", "Worker"]


class Worker(Actor):
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.loop = world.plan.loops[number]
        self.connections: dict[Connection, None] = {}
        self.fibers: dict[Fiber, None] = {}
        self.jobs: dict[Job, None] = {}
        self.notes = VirtualDeferredWrites(self)
        self._inboxes: dict[tuple[int, int, int], Any] = {}

    def inbox(self, consumer: int, policy: int, fingerprint: int) -> Any:
        """An inbox of this process: they share its deferred writes."""
        settings = consumer, policy, fingerprint
        found = self._inboxes.get(settings)
        if found is None:
            found = self._inboxes[settings] = copy(inbox_for(self.loop, consumer, policy))
            found._runtime = copy(found._runtime)
            found._runtime.deferred = self.notes
            found._fingerprint = FINGERPRINTS[fingerprint]
        return found

    def rest(self, seconds: float) -> None:
        """Inside a fibre."""
        ask(lambda resume: self.world.after(seconds, self, resume))

    def start(self, run: Any, done: Any) -> Fiber:
        fiber = Fiber(self.world, run, done)
        self.fibers[fiber] = None
        self.world.after(0.0, self, fiber.go)
        return fiber


class VirtualDeferredWrites(DeferredWrites):
    """The shipped writer of deferred writes, in a fibre instead of its thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        super().__init__(self._write, lambda: worker.world.now, worker.rest)

    def known(self, id: bytes) -> list[DeferredWrite]:  # noqa: A002
        """What is not in the store yet, for the ledger."""
        return self.pending.get(id, [])

    def _fresh(self) -> None:
        super()._fresh()
        self._queue = Queue(self._wake)  # type: ignore[assignment]
        self._changed = Condition(self._wake)  # type: ignore[assignment]

    def _wake(self, resume: Resume, seconds: float = 0.0, value: Any = None) -> None:
        self._worker.world.after(seconds, self._worker, resume, value)

    def _start(self) -> Any:
        return self._worker.start(self._run, lambda nothing: None)

    def _write(self, note: DeferredWrite) -> None:
        """Our own transaction, as stores run it."""
        worker = self._worker
        world = worker.world
        connection = Connection(
            worker, f"w{worker.number}.notes", world.fault_of_deferred, note.claim.id
        )
        transaction = VirtualTransaction(connection)
        try:
            transaction.run(_noted(note))
        finally:
            connection.close()


def _noted(note: DeferredWrite) -> Program[None]:
    yield from INSIDE.write_deferred(note)
    yield Commit()


class Job:
    """One delivery of one message, at work."""

    def __init__(
        self, worker: Worker, delivery: Delivery, how: Behaviour,
        fault: Callable[[], Fault | None], parcel: Any,
    ) -> None:  # fmt: skip
        world = worker.world
        self.worker, self.delivery, self.how, self.parcel = worker, delivery, how, parcel
        self.run = next(world.runs)
        self.name = f"w{worker.number}.{self.run}"
        self.id = KEYS[delivery.consumer][delivery.message].id
        self.connection = Connection(worker, self.name, fault)
        self.began: tuple[Truth, int] = world.monitor.truth(self.id), world.database.now()
        self.failed: BaseException | None = None
        """What its handler raised."""
        self.known = 0
        """Failures that its process knew, and had not written yet, when it was refused."""
        self.inbox = worker.inbox(delivery.consumer, delivery.policy, delivery.fingerprint)
        self.max_attempts = self.inbox.policy.max_attempts
        worker.jobs[self] = None
        self.fiber = worker.start(self._consume, partial(world.broker.answered, self))

    # -- the consumer, inside the fibre ---------------------------------------------------------

    def _consume(self) -> Any:
        """What everybody's consumer does: begin, process, commit; roll back what raises."""
        try:
            try:
                answer = self._accept() if self.delivery.accepts else self._process()
                self.connection.commit()
            except Exception as error:
                answer = Raised(error)
                self.known = len(self.worker.notes.known(self.id))
                self.connection.rollback()
        except GreenletExit:
            raise
        except BaseException as error:  # broken off in the midst of something: not used again
            answer = Raised(error)
        self.connection.close()
        return answer

    def _accept(self) -> bool:
        inbox, message = self.inbox, f"m-{self.delivery.message}"
        print_ = FINGERPRINTS[self.delivery.fingerprint]
        new = self._end(inbox.accept(self.connection, message, fingerprint=print_))
        if new:
            handle(self)
        return bool(new)

    def _process(self) -> Any:
        handler = handle_async if self.worker.loop else handle
        message = f"m-{self.delivery.message}"
        return self._end(self.inbox.process(self.connection, message, handler, self))

    def _end(self, answer: Any) -> Any:
        """An awaited answer never waits for a loop here: its statements wait in this fibre."""
        if not self.worker.loop:
            return answer
        try:
            answer.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits for an event loop")

    def cancel(self) -> None:
        """The consumer is cancelled, or interrupted, wherever it stands."""
        if not self.fiber.over:
            self.worker.world.seen["incident", "cancel"] += 1
            if self.worker.world.say:
                self.worker.world.say(f"!! {self.name} is cancelled")
            self.fiber.interrupt(self._cancellation())

    def _cancellation(self) -> BaseException:
        return asyncio.CancelledError() if self.worker.loop else KeyboardInterrupt()


def handle(job: Job) -> Any:
    """A handler of the lab: it takes its time, writes its effect, and ends in every way there is."""
    worker, how, call = job.worker, job.how, job.connection.call
    claim = None if job.delivery.accepts else current_claim()
    world = worker.world
    judge(world, world.ledger.started, job, claim)
    write = Write(Effect(job.delivery.consumer, job.delivery.message, job.run))
    value = f"{job.delivery.message}#{job.run}"
    try:
        call(write)
        worker.rest(how.seconds)
        match how.end:
            case "fail":
                raise RuntimeError("try again")
            case "remember":
                raise RefusedError(value)
            case "cancel":
                raise job._cancellation()
            case "commit" | "commit and fail":
                job.connection.commit("handler")
                call(write)
                if how.end == "commit and fail":
                    raise RuntimeError("half done")
            case "roll back":
                job.connection.rollback()
                call(write)
            case "crash":
                ask(lambda resume: world.crash(worker, how.seconds))
    except Exception as error:
        job.failed = error
        if isinstance(error, RefusedError):
            world.ledger.said.add((worker, job.id, str(error)))
        raise
    if how.end == "swallow":
        with contextlib.suppress(DriverError):
            call(Wrong())
    if how.end == "unstorable":
        return object()
    return value * 90 if how.end == "large" else value


async def handle_async(job: Job) -> Any:
    return handle(job)
