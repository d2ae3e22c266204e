"""What operators do to parked lanes is in the audit of the store, with who and why, or it did not happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.outbox.stage import Broker
from twicesafe import AsyncOutbox, Receiver, State, UsageError
from twicesafe._engines.sql.outbox_programs import OutboxPrograms
from twicesafe.outbox import Outbox, OutboxRelay

Put = Callable[..., list[str]]


def park(outbox: Outbox, put: Put, broker: Broker, *keys: str) -> list[str]:
    """A parked lane for each of these keys."""
    broker.refuses = set(keys)
    for key in keys:
        put(key, key=key)
    OutboxRelay(outbox.store, broker, max_attempts=1).drain()
    lanes = {lane.key: lane.lane for lane in outbox.parked()}
    return [lanes[key] for key in keys]


def acts(url: str) -> list[Any]:
    """The oldest first."""
    with Receiver.open(url) as receiver:
        return receiver.audit_log()[::-1]


def test_who_retried_or_skipped_a_lane_and_why(url: str, outbox: Outbox, put: Put, broker: Broker):
    with Receiver.open(url) as receiver:
        receiver.process("tx-1", int)
        receiver.release("tx-1", by="eva", why="again", force=True)
    first, second = park(outbox, put, broker, "ann", "bob")
    outbox.retry(first, by="Zoë 🦊", why="the broker\ntakes it now")
    outbox.skip(second, by="bob", why="")
    log = acts(url)
    assert [(act.lane, act.action, act.by, act.why, act.key is None) for act in log] == [
        (None, "release", "eva", "again", False),
        (first, "retry", "Zoë 🦊", "the broker\ntakes it now", True),
        (second, "skip", "bob", "", True),
    ]
    assert {act.state_before for act in log[1:]} == {State.PARKED}
    assert log[0].at <= log[1].at <= log[2].at


async def test_the_same_from_tasks(url: str, outbox: Outbox, put: Put, broker: Broker):
    first, second = park(outbox, put, broker, "ann", "bob")
    async with AsyncOutbox.open(url) as awaited:
        await awaited.retry(first, by="ana", why="repaired")
        await awaited.skip(second, by="ana", why="gone")
    assert [(act.lane, act.action) for act in acts(url)] == [(first, "retry"), (second, "skip")]


def test_asyncpg_too(postgres_url: str):
    """Its placeholders and types are its own."""
    import asyncio

    import psycopg

    def refuse(_: Any) -> None:
        raise ValueError("no")

    async def retry(lane: str) -> None:
        url = postgres_url.replace("postgresql:", "postgresql+asyncpg:", 1)
        async with AsyncOutbox.open(url) as awaited:
            await awaited.retry(lane, by="ana", why="repaired")

    with Outbox.open(postgres_url) as outbox:
        with psycopg.connect(postgres_url) as connection:
            outbox.add(connection, topic="t", body="b", key="k")
        OutboxRelay(outbox.store, refuse, max_attempts=1).drain()
        (parked,) = outbox.parked()
        asyncio.run(retry(parked.lane))
    assert [(act.lane, act.by) for act in acts(postgres_url)] == [(parked.lane, "ana")]


def test_an_act_that_changed_nothing_is_not_in_the_audit(
    url: str, outbox: Outbox, put: Put, broker: Broker
):
    (lane,) = park(outbox, put, broker, "ann")
    outbox.retry(lane, by="ana")
    with pytest.raises(UsageError, match="not parked"):
        outbox.retry(lane, by="ana")
    assert len(acts(url)) == 1


def test_the_act_and_its_entry_are_one_transaction(
    url: str, outbox: Outbox, put: Put, broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    (lane,) = park(outbox, put, broker, "ann")

    def die(*_: Any) -> Any:
        raise RuntimeError("dead")

    with monkeypatch.context() as patched:
        patched.setattr(OutboxPrograms, "_resume", die)
        with pytest.raises(RuntimeError, match="dead"):
            outbox.skip(lane, by="ana", why="gone")
    assert acts(url) == []
    assert [parked.lane for parked in outbox.parked()] == [lane]
    outbox.skip(lane, by="ana", why="gone")
    assert len(acts(url)) == 1


def test_a_sweep_of_records_keeps_the_acts_on_lanes(
    url: str, outbox: Outbox, put: Put, broker: Broker
):
    (lane,) = park(outbox, put, broker, "ann")
    outbox.retry(lane, by="ana")
    with Receiver.open(url) as receiver:
        receiver.process("tx-1", int)
        receiver.sweep()
    assert [act.lane for act in acts(url)] == [lane]
