"""The cases of stores that live in the process: memory and SQLite, first, duplicate, crowds, batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from . import floors, ours, peers
from .case import FLOOR, PER_STATEMENT, Case, Entrants, Target
from .workload import (
    Absent,
    Contestant,
    async_handler,
    handler,
    slow_async_handler,
    slow_handler,
)

STORES = {"memory": "memory", "sqlite-full": "SQLite FULL", "sqlite-normal": "SQLite NORMAL"}
CROWD = 50


def url_of(store: str, folder: Path, name: str = "ours") -> str:
    if store == "memory":
        return "memory://"
    return f"sqlite:///{folder.absolute()}/{name}.db?synchronous={store.partition('-')[2]}"


# --- the receiver, first and duplicate, alone and in a crowd --------------------------------------

TARGETS = {
    ("memory", "blocking", "first", 1): Target(5.5),
    ("memory", "blocking", "duplicate", 1): Target(3.3),
    ("sqlite-normal", "blocking", "first", 1): Target(1.35),
    ("sqlite-normal", "blocking", "duplicate", 1): Target(2.0),
    ("sqlite-full", "blocking", "first", 1): Target(1.1),
}


def receiving() -> Iterator[Case]:
    for store, shown in STORES.items():
        for mode in ("blocking", "async"):
            for callers in (1, CROWD):
                for what in ("first", "duplicate"):
                    who = "alone" if callers == 1 else f"{callers} callers"
                    yield Case(
                        f"{store}/{mode}/{what}/{callers}",
                        shown,
                        f"{mode}, {what}, {who}",
                        partial(floor_of, store, mode),
                        partial(ours_of, store, mode),
                        partial(_others, store, mode),
                        mode,
                        callers,
                        fresh=what == "first",
                        target=TARGETS.get((store, mode, what, callers)),
                        waits=_waits(store, mode, callers),
                        quick=callers == 1 or mode == "async",
                    )


def _waits(store: str, mode: str, callers: int = 1) -> bool:
    """For a disk or for another thread. A lone caller on NORMAL writes to the page cache."""
    if store == "sqlite-normal":
        return mode == "async" or callers > 1
    return store != "memory"


def ours_of(store: str, mode: str, folder: Path) -> Contestant:
    if mode == "async":
        return ours.awaited(url_of(store, folder), async_handler)
    return ours.blocking(url_of(store, folder), handler)


def _others(store: str, mode: str, folder: Path) -> Entrants:
    is_async = mode == "async"
    work = async_handler if is_async else handler
    found: list[Contestant | Absent] = []
    if is_async and store != "memory":
        synchronous = store.partition("-")[2]
        other = floors.SqliteFloor(folder / "statement.db", synchronous)
        found.append(floors.hop_per_statement(other, work, PER_STATEMENT))
    return found + _neighbours(store, work, is_async, folder)


def floor_of(store: str, mode: str, folder: Path) -> Contestant:
    if store == "memory":
        if mode == "async":
            return floors.awaited(floors.MemoryFloor(), async_handler, FLOOR)
        return floors.blocking(floors.MemoryFloor(), handler, FLOOR)
    sqlite = floors.SqliteFloor(folder / "floor.db", store.partition("-")[2])
    if mode == "async":
        return floors.hop_per_phase(sqlite, async_handler, FLOOR)
    return floors.blocking(sqlite, handler, FLOOR)


def _neighbours(
    store: str, work: Callable[[str], object], is_async: bool, folder: Path
) -> list[Contestant | Absent]:
    no_memory = Absent(peers.DBOS, "keeps its state in a database only")
    no_sqlite = Absent(peers.IDEMKIT, "has no SQLite store")
    if store == "memory":
        return [peers.exactly_once(work), peers.idemkit(work, is_async=is_async), no_memory]
    if store == "sqlite-full":
        fixed = Absent(peers.EXACTLY_ONCE, "its SQLite store is always NORMAL")
        return [fixed, no_sqlite, peers.dbos(work, folder)]
    fixed = Absent(peers.DBOS, "its SQLite store is always FULL")
    return [peers.exactly_once(work, folder / "once.db"), no_sqlite, fixed]


# --- single questions -----------------------------------------------------------------------------


def questions() -> Iterator[Case]:
    yield Case(
        "cache/blocking",
        "Single questions",
        "duplicate from the local cache (SQLite FULL behind it)",
        lambda folder: floors.cached(FLOOR),
        lambda folder: ours.blocking(url_of("sqlite-full", folder), handler, cache=10_000),
        lambda folder: [
            Absent(peers.EXACTLY_ONCE, "has no local cache"),
            peers.idemkit(handler, is_async=False, cache=True),
            Absent(peers.DBOS, "has no local cache"),
        ],
        fresh=False,
        target=Target(6e-6, "seconds"),
        waits=False,
    )
    yield Case(
        "sqlite-full/blocking/first/32",
        "Single questions",
        "SQLite FULL, 32 threads: throughput against one connection and a lock",
        partial(floor_of, "sqlite-full", "blocking"),
        partial(ours_of, "sqlite-full", "blocking"),
        callers=32,
        target=Target(3.5, "gain"),
        gains=True,
    )
    yield Case(
        "herd/blocking",
        "Single questions",
        "100 threads, one key, a handler of 200 ms: until all are answered",
        lambda folder: floors.single_flight(slow_handler, FLOOR),
        lambda folder: ours.blocking(url_of("sqlite-full", folder), slow_handler),
        lambda folder: [
            peers.exactly_once(slow_handler, folder / "once.db", waits=True),
            peers.idemkit(slow_handler, is_async=False),
            peers.dbos(slow_handler, folder),
        ],
        callers=100,
        herd=True,
        target=Target(0.230, "seconds"),
        share=0.2,
    )
    yield Case(
        "herd/async",
        "Single questions",
        "100 tasks, one key, a handler of 200 ms: until all are answered",
        lambda folder: floors.single_flight_async(slow_async_handler, FLOOR),
        lambda folder: ours.awaited(url_of("sqlite-full", folder), slow_async_handler),
        lambda folder: [
            peers.exactly_once(slow_async_handler, folder / "once.db", waits=True),
            peers.idemkit(slow_async_handler, is_async=True),
            peers.dbos(slow_async_handler, folder),
        ],
        "async",
        callers=100,
        herd=True,
        target=Target(0.230, "seconds"),
        share=0.2,
    )


# --- batches: process_many against our own single calls -------------------------------------------

BATCH_TARGETS = {("sqlite-full", 1000): 20.0, ("sqlite-normal", 1000): 4.0}


def batches() -> Iterator[Case]:
    for store, shown in STORES.items():
        for mode in ("blocking", "async"):
            for size in (100, 1000):
                limit = BATCH_TARGETS.get((store, size))
                yield Case(
                    f"batch/{store}/{mode}/{size}",
                    "Batches: per message, against our own single calls",
                    f"{shown}, {mode}, batch of {size}",
                    partial(_singles, store, mode),
                    partial(_batches, store, mode),
                    mode=mode,
                    batch=size,
                    target=None if limit is None else Target(limit, "gain"),
                    share=0.4,
                    waits=_waits(store, mode),
                    gains=True,
                    quick=size == 1000,
                )


def _singles(store: str, mode: str, folder: Path) -> Contestant:
    url = url_of(store, folder, "one")
    if mode == "async":
        return ours.awaited(url, async_handler, name=FLOOR)
    return ours.blocking(url, handler, name=FLOOR)


def _batches(store: str, mode: str, folder: Path) -> Contestant:
    url = url_of(store, folder, "many")
    if mode == "async":
        return ours.batches_async(url, async_handler)
    return ours.batches(url, handler)


def embedded() -> list[Case]:
    return [*receiving(), *questions(), *batches()]
