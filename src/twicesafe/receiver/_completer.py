"""The completer: continues durable runs that were abandoned, have slept long enough, or got their signal.

    with receiver.completer(every=1.0):         # a thread; AsyncReceiver: a task
        serve()
    receiver.completer().run()                  # in the foreground, until `stop`

Any number of nodes may run one: a claim decides which of them gets a run. It needs the functions,
so decorate them before it starts. A run that fails is logged, and never raises from the completer.
If a run forks and the child comes to the end of the run, the child exits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from .._core.durable.run_operations import MOST
from .._core.durable.run_requests import DueRun
from .._core.durable.run_state import is_within
from .._values.settings import Duration, expect, seconds
from ..errors import DuplicateError, ParkedError, SuspendedError, TwicesafeError, UsageError
from ._batches import checked_concurrency

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor

    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncCompleter", "Completer", "CompletionReport"]

_log = logging.getLogger("twicesafe")

_counting = threading.Lock()


class CompletionReport(msgspec.Struct):
    """What `complete_abandoned` did, in numbers of runs."""

    completed: int = 0
    """Runs that came to their end."""
    suspended: int = 0
    """Runs that sleep or wait again."""
    failed: int = 0
    """Runs that raised, or whose attempts were used up; each is tried again after its back-off, or
    is parked or undone."""
    parked: int = 0
    """Runs whose code is gone, or whose arguments it does not take, for an hour."""
    skipped: int = 0
    """Runs that another worker took first, or that are left to others because their code or arguments do not fit."""

    @property
    def found(self) -> int:
        """All runs that were due."""
        return self.completed + self.suspended + self.failed + self.parked + self.skipped

    def count(self, error: BaseException | None, has_begun: bool = False) -> None:
        """Count how a run ended. A failure is logged. ``has_begun``: its function was called here,
        so no other worker took it: the error is its own, or one of a step.
        """
        ends = {type(None): "completed", SuspendedError: "suspended"}
        if not has_begun and not isinstance(error, ParkedError):  # which this claim has parked
            ends[DuplicateError] = "skipped"
        end = next((name for kind, name in ends.items() if isinstance(error, kind)), "failed")
        self.add(end)
        if error is not None and end == "failed":
            _log_failure("a durable run failed: %s", error)

    def leave(self, run: DueRun, why: str) -> None:
        """Count a run that this node's code cannot run. In a rolling deployment another node's code can."""
        self.add("skipped")
        _log.warning("a durable run was left to other completers: key=%s %s", run.key.short, why)

    def count_unusable(self, run: DueRun, why: str, is_parked: bool) -> None:
        """Count a run that cannot be run here. Another worker may have taken it before it was parked."""
        self.add("parked" if is_parked else "skipped")
        if is_parked:
            _log.warning("a durable run was parked: key=%s %s", run.key.short, why)

    def add(self, end: str) -> None:
        """Count one run. The threads of a completer share the report."""
        with _counting:
            setattr(self, end, getattr(self, end) + 1)


class _CompleterBase:
    def __init__(self, receiver: Any, every: Duration, concurrency: int) -> None:
        self._receiver, self._concurrency = receiver, checked_concurrency(concurrency)
        self._every = seconds(every, "every")
        expect(self._every >= 0.01, "every", every, "use at least 0.01 seconds")
        self._started: dict[bytes, None] = {}
        """The ids of the runs that it works on."""
        self._report_to(CompletionReport(), partial(_log_failure, "completer error: %s"))

    def _report_to(
        self,
        report: CompletionReport,
        on_error: Callable[[Exception], None],
        limit: int = MOST,
    ) -> None:
        """`on_error`: what to do if the store does not answer. `limit`: how many runs one search
        finds at most; other nodes do not get them before a lease is over.
        """
        self._report, self._on_error = report, on_error
        self._limit = min(limit, MOST)

    def _refuse_another(self, is_working: bool) -> None:
        if is_working:
            raise UsageError(
                "this completer has been started and has not ended; for another one call receiver.completer() again"
            )


class Completer(_CompleterBase):
    """Made by `Receiver.completer`. In a ``with`` block it runs in a thread."""

    def __init__(self, receiver: Receiver, every: Duration, concurrency: int) -> None:
        super().__init__(receiver, every, concurrency)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._own = threading.local()

    def run(self) -> None:
        """Work in this thread and in those of the runs, until another one calls `stop`."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self._concurrency, "twicesafe-completer") as pool:
            try:
                self._keep_looking(pool)
            except BaseException:  # Ctrl-C, for example: of the runs that were found, start no more
                self._stopped.set()
                raise

    def _keep_looking(self, pool: ThreadPoolExecutor) -> None:
        from concurrent.futures import FIRST_COMPLETED, wait

        left: set[Future[None]] = set()
        while not self._stopped.is_set():
            if len(left) < self._concurrency:  # long runs keep only their own slots
                left.update(pool.submit(self._complete, run) for run in self._find_due())
            is_full = len(left) >= self._concurrency
            if not is_full:
                self._stopped.wait(self._every)
            _, left = wait(left, self._every if is_full else 0, FIRST_COMPLETED)

    def _find_due(self) -> list[DueRun]:
        try:
            return self._receiver._find_due(self._limit)  # type: ignore[no-any-return]
        except Exception as error:
            self._on_error(error)
            return []

    def _complete(self, run: DueRun) -> None:
        self._own.has_run = True
        self._started[run.key.id] = None
        try:
            self._receiver._complete(run, self._report, self._stopped.is_set)
        except BaseException as error:  # also `sys.exit()` in a step: it must not end this process
            self._report.count(error)
        finally:
            self._started.pop(run.key.id, None)

    def start(self) -> None:
        """Work in a separate thread, until `stop`."""
        self._refuse_another(self._thread is not None and self._thread.is_alive())
        self._stopped.clear()
        self._thread = threading.Thread(target=self.run, name="twicesafe-completer", daemon=True)
        self._receiver._upkeep.append(self)
        self._thread.start()

    def stop(self) -> None:
        """Stop; runs that have started are finished first. A run that calls this does not wait, nor
        does one of its steps in another thread."""
        self._stopped.set()
        is_own = hasattr(self._own, "has_run") or is_within(self._started)
        if self._thread is not None and not is_own:
            self._thread.join()

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
        self._left: set[asyncio.Task[None]] = set()
        """Runs that were found, and have not ended."""
        self._sleep: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Work in this task and in those of the runs, until another one calls `stop`."""
        import asyncio

        from .._runtime.event_loop import running_loop

        running_loop()
        slots, failed = asyncio.Semaphore(self._concurrency), None
        async with asyncio.TaskGroup() as group:
            while not self._stopped:
                if len(self._left) < self._concurrency:  # long runs keep only their own slots
                    try:
                        found = await self._find_due()
                    except Exception as error:  # the group would wrap it, and cancel the runs
                        self._stopped, failed = True, error
                        break
                    for run in found:
                        self._left.add(group.create_task(self._complete(run, slots)))
                await self._rest()
                self._left = {task for task in self._left if not task.done()}
        if failed is not None:
            raise failed

    async def _rest(self) -> None:
        """Until the next look, or, if all slots are taken, until a run has ended."""
        import asyncio

        if self._stopped:
            return
        self._sleep = asyncio.ensure_future(asyncio.sleep(self._every))
        is_full = len(self._left) >= self._concurrency
        ends = {self._sleep, *self._left} if is_full else {self._sleep}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sleep.cancel()

    async def _find_due(self) -> list[DueRun]:
        try:
            return await self._receiver._find_due(self._limit)  # type: ignore[no-any-return]
        except Exception as error:
            self._on_error(error)
            return []

    async def _complete(self, run: DueRun, slots: asyncio.Semaphore) -> None:
        self._started[run.key.id] = None
        try:
            await self._receiver._complete(run, self._report, lambda: self._stopped, slots)
        finally:
            self._started.pop(run.key.id, None)

    def _halt(self) -> None:
        self._stopped = True
        if self._sleep is not None:
            self._sleep.cancel()

    async def start(self) -> None:
        """Work in a separate task, until `stop`."""
        from .._runtime.event_loop import running_loop

        loop = running_loop()
        self._refuse_another(self._task is not None and not self._task.done())
        self._stopped = False
        self._receiver._upkeep.append(self)
        self._task = loop.create_task(self.run(), name="twicesafe-completer")

    async def stop(self) -> None:
        """Stop; runs that have started are finished first. A run that calls this does not wait, nor
        does one of its tasks."""
        import asyncio

        self._halt()
        is_own = asyncio.current_task() in self._left or is_within(self._started)
        if self._task is not None and not is_own:
            await asyncio.wait({self._task})

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


def _log_failure(what: str, error: BaseException) -> None:
    foreign = not isinstance(error, TwicesafeError)  # not our own error: log its traceback
    _log.warning(what, error, exc_info=error if foreign else None)
