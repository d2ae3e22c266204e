"""Batching: concurrent calls of event loops to the same store share one batch.

While one batch runs, new calls queue up and form the next batch. There is no timer, so a single call
has no delay; under load, fifty calls share one transaction or one round trip. `_group_commit` does
the same for threads that write through one connection, `_threaded_store` for event loops in front of
a blocking store.

    AsyncBatcher   tasks of one event loop, in front of an async driver
    PerLoop        one object per event loop
    Uncancellable  the future of a call that continues although its task is cancelled
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from ..errors import StoreUnavailableError, TwicesafeError
from ._group_commit import goes_alone

__all__ = ["AsyncBatcher", "PerLoop", "Uncancellable", "error_for_each", "uncancellable"]

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

    After a batch of several, its callers come back in one turn of the loop. Then the first of them
    does not run alone: it waits for the others of its turn.

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
        self.is_busy = False
        self._crowded = False
        """Whether the last batch had several requests."""
        self._gathered: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._pump: asyncio.Task[None] | None = None

    async def perform(self, request: Any) -> Any:
        if self.is_busy or self._crowded:
            return await self.submit(request, asyncio.get_running_loop().create_future())
        self.is_busy = True
        try:
            return await self._one(request)
        finally:
            self.is_busy = False
            if self._gathered:
                self._start()

    def submit(
        self, request: Any, answer: asyncio.Future[Any] | None = None
    ) -> asyncio.Future[Any]:
        """Like `perform`, but not in the caller's task. By default, a cancellation cannot stop the wait."""
        if answer is None:
            answer = Uncancellable(loop=asyncio.get_running_loop())
        self._gathered.append((request, answer))
        if not self.is_busy:
            self._start()
        return answer

    def _start(self) -> None:
        self.is_busy = True
        self._pump = asyncio.get_running_loop().create_task(self._send_batches())

    async def _send_batches(self) -> None:
        try:
            while self._gathered:
                batch = [self._gathered.popleft()]
                if self._gathered and not goes_alone(batch[0][0]):
                    self._fill(batch)
                count = len(batch)
                self._crowded = count > 1
                try:
                    if count == 1:
                        answers = [await self._one(batch[0][0])]
                    else:
                        answers = await self._all([request for request, _ in batch])
                except Exception as error:
                    answers = error_for_each(error, count)
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
            self.is_busy = False
            if self._gathered:
                self._start()

    def _fill(self, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        """Add the queued requests, up to one that must run alone."""
        while self._gathered and len(batch) < self._most and not goes_alone(self._gathered[0][0]):
            batch.append(self._gathered.popleft())


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


def error_for_each(error: Exception, count: int) -> list[Exception]:
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
            self._forget_ended()
            found = self._made[loop] = self._make()
        self._last = weakref.ref(loop), found
        return found

    def _forget_ended(self) -> None:
        """Of loops that ended without a close. Their objects keep them, so neither would ever go."""
        for loop in [ref() for ref in self._made.keyrefs()]:
            if loop is not None and loop.is_closed():
                self._made.pop(loop, None)

    def forget(self) -> T | None:
        """Remove and return the object of the running loop, to close it. None: it has none, or no loop runs."""
        self._last = None
        self._forget_ended()
        try:
            return self._made.pop(asyncio.get_running_loop(), None)
        except RuntimeError:
            return None
