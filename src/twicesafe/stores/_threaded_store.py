"""An async store on top of a blocking one: event loops hand their calls to one worker thread.

Calls that arrive while the thread is busy form its next batch, from all loops of the process. One
batch costs one thread switch, and one transaction of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from .._core.outbox.requests import OutboxRequest, Reply
from .._core.protocol import Request
from .._forking import RenewedLock, in_child
from ._base import AsyncStore, Finding, Progress, Store
from ._batching import Uncancellable, error_for_each
from ._group_commit import goes_alone
from ._outbox_port import AsyncOutboxPort, OutboxInTransaction

__all__ = ["ThreadedStore"]

T = TypeVar("T")


class _QueuedCall(msgspec.Struct, eq=False):
    """A call for the worker thread, and the future that waits for it on some loop."""

    future: asyncio.Future[Any]
    requests: Sequence[Request] = ()
    alone: bool = False
    """A single request: the future gets its answer or error, not a list."""
    work: Callable[[Store], Any] | None = None
    """Instead of requests: a call that is not batched; the future gets what it returns."""
    answers: Sequence[Any] = ()
    broken: BaseException | None = None


class ThreadedStore(AsyncStore):
    """A blocking store for event loops: one worker thread, one thread switch per batch."""

    def __init__(self, make: Callable[[], Store], url: str) -> None:
        self.url = url
        self._make = make
        self._opened: Store | None = None
        self._opening = RenewedLock()
        self._worker: _Worker | None = None
        in_child(self._forget_worker)

    def _forget_worker(self) -> None:
        """After a fork: the worker thread exists in the parent only."""
        self._worker = None

    def blocking_store(self) -> Store:
        if self._opened is None:
            with self._opening.now:
                if self._opened is None:
                    self._opened = self._make()
        return self._opened

    async def ready(self) -> None:
        if self._opened is None:
            await self.in_worker(lambda store: None)

    async def perform(self, request: Request) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._send(_QueuedCall(answer, (request,), True))
        return await answer

    def submit(self, request: Request) -> Uncancellable:
        answer = Uncancellable(loop=asyncio.get_running_loop())
        self._send(_QueuedCall(answer, (request,), True))
        return answer

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        if not requests:
            return []
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._send(_QueuedCall(answers, requests))
        return await answers

    async def in_worker(self, work: Callable[[Store], T]) -> T:
        """Call this with the blocking store, in the worker thread."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._send(_QueuedCall(answer, (), True, work))
        return await answer

    @property
    def outbox(self) -> ThreadedOutboxPort:
        if not self.capabilities.outbox:
            raise self._no_outbox()
        return ThreadedOutboxPort(self)

    def _send(self, call: _QueuedCall) -> None:
        worker = self._worker
        if worker is None:
            worker = self._worker = _Worker(weakref.WeakMethod(self.blocking_store))
            weakref.finalize(self, worker.put, None).atexit = False
        worker.put(call)
        if worker.has_stopped:  # the store was closed meanwhile
            for left in worker.take_all():
                self._send(left)

    async def doctor(self) -> list[Finding]:
        return await asyncio.to_thread(lambda: self.blocking_store().doctor())

    async def migrate(self, tell: Progress = None) -> list[str]:
        return await asyncio.to_thread(lambda: self.blocking_store().migrate(tell))

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.stop)
        if self._opened is not None:
            self._opened.close()


class ThreadedOutboxPort(AsyncOutboxPort):
    """The outbox of a blocking store, in its worker thread."""

    def __init__(self, store: ThreadedStore) -> None:
        self._store = store

    @property
    def dialect(self) -> str:
        return self._store.blocking_store().outbox.dialect

    def in_transaction(self, style: str) -> OutboxInTransaction:
        return self._store.blocking_store().outbox.in_transaction(style)

    async def perform(self, request: OutboxRequest[Reply]) -> Reply:
        return await self._store.in_worker(lambda store: store.outbox.perform(request))


class _Worker:
    """The thread that calls the store for all event loops of a process.

    It does not keep its store alive: the thread ends when the store is garbage-collected.
    """

    def __init__(self, store: weakref.WeakMethod[Callable[[], Store]]) -> None:
        self._store = store
        self._calls: queue.SimpleQueue[_QueuedCall | None] = queue.SimpleQueue()
        self.has_stopped = False
        """Set before the thread empties its queue a last time: who sees False after a `put` is answered."""
        self._thread = threading.Thread(target=self._work, name="twicesafe-store", daemon=True)
        self._thread.start()

    def put(self, call: _QueuedCall | None) -> None:
        self._calls.put(call)

    def take_all(self) -> list[_QueuedCall]:
        calls = []
        with contextlib.suppress(queue.Empty):
            while True:
                calls.append(self._calls.get_nowait())
        return [call for call in calls if call is not None]

    def stop(self) -> None:
        self.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            first = self._calls.get()
            more = [self._calls.get() for _ in range(self._calls.qsize())]
            if first is not None and not more:
                self._run([first])
            elif not self._run_all([first, *more]):
                self.has_stopped = True
                self._run_all(self.take_all())
                return

    def _run_all(self, calls: Sequence[_QueuedCall | None]) -> bool:
        """Run all calls that are queued. False: the thread must stop."""
        together: list[_QueuedCall] = []
        for call in calls:
            if call is not None and call.alone and _runs_alone(call):
                self._run([call])
            elif call is not None:
                together.append(call)
        if together:
            self._run(together)
        return None not in calls

    def _run(self, calls: list[_QueuedCall]) -> None:
        open_store = self._store()
        if open_store is None:
            return  # no caller is left
        first = calls[0]
        requests = first.requests
        if len(calls) > 1:
            requests = [request for call in calls for request in call.requests]
        try:
            store = open_store()
            if first.work is not None:
                answers = [first.work(store)]
            elif len(requests) == 1:
                answers = [store.perform(requests[0])]
            else:
                answers = store.perform_many(requests)
        except Exception as error:
            answers = error_for_each(error, len(requests) or 1)
        except BaseException as error:  # no answers: every caller gets the error
            answers = [None] * (len(requests) or 1)
            for call in calls:
                call.broken = error
        if len(calls) == 1:
            first.answers = answers
            _deliver_on(first.future.get_loop(), calls)
            return
        at = 0
        by_loop: dict[asyncio.AbstractEventLoop, list[_QueuedCall]] = {}
        for call in calls:
            call.answers = answers[at : at + len(call.requests)]
            at += len(call.requests)
            by_loop.setdefault(call.future.get_loop(), []).append(call)
        for loop, theirs in by_loop.items():
            _deliver_on(loop, theirs)


def _runs_alone(call: _QueuedCall) -> bool:
    return call.work is not None or goes_alone(call.requests[0])


def _deliver_on(loop: asyncio.AbstractEventLoop, calls: list[_QueuedCall]) -> None:
    try:
        loop.call_soon_threadsafe(_deliver, calls)
    except RuntimeError:
        return  # the loop is closed: no caller is left there


def _deliver(calls: list[_QueuedCall]) -> None:
    for call in calls:
        if call.future.done():
            continue
        answer = call.answers[0] if call.alone else call.answers
        if call.broken is not None:
            call.future.set_exception(call.broken)
        elif isinstance(answer, Exception):
            call.future.set_exception(answer)
        else:
            call.future.set_result(answer)
