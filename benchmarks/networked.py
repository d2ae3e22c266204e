"""The cases of stores behind a network: PostgreSQL by three drivers, Valkey and MariaDB.

Alone and in a crowd, the floor goes call by call on the raw driver: one trip per phase, as many
connections as it likes. So a crowd's ratio says what joining calls brings, and a lone caller's what
the library costs. All use one database of a durable server (`engines`); keys are never the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import engines, floors, ours, peers
from .case import BATCHED, FLOOR, Case, Entrants, Target
from .floors_mariadb import AsyncmyFloor, PyMySqlFloor
from .floors_postgresql import AsyncpgFloor, AsyncPsycopgFloor, PsycopgFloor
from .floors_redis import AsyncRedisFloor, RedisFloor
from .workload import (
    Absent,
    Contestant,
    async_handler,
    handler,
    slow_async_handler,
    slow_handler,
)

CROWDS = {"blocking": (1, 50), "async": (1, 50, 500)}
NETWORK_LAP = 0.03

Handler = Callable[[str], Any]
Neighbours = Callable[[Handler, str, Path, bool], list[Contestant | Absent]]


@dataclass(frozen=True)
class Door:
    """One way into one engine: its driver, its floor, and who else goes that way."""

    id: str
    shown: str
    mode: str
    floor: Callable[[str], Any]
    neighbours: Neighbours
    suffix: str = ""
    """Stands behind the scheme of our URL."""

    @property
    def engine(self) -> str:
        return self.id.partition("/")[0]

    @property
    def is_async(self) -> bool:
        return self.mode == "async"

    def url(self) -> str:
        return str(engines.server(self.engine).url)

    def ours(self) -> str:
        scheme, _, rest = self.url().partition("://")
        return f"{scheme}{self.suffix}://{rest}"


def _on_postgresql(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    return [
        peers.exactly_once(work, url=url, waits=waits),
        Absent(peers.IDEMKIT, "its PostgreSQL store is built on asyncpg, see there")
        if work in (async_handler, slow_async_handler)
        else peers.idemkit(work, is_async=False, url=url),
        peers.justonce(work, url, waits),
        peers.dbos(work, folder, url),
    ]


def _on_asyncpg(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    return [peers.idemkit(work, is_async=True, url=url)]


def _on_valkey(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    is_async = work in (async_handler, slow_async_handler)
    found = [
        peers.exactly_once(work, url=url, waits=waits),
        peers.idemkit(work, is_async=is_async, url=url),
    ]
    if is_async:
        return [*found, Absent(peers.POWERTOOLS, "has no async form")]
    if waits:
        return [*found, Absent(peers.POWERTOOLS, "answers a duplicate in flight with an error")]
    return [*found, peers.powertools(work, url)]


def _nobody(work: Handler, url: str, folder: Path, waits: bool) -> list[Contestant | Absent]:
    return []


DOORS = (
    Door("postgresql/psycopg", "PostgreSQL: psycopg", "blocking", PsycopgFloor, _on_postgresql),
    Door(
        "postgresql/psycopg-async",
        "PostgreSQL: psycopg, asyncio",
        "async",
        AsyncPsycopgFloor,
        _on_postgresql,
    ),
    Door(
        "postgresql/asyncpg",
        "PostgreSQL: asyncpg",
        "async",
        AsyncpgFloor,
        _on_asyncpg,
        suffix="+asyncpg",
    ),
    Door("valkey/blocking", "Valkey: redis-py", "blocking", RedisFloor, _on_valkey),
    Door("valkey/async", "Valkey: redis-py, asyncio", "async", AsyncRedisFloor, _on_valkey),
    Door("mariadb/blocking", "MariaDB: PyMySQL", "blocking", PyMySqlFloor, _nobody),
    Door("mariadb/async", "MariaDB: asyncio (floor: asyncmy)", "async", AsyncmyFloor, _nobody),
)

# --- targets: (engine, mode, what, callers) --------------------------------------------------

TARGETS = {
    ("postgresql", "blocking", "first", 1): Target(1.10),
    ("postgresql", "blocking", "duplicate", 1): Target(1.15),
    ("postgresql", "async", "first", 1): Target(1.10),
    ("postgresql", "async", "duplicate", 1): Target(1.15),
    ("postgresql", "async", "first", 50): Target(0.30),
    ("postgresql", "async", "duplicate", 50): Target(0.30),
    ("postgresql", "async", "first", 500): Target(0.18),
    ("postgresql", "async", "duplicate", 500): Target(0.18),
    ("valkey", "blocking", "first", 1): Target(1.15),
    ("valkey", "blocking", "duplicate", 1): Target(1.15),
    ("valkey", "async", "first", 1): Target(1.10),
    ("valkey", "async", "duplicate", 1): Target(1.10),
    ("valkey", "async", "first", 50): Target(0.35),
    ("valkey", "async", "duplicate", 50): Target(0.35),
    ("valkey", "async", "first", 500): Target(0.25),
    ("valkey", "async", "duplicate", 500): Target(0.25),
}
BATCH_TARGETS = {"postgresql/asyncpg": 25.0, "postgresql": 14.0, "valkey": 7.0, "mariadb": 15.0}
HERD_TARGET = Target(0.230, "seconds")


def networked() -> Iterator[Case]:
    for door in DOORS:
        yield from _receiving(door)
        yield from _batching(door)
        yield from _herding(door)


def _receiving(door: Door) -> Iterator[Case]:
    who = {"blocking": "threads", "async": "tasks"}[door.mode]
    for callers in CROWDS[door.mode]:
        for what in ("first", "duplicate"):
            yield Case(
                f"{door.id}/{what}/{callers}",
                door.shown,
                f"{what}, " + ("alone" if callers == 1 else f"{callers} {who}, of call by call"),
                _receivers(door, callers),
                door.mode,
                callers,
                fresh=what == "first",
                target=TARGETS.get((door.engine, door.mode, what, callers)),
                share={1: 1.0, 50: 0.7, 500: 0.4}[callers],
                lap=NETWORK_LAP,
                quick=callers == 1 or (door.is_async and callers == 50),
                engine=door.engine,
            )


def _receivers(door: Door, callers: int) -> Callable[[Path], Entrants]:
    work: Handler = async_handler if door.is_async else handler

    def entrants(folder: Path) -> Entrants:
        return [
            floor_of(door, work),
            (ours.awaited if door.is_async else ours.blocking)(door.ours(), work),
            *_company(door, work, folder, callers),
        ]

    return entrants


def floor_of(door: Door, work: Handler, name: str = FLOOR) -> Contestant:
    wrap = floors.over_the_wire if door.is_async else floors.blocking
    return wrap(door.floor(door.url()), work, name)


def _company(door: Door, work: Handler, folder: Path, callers: int) -> list[Contestant | Absent]:
    if callers < 500:
        return door.neighbours(work, door.url(), folder, False)
    too_long = "left out with 500 callers, it takes minutes"
    with peers.without({peers.JUSTONCE: too_long, peers.DBOS: too_long}):
        return door.neighbours(work, door.url(), folder, False)


def _batching(door: Door) -> Iterator[Case]:
    for size in (100, 1000):
        limit = BATCH_TARGETS.get(door.id) or BATCH_TARGETS[door.engine]
        yield Case(
            f"{door.id}/batch/{size}",
            door.shown,
            f"batch of {size}, per message: gain over our single calls",
            _batchers(door),
            door.mode,
            batch=size,
            target=Target(limit, "gain") if size == 1000 else None,
            share=0.4,
            gains=True,
            lap=NETWORK_LAP,
            quick=size == 1000,
            engine=door.engine,
        )


def _batchers(door: Door) -> Callable[[Path], Entrants]:
    def entrants(folder: Path) -> Entrants:
        url = door.ours()
        floor = door.floor(door.url())
        by_hand: list[Contestant] = []
        if hasattr(floor, "batch"):
            wrap = floors.batched_async if door.is_async else floors.batched
            by_hand.append(wrap(floor, BATCHED))
        if door.is_async:
            return [
                ours.awaited(url, async_handler, name=FLOOR),
                ours.batches_async(url, async_handler, ours.NAME),
                *by_hand,
            ]
        return [
            ours.blocking(url, handler, name=FLOOR),
            ours.batches(url, handler, ours.NAME),
            *by_hand,
        ]

    return entrants


def _herding(door: Door) -> Iterator[Case]:
    who = {"blocking": "threads", "async": "tasks"}[door.mode]
    for receivers in (1, 2):
        through = "" if receivers == 1 else " at two receivers"
        yield Case(
            f"{door.id}/herd/{receivers}",
            door.shown,
            f"100 {who}{through}, one key of 200 ms: until all are answered",
            _herd(door, receivers),
            door.mode,
            callers=100,
            herd=True,
            target=HERD_TARGET,
            share=0.2,
            quick=receivers == 2,
            engine=door.engine,
        )


def _herd(door: Door, receivers: int) -> Callable[[Path], Entrants]:
    work: Handler = slow_async_handler if door.is_async else slow_handler

    def entrants(folder: Path) -> Entrants:
        single = floors.single_flight_async if door.is_async else floors.single_flight
        if receivers == 2:
            two = ours.two_receivers_async if door.is_async else ours.two_receivers
            return [single(work, FLOOR), two(door.ours(), work)]
        return [
            single(work, FLOOR),
            (ours.awaited if door.is_async else ours.blocking)(door.ours(), work),
            *door.neighbours(work, door.url(), folder, True),
        ]

    return entrants
