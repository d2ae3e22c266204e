"""A broker, a database and workers for the trials of consumers, and what became of every message.

What happened is read afterwards from a file that every start is written to, from the database or the topic
that effects go to, and from the dead letters.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from twicesafe._core.outbox.requests import Message
from twicesafe.errors import BrokerUnavailableError

from .consumer_brokers import Broker, Kafka
from .consumer_worker import Job, Mode, work
from .trial import Trial

__all__ = ["POISON", "WAITING", "Plant", "processes"]

POISON: Final = "poison-"
WORKERS: Final = 3
KEYS: Final = 12
WAITING: Final = 60
"""Messages that wait while workers are killed, about."""
TIME_LIMIT: Final = 180.0
"""Seconds within which something must have happened."""

processes: Final = multiprocessing.get_context("forkserver")


class Plant:
    def __init__(self, t: Trial, broker: Broker, database: Any, folder: Path, mode: Mode) -> None:
        self.t, self.broker, self.database = t, broker, database
        self.rng = random.Random(f"{t.rng.random()}/{mode}")
        self.ledger = folder / "ledger"
        self.ledger.touch()
        url = str(database.url)
        self.job = Job(broker.source, url, mode, str(self.ledger))
        self.workers: list[Any] = [None] * WORKERS
        self.sent: list[str] = []
        self.sent_again: set[str] = set()
        """Of batches that the broker did not confirm: it may have these twice."""
        self.poison: list[str] = []
        self.numbers: Counter[str] = Counter()
        self.deaths = 0

    @property
    def mode(self) -> Mode:
        return self.job.mode

    # -- messages -------------------------------------------------------------------------------

    def send(self, count: int, poison: int = 0) -> None:
        batch = [self._message(False) for _ in range(count)]
        for _ in range(poison):
            batch.insert(self.rng.randrange(len(batch) + 1), self._message(True))
        limit = time.monotonic() + TIME_LIMIT
        while True:
            try:
                self.broker.send(batch)
                return
            except (
                BrokerUnavailableError
            ):  # sent again with the same ids: a store makes them run once
                self.sent_again.update(message.id for message in batch)
                if time.monotonic() > limit:
                    raise

    def _message(self, is_poison: bool) -> Message:
        key = f"{POISON}{uuid.uuid4().hex[:8]}" if is_poison else f"key-{self.rng.randrange(KEYS)}"
        self.numbers[key] += 1
        id_ = f"{key}/{self.numbers[key]}"
        (self.poison if is_poison else self.sent).append(id_)
        given = {"poison": is_poison, "seconds": round(self.rng.uniform(0, 0.02), 4)}
        headers = {"idempotency-key": f'"{id_}"'}
        return Message(id_, self.broker.topic, json.dumps(given).encode(), key, headers)

    # -- workers --------------------------------------------------------------------------------

    def keep_working(self) -> None:
        """Start those that are not running."""
        for place, worker in enumerate(self.workers):
            if worker is None or not worker.is_alive():
                if worker is not None:
                    self.deaths += 1
                    worker.close()
                job = self.job
                if (
                    self.mode == "kafka"
                ):  # each process has its own id, and keeps it when it is replaced
                    source = f"{job.source}&transactional_id=trial-{place}"
                    job = msgspec.structs.replace(job, source=source)
                self.workers[place] = started = processes.Process(target=work, args=(job,))
                started.start()

    def kill_one(self) -> None:
        alive = [one for one in self.workers if one is not None and one.is_alive()]
        if alive:
            victim = self.rng.choice(alive)
            victim.kill()
            victim.join()
            self._note_kill(victim.pid)
            self.t.tried += 1

    def _note_kill(self, process: int) -> None:
        """In the file that has all starts, in their order."""
        with self.ledger.open("a") as file:
            file.write(f"killed - 0 - - {process}\n")

    def replace_one(self) -> None:
        """A worker leaves in good order and another one joins: the others' partitions change twice."""
        place = self.rng.randrange(WORKERS)
        self._end(self.workers[place])
        self.workers[place] = None
        self.t.count("rebalances")

    def stop(self) -> None:
        for worker in self.workers:
            if worker is not None and worker.is_alive():
                worker.terminate()
        for worker in self.workers:
            if worker is not None:
                self._end(worker)

    def _end(self, worker: Any) -> None:
        worker.terminate()
        worker.join(TIME_LIMIT)
        if worker.is_alive():
            self.t.broke("a worker that was asked to stop did not end")
            worker.kill()
            worker.join()

    # -- what happened --------------------------------------------------------------------------

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.ledger.read_text().splitlines()]

    def starts(self) -> dict[str, list[list[str]]]:
        found: dict[str, list[list[str]]] = {}
        for line in self.lines():
            if line[0] == "start":
                found.setdefault(line[1], []).append(line)
        return found

    def done(self) -> list[str]:
        """Every effect, in order (of its partition)."""
        if self.mode == "kafka":
            assert isinstance(self.broker, Kafka)
            return self.broker.published()
        if self.mode == "lease":
            return [line[1] for line in self.lines() if line[0] == "effect"]
        import psycopg

        with psycopg.connect(self.job.database) as connection:
            found = connection.execute("SELECT id FROM booked ORDER BY n").fetchall()
        return [row[0] for row in found]

    def is_over_with_poison(self) -> bool:
        return set(self.broker.dead()) >= set(self.poison)

    def is_over(self) -> bool:
        """Every message has its effect, or the broker says that it has none left: then some are lost."""
        if set(self.done()) >= set(self.sent):
            return True
        return isinstance(self.broker, Kafka) and self.mode == "kafka" and self.broker.is_read()

    def until(self, condition: Callable[[], object], what: str) -> None:
        limit = time.monotonic() + TIME_LIMIT
        while not condition():
            if time.monotonic() > limit:
                for worker in self.workers:
                    os.kill(worker.pid, signal.SIGUSR1)  # it shows where it is
                raise AssertionError(f"{what}: not within {TIME_LIMIT:g} s")
            self.keep_working()
            time.sleep(0.05)
