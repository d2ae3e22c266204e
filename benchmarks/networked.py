"""The cases of stores behind a network: PostgreSQL by three drivers, Valkey and MariaDB.

Alone and in a crowd, the floor goes call by call on the raw driver: one round trip per phase, as many
connections as it likes. So a crowd's ratio says what joining calls brings, and a lone caller's what
the library costs. All use one database of a durable server (`engines`); keys are never the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from . import engines, floors, ours, peers
from .case import BATCHED, FLOOR, Case, Entrants, Target, no_others
from .doors import DOORS, Door
from .workload import Contestant

CROWDS = {"blocking": (1, 50), "async": (1, 50, 500)}
NETWORK_LAP = 0.03

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
    for door in DOORS:
        yield from _delayed(replace(door, delayed=True))


# --- first and duplicate, alone and in a crowd; alone with a network in between -------------------


def _receiving(door: Door) -> Iterator[Case]:
    for callers in CROWDS[door.mode]:
        for what in ("first", "duplicate"):
            yield Case(
                f"{door.id}/{what}/{callers}",
                door.shown,
                f"{what}, "
                + ("alone" if callers == 1 else f"{callers} {door.callers}, of call by call"),
                partial(floor_of, door),
                partial(ours_of, door),
                partial(_others, door, callers),
                door.mode,
                callers,
                fresh=what == "first",
                target=TARGETS.get((door.engine, door.mode, what, callers)),
                share={1: 1.0, 50: 0.7, 500: 0.4}[callers],
                lap=NETWORK_LAP,
                quick=callers == 1 or (door.is_async and callers == 50),
                engine=door.engine,
            )


def _delayed(door: Door) -> Iterator[Case]:
    for what in ("first", "duplicate"):
        yield Case(
            f"delayed/{door.id}/{what}",
            f"A network of {engines.ROUND_TRIP * 1e3:g} ms per round trip, one caller",
            f"{door.shown}, {what}",
            partial(floor_of, door),
            partial(ours_of, door),
            partial(_others, door, 1),
            door.mode,
            fresh=what == "first",
            lap=NETWORK_LAP,
            quick=False,
            engine=door.engine,
        )


def floor_of(door: Door, folder: Path) -> Contestant:
    wrap = floors.over_the_wire if door.is_async else floors.blocking
    return wrap(door.floor(door.url()), door.handler, FLOOR)


def ours_of(door: Door, folder: Path, name: str = ours.NAME) -> Contestant:
    return (ours.awaited if door.is_async else ours.blocking)(door.ours(), door.handler, name=name)


def _others(door: Door, callers: int, folder: Path) -> Entrants:
    if callers < 500:
        return door.neighbours(door.handler, door.url(), folder, False)
    too_long = "left out with 500 callers, it takes minutes"
    with peers.without({peers.JUSTONCE: too_long, peers.DBOS: too_long}):
        return door.neighbours(door.handler, door.url(), folder, False)


# --- batches --------------------------------------------------------------------------------------


def _batching(door: Door) -> Iterator[Case]:
    for size in (100, 1000):
        limit = BATCH_TARGETS.get(door.id) or BATCH_TARGETS[door.engine]
        yield Case(
            f"{door.id}/batch/{size}",
            door.shown,
            f"batch of {size}, per message: gain over our single calls",
            partial(ours_of, door, name=FLOOR),
            partial(_batches, door),
            partial(_batched_by_hand, door),
            door.mode,
            batch=size,
            target=Target(limit, "gain") if size == 1000 else None,
            share=0.4,
            gains=True,
            lap=NETWORK_LAP,
            quick=size == 1000,
            engine=door.engine,
        )


def _batches(door: Door, folder: Path) -> Contestant:
    return (ours.batches_async if door.is_async else ours.batches)(door.ours(), door.handler)


def _batched_by_hand(door: Door, folder: Path) -> Entrants:
    floor = door.floor(door.url())
    if not hasattr(floor, "batch"):
        return ()
    return [(floors.batched_async if door.is_async else floors.batched)(floor, BATCHED)]


# --- a herd: many callers, one key ----------------------------------------------------------------


def _herding(door: Door) -> Iterator[Case]:
    for receivers in (1, 2):
        through = "" if receivers == 1 else " at two receivers"
        yield Case(
            f"{door.id}/herd/{receivers}",
            door.shown,
            f"100 {door.callers}{through}, one key of 200 ms: until all are answered",
            partial(_single_flight, door),
            partial(_herd, door, receivers),
            partial(_other_herds, door) if receivers == 1 else no_others,
            door.mode,
            callers=100,
            herd=True,
            target=HERD_TARGET,
            share=0.2,
            quick=receivers == 2,
            engine=door.engine,
        )


def _single_flight(door: Door, folder: Path) -> Contestant:
    single = floors.single_flight_async if door.is_async else floors.single_flight
    return single(door.slow_handler, FLOOR)


def _herd(door: Door, receivers: int, folder: Path) -> Contestant:
    if receivers == 2:
        two = ours.two_receivers_async if door.is_async else ours.two_receivers
        return two(door.ours(), door.slow_handler)
    return (ours.awaited if door.is_async else ours.blocking)(door.ours(), door.slow_handler)


def _other_herds(door: Door, folder: Path) -> Entrants:
    return door.neighbours(door.slow_handler, door.url(), folder, True)
