"""The crash sweep: every exchange dies before and after every statement and effect.

The oracle is the fault matrix. What it asks is decided by three facts, read from outside after the
death: was the claim durable, had the effect happened, was the end recorded?

    claim not durable             no trace; the next delivery runs it as if nothing had been
    claimed, no end               retry: taken over after the lease, fence up, cause recorded
                                  hold: never run again, until an operator speaks
    end recorded                  replay; nothing runs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.crash.stage import LEASE, Effect, Worker, World
from twicesafe import Cause, HeldError, Key, RememberedFailureError, State
from twicesafe._core.protocol import ClaimRequest
from twicesafe.testing._crash import Life, crash_points

NewWorld = Callable[[], World]


class Written(NamedTuple):
    """What a life must have made durable, told by the points that it passed."""

    claim: bool
    end: bool


def written(life: Life, engine: str, *, takes_over: bool = False) -> Written:
    start, end = {
        "memory": ("after claim", "after complete"),
        "sqlite": ("after INSERT INTO twicesafe_keys", "after UPDATE twicesafe_keys SET"),
    }[engine]
    if takes_over and engine == "sqlite":
        start = "after COMMIT"  # a takeover reads, decides and writes in one transaction
    claim, _, rest = "\n".join(life.passed).partition("effect done")
    return Written(start in claim, end in rest)


def written_of_batch(life: Life, engine: str, index: int) -> Written:
    if engine == "sqlite":  # one transaction for all claims, one for all ends
        commits = life.passed.count("after COMMIT")
        return Written(commits >= 1, commits >= 2)
    count = life.passed.count
    return Written(count("after claim") > index, count("after complete") > index)


def sweep(new_world: NewWorld, scenario: Callable[[Life, World], object]) -> list[Any]:
    """All ended lives; as many deaths as a life without one passes points."""
    ended = list(crash_points(new_world, scenario))
    survivor = ended[-1][0]
    assert survivor.alive
    assert [life.died_at for life, _ in ended[:-1]] == survivor.passed
    return ended


def check(
    world: World,
    mode: str,
    life: Life,
    key: str = "k",
    *,
    made: Written,
    start: Effect | None = None,
    ahead: bool = False,
    **policy: Any,
) -> None:
    """The fault matrix for one key after one death. ``start``: how its next start must look.

    ``ahead``: it was claimed before it could start, so that claim is not counted.
    """
    start = start or Effect(key, 1, 1, None)
    row = world.row(key)
    done = world.effects_of(key)
    claimed = row is not None and row.fence >= start.fence
    ended = row is not None and row.state is State.COMPLETED
    assert (claimed, ended) == made, life  # P1: what was answered is durable, nothing else is
    assert len(done) <= 1, life
    if done:
        assert done == [start], life

    world.clock.advance(LEASE + 1)
    with world.worker(mode, **policy) as next_process:
        if ended:
            outcome = next_process.deliver(key)
            assert outcome.replayed
            assert world.effects_of(key) == done == [start]
        elif not claimed:
            outcome = next_process.deliver(key)
            assert world.effects_of(key) == [start]
        else:
            assert row is not None
            assert row.state is State.IN_PROGRESS
            outcome = next_process.deliver(key)
            attempt = start.attempt + (not ahead)
            again = Effect(key, start.fence + 1, attempt, Cause.LEASE_EXPIRED)
            assert world.effects_of(key) == [*done, again]
        assert outcome.fence == world.effects_of(key)[-1].fence
        is_the_only_answer(world, next_process, key, uncounted=int(ahead and bool(done)))


def is_the_only_answer(world: World, process: Worker, key: str, uncounted: int = 0) -> None:
    """One result for all callers of all lives, and nothing runs any more."""
    before = list(world.effects)
    for _ in range(2):
        assert process.deliver(key).replayed
    assert world.effects == before
    assert len(world.values[key]) == 1
    row = world.row(key)
    assert row is not None
    assert row.state is State.COMPLETED
    assert row.attempt + uncounted >= len(world.effects_of(key))  # every start was counted
    assert len(world.effects_of(key)) <= 1 or row.cause is not None  # P12


# --- exchanges -------------------------------------------------------------------------------


def test_first_delivery(new_world: NewWorld, mode: str, engine: str):
    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            process.deliver()

    for life, world in sweep(new_world, scenario):
        check(world, mode, life, made=written(life, engine))


def test_claim_by_hand(new_world: NewWorld, mode: str, engine: str):
    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            process.by_hand("k")

    for life, world in sweep(new_world, scenario):
        check(world, mode, life, made=written(life, engine))


def test_batch_of_three(new_world: NewWorld, mode: str, engine: str):
    keys = ["a", "b", "c"]

    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            assert all(answer.ok for answer in process.process_many(keys))

    for life, world in sweep(new_world, scenario):
        for index, key in enumerate(keys):
            made = written_of_batch(life, engine, index)
            check(world, mode, life, key, made=made, ahead=index > 0)


def test_duplicate(new_world: NewWorld, mode: str):
    def prepared() -> World:
        world = new_world()
        with world.worker(mode) as process:
            process.deliver()
        return world

    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            assert process.deliver().replayed

    for _, world in sweep(prepared, scenario):
        with world.worker(mode) as process:
            is_the_only_answer(world, process, "k")
        assert len(world.effects) == 1


def test_takeover(new_world: NewWorld, mode: str, engine: str):
    """The second worker dies too; the third finds the same rules."""

    def prepared() -> World:
        world = new_world()
        world.perform(ClaimRequest(Key("k"), b"dead before us..", LEASE * 1000))
        world.clock.advance(LEASE + 1)
        return world

    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process:
            process.deliver()

    second = Effect("k", 2, 2, Cause.LEASE_EXPIRED)
    for life, world in sweep(prepared, scenario):
        made = written(life, engine, takes_over=True)
        check(world, mode, life, made=made, start=second)


def test_failing_handler(new_world: NewWorld, mode: str):
    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life) as process, pytest.raises(ValueError, match="try again"):
            process.deliver(fails=ValueError("try again"))

    for _, world in sweep(new_world, scenario):
        row = world.row("k")
        cause = None
        if row is not None:
            released = row.state is State.RELEASED
            assert released or row.state is State.IN_PROGRESS
            cause = Cause.FAILED if released else Cause.LEASE_EXPIRED
        world.clock.advance(LEASE + 1)
        with world.worker(mode) as process:
            process.deliver()
            start = 1 if row is None else 2
            assert world.effects == [Effect("k", start, start, cause)]
            is_the_only_answer(world, process, "k")


class DeclinedError(Exception):
    """A failure that is the answer."""


def test_remembered_failure(new_world: NewWorld, mode: str):
    policy = {"remember": (DeclinedError,)}

    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life, **policy) as process, pytest.raises(DeclinedError):
            process.deliver(fails=DeclinedError("no"))

    for life, world in sweep(new_world, scenario):
        row = world.row("k")
        ended = row is not None and row.state is State.FAILED
        world.clock.advance(LEASE + 1)
        with world.worker(mode, **policy) as process:
            if not ended:
                with pytest.raises(DeclinedError):
                    process.deliver(fails=DeclinedError("no"))
            for _ in range(2):
                with pytest.raises(RememberedFailureError, match="DeclinedError: no"):
                    process.deliver()
        assert world.effects == [], life  # the handler that would succeed never ran
        last = world.row("k")
        assert last is not None
        assert last.attempt == (2 if row is not None and not ended else 1)


def test_hold(new_world: NewWorld, mode: str, engine: str):
    """At most once: what died in mid-work is never run again by itself."""
    policy = {"takeover": "hold"}

    def scenario(life: Life, world: World) -> None:
        with world.worker(mode, life, **policy) as process:
            process.deliver()

    for life, world in sweep(new_world, scenario):
        row = world.row("k")
        if row is None or row.state is State.COMPLETED:
            check(world, mode, life, made=written(life, engine), **policy)
            assert len(world.effects) == 1
            continue
        assert written(life, engine) == (True, False)
        done = list(world.effects)
        world.clock.advance(LEASE + 1)
        with world.worker(mode, **policy) as process:
            for _ in range(2):
                with pytest.raises(HeldError):
                    process.deliver()
            assert world.effects == done
            # Not lost: an operator who looked at the outside world gives it its end.
            if done:
                process.operate("resolve", "k", "receipt 1", by="op", why="it was paid")
            else:
                process.operate("release", "k", by="op", why="it was not paid")
            process.deliver()
            is_the_only_answer(world, process, "k")
            assert len(world.effects) == 1
