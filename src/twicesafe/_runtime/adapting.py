"""Adapting publishers and sources: blocking ones for an event loop, async ones for threads.

A driver is blocking or async, and users write either kind of program. So `for_threads` runs an async
object on an event loop in its own thread, where its connection stays, and `for_event_loop` runs a
blocking one in worker threads. All public methods are adapted; attributes are passed through.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from typing import Any

__all__ = ["for_event_loop", "for_threads"]


def for_threads(thing: Any, method: str) -> Any:
    """The object as a blocking one; `method` tells which kind it is."""
    return _OnOwnLoop(thing) if inspect.iscoroutinefunction(getattr(thing, method)) else thing


def for_event_loop(thing: Any, method: str) -> Any:
    """The object as an async one; `method` tells which kind it is."""
    return thing if inspect.iscoroutinefunction(getattr(thing, method)) else _InThreads(thing)


class _OnOwnLoop:
    """An async object on an event loop in its own thread."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="twicesafe-broker-loop", daemon=True
        )
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        def call(*args: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(found(*args), self._loop).result()

        self.__dict__[name] = call
        return call

    def close(self) -> None:
        if self._loop.is_closed():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._thing.close(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _InThreads:
    """A blocking object in worker threads."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not inspect.isroutine(found):
            return found

        @functools.wraps(found)
        async def call(*args: Any) -> Any:
            return await asyncio.to_thread(found, *args)

        self.__dict__[name] = call
        return call
