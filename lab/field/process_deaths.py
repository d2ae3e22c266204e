"""Crash points (C4): a worker dies before and after every statement, handler and effect, on every engine.

The deaths are the crash kit's: from its last point on, nothing of a life reaches the store, and its
connections are closed, as the operating system would have it. Points are found by running, so a new
statement is covered the day it is written. What must be true afterwards is read from outside.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from twicesafe import (
    AsyncReceiver,
    Backoff,
    Cause,
    HeldError,
    Key,
    Policy,
    Receiver,
    RememberedFailureError,
    current_claim,
)
from twicesafe._core.protocol import ClaimRequest, Read
from twicesafe._values.records import Row, State
from twicesafe.testing import Place
from twicesafe.testing._crash import Life, crash_points

from .trial import KEYED, SERVERS, Trial, trial

__all__ = ["crash_sweep", "hooks_for"]

LEASE: Final = 30
SETTINGS: Final[dict[str, Any]] = {
    "lease": LEASE, "retention": 3600, "wait": 0, "backoff": Backoff(first=0),
}  # fmt: skip


class DeclinedError(Exception):
    """A failure that is the answer."""


def hooks_for(engine: str) -> Any:
    """The engine with a clock that can be moved, as the conformance suite uses it."""
    if engine == "postgres":
        from tests.conformance.test_postgresql import Postgres

        return Postgres()
    if engine == "valkey":
        from tests.stores.test_redis_conformance import Redis

        return Redis()
    if engine == "mariadb":
        from tests.conformance.test_mysql import Mariadb

        return Mariadb()
    if engine == "etcd":
        from tests.conformance.etcd_time import Etcd

        return Etcd()
    if engine == "dynamodb":
        from tests.conformance.test_dynamodb import Dynamodb

        class OneCallAtATime(Dynamodb):
            """The calls of a batch pass their points in the same order in every run."""

            options = "&pool=1"

        return OneCallAtATime()
    if engine == "mongodb":
        from tests.conformance.test_mongodb import Mongodb

        return Mongodb()
    from tests.conformance.stores import Sqlite

    return Sqlite()


class World:
    """What a death cannot take away: one key in the store, and its effects."""

    def __init__(self, stage: Stage, names: list[str]) -> None:
        self.stage, self.names = stage, names
        self.effects: list[tuple[str, int, int, Cause | None]] = []
        self.values: set[tuple[str, Any]] = set()

    def of(self, name: str) -> list[tuple[str, int, int, Cause | None]]:
        return [effect for effect in self.effects if effect[0] == name]


class Stage:
    def __init__(self, engine: str, folder: Path) -> None:
        self.hooks = hooks_for(engine)
        self.place = Place(folder)
        self.outside = self.hooks.open_store(self.place)
        self._numbers = itertools.count(1)

    def world(self, keys: int) -> World:
        return World(self, [f"k{next(self._numbers)}" for _ in range(keys)])

    def row(self, name: str) -> Row | None:
        found: Row | None = self.outside.perform(Read(Key(name).id))
        return found

    def lease_ends(self) -> None:
        self.hooks.advance(self.place, (LEASE + 1) * 1000)

    def close(self) -> None:
        self.outside.close()
        self.hooks.tidy(self.place)


def deliver(
    world: World, life: Life, mode: str, settings: dict[str, Any], fails: Exception | None = None
) -> list[Any]:
    """One process of this mode takes all keys of the world; outcomes or exceptions."""

    def charge(name: str) -> str:
        claim = current_claim()
        assert claim is not None
        life.reach("handler starts")
        if fails is not None:
            raise fails
        world.effects.append((name, claim.fence, claim.attempt, claim.cause))
        life.reach("effect done")
        return f"receipt {claim.fence}"

    async def charge_async(name: str) -> str:
        return charge(name)

    hooks, place, policy = world.stage.hooks, world.stage.place, Policy(**settings)
    if mode == "threads":
        with Receiver(life.bind(hooks.open_store(place)), policy=policy) as receiver:
            if len(world.names) > 1:
                return list(receiver.process_many(world.names, charge, key=str))
            return [receiver.process(world.names[0], charge, world.names[0])]

    async def awaited() -> list[Any]:
        store = life.bind(hooks.open_async_store(place))
        async with AsyncReceiver(store, policy=policy) as receiver:
            if len(world.names) > 1:
                return list(await receiver.process_many(world.names, charge_async, key=str))
            return [await receiver.process(world.names[0], charge_async, world.names[0])]

    return asyncio.run(awaited())


# --- scenarios: what is done, and what must be true after a death -----------------------------


def _again(world: World, mode: str, settings: dict[str, Any]) -> None:
    for outcome in deliver(world, Life(), mode, settings):
        world.values.add((outcome.key.value, outcome.value))


def _first(world: World, mode: str, before: tuple[int, int] = (0, 0)) -> None:
    """Retry: the next delivery ends it. ``before``: attempts and effects of earlier lives."""
    rows = {name: world.stage.row(name) for name in world.names}
    done = {name: world.of(name) for name in world.names}
    world.stage.lease_ends()
    _again(world, mode, SETTINGS)
    _again(world, mode, SETTINGS)
    for name, row in rows.items():
        effects = world.of(name)
        if row is not None and row.state is State.COMPLETED:
            assert effects == done[name], "a recorded key ran again"
            assert len(effects) == 1, "a record without its effect"
        else:
            started = row is not None and row.attempt > before[0]
            assert len(effects) == len(done[name]) + 1, f"{len(effects)} effects"
            cause = effects[-1][3]
            wanted = Cause.LEASE_EXPIRED if started or before[0] else None
            assert cause is wanted, f"started again because of {cause}, not {wanted}"
        last = world.stage.row(name)
        assert last is not None
        assert last.state is State.COMPLETED
        assert effects[-1][1] == last.fence, "the result of an older fence"
        assert len({value for key, value in world.values if key == name}) == 1, "two results"


def _held(world: World, mode: str) -> None:
    settings = {**SETTINGS, "takeover": "hold"}
    (name,) = world.names
    row, done = world.stage.row(name), world.of(name)
    world.stage.lease_ends()
    if row is not None and row.state is State.IN_PROGRESS:
        for _ in range(2):
            try:
                deliver(world, Life(), mode, settings)
            except HeldError:
                continue
            raise AssertionError("a held key was answered")
        assert world.of(name) == done, "a held key ran again"
        return
    _again(world, mode, settings)
    assert len(world.of(name)) == 1, f"{len(world.of(name))} effects under hold"


def _failed(world: World, mode: str) -> None:
    (name,) = world.names
    row = world.stage.row(name)
    world.stage.lease_ends()
    _again(world, mode, SETTINGS)
    ((_, _, attempt, cause),) = world.of(name)
    if row is None:
        assert (attempt, cause) == (1, None)
    else:
        released = row.state is State.RELEASED
        assert (attempt, cause) == (2, Cause.FAILED if released else Cause.LEASE_EXPIRED)


def _remembered(world: World, mode: str) -> None:
    settings = {**SETTINGS, "remember": (DeclinedError,)}
    row = world.stage.row(world.names[0])
    world.stage.lease_ends()
    try:
        deliver(world, Life(), mode, settings, DeclinedError("no"))
    except DeclinedError:
        assert row is None or row.state is State.IN_PROGRESS, "an answer was given anew"
    except RememberedFailureError:
        assert row is not None
        assert row.state is State.FAILED
    else:
        raise AssertionError("a failure became a success")


def _run(world: World, life: Life, mode: str, settings: dict[str, Any], fails: Any = None) -> None:
    try:
        for outcome in deliver(world, life, mode, settings, fails):
            world.values.add((outcome.key.value, outcome.value))
    except (ValueError, DeclinedError):
        return


def _taken_before(stage: Stage) -> World:
    world = stage.world(1)
    stage.outside.perform(ClaimRequest(Key(world.names[0]), b"dead before us..", LEASE * 1000))
    stage.lease_ends()
    return world


Check = Callable[[World, str], None]

SCENARIOS: Final[dict[str, tuple[Callable[[Stage], World], dict[str, Any], Any, Check]]] = {
    "first delivery": (lambda stage: stage.world(1), SETTINGS, None, _first),
    "batch of three": (lambda stage: stage.world(3), SETTINGS, None, _first),
    "takeover": (_taken_before, SETTINGS, None, functools.partial(_first, before=(1, 0))),
    "hold": (lambda stage: stage.world(1), {**SETTINGS, "takeover": "hold"}, None, _held),
    "failing handler": (lambda stage: stage.world(1), SETTINGS, ValueError("again"), _failed),
    "remembered failure": (
        lambda stage: stage.world(1),
        {**SETTINGS, "remember": (DeclinedError,)},
        DeclinedError("no"),
        _remembered,
    ),
}


@trial("crash points", "C4", "deaths", ("sqlite", *SERVERS, *KEYED))
def crash_sweep(t: Trial) -> None:
    """A worker dies before and after every statement, when its handler starts, and after its effect. Is
    anything lost, repeated without a cause, or answered in two ways?"""
    rng = t.rng
    with tempfile.TemporaryDirectory(prefix="twicesafe-lab-") as folder:
        stage = Stage(t.engine, Path(folder))
        try:
            for mode in ("threads", "tasks"):
                for name in rng.sample(list(SCENARIOS), t.size(3, len(SCENARIOS))):
                    prepare, settings, fails, check = SCENARIOS[name]
                    for life, world in crash_points(
                        functools.partial(prepare, stage),
                        lambda life, world: _run(world, life, mode, settings, fails),  # noqa: B023
                    ):
                        t.tried += not life.alive
                        try:
                            check(world, mode)
                        except AssertionError as error:
                            where = life.died_at or "the end, alive"
                            t.broke(f"{mode}, {name}, died at {where!r}: {error}")
        finally:
            stage.close()
