"""The crash kit itself: it counts every point, the dead stay dead, and its oracle has teeth."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash import test_sweep as exchanges
from tests.crash.stage import World
from twicesafe import AsyncReceiver, Key, Policy, Receiver
from twicesafe._core.protocol import (
    Ack,
    Claimed,
    ClaimRequest,
    Complete,
    Read,
    Request,
    Verdict,
)
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.events import Event, RenewalFailed
from twicesafe.stores._base import Store
from twicesafe.stores._group_commit import GroupCommit
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.testing._clock import FakeClock
from twicesafe.testing._crash import Died, Life, crash_point, crash_points


def test_a_crash_point_does_nothing_outside_a_life():
    crash_point("anywhere")
    with Life() as life:
        crash_point("inside")
    crash_point("anywhere")
    assert life.passed == ["inside"]
    assert life.alive


def test_every_point_is_died_at_once_and_the_last_life_lives():
    def scenario(life: Life, world: list[str]) -> None:
        for name in "abc":
            crash_point(name)
            world.append(name)

    ended = [(life.died_at, world) for life, world in crash_points(list[str], scenario)]
    assert ended == [("a", []), ("b", ["a"]), ("c", ["a", "b"]), (None, ["a", "b", "c"])]


def test_the_dead_cannot_reach_the_store():
    world = MemoryStore()
    life = Life(dies_at=3)  # before claim, after claim, *in the handler*
    with life:
        Receiver(life.bind(world)).process("k", lambda: crash_point("in the handler"))
    assert life.died_at == "in the handler"
    row = world.perform(Read(Key("k").id))
    assert row.attempt == 1
    assert row.lease_until > row.changed_at  # not released: a dead process cannot say so
    with pytest.raises(Died):
        life.bind(world).perform(Read(Key("k").id))


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_the_lease_keeper_of_a_dead_process_passes_no_point_and_ends_in_silence(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`Died` in its thread would be an unhandled error, which no test can catch."""
    renewed, refused = threading.Event(), threading.Event()
    unhandled: list[type[BaseException]] = []

    def excepthook(args: threading.ExceptHookArgs) -> None:
        unhandled.append(args.exc_type)
        refused.set()

    class Renewing(_Renewing, MemoryStore if engine == "memory" else SqliteStore):
        done = renewed

    monkeypatch.setattr(threading, "excepthook", excepthook)
    world: Store = Renewing() if engine == "memory" else Renewing(tmp_path / "keys.db")
    life = Life()

    def handler() -> None:
        passed = len(life.passed)
        assert renewed.wait(60)
        assert len(life.passed) == passed
        life._dies_at = passed + 1
        try:
            crash_point("in the handler")
        finally:
            assert refused.wait(60)

    def observe(event: Event) -> None:
        if isinstance(event, RenewalFailed):
            refused.set()

    with (
        life,
        Receiver(life.bind(world), policy=Policy(lease=0.3), observers=[observe]) as receiver,
    ):
        receiver.process("k", handler)
    assert life.died_at == "in the handler"
    assert not unhandled


class _Renewing(Store):
    """Tells when a renewal has come through."""

    done: threading.Event

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers = super().perform_many(requests)
        if any(request.op == "renew" for request in requests):
            self.done.set()
        return answers

    def perform(self, request: Request) -> Any:
        answer = super().perform(request)
        if request.op == "renew":
            self.done.set()
        return answer


def test_an_error_that_is_not_the_death_comes_out():
    with pytest.raises(ZeroDivisionError), Life(dies_at=9):
        raise ZeroDivisionError


def test_a_death_of_another_life_comes_out():
    with pytest.raises(Died), Life():
        Life(dies_at=1).reach("elsewhere")


def test_a_scenario_that_wanders_is_refused():
    names = itertools.count()

    def scenario(life: Life, world: object) -> None:
        for _ in range(3):
            crash_point(str(next(names)))

    with pytest.raises(AssertionError, match="other points"):
        list(crash_points(object, scenario))


def test_a_scenario_without_end_is_refused():
    def scenario(life: Life, world: object) -> None:
        while True:
            crash_point("again")

    with pytest.raises(AssertionError, match="more than 5 points"):
        list(crash_points(object, scenario, most=5))


def test_a_batch_in_memory_can_die_between_its_items():
    def scenario(life: Life, world: MemoryStore) -> None:
        asks = [ClaimRequest(Key(k), k.encode() * 16, 1000) for k in "ab"]
        asyncio.run(life.bind(AsyncMemoryStore(world)).perform_many(asks))

    left = [
        [k for k in "ab" if world.perform(Read(Key(k).id))]
        for _, world in crash_points(MemoryStore, scenario)
    ]
    assert left == [[], ["a"], ["a"], ["a", "b"], ["a", "b"]]


def test_async_code_dies_too():
    async def work(life: Life, world: MemoryStore) -> None:
        async with AsyncReceiver(life.bind(AsyncMemoryStore(world))) as receiver:
            await receiver.process("k", asyncio.sleep, 0)

    died = [life.died_at for life, _ in crash_points(MemoryStore, lambda *a: asyncio.run(work(*a)))]
    assert died == ["before claim", "after claim", "before complete", "after complete", None]


class Traced(SqliteStore):
    """SQLite itself tells which statements it ran."""

    told: list[str]

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.set_trace_callback(self.told.append)
        return connection


def test_no_statement_escapes_the_sweep(tmp_path: Path):
    Traced.told = []
    clock = FakeClock()
    store = Traced(tmp_path / "keys.db", now=clock)
    life = Life()
    with Receiver(life.bind(store), policy=Policy(retention=60)) as receiver:
        Traced.told.clear()
        receiver.process("a", lambda: "x" * 5000)
        receiver.process_many(["b", "c"], len, key=str)
        with receiver.claim("d"):
            pass
        receiver.release("d", by="op")
        receiver.record("d")
        receiver.stats()
        clock.advance(61)
        assert receiver.sweep().removed == 4
    statements = [told for told in Traced.told if not told.startswith("-- ")]
    assert len(statements) > 20
    assert len(life.passed) == 2 * len(statements)


# --- teeth -----------------------------------------------------------------------------------


class ForgetsTheEnd(MemoryStore):
    def complete(self, ask: Complete) -> Ack:
        return Ack.OK


class ForgetsTheClaim(MemoryStore):
    def claim(self, ask: ClaimRequest) -> Claimed:
        answer = super().claim(ask)
        if answer.verdict is Verdict.WON:
            del self._rows[ask.key.id]
        return answer


class RestartsFences(MemoryStore):
    def claim(self, ask: ClaimRequest) -> Claimed:
        answer = super().claim(ask)
        if answer.verdict is Verdict.WON:
            answer.fence = self._rows[ask.key.id].fence = 1
        return answer


class NeverHolds(MemoryStore):
    def claim(self, ask: ClaimRequest) -> Claimed:
        ask.hold = False
        return super().claim(ask)


class NeverTakesOver(MemoryStore):
    def claim(self, ask: ClaimRequest) -> Claimed:
        row = self._rows.get(ask.key.id)
        if row is not None and row.lease_until:
            return Claimed(Verdict.BUSY, wait=1000)
        return super().claim(ask)


class HidesTheCause(MemoryStore):
    def claim(self, ask: ClaimRequest) -> Claimed:
        answer = super().claim(ask)
        answer.cause = None
        return answer


class RunsDuplicates(MemoryStore):
    def claim(self, ask: ClaimRequest) -> Claimed:
        self._rows.pop(ask.key.id, None)
        return super().claim(ask)


CAUGHT = [
    (ForgetsTheEnd, exchanges.test_first_delivery),
    (ForgetsTheClaim, exchanges.test_first_delivery),
    (RestartsFences, exchanges.test_takeover),
    (NeverHolds, exchanges.test_hold),
    (NeverTakesOver, exchanges.test_batch_of_three),
    (HidesTheCause, exchanges.test_failing_handler),
    (RunsDuplicates, exchanges.test_duplicate),
]


def run(exchange: Callable[..., None], store: type[MemoryStore], folder: Path, mode: str) -> None:
    arguments: dict[str, Any] = {
        "new_world": lambda: World(None, folder, store),
        "mode": mode,
        "engine": "memory",
    }
    names = exchange.__code__.co_varnames[: exchange.__code__.co_argcount]
    exchange(**{name: arguments[name] for name in names})


@pytest.mark.parametrize("broken, exchange", CAUGHT)
def test_a_broken_store_is_caught(
    broken: type[MemoryStore], exchange: Callable[..., None], tmp_path: Path, mode: str
):
    run(exchange, MemoryStore, tmp_path, mode)
    # What callers see of a broken store may be any error; no error at all would be wrong.
    with pytest.raises((Exception, pytest.fail.Exception)):
        run(exchange, broken, tmp_path, mode)


# --- an interrupt is no crash: the other threads live on --------------------------------------


def test_an_interrupt_in_the_lane_leaves_no_companion_unanswered():
    flying, gathered = threading.Event(), threading.Event()
    turns: list[list[Any]] = []

    def perform_all(requests: list[Any]) -> list[Any]:
        turns.append(requests)
        if len(turns) == 1:
            flying.set()
            gathered.wait(60)
            return ["first"]
        if len(turns) == 2:
            raise KeyboardInterrupt
        return [f"answer to {request}" for request in requests]

    lane = GroupCommit(lambda request: perform_all([request])[0], perform_all)
    answers: dict[str, Any] = {}

    def call(name: str) -> None:
        try:
            answers[name] = lane.perform(name)
        except KeyboardInterrupt:
            answers[name] = KeyboardInterrupt

    threads = [threading.Thread(target=call, args=(name,)) for name in ("a", "b", "c")]
    threads[0].start()
    flying.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(lane._line) < 2:
        threading.Event().wait(0.001)
    gathered.set()
    for thread in threads:
        thread.join(60)
    hit = [name for name, answer in answers.items() if answer is KeyboardInterrupt]
    assert len(hit) == 1
    spared = ({"b", "c"} - set(hit)).pop()
    assert answers == {"a": "first", hit[0]: KeyboardInterrupt, spared: f"answer to {spared}"}
