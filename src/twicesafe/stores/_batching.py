"""Joining: calls of event loops that wait for the same store travel together.

The rule is the same everywhere: send what has gathered, gather while it flies. There is no timer,
so a lone call pays no delay; under load, fifty calls share one transaction or one round trip. Of
threads that write through one connection, `lane` takes care.

    AsyncLane      tasks of one event loop, in front of an async driver
    PerLoop        what belongs to one event loop, kept apart for each
    ThreadedStore  event loops in front of a blocking store: one thread, whole batches
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from .._core.protocol import Request
from .._forking import RenewedLock, in_child
from ..errors import StoreUnavailableError, TwicesafeError
from ._base import AsyncStore, Finding, Store
from ._group_commit import goes_alone

__all__ = ["AsyncBatcher", "PerLoop", "ThreadedStore", "Uncancellable", "uncancellable"]

T = TypeVar("T")


class Uncancellable(asyncio.Future[Any]):
    """A future that whoever awaits it cannot cancel: the work goes on and so does the wait.

    A task that is cancelled meanwhile gets its CancelledError when the answer is here, and finds
    the answer in this future.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        return False


def uncancellable(work: Coroutine[Any, Any, Any]) -> Uncancellable:
    """This work in a task of its own, and its answer as an unbroken future."""
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
    """A lone call goes straight through; calls that come while it flies share the next flight.

    One failing item never sinks its companions: `perform_all` puts its exception in its place.
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
        self._flying = False
        self._gathered: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._pump: asyncio.Task[None] | None = None

    async def perform(self, request: Any) -> Any:
        if not self._flying:
            self._flying = True
            try:
                return await self._one(request)
            finally:
                self._flying = False
                self._take_off()
        future = asyncio.get_running_loop().create_future()
        self._gathered.append((request, future))
        return await future

    def submit(self, request: Any) -> Uncancellable:
        """The same, not in the caller's task: it cannot be broken off by a cancellation."""
        future = Uncancellable(loop=asyncio.get_running_loop())
        self._gathered.append((request, future))
        self._take_off()
        return future

    def _take_off(self) -> None:
        if self._gathered and not self._flying:
            self._flying = True
            self._pump = asyncio.get_running_loop().create_task(self._fly())

    async def _fly(self) -> None:
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
                        raise  # the loop must hear of these; others have been told
                    continue
                for (_, future), answer in zip(batch, answers, strict=True):
                    if future.done():
                        continue  # its caller was cancelled, and will give the claim back
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._flying = False
            self._take_off()

    def _next(self) -> list[tuple[Any, asyncio.Future[Any]]]:
        """What flies together: all that has gathered, but for what must be alone."""
        batch = [self._gathered.popleft()]
        if not goes_alone(batch[0][0]):
            while (
                self._gathered and len(batch) < self._most and not goes_alone(self._gathered[0][0])
            ):
                batch.append(self._gathered.popleft())
        return batch


def _break(batch: list[tuple[Any, asyncio.Future[Any]]], error: BaseException) -> None:
    """The flight itself was ended: nobody may be left waiting for an answer that will not come.

    A closing loop cancels it. Whether the store was reached is unknown then, as after a cut.
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
    """What went wrong for all, as an error of each one's own: each will say its own key."""
    if isinstance(error, TwicesafeError):
        return [error.again() for _ in range(count)]
    return [error] * count


class PerLoop(Generic[T]):
    """Connections and locks of async drivers belong to the loop they were made on."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = (
            weakref.WeakKeyDictionary()
        )
        self._last: tuple[weakref.ref[asyncio.AbstractEventLoop], T] | None = None
        """Most processes have one loop, and every request asks."""

    def here(self) -> T:
        """The one of the running loop, made on first use."""
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
        """Take out the one of the running loop, to close it."""
        self._last = None
        return self._made.pop(asyncio.get_running_loop(), None)


class _QueuedCall:
    """What a worker thread is asked to do, and the future that waits for it on some loop."""

    __slots__ = ("alone", "answers", "broken", "future", "loop", "requests")

    def __init__(
        self, requests: Sequence[Request], future: asyncio.Future[Any], alone: bool = False
    ) -> None:
        self.requests, self.future, self.loop = requests, future, future.get_loop()
        self.alone = alone
        """One request, whose answer or error the future gets as it is."""
        self.answers: list[Any] = []
        self.broken: BaseException | None = None


class ThreadedStore(AsyncStore):
    """A blocking store for event loops: one worker thread, one hop per gathered batch."""

    def __init__(self, make: Callable[[], Store], url: str) -> None:
        self.url = url
        self._make = make
        self._opened: Store | None = None
        self._opening = RenewedLock()
        self._worker: _Worker | None = None
        in_child(self._forget_worker)

    def _forget_worker(self) -> None:
        """Its thread stays with the parent."""
        self._worker = None

    def blocking_store(self) -> Store:
        with self._opening.now:
            if self._opened is None:
                self._opened = self._make()
            return self._opened

    async def ready(self) -> None:
        if self._opened is None:  # an errand without requests: the worker opens the store
            opened = asyncio.get_running_loop().create_future()
            self._send(_QueuedCall((), opened))
            await opened

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

    def _send(self, errand: _QueuedCall) -> None:
        worker = self._worker
        if worker is None:
            worker = self._worker = _Worker(weakref.WeakMethod(self.blocking_store))
            weakref.finalize(self, worker.put, None).atexit = False
        worker.put(errand)

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


class _Worker:
    """The thread that talks to the store for all event loops of a process.

    It does not keep its store alive: one that nobody closed and nobody uses ends its thread.
    """

    def __init__(self, store: weakref.WeakMethod[Callable[[], Store]]) -> None:
        self._store = store
        self._errands: queue.SimpleQueue[_QueuedCall | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="twicesafe-store", daemon=True)
        self._thread.start()

    def put(self, errand: _QueuedCall | None) -> None:
        self._errands.put(errand)

    def stop(self) -> None:
        self.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            errands = [self._errands.get()]
            errands += [self._errands.get() for _ in range(self._errands.qsize())]
            together: list[_QueuedCall] = []
            for errand in errands:
                if errand is not None and errand.alone and goes_alone(errand.requests[0]):
                    self._run([errand])
                elif errand is not None:
                    together.append(errand)
            self._run(together)
            if None in errands:
                return

    def _run(self, errands: list[_QueuedCall]) -> None:
        requests = [request for errand in errands for request in errand.requests]
        if not errands:
            return
        try:
            beside = self._store()
            if beside is None:
                return  # nobody waits any more
            store = beside()
            alone = len(requests) == 1
            answers = [store.perform(requests[0])] if alone else []
            if len(requests) > 1:
                answers = store.perform_many(requests)
        except Exception as error:
            answers = _for_each(error, len(requests))
            for errand in errands:
                if not errand.requests:
                    errand.broken = error
        except BaseException as error:  # no answer to anything: it breaks every caller's wait
            answers = [None] * len(requests)
            for errand in errands:
                errand.broken = error
        at = 0
        by_loop: dict[asyncio.AbstractEventLoop, list[_QueuedCall]] = {}
        for errand in errands:
            errand.answers = answers[at : at + len(errand.requests)]
            at += len(errand.requests)
            by_loop.setdefault(errand.loop, []).append(errand)
        for loop, theirs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, theirs)
            except RuntimeError:
                continue  # that loop is closed: nobody waits there any more


def _deliver(errands: list[_QueuedCall]) -> None:
    for errand in errands:
        if errand.future.done():
            continue
        answer = errand.answers[0] if errand.alone else errand.answers
        if errand.broken is not None:
            errand.future.set_exception(errand.broken)
        elif isinstance(answer, Exception):
            errand.future.set_exception(answer)
        else:
            errand.future.set_result(answer)
