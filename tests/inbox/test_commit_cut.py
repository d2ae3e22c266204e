"""The COMMIT is cut at every byte, asked and answered: the next delivery reads what became of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from tests.inbox.cutting import AsyncConnection, Way
from tests.transactions.kinds import open_door

KINDS = ["psycopg", "asyncpg", "pymysql", "asyncmy"]


@pytest.fixture
def wire_of(request: pytest.FixtureRequest) -> Iterator[Callable[[Shop], AsyncConnection]]:
    wires: list[AsyncConnection] = []

    def make(shop: Shop) -> AsyncConnection:
        wires.append(AsyncConnection(shop.url))
        return wires[-1]

    yield make
    for wire in wires:
        wire.close()


def deliver(
    shop: Shop, url: str, key: str, wire: AsyncConnection | None, way: Way, after: int
) -> Any:
    """One delivery over a connection of its own, whose COMMIT may be cut."""
    door = open_door(shop.kind, url)
    try:
        door.begin()
        outcome = shop.process(key, shop.credit(1, door), door=door)
        if wire is not None:
            wire.cut(way, after)
        door.commit()
        return outcome
    finally:
        if wire is not None:
            wire.cut(way, None)
        with contextlib.suppress(Exception):
            door.close()


@pytest.mark.parametrize("way", ["reply", "request"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_cut_anywhere_is_resolved_by_reading(
    shop_of: Callable[[str], Shop], wire_of: Callable[[Shop], AsyncConnection], kind: str, way: Way
):
    shop = shop_of(kind)
    wire = wire_of(shop)
    door = open_door(kind, wire.url)
    door.begin()
    shop.process("measured", shop.credit(1, door), door=door)
    wire.cut(way, None)
    door.commit()
    length = wire.passed[way]
    door.close()
    assert 5 < length < 100, "that was not the COMMIT alone"

    told = {"committed": 0, "undone": 0}
    for after in range(length):
        key = f"cut-{after}"
        with pytest.raises(Exception):  # noqa: B017, PT011 - each driver has its own words
            deliver(shop, wire.url, key, wire, way, after)
        outcome = deliver(shop, shop.url, key, None, way, 0)
        told["committed" if outcome.replayed else "undone"] += 1
        assert shop.receiver.record(key) is not None
    assert shop.credits == [1] * (length + 1)
    if way == "reply":  # the server had committed before it answered
        assert told == {"committed": length, "undone": 0}
    else:
        assert told["undone"] == length
