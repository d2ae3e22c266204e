"""Running a consumer: performs what `_core.consuming.flow` decides, in threads or on an event loop.

Handlers run in a bounded pool (or as tasks), and one fetch runs at a time. One queue reports
everything that happens to the flow. The leases of running handlers are renewed by the
receiver's lease keeper. An interrupt that escapes drops the flow, as a crash would: the broker
redelivers, and the claims expire.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from .._core.commands import Detach, Invoke, Raised
from .._core.consuming.flow import consume
from .._core.consuming.state import (
    Acknowledge,
    CollectEvents,
    ConsumerState,
    Extend,
    FetchFailed,
    FetchMessages,
    GiveBack,
    HandlerEnded,
    MessagesFetched,
    ReadParkedLanes,
    ReleasePartitions,
    Report,
    Revoked,
    Start,
)
from .._core.driving import drive, drive_async
from .blocking import BlockingFlowRun, BlockingRuntime
from .event_loop import EventLoopFlowRun, EventLoopRuntime
from .handler_threads import HandlerThreads

__all__ = ["AsyncConsumerRunner", "ConsumerRunner"]

FETCH: Final = 1.0
"""Seconds for which one fetch waits for messages: `stop` may be noticed this much later."""

SHORTEST_FETCH: Final = 0.05
"""Seconds for which one fetch waits at least: a broker needs time to answer, however short ``idle`` is."""


def _fetch_seconds(state: ConsumerState) -> float:
    return FETCH if state.idle is None else min(FETCH, max(SHORTEST_FETCH, state.idle / 2))


class ConsumerRunner:
    """A consumer's flow in the caller's thread, its handlers in a pool; runs once."""

    def __init__(
        self,
        state: ConsumerState,
        source: Any,
        runtime: BlockingRuntime,
        parked_lanes: Callable[[], Iterable[str]],
    ) -> None:
        self._state, self._source, self._runtime = state, source, runtime
        self.report, self.ended = state.report, False
        self._happened: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._handlers = HandlerThreads(state.concurrency, "twicesafe-consumer")
        self._fetcher = HandlerThreads(1, "twicesafe-fetch", daemon=True)
        self._acts: dict[type, Callable[[Any], Any]] = {
            FetchMessages: self._fetch,
            Start: self._start,
            CollectEvents: self._collect,
            Acknowledge: lambda command: source.acknowledge(command.receipts),
            GiveBack: lambda command: source.give_back(command.receipts, command.seconds),
            Extend: lambda command: source.extend(command.receipts),
            ReleasePartitions: lambda command: source.release(command.partitions),
            ReadParkedLanes: lambda command: parked_lanes(),
        }

    def run(self) -> Report:
        """Run in this thread until `stop`, or until no more messages come."""
        self._run = run = BlockingFlowRun(self._runtime)
        run.stay_guarded()
        try:
            return drive(consume(self._state), self._perform)
        except BaseException as error:
            run.interrupted(error)
            raise
        finally:
            self.ended = True
            run.end()
            self._handlers.close()
            self._fetcher.close()

    def stop(self) -> None:
        """Finish what runs, and end. From any thread, or from a signal handler."""
        self._state.stopping = True
        self._happened.put(None)

    def revoke(self, partitions: frozenset[str]) -> None:
        """For the source: these partitions are being taken away."""
        self._happened.put(Revoked(partitions))

    def _perform(self, command: Any) -> Any:
        act = self._acts.get(type(command))
        return self._run.perform(command) if act is None else act(command)

    def _fetch(self, command: FetchMessages) -> None:
        def fetch() -> None:
            try:
                joined = getattr(self._source, "joined", True)  # before it: none may mean none
                some = self._source.fetch(command.most, _fetch_seconds(self._state))
                found: Any = MessagesFetched(some, joined)
            except BaseException as error:  # without an answer the flow would fetch no more
                found = FetchFailed(error)
            self._happened.put(found)

        self._fetcher.run([fetch])

    def _start(self, command: Start) -> None:
        self._run.hold_all(_claims(command))
        copy = contextvars.copy_context
        self._handlers.run(
            functools.partial(copy().run, self._work, number, job) for number, job in command.jobs
        )

    def _work(self, number: int, job: Invoke | Detach) -> None:
        self._happened.put(HandlerEnded(number, self._run._run_job(job)))

    def _collect(self, command: CollectEvents) -> list[Any]:
        happened: list[Any] = []
        try:
            happened.append(self._happened.get(timeout=command.seconds))
            while True:
                happened.append(self._happened.get_nowait())
        except queue.Empty:
            return [one for one in happened if one is not None]


class AsyncConsumerRunner:
    """The same flow as a task of the running loop; runs once."""

    def __init__(
        self,
        state: ConsumerState,
        source: Any,
        runtime: EventLoopRuntime,
        parked_lanes: Callable[[], Coroutine[Any, Any, Iterable[str]]],
    ) -> None:
        self._state, self._source, self._runtime = state, source, runtime
        self.report, self.ended = state.report, False
        self._happened: list[Any] = []
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._acts: dict[type, Callable[[Any], Any]] = {
            FetchMessages: self._fetch,
            Start: self._start,
            CollectEvents: self._collect,
            Acknowledge: lambda command: source.acknowledge(command.receipts),
            GiveBack: lambda command: source.give_back(command.receipts, command.seconds),
            Extend: lambda command: source.extend(command.receipts),
            ReleasePartitions: lambda command: source.release(command.partitions),
            ReadParkedLanes: lambda command: parked_lanes(),
        }

    async def run(self) -> Report:
        """Run until `stop`, or until no more messages come. A cancellation drops what runs."""
        self._run: EventLoopFlowRun = await self._runtime.new_run()
        self._run.refused = None  # an outage is a reason to wait, not to end
        self._run.stay_guarded()
        try:
            return await drive_async(consume(self._state), self._perform)
        finally:
            self.ended = True
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            self._run.end()

    def stop(self) -> None:
        """Finish what runs, and end. From any thread, or from a signal handler."""
        self._state.stopping = True
        if not self.ended:  # else its loop may be closed
            self._loop.call_soon_threadsafe(self._news.set)

    def revoke(self, partitions: frozenset[str]) -> None:
        """For the source: these partitions are being taken away."""
        self._loop.call_soon_threadsafe(self._report, Revoked(partitions))

    def _perform(self, command: Any) -> Any:
        act = self._acts.get(type(command))
        return self._run.perform(command) if act is None else act(command)

    def _report(self, one: Any) -> None:
        self._happened.append(one)
        self._news.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fetch(self, command: FetchMessages) -> None:
        async def fetch() -> None:
            try:
                seconds = _fetch_seconds(self._state)
                joined = getattr(self._source, "joined", True)
                self._report(
                    MessagesFetched(await self._source.fetch(command.most, seconds), joined)
                )
            except (
                Exception,
                asyncio.CancelledError,
            ) as error:  # the driver's own, or this run has ended
                self._report(FetchFailed(error))

        self._spawn(fetch())

    def _start(self, command: Start) -> None:
        self._run.hold_all(_claims(command))
        for number, job in command.jobs:
            self._spawn(self._work(number, job))

    async def _work(self, number: int, job: Invoke | Detach) -> None:
        reply: Any = Raised(asyncio.CancelledError())
        try:
            reply = await self._run._run_job(job)
        finally:
            self._report(HandlerEnded(number, reply))

    async def _collect(self, command: CollectEvents) -> list[Any]:
        if not self._happened and command.seconds > 0:
            self._news.clear()
            try:
                async with asyncio.timeout(command.seconds):
                    await self._news.wait()
            except TimeoutError:
                return []
        elif not self._happened:
            await asyncio.sleep(0)
        happened, self._happened = self._happened, []
        return happened


def _claims(command: Start) -> list[Any]:
    return [job.claim for _, job in command.jobs if job.claim is not None]
