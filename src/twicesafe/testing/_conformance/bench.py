"""The test bench of a store, and the commands that a rule may yield.

A rule is written once, as a generator that yields requests and receives answers. `Bench` performs them
on the `Store`, `AsyncBench` on the `AsyncStore`; nothing else differs. A rule may also yield a list of
requests (one batch), and the commands below.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, TypeVar

from ..._core.driving import drive, drive_async
from ..._core.protocol import Request
from ...stores._base import AsyncStore, Capabilities, Store
from .hooks import Place, StoreUnderTest

__all__ = [
    "Advance",
    "AsyncBench",
    "AtOnce",
    "Bench",
    "Corrupt",
    "Elsewhere",
    "KeeperStore",
    "KeeperStores",
    "Recalled",
    "Refuse",
    "Reopen",
    "Script",
    "Watched",
    "open_bench",
]

T = TypeVar("T")
Script: TypeAlias = Generator[Any, Any, T]


LISTENING: Final = 0.1
"""Seconds after which a watcher listens."""


# --- commands --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advance:
    """Let the store's time pass."""

    ms: int


@dataclass(frozen=True, slots=True)
class Reopen:
    """Close the store and open it again on the same data."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Perform this on a second store object on the same data."""

    request: Request


@dataclass(frozen=True, slots=True)
class KeeperStore:
    """Perform this on the blocking store that the lease keeper uses."""

    request: Request


@dataclass(frozen=True, slots=True)
class KeeperStores:
    """Ask for the lease keeper's store in this many threads at once. Reply: how many different stores they got."""

    threads: int


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Perform all of these concurrently, in threads or tasks. Reply: the answers, in order."""

    requests: Sequence[Any]
    elsewhere: bool = False
    """Every second one through a second store object."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Watch this key, and meanwhile perform a request elsewhere. Reply: seconds it took."""

    id: bytes
    seconds: float
    meanwhile: Request | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """Look at this key without a claim. Reply: what `Store.recall` returns."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Damage this key's row."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """From now on the store refuses one payload. Reply: that payload."""


class Bench:
    """A store, and how it performs the commands above; blocking."""

    def __init__(self, hooks: StoreUnderTest, place: Place) -> None:
        self.hooks, self.place = hooks, place
        self.store = hooks.open_store(place)
        self._second: Store | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self.store.capabilities

    def run(self, script: Script[T]) -> T:
        return drive(script, self.perform)

    def perform(self, command: Any) -> Any:
        match command:
            case list():
                return self.store.perform_many(command)
            case Advance(ms):
                return self.hooks.advance(self.place, ms)
            case Reopen():
                self.store.close()
                self.store = self.hooks.open_store(self.place)
                return None
            case Recalled(id_):
                return self.store.recall(id_)
            case Elsewhere(request):
                return self.second.perform(request)
            case AtOnce(requests, elsewhere):
                second = self.second if elsewhere else self.store
                return _in_threads(_distributed(requests, self.store, second))
            case Watched(id_, seconds, meanwhile):
                with ThreadPoolExecutor(1) as pool:
                    began = time.monotonic()
                    watching = pool.submit(self.store.watch, id_, seconds)
                    if meanwhile is not None:
                        time.sleep(LISTENING)
                        self.second.perform(meanwhile)
                    watching.result()
                    return time.monotonic() - began
            case Corrupt(id_):
                return self.hooks.corrupt(self.place, id_)
            case Refuse():
                return self.hooks.refuse(self.place)
            case KeeperStore(request):
                return self.store.perform(request)
            case KeeperStores():
                return 1
        return self.store.perform(command)

    @property
    def second(self) -> Store:
        if self._second is None:
            self._second = self.hooks.open_store(self.place)
        return self._second

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.store.close()
            if self._second is not None:
                self._second.close()
        finally:
            self.hooks.tidy(self.place)


class AsyncBench:
    """The async version, on its own event loop."""

    def __init__(self, hooks: StoreUnderTest, place: Place) -> None:
        self.hooks, self.place = hooks, place
        self.store = hooks.open_async_store(place)
        self._second: AsyncStore | None = None
        self._runner = asyncio.Runner()

    @property
    def capabilities(self) -> Capabilities:
        return self.store.capabilities

    def run(self, script: Script[T]) -> T:
        return self._runner.run(drive_async(script, self._perform))

    def perform(self, command: Any) -> Any:
        return self._runner.run(self._perform(command))

    async def _perform(self, command: Any) -> Any:
        match command:
            case list():
                return await self.store.perform_many(command)
            case Advance(ms):
                return self.hooks.advance(self.place, ms)
            case Reopen():
                await self.store.close()
                self.store = self.hooks.open_async_store(self.place)
                return None
            case Recalled(id_):
                return self.store.recall(id_)
            case Elsewhere(request):
                return await self.second.perform(request)
            case AtOnce(requests, elsewhere):
                second = self.second if elsewhere else self.store
                return await asyncio.gather(
                    *(go() for go in _distributed(requests, self.store, second))
                )
            case Watched(id_, seconds, meanwhile):
                began = time.monotonic()
                watching = asyncio.ensure_future(self.store.watch(id_, seconds))
                if meanwhile is not None:
                    await asyncio.sleep(LISTENING)
                    await self.second.perform(meanwhile)
                await watching
                return time.monotonic() - began
            case Corrupt(id_):
                return self.hooks.corrupt(self.place, id_)
            case Refuse():
                return self.hooks.refuse(self.place)
            case KeeperStore(request):
                return await asyncio.to_thread(lambda: self.store.blocking_store().perform(request))
            case KeeperStores(threads):
                loop, store = asyncio.get_running_loop(), self.store
                with ThreadPoolExecutor(threads) as pool:
                    asked = [
                        loop.run_in_executor(pool, store.blocking_store) for _ in range(threads)
                    ]
                    return len(set(await asyncio.gather(*asked)))
        return await self.store.perform(command)

    @property
    def second(self) -> AsyncStore:
        if self._second is None:
            self._second = self.hooks.open_async_store(self.place)
        return self._second

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(_close_all(self.store, self._second))
        finally:
            self._runner.close()
            self.hooks.tidy(self.place)


def open_bench(hooks: StoreUnderTest, mode: str, folder: Path) -> Bench | AsyncBench:
    return (Bench if mode == "blocking" else AsyncBench)(hooks, Place(folder))


async def _close_all(*stores: AsyncStore | None) -> None:
    for store in stores:
        if store is not None:
            await store.close()


def _distributed(requests: Sequence[Any], *stores: Any) -> list[Callable[[], Any]]:
    """Calls for these requests, on the stores in turn."""
    return [
        partial(stores[number % len(stores)].perform, request)
        for number, request in enumerate(requests)
    ]


def _in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    gate = threading.Barrier(len(calls))

    def go(call: Callable[[], Any]) -> Any:
        gate.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(go, calls))
