"""The completer: runs what is due. Abandoned runs, runs that slept, runs whose signal came.

    receiver.complete_abandoned()               # once: everything that is due now
    with receiver.completer(every=1.0):         # a thread; AsyncReceiver: a task
        serve()
    receiver.completer().run()                  # in the foreground, until `stop`

Any number of nodes may run one: a claim decides which of them gets a run. It needs the functions, so
decorate them before it starts. A run that fails is logged, and never raises from the completer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec

from .._core.durable import run_operations
from .._core.durable.run_requests import DueRun
from .._values.closed import require_open
from .._values.settings import Duration, seconds
from ..errors import (
    ConfigurationError,
    CorruptRecordError,
    DuplicateError,
    SuspendedError,
    TwicesafeError,
)
from ._base import ReceiverBase
from ._batches import whole

if TYPE_CHECKING:
    import asyncio

    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncCompleter", "AsyncCompletes", "Completer", "Completes", "CompletionReport"]

_log = logging.getLogger("twicesafe")

_counting = threading.Lock()

ROUND: Final = 1000
"""Runs that one round finds, at most."""


class CompletionReport(msgspec.Struct):
    """What `complete_abandoned` did, in numbers of runs."""

    completed: int = 0
    """Runs that came to their end."""
    suspended: int = 0
    """Runs that sleep or wait again."""
    failed: int = 0
    """Runs that raised; each is tried again after its back-off, or is parked or undone."""
    parked: int = 0
    """Runs whose code is gone, or whose arguments cannot be read."""
    skipped: int = 0
    """Runs that another worker took first."""

    @property
    def found(self) -> int:
        """All runs that were due."""
        return self.completed + self.suspended + self.failed + self.parked + self.skipped

    def count(self, error: BaseException | None) -> None:
        """Count a run that ended like this. A failure is logged."""
        ends = {type(None): "completed", SuspendedError: "suspended", DuplicateError: "skipped"}
        end = next((name for kind, name in ends.items() if isinstance(error, kind)), "failed")
        self.add(end)
        if end == "failed":
            foreign = not isinstance(error, TwicesafeError)
            _log.warning("a durable run failed: %s", error, exc_info=error if foreign else None)

    def add(self, end: str) -> None:
        """Count one run. The threads of a completer share the report."""
        with _counting:
            setattr(self, end, getattr(self, end) + 1)


def _call_of(receiver: ReceiverBase, run: DueRun) -> tuple[Any, Any, str]:
    """The durable function and the call of a run, or why there is none."""
    durable = receiver._durables.get(run.function)
    if durable is None:
        return None, None, f"no durable function is named {run.function}"
    try:
        return durable, durable._resumed(run), ""
    except CorruptRecordError as error:
        return None, None, str(error)


class Completes(ReceiverBase):
    """The completer of `Receiver`."""

    def complete_abandoned(self, limit: int = ROUND, *, concurrency: int = 1) -> CompletionReport:
        """Run what is due now: at most ``limit`` runs, ``concurrency`` of them at once, in threads."""
        return self._complete_round(limit, concurrency, CompletionReport())

    def _complete_round(
        self,
        limit: int,
        concurrency: int,
        report: CompletionReport,
        stops: Callable[[], bool] = lambda: False,
    ) -> CompletionReport:
        """`stops`: start no more; what was found and not started is found again after a lease."""
        find = run_operations.find_due(limit, self._resolved.lease_ms, self._durables)
        due: list[DueRun] = self._runtime.run(find)
        if whole(concurrency) == 1 or len(due) < 2:
            for run in due:
                self._complete(run, report, stops)
        else:
            with ThreadPoolExecutor(concurrency, "twicesafe-completer") as pool:
                for ended in [pool.submit(self._complete, run, report, stops) for run in due]:
                    ended.result()
        return report

    def _complete(self, run: DueRun, report: CompletionReport, stops: Callable[[], bool]) -> None:
        if stops():
            return
        try:
            durable, call, why = _call_of(self, run)
            if durable is None:
                flow = run_operations.park_unusable(run, self._resolved, why)
                if self._runtime.run(flow):
                    report.add("parked")
                    _log.warning("a durable run was parked: key=%s %s", run.key.short, why)
                else:
                    report.add("skipped")
                return
            durable._answer(call)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # of the function: the other runs are not its business
            report.count(error)
        else:
            report.count(None)

    def completer(self, every: Duration = 1.0, *, concurrency: int = 8) -> Completer:
        """Run what is due every ``every`` seconds, until `Completer.stop` or `close`."""
        require_open(self._runtime.store)
        return Completer(cast("Receiver", self), every, concurrency)


class AsyncCompletes(ReceiverBase):
    """The completer of `AsyncReceiver`."""

    async def complete_abandoned(
        self, limit: int = ROUND, *, concurrency: int = 1
    ) -> CompletionReport:
        """Run what is due now: at most ``limit`` runs, ``concurrency`` of them at once, in tasks."""
        return await self._complete_round(limit, concurrency, CompletionReport())

    async def _complete_round(
        self,
        limit: int,
        concurrency: int,
        report: CompletionReport,
        stops: Callable[[], bool] = lambda: False,
    ) -> CompletionReport:
        """`stops`: start no more; what was found and not started is found again after a lease."""
        import asyncio

        slots = asyncio.Semaphore(whole(concurrency))
        find = run_operations.find_due(limit, self._resolved.lease_ms, self._durables)

        async def complete(run: DueRun) -> None:
            async with slots:
                if not stops():
                    await self._complete(run, report)

        async with asyncio.TaskGroup() as group:
            for run in await self._runtime.run(find):
                group.create_task(complete(run))
        return report

    async def _complete(self, run: DueRun, report: CompletionReport) -> None:
        import asyncio

        try:
            durable, call, why = _call_of(self, run)
            if durable is None:
                flow = run_operations.park_unusable(run, self._resolved, why)
                if await self._runtime.run(flow):
                    report.add("parked")
                    _log.warning("a durable run was parked: key=%s %s", run.key.short, why)
                else:
                    report.add("skipped")
                return
            await durable._answer(call)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # of the function: the other runs are not its business
            report.count(error)
        else:
            report.count(None)

    def completer(self, every: Duration = 1.0, *, concurrency: int = 8) -> AsyncCompleter:
        """Run what is due every ``every`` seconds, until `AsyncCompleter.stop` or `close`."""
        require_open(self._runtime.store)
        return AsyncCompleter(cast("AsyncReceiver", self), every, concurrency)


class _CompleterBase:
    def __init__(self, receiver: Any, every: Duration, concurrency: int) -> None:
        self._receiver, self._concurrency = receiver, whole(concurrency)
        self._every = seconds(every, "every")
        if self._every < 0.01:
            raise ConfigurationError(f"every={every!r} is not valid: use at least 0.01 seconds")


class Completer(_CompleterBase):
    """Made by `Receiver.completer`. In a ``with`` block it runs in a thread."""

    def __init__(self, receiver: Receiver, every: Duration, concurrency: int) -> None:
        super().__init__(receiver, every, concurrency)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Work in this thread, until another one calls `stop`."""
        while not self._stopped.is_set():
            try:
                report, stops = CompletionReport(), self._stopped.is_set
                self._receiver._complete_round(ROUND, self._concurrency, report, stops)
            except Exception as error:
                _log_failed(error)
            except BaseException as error:
                # In our own thread it is from a run (`sys.exit()` in a step), not for this process.
                if threading.current_thread() is not self._thread:
                    raise
                _log_failed(error)
            self._stopped.wait(self._every)

    def start(self) -> None:
        """Work in a separate thread, until `stop`."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self.run, name="twicesafe-completer", daemon=True)
        self._receiver._upkeep.append(self)
        self._thread.start()

    def stop(self) -> None:
        """Stop; runs that have started are finished first."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class AsyncCompleter(_CompleterBase):
    """Made by `AsyncReceiver.completer`. In an ``async with`` block it runs in a task."""

    def __init__(self, receiver: AsyncReceiver, every: Duration, concurrency: int) -> None:
        super().__init__(receiver, every, concurrency)
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._sleep: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Work in this task, until another one calls `stop`."""
        import asyncio

        while not self._stopped:
            await self._round()
            if not self._stopped:
                self._sleep = asyncio.ensure_future(asyncio.sleep(self._every))
                await asyncio.wait({self._sleep})

    async def _round(self) -> None:
        try:
            report, stops = CompletionReport(), lambda: self._stopped
            await self._receiver._complete_round(ROUND, self._concurrency, report, stops)
        except Exception as error:
            _log_failed(error)

    async def start(self) -> None:
        """Work in a separate task, until `stop`."""
        import asyncio

        self._stopped = False
        self._receiver._upkeep.append(self)
        self._task = asyncio.get_running_loop().create_task(self.run(), name="twicesafe-completer")

    async def stop(self) -> None:
        """Stop; runs that have started are finished first."""
        import asyncio

        self._stopped = True
        if self._sleep is not None:
            self._sleep.cancel()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait({task})

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


def _log_failed(error: BaseException) -> None:
    foreign = not isinstance(error, TwicesafeError)
    _log.warning("a round of the completer failed: %s", error, exc_info=foreign)
