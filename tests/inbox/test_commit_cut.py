"""The COMMIT is cut at every byte, asked and answered: the next delivery reads what became of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from tests.inbox.cutting import CuttingProxy, Way
from tests.transactions.kinds import open_door

KINDS = ["psycopg", "asyncpg", "pymysql", "asyncmy"]


@pytest.fixture
def proxy_of(request: pytest.FixtureRequest) -> Iterator[Callable[[Shop], CuttingProxy]]:
    proxies: list[CuttingProxy] = []

    def make(shop: Shop) -> CuttingProxy:
        proxies.append(CuttingProxy(shop.url))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


def deliver(
    shop: Shop, url: str, key: str, proxy: CuttingProxy | None, way: Way, after: int
) -> Any:
    """One delivery over its own connection, whose COMMIT may be cut."""
    door = open_door(shop.kind, url)
    try:
        door.begin()
        outcome = shop.process(key, shop.credit(1, door), door=door)
        if proxy is not None:
            proxy.cut(way, after)
        door.commit()
        return outcome
    finally:
        if proxy is not None:
            proxy.cut(way, None)
        with contextlib.suppress(Exception):
            door.close()


@pytest.mark.parametrize("way", ["reply", "request"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_cut_anywhere_is_resolved_by_reading(
    shop_of: Callable[[str], Shop], proxy_of: Callable[[Shop], CuttingProxy], kind: str, way: Way
):
    shop = shop_of(kind)
    proxy = proxy_of(shop)
    door = open_door(kind, proxy.url)
    door.begin()
    shop.process("measured", shop.credit(1, door), door=door)
    proxy.cut(way, None)
    door.commit()
    length = proxy.passed[way]
    door.close()
    assert 5 < length < 100, "that was not the COMMIT alone"

    told = {"committed": 0, "undone": 0}
    for after in range(length):
        key = f"cut-{after}"
        with pytest.raises(Exception):  # noqa: B017, PT011 - each driver has its own words
            deliver(shop, proxy.url, key, proxy, way, after)
        outcome = deliver(shop, shop.url, key, None, way, 0)
        told["committed" if outcome.replayed else "undone"] += 1
        assert shop.receiver.record(key) is not None
    assert shop.credits == [1] * (length + 1)
    if way == "reply":  # the server had committed before it answered
        assert told == {"committed": length, "undone": 0}
    else:
        assert told["undone"] == length
