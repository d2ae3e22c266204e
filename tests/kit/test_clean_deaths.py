"""A simulated death leaves what a real one leaves: no lock of the process, and no error of its tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from twicesafe.testing import Matrix, crash_matrix, crash_point

world: dict[str, Any] = {}


def bank() -> Any:
    return list(world.get("bank", []))


def tried(handler: Callable[..., Any], **options: Any) -> Matrix:
    return crash_matrix(handler, "o-1", **{"snapshot": bank, "setup": world.clear, **options})


def faults(report: Matrix) -> dict[str, str]:
    return {trial.name: trial.fault for trial in report.trials if trial.kind == "crash"}


@pytest.mark.parametrize("lock", [threading.Lock(), threading.RLock()], ids=["Lock", "RLock"])
def test_a_lock_that_is_released_in_a_finally_is_not_left_locked(lock: Any):
    """A real crash leaves no lock of its process: the next delivery must not wait for it for ever."""

    def careful(order: str) -> str:
        assert lock.acquire(timeout=60), "a dead delivery holds the lock"
        try:
            world["bank"] = [order]
        finally:
            lock.release()
        return order

    report = tried(careful, lines=True, interleavings=20)
    assert report.ok, str(report)
    assert any("world[" in name for name in faults(report))


def test_the_release_of_a_lock_that_outlives_the_process_is_a_point():
    class Lease:
        def release(self) -> None:
            world.pop("held", None)

    lease = Lease()

    def careless(order: str) -> str:
        if "held" in world:
            return "busy"
        world["held"] = True
        world["bank"] = [order]
        lease.release()
        return "paid"

    report = tried(careless, lines=True, interleavings=0)
    assert any("lease.release()" in name and fault for name, fault in faults(report).items())


@pytest.mark.parametrize("lines", [False, True])
def test_a_death_within_a_task_group_is_a_death(lines: bool):
    """It leaves the handler as a group of errors, or as a cancellation."""

    async def both(order: str) -> str:
        async def put(number: int) -> None:
            world.setdefault("bank", {})[order, number] = "put"
            crash_point(f"put {number}")
            await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for number in (1, 2):
                group.create_task(put(number))
        return order

    report = tried(both, lines=lines, interleavings=20, snapshot=lambda: sorted(bank()))
    assert report.ok, str(report)
    assert {"put 1", "put 2"} <= set(faults(report))
