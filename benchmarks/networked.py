"""The cases of stores behind a network: PostgreSQL by three drivers, Valkey, MariaDB and etcd.

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
from .drivers import DRIVERS, EMULATED, Driver
from .workload import Contestant

CROWDS = {"blocking": (1, 50), "async": (1, 50, 500)}
NETWORK_LAP = 0.03

# --- targets: (engine, mode, what, callers) --------------------------------------------------

TARGETS = {
    ("postgresql", "blocking", "first", 1): Target(1.10),
    ("postgresql", "blocking", "duplicate", 1): Target(1.15),
    ("postgresql", "async", "first", 1): Target(1.25),
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
    ("dynamodb", "blocking", "first", 1): Target(1.15),
    ("dynamodb", "blocking", "duplicate", 1): Target(1.15),
    ("dynamodb", "async", "first", 1): Target(1.15),
    ("dynamodb", "async", "duplicate", 1): Target(1.15),
    ("mongodb", "blocking", "first", 1): Target(1.15),
    ("mongodb", "blocking", "duplicate", 1): Target(1.15),
    ("mongodb", "async", "first", 1): Target(1.15),
    ("mongodb", "async", "duplicate", 1): Target(1.15),
    ("etcd", "blocking", "first", 1): Target(1.15),
    ("etcd", "blocking", "duplicate", 1): Target(1.15),
    ("etcd", "async", "first", 1): Target(1.15),
    ("etcd", "async", "duplicate", 1): Target(1.15),
}
BATCH_TARGETS = {"postgresql/asyncpg": 25.0, "postgresql": 14.0, "valkey": 7.0, "mariadb": 15.0}
BATCH_TARGETS |= {"etcd": 2.0}  # each message is a transaction of its own, also in a batch
HERD_TARGET = Target(0.230, "seconds")


def networked() -> Iterator[Case]:
    for driver in EMULATED:
        yield from (case for case in _receiving(driver) if case.callers == 1)
    for driver in DRIVERS:
        yield from _receiving(driver)
        yield from _batching(driver)
        yield from _herding(driver)
    for driver in DRIVERS:
        yield from _delayed(replace(driver, delayed=True))


# --- first and duplicate, alone and in a crowd; alone with a network in between -------------------


def _receiving(driver: Driver) -> Iterator[Case]:
    for callers in CROWDS[driver.mode]:
        for what in ("first", "duplicate"):
            yield Case(
                f"{driver.id}/{what}/{callers}",
                driver.shown,
                f"{what}, "
                + ("alone" if callers == 1 else f"{callers} {driver.callers}, of call by call"),
                partial(floor_of, driver),
                partial(ours_of, driver),
                partial(_others, driver, callers),
                driver.mode,
                callers,
                fresh=what == "first",
                target=TARGETS.get((driver.engine, driver.mode, what, callers)),
                share={1: 1.0, 50: 0.7, 500: 0.4}[callers],
                lap=NETWORK_LAP,
                quick=callers == 1 or (driver.is_async and callers == 50),
                engine=driver.engine,
            )


def _delayed(driver: Driver) -> Iterator[Case]:
    for what in ("first", "duplicate"):
        yield Case(
            f"delayed/{driver.id}/{what}",
            f"A network of {engines.ROUND_TRIP * 1e3:g} ms per round trip, one caller",
            f"{driver.shown}, {what}",
            partial(floor_of, driver),
            partial(ours_of, driver),
            partial(_others, driver, 1),
            driver.mode,
            fresh=what == "first",
            lap=NETWORK_LAP,
            quick=False,
            engine=driver.engine,
        )


def floor_of(driver: Driver, folder: Path) -> Contestant:
    wrap = floors.over_the_wire if driver.is_async else floors.blocking
    return wrap(driver.floor(driver.url()), driver.handler, FLOOR)


def ours_of(driver: Driver, folder: Path, name: str = ours.NAME) -> Contestant:
    return (ours.awaited if driver.is_async else ours.blocking)(
        driver.ours(), driver.handler, name=name
    )


def _others(driver: Driver, callers: int, folder: Path) -> Entrants:
    if callers < 500:
        return driver.neighbours(driver.handler, driver.url(), folder, False)
    too_long = "left out with 500 callers, because it takes minutes"
    with peers.without({peers.JUSTONCE: too_long, peers.DBOS: too_long}):
        return driver.neighbours(driver.handler, driver.url(), folder, False)


# --- batches --------------------------------------------------------------------------------------


def _batching(driver: Driver) -> Iterator[Case]:
    for size in (100, 1000):
        limit = BATCH_TARGETS.get(driver.id) or BATCH_TARGETS[driver.engine]
        yield Case(
            f"{driver.id}/batch/{size}",
            driver.shown,
            f"batch of {size}, per message: gain over our single calls",
            partial(ours_of, driver, name=FLOOR),
            partial(_batches, driver),
            partial(_batched_by_hand, driver),
            driver.mode,
            batch=size,
            target=Target(limit, "gain") if size == 1000 else None,
            share=0.4,
            gains=True,
            lap=NETWORK_LAP,
            quick=size == 1000,
            engine=driver.engine,
        )


def _batches(driver: Driver, folder: Path) -> Contestant:
    return (ours.batches_async if driver.is_async else ours.batches)(driver.ours(), driver.handler)


def _batched_by_hand(driver: Driver, folder: Path) -> Entrants:
    floor = driver.floor(driver.url())
    if not hasattr(floor, "batch"):
        return ()
    return [(floors.batched_async if driver.is_async else floors.batched)(floor, BATCHED)]


# --- a herd: many callers, one key ----------------------------------------------------------------


def _herding(driver: Driver) -> Iterator[Case]:
    for receivers in (1, 2):
        through = "" if receivers == 1 else " at two receivers"
        yield Case(
            f"{driver.id}/herd/{receivers}",
            driver.shown,
            f"100 {driver.callers}{through}, one key of 200 ms: until all are answered",
            partial(_single_flight, driver),
            partial(_herd, driver, receivers),
            partial(_other_herds, driver) if receivers == 1 else no_others,
            driver.mode,
            callers=100,
            herd=True,
            target=HERD_TARGET,
            share=0.2,
            quick=receivers == 2,
            engine=driver.engine,
        )


def _single_flight(driver: Driver, folder: Path) -> Contestant:
    single = floors.single_flight_async if driver.is_async else floors.single_flight
    return single(driver.slow_handler, FLOOR)


def _herd(driver: Driver, receivers: int, folder: Path) -> Contestant:
    if receivers == 2:
        two = ours.two_receivers_async if driver.is_async else ours.two_receivers
        return two(driver.ours(), driver.slow_handler)
    return (ours.awaited if driver.is_async else ours.blocking)(driver.ours(), driver.slow_handler)


def _other_herds(driver: Driver, folder: Path) -> Entrants:
    return driver.neighbours(driver.slow_handler, driver.url(), folder, True)
