"""The handlers of one batch: a bounded number run at once; results are returned as they end.

    ThreadJobs    for the blocking runtime
    TaskJobs      for the event loop

Both answer `Launch` with the jobs that have ended, including those that end soon after. If the
waiting flow is interrupted or cancelled, no ended job is lost: it is returned the next time.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .._core.commands import Detach, Invoke, Launch, NotStarted, Raised, Reply, Returned
from .._values.context import ActiveClaim

__all__ = ["TaskJobs", "ThreadJobs", "interrupts"]


def interrupts(reply: Any) -> bool:
    """True if this ends the whole batch: an interrupt, an exit, a cancellation."""
    inner = reply.value if isinstance(reply, Returned) else reply
    return isinstance(inner, Raised) and not isinstance(inner.error, Exception)


class ThreadJobs:
    """Runs jobs in the caller's thread if one at a time, else in a thread pool."""

    def __init__(
        self,
        command: Launch,
        run: Callable[[Any], Reply],
        put_off: Callable[[BaseException], None],
    ) -> None:
        self._run = run
        self._put_off = put_off
        self._todo = deque(command.jobs)
        self._count = len(command.jobs)
        self._ended: list[tuple[int, Any]] = []
        self._given = 0
        """How many of the ended jobs were returned."""
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._interrupted = False
        self._pool: ThreadPoolExecutor | None = None
        self._queued: dict[int, tuple[ActiveClaim | None, Future[None]]] = {}
        if command.concurrency > 1 and self._count > 1:
            self._pool = ThreadPoolExecutor(
                min(command.concurrency, self._count), thread_name_prefix="twicesafe-batch"
            )
            for index, job in self._todo:
                context = contextvars.copy_context()
                try:
                    future = self._pool.submit(context.run, self._work, index, job)
                except RuntimeError as error:  # no thread left, or the interpreter ends
                    if not self._queued:
                        self._pool = None  # then in the caller's thread
                        break
                    if "cannot schedule" in str(error):
                        raise
                    continue  # it is queued: the threads that there are run it
                self._queued[index] = job.claim, future

    def _work(self, index: int, job: Invoke | Detach) -> None:
        reply = self._run(job)
        if type(reply) is not Returned or type(reply.value) is Raised:
            self._interrupted |= interrupts(reply)
        self._ended.append((index, reply))
        if self._pool is not None:
            self._bell.put(None)

    def finished(self, linger: float, stop: bool) -> list[tuple[int, Any]]:
        if stop:
            self._stop()
        until: float | None = None
        while len(self._ended) < self._count:
            if len(self._ended) > self._given and not stop:
                until = until or time.monotonic() + linger
                if self._interrupted or time.monotonic() >= until:
                    break  # after an interrupt, return now: start nothing more
            if self._pool is None:
                self._work(*self._todo.popleft())
            elif not self._rung(until):
                stop = True
                self._stop()
        found = self._ended[self._given :]
        self._given += len(found)
        return found

    def _rung(self, until: float | None) -> bool:
        """Wait for the next job to end. False: interrupted; record the running jobs first."""
        try:
            self._bell.get(timeout=None if until is None else max(0, until - time.monotonic()))
        except queue.Empty:
            pass
        except BaseException as error:
            self._put_off(error)
            return False
        return True

    def _stop(self) -> None:
        for index, _ in self._todo:
            if self._pool is None or (index in self._queued and self._queued[index][1].cancel()):
                self._ended.append((index, NotStarted()))
        self._todo.clear()

    def close(self) -> list[tuple[ActiveClaim | None, Future[None]]]:
        """Start no more; returns the claims and futures of jobs that still run in threads."""
        if self._pool is None:
            return []
        self._pool.shutdown(wait=False, cancel_futures=True)
        return [(claim, handler) for claim, handler in self._queued.values() if not handler.done()]


class TaskJobs:
    """Runs jobs as tasks, a bounded number at once.

    While `finished` is awaited, the end of one job starts the next. Jobs that end at other times
    are returned the next time.
    """

    def __init__(self, command: Launch, run: Callable[[Any], Coroutine[Any, Any, Reply]]) -> None:
        self._todo = deque(command.jobs)
        self._run = run
        self._concurrency = command.concurrency
        self._loop = asyncio.get_running_loop()
        self._running: dict[asyncio.Task[Reply], int] = {}
        self._ended: list[tuple[int, Any]] = []
        self._linger: float | None = None
        """Seconds to wait for more after the first job ended; None: until all have ended."""
        self._waits: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def finished(self, linger: float, stop: bool) -> list[tuple[int, Any]]:
        if stop:
            self._ended += [(index, NotStarted()) for index, _ in self._todo]
            self._todo.clear()
            self.close()
        self._linger = None if stop else linger
        if self._todo or self._running:
            self._waits = self._loop.create_future()
            self._start_some()
            if self._ended:
                self._wait_for_more()
            try:
                await self._waits
            finally:
                self._waits = None
                if self._alarm is not None:
                    self._alarm.cancel()
                    self._alarm = None
        ended, self._ended = self._ended, []
        return ended

    def _start_some(self) -> None:
        while self._todo and len(self._running) < self._concurrency:
            index, job = self._todo.popleft()
            task = self._loop.create_task(self._run(job))
            self._running[task] = index
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Reply]) -> None:
        reply = _reply_of(task)
        self._ended.append((self._running.pop(task), reply))
        if self._waits is None or self._waits.done():
            return
        if self._linger is not None and interrupts(reply):
            self._hand_over()  # now: start nothing more
            return
        self._start_some()
        if not self._running:
            self._hand_over()
        else:
            self._wait_for_more()

    def _wait_for_more(self) -> None:
        if self._linger is not None and self._alarm is None:
            self._alarm = self._loop.call_later(self._linger, self._hand_over)

    def _hand_over(self) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    def close(self) -> None:
        for task in self._running:
            task.cancel()


def _reply_of(task: asyncio.Task[Reply]) -> Any:
    """A job's reply; `NotStarted` if its task was cancelled before its first step."""
    if task.cancelled():
        return NotStarted()
    error = task.exception()
    return task.result() if error is None else Raised(error)
