"""Consumers on real brokers: workers are killed, brokers and the database restart, and some messages kill every
worker (C14).

Three workers handle messages of many keys. They are killed by SIGKILL in the middle of their work, again and
again, and started again at once. Meanwhile workers leave in good order and others join, a broker that keeps its
messages is restarted, and so is the database that has the records. `consumer_plant` has all of them.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from tests.servers import launch

from .consumer_brokers import BROKERS, Kafka, RedisStreams
from .consumer_plant import POISON, WAITING, Plant, processes
from .consumer_worker import MOST, Mode
from .trial import Absent, Trial, trial

__all__ = ["consumers_in_kafka_transactions", "consumers_in_leases", "consumers_in_transactions"]

PORTIONS: Final = 10
"""The long form is 1,000 kills for each broker and mode: too much for one sitting."""

SHOWN: Final = 5
"""Examples of what went wrong."""

STARTS: Final = 3
"""How many messages are started between two blows, at least."""

SHORT: Final = (RedisStreams.engine,)
"""In the short form, the others take minutes until they deliver again."""


def _mistreated(plant: Plant, blows: list[str]) -> None:
    """One blow after the other, each while workers work."""
    t, rng = plant.t, plant.rng
    for number, blow in enumerate(blows):
        if number and number % 25 == 0:
            print(f"    {t.engine} {t.name}: {number} of {len(blows)} blows", flush=True)
        missing = WAITING - (len(plant.sent) - len(set(plant.done())))
        # Behind an open transaction, what is done is not visible yet: there may be no work left.
        plant.send(max(missing, STARTS))
        enough = len(plant.lines()) + STARTS
        plant.until(partial(_has_lines, plant, enough), "no worker works")
        time.sleep(rng.uniform(0, 0.05))
        if blow == "kill":
            plant.kill_one()
        elif blow == "rebalance":
            plant.replace_one()
        else:
            server = plant.broker.server if blow == "broker" else plant.database
            (server.kill if rng.random() < 0.5 else server.stop)()
            time.sleep(rng.uniform(0, 0.5))
            server.start()
            t.count("broker restarts" if blow == "broker" else "store outages")
        plant.keep_working()


def _has_lines(plant: Plant, enough: int) -> bool:
    return len(plant.lines()) >= enough


def _blows(plant: Plant) -> list[str]:
    t = plant.t
    blows = ["kill"] * t.size(8, 1000) + ["rebalance"] * t.size(1, 100)
    if plant.broker.keeps:
        blows += ["broker"] * t.size(1, 30)
    if plant.mode != "kafka":
        blows += ["store"] * t.size(1, 30)
    plant.rng.shuffle(blows)
    return blows


def _judge(plant: Plant) -> None:
    t, starts = plant.t, plant.starts()
    effects = plant.done()
    counted = Counter(effects)
    lost = [id_ for id_ in plant.sent if not counted[id_]]
    t.expect(not lost, f"{len(lost)} messages are lost: {lost[:3]}")
    strangers = counted.keys() - set(plant.sent)
    t.expect(not strangers, f"effects of messages that never end well: {sorted(strangers)[:3]}")
    doubled = sorted(id_ for id_, times in counted.items() if times > 1)
    if plant.mode == "kafka":
        _judge_transactions(plant)
    elif plant.mode == "lease":
        bare = [id_ for id_, some in starts.items() if any(one[3] == "-" for one in some[1:])]
        t.expect(not bare, f"{len(bare)} messages started again without a cause: {bare[:3]}")
    else:
        t.expect(not doubled, f"{len(doubled)} effects are doubled: {doubled[:3]}")
    t.count("messages", len(plant.sent))
    t.count("messages sent again, unconfirmed", len(plant.sent_again))
    t.count("starts again", sum(len(some) - 1 for some in starts.values()))
    t.count("effects repeated", sum(counted.values()) - len(counted))
    t.count("workers died", plant.deaths)
    _judge_order(plant, effects)
    _judge_dead_letters(plant, starts)


def _judge_transactions(plant: Plant) -> None:
    """Nothing is published twice for one message, and no offset of the group goes back."""
    t, broker = plant.t, plant.broker
    assert isinstance(broker, Kafka)
    twice = broker.published_twice()
    t.expect(not twice, f"{len(twice)} effects are doubled")
    for origin, places in sorted(twice.items())[:SHOWN]:
        processes = [line[5] for line in plant.lines() if line[4] == origin]
        t.broke(f"{origin} is published at {places}, started by processes {processes}")
    t.count("transactions that Kafka did not end in their partitions", broker.not_ended())
    back = broker.went_back()
    t.expect(not back, f"{len(back)} commits moved an offset back: {back[:SHOWN]}")


def _judge_order(plant: Plant, effects: list[str]) -> None:
    last: dict[str, int] = {}
    broken = []
    for id_ in dict.fromkeys(effects):
        key, _, number = id_.partition("/")
        if int(number) < last.get(key, 0):
            broken.append(id_)
        last[key] = max(last.get(key, 0), int(number))
    if plant.broker.orders:
        plant.t.expect(not broken, f"{len(broken)} effects are out of order: {broken[:3]}")
    else:
        plant.t.count("out of order, as the broker delivered them", len(broken))


def _judge_dead_letters(plant: Plant, starts: dict[str, list[list[str]]]) -> None:
    t = plant.t
    dead = Counter(plant.broker.dead())
    missing = set(plant.poison) - dead.keys()
    t.expect(not missing, f"poison is not in the dead letters: {sorted(missing)[:3]}")
    innocent = dead.keys() - set(plant.poison)
    t.expect(not innocent, f"innocents are in the dead letters: {sorted(innocent)[:3]}")
    repeated = sum(dead.values()) - len(dead)
    t.count("dead letters", len(dead))
    t.count("dead letters repeated", repeated)
    if plant.mode == "kafka":
        t.expect(not repeated, f"{repeated} dead letters were published twice")
        return  # attempts are counted in the process
    uncounted = 0 if plant.mode == "lease" else 1
    for id_ in plant.poison:
        times = len(starts.get(id_, ()))
        t.expect(times <= MOST + uncounted, f"{id_} has started {times} times")
        t.count("starts of poison that a death prevented", max(0, MOST - times))
        if plant.mode == "lease":
            for first, last, deaths in _gaps(plant.lines(), id_):
                t.expect(
                    deaths >= last - first + 1,
                    f"{id_}: {deaths} deaths, and no start of attempts {first} to {last}",
                )


def _gaps(lines: list[list[str]], id_: str) -> Iterator[tuple[int, int, int]]:
    """Attempts that were counted and have not started, from and to, and how many workers died meanwhile. A start is
    counted before it is in the ledger, so a death in between leaves no line.

    A worker dies by a kill, or by a poison message that it starts.
    """
    known, deaths = 0, 0
    for what, started, attempt, *_ in lines:
        if what == "start" and started == id_:
            if int(attempt) > known + 1:
                yield known + 1, int(attempt) - 1, deaths
            known, deaths = int(attempt), 0
        elif what == "killed" or (what == "start" and started.startswith(POISON)):
            deaths += 1
    if known < MOST:
        yield known + 1, MOST, deaths


@contextlib.contextmanager
def _plant(t: Trial, mode: Mode) -> Iterator[Plant]:
    store = ("psycopg", "twicesafe._engines.postgresql.store")
    modules = ["lab.field.consumer_worker", *store, *BROKERS[t.engine].modules]
    processes.set_forkserver_preload(modules)
    with launch("postgres") as postgres, tempfile.TemporaryDirectory() as folder:
        broker = BROKERS[t.engine](t.portion)
        if mode == "transaction":
            postgres.execute("CREATE TABLE booked (n bigserial, id text)")
        plant = Plant(t, broker, postgres, Path(folder), mode)
        try:
            yield plant
        finally:
            plant.stop()
            broker.close()


def _try(t: Trial, mode: Mode) -> None:
    if not t.full and t.engine not in SHORT:
        raise Absent("in the long form only: it takes minutes until this broker delivers again")
    with _plant(t, mode) as plant:
        plant.send(WAITING, poison=t.size(1, 10))
        plant.keep_working()
        _mistreated(plant, _blows(plant))
        plant.until(plant.is_over, "some messages are never done")
        plant.until(plant.is_over_with_poison, "poison goes on")
        plant.stop()
        _judge(plant)
        _note(t, plant)


def _note(t: Trial, plant: Plant) -> None:
    broker = plant.broker
    name = f"{t.engine} {broker.variant}".strip()
    if isinstance(broker, Kafka) and broker.kind == "mock":
        name = "Kafka's mock cluster"
        t.notes.append(
            f"{name} was tried without KIP-848 and without transactions, which it does not enforce"
        )
    if not broker.keeps:
        t.notes.append(f"{name} forgets its messages when it restarts: no restarts")
    if not broker.orders:
        t.notes.append(
            f"{name} does not keep the order of a key between consumers: it is counted only"
        )


@trial("consumers in leases", "C14", "kills", tuple(BROKERS), portions=PORTIONS)
def consumers_in_leases(t: Trial) -> None:
    """Workers of a receiver are killed, broker and store restart, and some messages kill every worker. Is a
    message lost? Does each repeat have its cause? Do the dead letters have every poison message, and no other?"""
    _try(t, "lease")


@trial("consumers in transactions", "C14", "kills", tuple(BROKERS), portions=PORTIONS)
def consumers_in_transactions(t: Trial) -> None:
    """The same with an inbox: effect and record are one transaction. Is an effect lost, or doubled?"""
    _try(t, "transaction")


@trial("consumers in Kafka transactions", "C14", "kills", (Kafka.engine,), portions=PORTIONS)
def consumers_in_kafka_transactions(t: Trial) -> None:
    """The same without a store: what a handler publishes, its dead letter and the offset are one Kafka
    transaction. Is a message lost, doubled or out of order for readers of committed messages?"""
    if Kafka.without_transactions():
        raise Absent(
            "the mock cluster does not enforce transactions: `make kafka` fetches a broker"
        )
    _try(t, "kafka")
