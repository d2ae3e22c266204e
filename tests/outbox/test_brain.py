"""The brain under a seeded scheduler: relays crash, stall past their leases and meet refusals.

The store is the real programs on an SQLite in memory, with a clock that the test moves. Every command
of the two flows is a step; between any two of them a relay may die or fall asleep. A failure prints
its seed. ``TWICESAFE_OUTBOX_SCHEDULES`` sets how many.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Generator
from typing import Any

import pytest

from twicesafe import Backoff, BrokerUnavailableError
from twicesafe.core.carrying import carry
from twicesafe.core.driving import drive
from twicesafe.core.outbox import (
    Hold,
    Message,
    OutboxRequest,
    Prepare,
    Unpark,
    lane_of,
    slot_of,
)
from twicesafe.core.publishing import NOT_TRIED
from twicesafe.core.relaying import Collect, Desk, Listen, Pause, Publish, keep
from twicesafe.stores.outbox import Added
from twicesafe.stores.sql import Query, atomically
from twicesafe.stores.sqlite.outbox import SqliteOutbox
from twicesafe.stores.sqlite.programs import SqliteSchema

SCHEDULES = int(os.environ.get("TWICESAFE_OUTBOX_SCHEDULES", "30"))
LEASE = 5.0
BATCH = 6


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 1000.0
        connection = sqlite3.connect(":memory:", isolation_level=None)
        self.run: Callable[[Any], Any] = lambda program: drive(program, execute)

        def execute(command: Any) -> Any:
            cursor = connection.execute(command.sql, command.args)
            return cursor.fetchall() if type(command) is Query else cursor.rowcount

        schema = SqliteSchema("sqlite_outbox", "t_outbox")
        self.outbox = SqliteOutbox(schema, lambda: int(self.now * 1000))
        self.perform(Prepare())
        self.published: list[Message] = []
        self.added: dict[str | None, list[str]] = {}
        self.poison: set[str] = set()
        self.deaths = 0
        self.relays = [Actor(self), Actor(self)]

    def perform(self, request: OutboxRequest) -> Any:
        return self.run(self.outbox.perform(request))

    def add(self) -> None:
        key = self.chance.choice([None, "a", "b", "c", "d"])
        id_ = f"{sum(map(len, self.added.values()))}"
        message = Message(id_, "t", b"", key)
        if self.chance.random() < 0.05:
            self.poison.add(id_)
        self.added.setdefault(key, []).append(id_)
        new = [Added(message, lane_of(key, id_), "t", "{}", key is not None)]
        self.run(atomically(self.outbox.add(new, int(self.now * 1000)), "BEGIN"))

    def publish(self, messages: list[Message], calm: bool) -> Any:
        if not calm and self.chance.random() < 0.05:
            return BrokerUnavailableError("away")
        answers: list[Any] = []
        stopped: set[str | None] = set()
        for message in messages:
            if message.key is not None and message.key in stopped:
                answers.append(NOT_TRIED)
            elif message.id in self.poison and not calm:
                answers.append(ValueError("poison"))
                stopped.add(message.key)
            else:
                self.published.append(message)
                answers.append(None)
        return answers


class Actor:
    """One relay: two flows, each waiting with its next command until its time has come."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.desk = Desk(
            lease=LEASE,
            batch=BATCH,
            group=world.chance.choice([1, 3, BATCH]),
            concurrency=world.chance.choice([1, 3]),
            max_attempts=3,
            backoff=Backoff(first=0.5, jitter=0),
            wake=False,
            clock=lambda: world.now,
            notify=lambda _: None,
        )
        self.flows: list[Generator[Any, Any, Any]] = [keep(self.desk), carry(self.desk)]
        self.next: list[Any] = [flow.send(None) for flow in self.flows]
        self.due = [world.now, world.now]
        self.flying: list[Publish] = []
        self.lands: dict[int, float] = {}
        self.asleep_until = 0.0

    def step(self, which: int, calm: bool) -> None:
        world, command = self.world, self.next[which]
        if world.now < max(self.due[which], self.asleep_until):
            return
        reply: Any = None
        if type(command) is Publish:
            self.flying.append(command)
            self.lands[command.ticket] = world.now + world.chance.expovariate(1.0)
        elif type(command) is Collect:
            ended = [p for p in self.flying if calm or world.now >= self.lands[p.ticket]]
            self.flying = [p for p in self.flying if p not in ended]
            reply = [(p.ticket, world.publish(p.messages, calm)) for p in ended]
        elif type(command) not in (Listen, Pause):
            if type(command) is Hold:
                self._check_given(command)
            reply = world.perform(command)
        self.next[which] = self.flows[which].send(reply)
        if type(self.next[which]) is Publish:
            assert world.now < self.desk.deadline, "it publishes although its lease may be over"
        wait = getattr(self.next[which], "seconds", 0.0)
        self.due[which] = world.now + (0 if self.flying and which else wait)

    def _check_given(self, ask: Hold) -> None:
        flying = {slot_of(lane_of(m.key, m.id)) for p in self.flying for m in p.messages}
        assert not flying & ask.give, "it gives back a slot of which something is under way"


def simulate(seed: int) -> World:
    world = World(seed)
    chance = world.chance
    for turn in range(700):
        calm = turn >= 350
        world.now += chance.uniform(0, 0.2) if not calm else 0.3
        if not calm and chance.random() < 0.3:
            world.add()
        if not calm and chance.random() < 0.01:
            world.relays[chance.randrange(2)] = Actor(
                world
            )  # the old one is dropped where it stood
            world.deaths += 1
        if not calm and chance.random() < 0.01:
            world.relays[chance.randrange(2)].asleep_until = world.now + 2 * LEASE
            world.deaths += 1
        if calm:
            for lane in world.run(_parked(world)):
                world.perform(Unpark(lane, False, "test", ""))
        for relay in world.relays:
            for which in chance.choices((0, 1), (1, 6), k=9):
                relay.step(which, calm)
    return world


def _parked(world: World) -> Any:
    rows = yield Query(f"SELECT lane FROM {world.outbox.t}_troubles WHERE parked")
    return [row[0] for row in rows]


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_nothing_is_lost_and_order_holds(seed: int):
    world = simulate(seed)
    first: dict[str, Message] = {}
    for message in world.published:
        first.setdefault(message.id, message)
    everything = {id_ for ids in world.added.values() for id_ in ids}
    assert set(first) == everything, f"seed {seed}: lost {everything - set(first)}"
    for key, ids in world.added.items():
        if key is not None:
            assert [m.id for m in first.values() if m.key == key] == ids, f"seed {seed}"
    repeats = len(world.published) - len(first)
    assert repeats <= world.deaths * BATCH, f"seed {seed}: {repeats} repeats"
