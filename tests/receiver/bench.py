"""One behaviour, four setups: memory and SQLite, blocking and async.

A test is written once, in blocking words. `Bench` says them to a `Receiver`, or to an
`AsyncReceiver` whose event loop runs in its own thread; plain handlers become coroutines
there. Time is a `FakeClock` for the store, so leases and retention pass when the test says so.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.receiver.faults import AsyncFaultyStore, FaultyStore
from twicesafe import AsyncReceiver, Policy, Receiver
from twicesafe._engines.sqlite import AsyncSqliteStore, SqliteStore
from twicesafe._runtime.blocking import BlockingRuntime
from twicesafe._runtime.event_loop import EventLoopRuntime
from twicesafe._values.policy import Backoff
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing._clock import FakeClock

AT_ONCE = Backoff(first=0, jitter=0)
LEAVE = object()
"""What the body of a manual claim returns to leave without completing."""


class Bench:
    """A receiver under test: its store, its clock, and what its observers saw."""

    def __init__(self, kind: str, mode: str, folder: Path) -> None:
        self.kind, self.mode = kind, mode
        self.clock = FakeClock()
        self.seen: list[Any] = []
        self._folder = folder
        self._memory = MemoryStore(now=self.clock)
        self._opened: list[Any] = []
        self.loop = _running_loop() if mode == "async" else None
        self._pool = ThreadPoolExecutor(128)
        self.store: Any = self.new_store()
        self.receiver: Any = self.new_receiver(self.store)

    @property
    def is_async(self) -> bool:
        return self.mode == "async"

    def new_store(self) -> Any:
        """Another door to the same records, as another process would have."""
        if self.is_async:
            return AsyncFaultyStore(
                AsyncMemoryStore(self._memory)
                if self.kind == "memory"
                else AsyncSqliteStore(self._file, "sqlite:///bench.db")
            )
        return FaultyStore(self._memory if self.kind == "memory" else self._file())

    def _file(self) -> SqliteStore:
        return SqliteStore(self._folder / "bench.db", now=self.clock, synchronous="normal")

    def new_receiver(
        self, store: Any = None, *, worker_clock: Any = None, cache: int = 0, **settings: Any
    ) -> Any:
        settings.setdefault("policy", Policy(backoff=AT_ONCE, wait=120))
        settings.setdefault("observers", [self.seen.append])
        store = store or self.new_store()
        make = AsyncReceiver if self.is_async else Receiver
        receiver: Any = make(store, cache=cache, **settings)
        if worker_clock is not None:
            runtime = EventLoopRuntime if self.is_async else BlockingRuntime
            notify = receiver._notify
            receiver._runtime = runtime(store, notify=notify, cache=cache, clock=worker_clock)
        self._opened.append(receiver)
        return receiver

    def policy(self, **changes: Any) -> None:
        """Change the policy of the receiver under test."""
        self.receiver = self.receiver.options(policy=self.receiver.policy.replace(**changes))

    def events(self, kind: type) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]

    # -- the receiver's words -------------------------------------------------------------------

    def process(self, key: Any, handler: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.receiver.process, key, self.in_mode(handler), *args, **kwargs)

    def receiver_process(
        self, receiver: Any, key: Any, handler: Any, /, *args: Any, **kw: Any
    ) -> Any:
        """`process` of any receiver, with a handler that keeps its own signature."""
        return self.call(receiver.process, key, handler, *args, **kw)

    def process_many(self, messages: Any, handler: Any, **kwargs: Any) -> Any:
        return self.call(self.receiver.process_many, messages, self.in_mode(handler), **kwargs)

    def idempotent(self, function: Any, **settings: Any) -> Callable[..., Any]:
        # The handlers of our tests are closures, over what they count.
        settings.setdefault("scope", (getattr(function, "__qualname__", "a function"),))
        decorated = self.receiver.idempotent(**settings)(self.in_mode(function))
        return functools.partial(self.call, decorated)

    def manual(self, key: Any, body: Callable[[Any], Any], **settings: Any) -> Any:
        """`with receiver.claim(key)`: the body's value is completed, unless it is `LEAVE`."""
        if self.is_async:
            return self._wait(self._manual(key, body, settings))
        with self.receiver.claim(key, **settings) as claim:
            if claim.is_new:
                value = body(claim)
                if value is not LEAVE:
                    claim.complete(value)
        return claim

    async def _manual(self, key: Any, body: Callable[[Any], Any], settings: Any) -> Any:
        async with self.receiver.claim(key, **settings) as claim:
            if claim.is_new:
                value = await asyncio.to_thread(body, claim)
                if value is not LEAVE:
                    await claim.complete(value)
        return claim

    def records(self, **settings: Any) -> list[Any]:
        found = self.receiver.records(**settings)
        return self._wait(_listed(found)) if self.is_async else list(found)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """record, release, resolve, forget, sweep, stats, records_page, audit, doctor, close."""
        return functools.partial(self.call, getattr(self.receiver, name))

    # -- mode -----------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        return self._wait(answer) if self.is_async else answer

    def start(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The same in a thread, so that the test can do other things meanwhile."""
        return self._pool.submit(function, *args, **kwargs)

    def in_mode(self, handler: Any) -> Any:
        if not self.is_async or inspect.iscoroutinefunction(handler) or not callable(handler):
            return handler

        @functools.wraps(handler)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(handler, *args, **kwargs)

        return awaited

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    def end(self) -> None:
        for receiver in self._opened:
            self.call(receiver.close)
        if self.loop is not None:
            self._wait(self.loop.shutdown_default_executor())
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._pool.shutdown(wait=True)


async def _listed(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def _running_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(128))

    def run() -> None:
        loop.run_forever()
        loop.close()

    threading.Thread(target=run, daemon=True).start()
    return loop


class Counter:
    """A handler that counts its runs, and can be held in mid-work."""

    def __init__(self, value: Any = "done") -> None:
        self.runs = 0
        self.value = value
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def quick(self, *_: Any, **__: Any) -> Any:
        with self._lock:
            self.runs += 1
        return self.value

    def slow(self, *_: Any, **__: Any) -> Any:
        """Stays in the handler until the test says `go_on`."""
        with self._lock:
            self.runs += 1
        self.entered.set()
        assert self.go_on.wait(60)
        return self.value

    def failing(self, *_: Any, **__: Any) -> Any:
        with self._lock:
            self.runs += 1
        raise ValueError("no luck")
