"""The order of lanes on every engine (C13): refusals, rests, parking, operators and a large backlog.

The relay study runs SQLite's programs only. What another engine's clock, locks and plans do to a lane
is seen here: a broker that refuses at random writes down what comes, and an operator lets parked lanes
go on, while two relays work through the backlog and writers add to it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from tests.outbox.stage import begin, connect
from twicesafe import Backoff
from twicesafe._core.outbox.publisher import Answer
from twicesafe._core.outbox.requests import Message
from twicesafe.outbox import Outbox, OutboxRelay

from .commits import SQL
from .trial import Trial, trial
from .zombies import fresh_url

__all__ = ["lane_order"]

TIME_LIMIT = 900
KEYS = 12


class _Broker:
    """Refuses some messages a few times, and keeps the first coming of every other one."""

    batch = 50
    concurrency = 2

    def __init__(self, rng: random.Random) -> None:
        self._lock = threading.Lock()
        self._rng = rng
        self._refusals: dict[str, int] = {}
        self.arrived: dict[str, list[int]] = {}
        self.seen: set[str] = set()
        self.refused = 0

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        answers: list[Answer] = []
        with self._lock:
            for message in messages:
                left = self._refusals.setdefault(message.id, self._to_refuse())
                if left:
                    self._refusals[message.id] = left - 1
                    self.refused += 1
                    answers.append(ValueError("not now"))
                    continue
                answers.append(None)
                if message.id not in self.seen:
                    self.seen.add(message.id)
                    self.arrived.setdefault(str(message.key), []).append(int(message.body))
        return answers

    def _to_refuse(self) -> int:
        return self._rng.choice((1, 1, 2, 4)) if self._rng.random() < 0.02 else 0

    def close(self) -> None:
        """Nothing is open."""


class _Backlog:
    """The writer: what was committed, in order."""

    def __init__(self, outbox: Outbox, url: str, rng: random.Random) -> None:
        self._outbox, self._rng = outbox, rng
        self._connection = connect(url)
        self.sent: dict[str, list[int]] = {}
        self.ids: dict[str, tuple[str, int]] = {}

    def add(self, count: int) -> None:
        """Half of it has one key."""
        messages = []
        for _ in range(count):
            key = "busy" if self._rng.random() < 0.5 else f"k{self._rng.randrange(KEYS)}"
            mine = self.sent.setdefault(key, [])
            number, id_ = len(mine), f"{key}-{len(mine)}"
            mine.append(number)
            self.ids[id_] = key, number
            messages.append({"topic": "t", "body": str(number), "key": key, "id": id_})
        begin(self._connection)
        self._outbox.add_many(self._connection, messages)
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


@trial("lane order", "C13", "messages", SQL)
def lane_order(t: Trial) -> None:
    """A broker refuses messages at random, lanes back off and are parked, an operator retries or skips them,
    and there is a large backlog. Does every message arrive, in the order of its key?"""
    rng = t.rng
    with fresh_url(t.engine) as url, Outbox.open(url) as outbox:
        broker = _Broker(random.Random(rng.random()))
        backlog = _Backlog(outbox, url, rng)
        first = t.size(1200, 20_000)
        for _ in range(first // 400):
            backlog.add(400)
        settings = {"max_attempts": 3, "backoff": Backoff(first=0.05, factor=2, jitter=0.5)}
        relays = [OutboxRelay.open(url, broker, lease=5, batch=200, **settings) for _ in range(2)]  # type: ignore[arg-type]
        skipped: set[str] = set()
        try:
            for relay in relays:
                relay.start()
            for _ in range(t.size(20, 200)):
                backlog.add(t.size(10, 50))
                _operate(t, outbox, rng, skipped)
            until = time.monotonic() + TIME_LIMIT
            while (depth := outbox.depth()).pending or depth.parked:
                _operate(t, outbox, rng, skipped)
                if time.monotonic() > until:
                    t.broke(f"never came to an end: {depth}")
                    break
                time.sleep(0.02)
        finally:
            for relay in relays:
                relay.close()
            backlog.close()
    t.tried = len(backlog.ids)
    t.count("refusals", broker.refused)
    _judge(t, broker, backlog, skipped)


def _operate(t: Trial, outbox: Outbox, rng: random.Random, skipped: set[str]) -> None:
    for lane in outbox.parked():
        if rng.random() < 0.3:
            skipped.add(lane.message_id)
            outbox.skip(lane.lane, by="lab")
            t.count("skipped")
        else:
            outbox.retry(lane.lane, by="lab")
            t.count("retried")


def _judge(t: Trial, broker: _Broker, backlog: _Backlog, skipped: set[str]) -> None:
    gone = {backlog.ids[id_] for id_ in skipped}
    for key, sent in backlog.sent.items():
        due = [number for number in sent if (key, number) not in gone]
        arrived = broker.arrived.get(key, [])
        if arrived == due:
            continue
        lost = sorted(set(due) - set(arrived))
        early = next((n for n, (a, b) in enumerate(zip(arrived, due, strict=False)) if a != b), -1)
        t.broke(f"{key}: {len(lost)} lost {lost[:3]}, out of order from place {early}")
