"""The crash sweep of what operators and timers do: each act happens whole, with its audit entry, or
not at all; repeating it after a crash is always right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.stage import LEASE, RETENTION, World
from tests.crash.test_sweep import NewWorld, is_the_only_answer, sweep
from twicesafe import Cause, Key, ResultUnavailableError, State
from twicesafe._core.protocol import ClaimRequest
from twicesafe.testing._crash import Life


def dead_in_mid_work(new_world: NewWorld) -> Callable[[], World]:
    def prepare() -> World:
        world = new_world()
        world.perform(ClaimRequest(Key("k"), b"dead before us..", LEASE * 1000))
        return world

    return prepare


def completed(new_world: NewWorld, mode: str) -> Callable[[], World]:
    def prepare() -> World:
        world = new_world()
        with world.worker(mode) as process:
            process.deliver()
        return world

    return prepare


def happened(world: World, before: State, after: State) -> bool:
    """Did the operator's act happen? Whole or not at all, and the audit trail knows."""
    row = world.row("k")
    assert row is not None
    assert row.state in (before, after)
    assert [entry.by for entry in world.audit("k")] == ["op"] * (row.state is after)
    return row.state is after


def test_release(new_world: NewWorld, mode: str):
    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            process.operate("release", "k", by="op")

    for _, world in sweep(dead_in_mid_work(new_world), scenario):
        with world.worker(mode) as process:
            if not happened(world, State.IN_PROGRESS, State.RELEASED):
                process.operate("release", "k", by="op")
            process.deliver()  # at once: no delivery waits for the dead worker's lease
            is_the_only_answer(world, process, "k")
        (effect,) = world.effects
        assert effect.fence == 3  # the dead one had 1, the release fenced it off with 2
        assert effect.cause is Cause.OPERATOR


def test_resolve(new_world: NewWorld, mode: str):
    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            process.operate("resolve", "k", "found out", by="op")

    for _, world in sweep(dead_in_mid_work(new_world), scenario):
        with world.worker(mode) as process:
            if not happened(world, State.IN_PROGRESS, State.COMPLETED):
                process.operate("resolve", "k", "found out", by="op")
            assert process.deliver().value == "found out"
        assert world.effects == []


def test_forget(new_world: NewWorld, mode: str):
    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            process.operate("forget", "k", by="op")

    for _, world in sweep(completed(new_world, mode), scenario):
        with world.worker(mode) as process:
            if not happened(world, State.COMPLETED, State.FORGOTTEN):
                is_the_only_answer(world, process, "k")
                process.operate("forget", "k", by="op")
            with pytest.raises(ResultUnavailableError):
                process.deliver()
        assert len(world.effects) == 1


def test_sweep(new_world: NewWorld, mode: str):
    """Fences do not restart, work in progress stays, and what is kept keeps its answer."""

    def prepare() -> World:
        world = new_world()
        with world.worker(mode) as process:
            for key in ("a", "b"):
                process.deliver(key)
            # So that b's fence is ahead of the others'.
            process.operate("release", "b", by="op", force=True)
            process.deliver("b")
        world.perform(ClaimRequest(Key("running"), b"dead before us..", LEASE * 1000))
        world.clock.advance(RETENTION + 1)
        with world.worker(mode) as process:
            process.deliver("kept")
        world.effects.clear()
        world.values.clear()
        return world

    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            assert process.operate("sweep").removed == 2

    for _, world in sweep(prepare, scenario):
        running = world.row("running")
        assert running is not None
        assert running.state is State.IN_PROGRESS
        with world.worker(mode) as process:
            is_the_only_answer(world, process, "kept")
            process.operate("sweep")
            for key, last_fence in (("a", 1), ("b", 3)):
                outcome = process.deliver(key)
                assert not outcome.replayed
                assert outcome.fence > last_fence
            assert process.operate("sweep").removed == 0
        assert world.row("running") == running
