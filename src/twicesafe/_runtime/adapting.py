"""Adapting publishers and sources: blocking ones for an event loop, async ones for threads.

A driver is blocking or async, and users write either kind of program. So `for_threads` runs an async
object on an event loop in its own thread, where its connection stays, and `for_event_loop` runs a
blocking one in worker threads. All public methods are adapted; attributes are passed through.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from .. import _forking
from .._forking import RenewedLock
from ..errors import UsageError
from .handler_threads import HandlerThreads

__all__ = ["InThreads", "for_event_loop", "for_threads", "own_process"]

MOST_CALLS: Final = 32
"""Calls of one blocking object at the same time. A relay may publish several batches at once."""


def own_process(user: int) -> int:
    """The id of this process. Raises if another process (``user``; 0: none) has used the connection."""
    if user not in (0, _forking.pid):
        raise UsageError(
            "this process was forked after its parent had used the connection to the broker; "
            "open a new connection in this process"
        )
    return _forking.pid


def for_threads(thing: Any, method: str) -> Any:
    """The object as a blocking one; `method` tells which kind it is."""
    return _OnOwnLoop(thing) if inspect.iscoroutinefunction(getattr(thing, method)) else thing


def for_event_loop(thing: Any, method: str) -> Any:
    """The object as an async one; `method` tells which kind it is."""
    return thing if inspect.iscoroutinefunction(getattr(thing, method)) else InThreads(thing)


class _OnOwnLoop:
    """An async object on an event loop in its own thread, which the first call starts."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        """The process that the thread runs in; 0: there is none yet."""
        self._is_closed = False
        self._lock = RenewedLock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        def call(*args: Any) -> Any:
            loop = self._running()
            return asyncio.run_coroutine_threadsafe(found(*args), loop).result()

        self.__dict__[name] = call
        return call

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock.now:
            if self._is_closed:
                raise UsageError("the connection to the broker is closed; open a new one")
            pid = own_process(self._pid)
            if not self._pid:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_serve, args=(loop,), name="twicesafe-broker-loop", daemon=True
                )
                try:
                    thread.start()
                except BaseException:  # the system has no thread left: the next call tries again
                    loop.close()
                    raise
                self._loop, self._thread, self._pid = loop, thread, pid
            assert self._loop is not None
            return self._loop

    def close(self) -> None:
        with self._lock.now:
            was_closed, self._is_closed = self._is_closed, True
            loop, thread = self._loop, self._thread
        if was_closed or loop is None or thread is None or self._pid != _forking.pid:
            return  # there is nothing to close, or it is the parent's
        try:
            asyncio.run_coroutine_threadsafe(self._thing.close(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped. asyncio ends it if a task exits (`sys.exit()`): then that
    task has its error, and the others continue. Without the loop their callers would wait
    forever."""
    while True:
        try:
            return loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue


class InThreads:
    """A blocking object in its own worker threads. Handlers may keep the threads of
    `asyncio.to_thread` busy for long; a broker would wait for its acknowledgement meanwhile. A call
    that hangs does not keep the program from ending."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._threads: HandlerThreads | None = None
        """None before the first call, and after `close`."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not inspect.isroutine(found):
            return found

        @functools.wraps(found)
        async def call(*args: Any) -> Any:
            return await self._in_thread(found, *args)

        self.__dict__[name] = call
        return call

    async def close(self) -> None:
        try:
            await self._in_thread(self._thing.close)
        finally:
            threads, self._threads = self._threads, None
            if threads is not None:
                threads.close()

    async def _in_thread(self, found: Callable[..., Any], *args: Any) -> Any:
        if self._threads is None:
            self._threads = HandlerThreads(MOST_CALLS, "twicesafe-broker", daemon=True)
        answer: Future[Any] = Future()
        work = functools.partial(contextvars.copy_context().run, found, *args)
        self._threads.run([functools.partial(_answer, answer, work)])
        return await asyncio.wrap_future(answer)


def _answer(answer: Future[Any], work: Callable[[], Any]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(work())
    except BaseException as error:
        answer.set_exception(error)
