"""`crash_matrix` on durable functions: the process dies at every step, and the first wrong one is named."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from twicesafe import (
    AsyncReceiver,
    AsyncSteps,
    Policy,
    Receiver,
    Steps,
    current_key,
)
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing import Matrix, crash_matrix

receiver = Receiver(MemoryStore(), policy=Policy(max_attempts=10))
effects: list[Any] = []


def once(name: str) -> str:
    """Idempotent by its key, as a good service is."""
    key = current_key()
    assert key is not None
    if key not in effects:
        effects.append(key)
    return name


def append(name: str) -> str:
    effects.append(name)
    return name


def tried(function: Any, **settings: Any) -> Matrix:
    return crash_matrix(
        function,
        "order-1",
        snapshot=lambda: list(effects),
        setup=effects.clear,
        **{"interleavings": 5, **settings},
    )


def flow(charge: Callable[[str], Any]) -> Any:
    @receiver.durable(key="order", scope=["shop"])
    def checkout(steps: Steps, order: str) -> str:
        steps.run("reserve", once, "reserved")
        steps.run("charge", charge, "charged")
        return steps.run("ship", once, f"{order} shipped")

    return checkout


def test_a_flow_of_idempotent_steps_passes() -> None:
    report = tried(flow(once))
    assert report.ok, str(report)
    points = " ".join(trial.name for trial in report.trials)
    for name in ("reserve", "charge", "ship"):
        assert f"before record_step '{name}'" in points
        assert f"after record_step '{name}'" in points


def test_the_step_that_repeats_its_effect_is_named() -> None:
    report = tried(flow(append), interleavings=0)
    assert [trial.name for trial in report.wrong] == ["before record_step 'charge'"]
    with pytest.raises(AssertionError, match="record_step 'charge'"):
        report.check()


def test_async_flows_too() -> None:
    async def awaited(name: str) -> str:
        await asyncio.sleep(0)
        return once(name)

    async def doubled(name: str) -> str:
        return append(name)

    def async_flow(charge: Callable[[str], Awaitable[str]]) -> Any:
        durable = AsyncReceiver.open("memory://", policy=Policy(max_attempts=10)).durable

        @durable(key="order", scope=["shop"])
        async def checkout(steps: AsyncSteps, order: str) -> str:
            await steps.run("reserve", awaited, "reserved")
            return await steps.run("charge", charge, "charged")

        return checkout

    good = tried(async_flow(awaited))
    assert good.ok, str(good)
    bad = tried(async_flow(doubled), interleavings=0)
    assert [trial.name for trial in bad.wrong] == ["before record_step 'charge'"]


def test_hold_never_repeats_a_step() -> None:
    report = tried(flow(append), policy=Policy(takeover="hold", max_attempts=10), interleavings=0)
    assert not any("twice" in trial.fault for trial in report.wrong), str(report)


def test_a_transaction_passes_on_the_users_own_store(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db", check_same_thread=False)
    connection.execute("CREATE TABLE account (cents INTEGER)")

    def credit(connection: sqlite3.Connection, cents: int) -> None:
        connection.execute("INSERT INTO account VALUES (?)", (cents,))

    def clear() -> None:
        with connection:
            connection.execute("DELETE FROM account")

    with Receiver.open(f"sqlite:///{tmp_path}/shop.db", policy=Policy(max_attempts=10)) as mine:

        @mine.durable(key="order", scope=["shop"])
        def deposit(steps: Steps, order: str) -> None:
            steps.transact("credit", connection, credit, 5)

        report = crash_matrix(
            deposit,
            "order-1",
            snapshot=lambda: connection.execute("SELECT cents FROM account").fetchall(),
            setup=clear,
            receiver=mine,
            interleavings=0,
        )
    connection.close()
    assert report.ok, str(report)


def test_a_flow_that_is_suspended_says_what_to_do() -> None:
    @receiver.durable(key="order", scope=["nights"])
    def sleeps(steps: Steps, order: str) -> None:
        steps.sleep("night", 86_400)

    with pytest.raises(AssertionError, match=r"SuspendedError.*sleeps or waits"):
        tried(sleeps)
