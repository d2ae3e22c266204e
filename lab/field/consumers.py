"""Consumers on real brokers: workers are killed, brokers restart, and some messages kill every worker (C14).

Two workers handle messages of many keys. They are killed by SIGKILL in the middle of their work, again and
again, and started again at once; a broker that keeps its messages is restarted meanwhile. What happened is
read afterwards from a file that every start is written to, from the database, and from the dead letters.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.servers import launch
from twicesafe._core.outbox_requests import Message
from twicesafe.errors import BrokerUnavailableError

from .consumer_brokers import BROKERS, Broker, RedisStreams
from .consumer_worker import MOST, Job, work
from .trial import Absent, Trial, trial

__all__ = ["consumers_in_leases", "consumers_in_transactions"]

WORKERS: Final = 2
KEYS: Final = 12
WAITING: Final = 60
"""Messages that wait while workers are killed, about."""
PATIENCE: Final = 120.0
"""Seconds within which something must have happened."""

_processes: Final = multiprocessing.get_context("forkserver")


class Plant:
    """A broker, a database, the workers, and what they did."""

    def __init__(self, t: Trial, broker: Broker, database: str, folder: Path, mode: bool) -> None:
        self.t, self.broker, self.database = t, broker, database
        self.rng = random.Random(f"{t.rng.random()}/{mode}")
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.job = Job(broker.source, database, mode, str(self.ledger))
        self.workers: list[Any] = [None] * WORKERS
        self.sent: list[str] = []
        self.poison: list[str] = []
        self.numbers: Counter[str] = Counter()
        self.deaths = 0

    # -- messages -------------------------------------------------------------------------------

    def send(self, count: int, poison: int = 0) -> None:
        batch = [self._message(False) for _ in range(count)]
        for _ in range(poison):
            batch.insert(self.rng.randrange(len(batch) + 1), self._message(True))
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.broker.send(batch)
                return
            except BrokerUnavailableError:  # sent again with the same ids: they run once
                if time.monotonic() > until:
                    raise

    def _message(self, kills: bool) -> Message:
        key = f"poison-{uuid.uuid4().hex[:8]}" if kills else f"key-{self.rng.randrange(KEYS)}"
        self.numbers[key] += 1
        id_ = f"{key}/{self.numbers[key]}"
        (self.poison if kills else self.sent).append(id_)
        body = json.dumps({"kills": kills, "seconds": round(self.rng.uniform(0, 0.02), 4)}).encode()
        headers = {"idempotency-key": f'"{id_}"'}
        return Message(id_, self.broker.topic, body, key, headers)

    # -- workers --------------------------------------------------------------------------------

    def keep_working(self) -> None:
        """Start those that are not running."""
        for place, worker in enumerate(self.workers):
            if worker is None or not worker.is_alive():
                if worker is not None:
                    self.deaths += 1
                    worker.close()
                self.workers[place] = started = _processes.Process(target=work, args=(self.job,))
                started.start()

    def kill_one(self) -> None:
        alive = [one for one in self.workers if one is not None and one.is_alive()]
        if alive:
            victim = self.rng.choice(alive)
            victim.kill()
            victim.join()
            self.t.tried += 1

    def stop(self) -> None:
        for worker in self.workers:
            if worker is not None:
                worker.terminate()
                worker.join(PATIENCE)
                if worker.is_alive():
                    self.t.broke("a worker that was asked to stop did not end")
                    worker.kill()

    # -- what happened --------------------------------------------------------------------------

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.ledger.read_text().splitlines()]

    def done(self) -> list[str]:
        """Every effect, in order."""
        if not self.job.transactions:
            return [line[1] for line in self.lines() if line[0] == "effect"]
        import psycopg

        with psycopg.connect(self.database) as connection:
            found = connection.execute("SELECT id FROM booked ORDER BY n").fetchall()
        return [row[0] for row in found]

    def is_over_with_poison(self) -> bool:
        """It has killed often enough, and is in the dead letters."""
        starts = Counter(line[1] for line in self.lines() if line[0] == "start")
        tired = all(starts[id_] >= MOST for id_ in self.poison)
        return tired and set(self.broker.dead()) >= set(self.poison)

    def until(self, condition: Any, what: str) -> None:
        limit = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > limit:
                raise AssertionError(f"{what}: not within {PATIENCE:g} s")
            self.keep_working()
            time.sleep(0.05)


def _killed(plant: Plant, kills: int, restarts: int) -> None:
    """Workers are killed while they work, and the broker is restarted now and then."""
    t, rng = plant.t, plant.rng
    when = set(rng.sample(range(kills), min(restarts, kills)))
    for number in range(kills):
        missing = WAITING - (len(plant.sent) - len(set(plant.done())))
        if missing > 0:
            plant.send(missing)
        before = len(plant.lines())
        plant.until(lambda before=before: len(plant.lines()) >= before + 3, "no worker works")
        time.sleep(rng.uniform(0, 0.05))
        if number in when:
            (plant.broker.server.kill if rng.random() < 0.5 else plant.broker.server.stop)()
            plant.broker.server.start()
            t.count("broker restarts")
        else:
            plant.kill_one()
        plant.keep_working()


def _judge(plant: Plant) -> None:
    t, transactions = plant.t, plant.job.transactions
    effects = plant.done()
    counted = Counter(effects)
    lost = [id_ for id_ in plant.sent if not counted[id_]]
    t.expect(not lost, f"{len(lost)} messages are lost: {lost[:3]}")
    strangers = counted.keys() - set(plant.sent)
    t.expect(not strangers, f"effects of messages that never end well: {sorted(strangers)[:3]}")
    doubled = sorted(id_ for id_, times in counted.items() if times > 1)
    starts: dict[str, list[list[str]]] = {}
    for line in plant.lines():
        if line[0] == "start":
            starts.setdefault(line[1], []).append(line)
    if transactions:
        t.expect(not doubled, f"{len(doubled)} effects are doubled: {doubled[:3]}")
    else:
        bare = [id_ for id_, some in starts.items() if any(one[3] == "-" for one in some[1:])]
        t.expect(not bare, f"{len(bare)} messages started again without a cause: {bare[:3]}")
    t.count("messages", len(plant.sent))
    t.count("starts again", sum(len(some) - 1 for some in starts.values()))
    t.count("effects repeated", sum(counted.values()) - len(counted))
    t.count("workers died", plant.deaths)
    _judge_order(plant, effects)
    _judge_dead_letters(plant, starts)


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
    t.count("dead letters", len(dead))
    t.count("dead letters repeated", sum(dead.values()) - len(dead))
    uncounted = 1 if plant.job.transactions else 0
    for id_ in plant.poison:
        times = len(starts.get(id_, ()))
        t.expect(times <= MOST + uncounted, f"{id_} has started {times} times")


@contextlib.contextmanager
def _plant(t: Trial, transactions: bool) -> Iterator[Plant]:
    _processes.set_forkserver_preload(["lab.field.consumer_worker", "psycopg"])
    with launch("postgres") as postgres, tempfile.TemporaryDirectory() as folder:
        broker = BROKERS[t.engine]()
        database = str(postgres.url)
        if transactions:
            import psycopg

            with psycopg.connect(database) as connection:
                connection.execute("CREATE TABLE booked (n bigserial, id text)")
        plant = Plant(t, broker, database, Path(folder), transactions)
        try:
            yield plant
        finally:
            plant.stop()
            broker.close()


def _try(t: Trial, transactions: bool) -> None:
    if not t.full and t.engine != RedisStreams.engine:
        raise Absent("in the long form only: it takes minutes until this broker delivers again")
    with _plant(t, transactions) as plant:
        kind = type(plant.broker)
        kills = t.size(8, 1000)
        restarts = t.size(1, 30) if kind.keeps else 0
        plant.send(WAITING, poison=t.size(1, 10))
        plant.keep_working()
        _killed(plant, kills + restarts, restarts)
        everything = set(plant.sent)
        plant.until(lambda: set(plant.done()) >= everything, "some messages are never done")
        plant.until(plant.is_over_with_poison, "poison goes on")
        plant.stop()
        _judge(plant)
    if not kind.keeps:
        t.notes.append(f"{t.engine} here forgets its messages when it restarts: no restarts")
    if not kind.orders:
        t.notes.append(
            f"{t.engine} does not keep the order of a key between consumers: it is counted only"
        )


@trial("consumers in leases", "C14", "kills", tuple(BROKERS))
def consumers_in_leases(t: Trial) -> None:
    """Workers of a receiver are killed, the broker restarts, some messages kill every worker. Is a message
    lost? Does each repeat have its cause? Is every poison message in the dead letters, and nothing else?"""
    _try(t, False)


@trial("consumers in transactions", "C14", "kills", tuple(BROKERS))
def consumers_in_transactions(t: Trial) -> None:
    """The same with an inbox: effect and record are one transaction. Is an effect lost, or doubled?"""
    _try(t, True)
