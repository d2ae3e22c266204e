"""Batching: concurrent calls of event loops to the same store share one batch.

While one batch runs, new calls queue up and form the next batch. There is no timer, so a single call
has no delay; under load, fifty calls share one transaction or one round trip. `_group_commit` does
the same for threads that write through one connection.

    AsyncBatcher   tasks of one event loop, in front of an async driver
    PerLoop        one object per event loop
    ThreadedStore  event loops in front of a blocking store: one thread, whole batches; its outbox too
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from .._core.outbox_requests import OutboxRequest, Reply
from .._core.protocol import Request
from .._forking import RenewedLock, in_child
from ..errors import StoreUnavailableError, TwicesafeError
from ._base import AsyncStore, Finding, Store
from ._group_commit import goes_alone
from ._outbox_port import AsyncOutboxPort, OutboxInTransaction

__all__ = ["AsyncBatcher", "PerLoop", "ThreadedStore", "Uncancellable", "uncancellable"]

T = TypeVar("T")


class Uncancellable(asyncio.Future[Any]):
    """A future that its awaiting task cannot cancel: the work and the wait continue.

    A cancelled task gets its CancelledError when the answer is here, and finds the answer in this
    future.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        return False


def uncancellable(work: Coroutine[Any, Any, Any]) -> Uncancellable:
    """Run this work in its own task; returns its answer as an uncancellable future."""
    loop = asyncio.get_running_loop()
    answer = Uncancellable(loop=loop)

    def arrive(task: asyncio.Task[Any]) -> None:
        if task.cancelled():  # only a closing loop does that
            answer.set_exception(_loop_ended())
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    loop.create_task(work).add_done_callback(arrive)
    return answer


class AsyncBatcher:
    """A single call runs at once; calls that arrive while it runs share the next batch.

    One failing item does not affect the others: `perform_all` puts its exception in its place.
    """

    def __init__(
        self,
        perform_one: Callable[[Any], Awaitable[Any]],
        perform_all: Callable[[list[Any]], Awaitable[list[Any]]],
        most: int = 500,
    ) -> None:
        self._one = perform_one
        self._all = perform_all
        self._most = most
        self._busy = False
        self._gathered: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._pump: asyncio.Task[None] | None = None

    async def perform(self, request: Any) -> Any:
        if not self._busy:
            self._busy = True
            try:
                return await self._one(request)
            finally:
                self._busy = False
                self._start()
        future = asyncio.get_running_loop().create_future()
        self._gathered.append((request, future))
        return await future

    def submit(self, request: Any) -> Uncancellable:
        """Like `perform`, but not in the caller's task, so that a cancellation cannot stop it."""
        future = Uncancellable(loop=asyncio.get_running_loop())
        self._gathered.append((request, future))
        self._start()
        return future

    def _start(self) -> None:
        if self._gathered and not self._busy:
            self._busy = True
            self._pump = asyncio.get_running_loop().create_task(self._send_batches())

    async def _send_batches(self) -> None:
        try:
            while self._gathered:
                batch = self._next()
                count = len(batch)
                try:
                    if count == 1:
                        answers = [await self._one(batch[0][0])]
                    else:
                        answers = await self._all([request for request, _ in batch])
                except Exception as error:
                    answers = _for_each(error, count)
                except BaseException as error:
                    _break(batch, error)
                    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, SystemExit)):
                        raise  # the event loop must see these
                    continue
                for (_, future), answer in zip(batch, answers, strict=True):
                    if future.done():
                        continue  # its caller was cancelled and will release the claim
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._busy = False
            self._start()

    def _next(self) -> list[tuple[Any, asyncio.Future[Any]]]:
        """The next batch: all queued requests, except those that must run alone."""
        batch = [self._gathered.popleft()]
        if not goes_alone(batch[0][0]):
            while (
                self._gathered and len(batch) < self._most and not goes_alone(self._gathered[0][0])
            ):
                batch.append(self._gathered.popleft())
        return batch


def _break(batch: list[tuple[Any, asyncio.Future[Any]]], error: BaseException) -> None:
    """The batch itself was ended: fail every waiting call, because no answer will come.

    A closing loop cancels it. Whether the store was reached is then unknown, as after a lost
    connection.
    """
    for _, future in batch:
        if not future.done():
            if isinstance(error, asyncio.CancelledError):
                future.set_exception(_loop_ended())
            else:
                future.set_exception(error)


def _loop_ended() -> StoreUnavailableError:
    return StoreUnavailableError("the event loop ended before the answer")


def _for_each(error: Exception, count: int) -> list[Exception]:
    """One error object per call, because each error names its own key."""
    if isinstance(error, TwicesafeError):
        return [error.again() for _ in range(count)]
    return [error] * count


class PerLoop(Generic[T]):
    """One object per event loop: async connections and locks belong to the loop that made them."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = (
            weakref.WeakKeyDictionary()
        )
        self._last: tuple[weakref.ref[asyncio.AbstractEventLoop], T] | None = None
        """A cache: most processes have one loop, and every request looks it up."""

    def here(self) -> T:
        """The object of the running loop, created on first use."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last[0]() is loop:
            return last[1]
        found = self._made.get(loop)
        if found is None:
            found = self._made[loop] = self._make()
        self._last = weakref.ref(loop), found
        return found

    def forget(self) -> T | None:
        """Remove and return the object of the running loop, to close it."""
        self._last = None
        return self._made.pop(asyncio.get_running_loop(), None)


class _QueuedCall:
    """A call for the worker thread, and the future that waits for it on some loop."""

    __slots__ = ("alone", "answers", "broken", "future", "loop", "requests", "work")

    def __init__(
        self,
        requests: Sequence[Request],
        future: asyncio.Future[Any],
        alone: bool = False,
        work: Callable[[Store], Any] | None = None,
    ) -> None:
        self.requests, self.future, self.loop = requests, future, future.get_loop()
        self.alone = alone
        """A single request: the future gets its answer or error, not a list."""
        self.work = work
        """Instead of requests: a call that is not batched; the future gets what it returns."""
        self.answers: list[Any] = []
        self.broken: BaseException | None = None


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
        with self._opening.now:
            if self._opened is None:
                self._opened = self._make()
            return self._opened

    async def ready(self) -> None:
        if self._opened is None:
            await self.in_worker(lambda store: None)

    async def perform(self, request: Request) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._send(_QueuedCall((request,), answer, alone=True))
        return await answer

    def submit(self, request: Request) -> Uncancellable:
        answer = Uncancellable(loop=asyncio.get_running_loop())
        self._send(_QueuedCall((request,), answer, alone=True))
        return answer

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        if not requests:
            return []
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._send(_QueuedCall(requests, answers))
        return await answers

    async def in_worker(self, work: Callable[[Store], T]) -> T:
        """Call this with the blocking store, in the worker thread."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._send(_QueuedCall((), answer, alone=True, work=work))
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

    async def doctor(self) -> list[Finding]:
        return await asyncio.to_thread(lambda: self.blocking_store().doctor())

    async def migrate(self) -> list[str]:
        return await asyncio.to_thread(lambda: self.blocking_store().migrate())

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
        self._thread = threading.Thread(target=self._work, name="twicesafe-store", daemon=True)
        self._thread.start()

    def put(self, call: _QueuedCall | None) -> None:
        self._calls.put(call)

    def stop(self) -> None:
        self.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            calls = [self._calls.get()]
            calls += [self._calls.get() for _ in range(self._calls.qsize())]
            together: list[_QueuedCall] = []
            for call in calls:
                if call is not None and call.alone and _runs_alone(call):
                    self._run([call])
                elif call is not None:
                    together.append(call)
            self._run(together)
            if None in calls:
                return

    def _run(self, calls: list[_QueuedCall]) -> None:
        requests = [request for call in calls for request in call.requests]
        if not calls:
            return
        try:
            open_store = self._store()
            if open_store is None:
                return  # no caller is left
            store = open_store()
            if calls[0].work is not None:
                answers = [calls[0].work(store)]
            elif len(requests) == 1:
                answers = [store.perform(requests[0])]
            else:
                answers = store.perform_many(requests)
        except Exception as error:
            answers = _for_each(error, len(requests) or 1)
        except BaseException as error:  # no answers: every caller gets the error
            answers = [None] * (len(requests) or 1)
            for call in calls:
                call.broken = error
        at = 0
        by_loop: dict[asyncio.AbstractEventLoop, list[_QueuedCall]] = {}
        for call in calls:
            call.answers = answers[at : at + (len(call.requests) or 1)]
            at += len(call.requests)
            by_loop.setdefault(call.loop, []).append(call)
        for loop, theirs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, theirs)
            except RuntimeError:
                continue  # that loop is closed: no caller is left there


def _runs_alone(call: _QueuedCall) -> bool:
    return call.work is not None or goes_alone(call.requests[0])


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
