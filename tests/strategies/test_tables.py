"""Writes to the caller's own table, on every kind of connection: a repeat changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.transactions.kinds import Door
from twicesafe import ConfigurationError, StoreError, UsageError
from twicesafe.strategies import AsyncTable, Table

Open = Callable[[str], Door]


def table(door: Door, **names: Any) -> Any:
    return (AsyncTable if door.is_async else Table)("orders", **names)


@pytest.fixture
def shop(door: Door) -> Door:
    with door.transaction():
        door.sql(
            "CREATE TABLE orders (id VARCHAR(20) PRIMARY KEY, total INTEGER NOT NULL,"
            " version INTEGER NOT NULL DEFAULT 1, slip VARCHAR(20) UNIQUE)"
        )
    return door


def rows(door: Door) -> list[Any]:
    with door.transaction():
        return [tuple(row) for row in door.sql("SELECT id, total, version FROM orders ORDER BY id")]


def test_a_second_insert_is_reported_and_changes_nothing(shop: Door):
    orders = table(shop)
    for total, new in [(5, True), (6, False)]:
        with shop.transaction() as connection:
            done = orders.insert_once(connection, {"id": "o-1", "total": total})
            assert shop.end(done) is new
    assert rows(shop) == [("o-1", 5, 1)]


def test_after_a_repeat_the_transaction_goes_on(shop: Door):
    orders = table(shop)
    with shop.transaction() as connection:
        for id_ in ("o-1", "o-1", "o-2"):
            shop.end(orders.insert_once(connection, {"id": id_, "total": 5}))
    assert [row[0] for row in rows(shop)] == ["o-1", "o-2"]


def test_another_rule_of_the_table_is_an_error_not_a_repeat(shop: Door):
    orders = table(shop)
    with shop.transaction() as connection:
        shop.end(orders.insert_once(connection, {"id": "o-1", "total": 5, "slip": "s"}))
    for row in ({"id": "o-2", "total": 5, "slip": "s"}, {"id": "o-3", "total": None}):
        with pytest.raises(StoreError), shop.transaction() as connection:
            shop.end(orders.insert_once(connection, row))
    assert [row[0] for row in rows(shop)] == ["o-1"]


def test_an_update_needs_the_version_that_was_read(shop: Door):
    orders = table(shop)
    with shop.transaction() as connection:
        shop.end(orders.put(connection, {"id": "o-1", "total": 5}))
        for total, version, done in [(6, 1, True), (6, 1, False), (7, 2, True), (8, 9, False)]:
            changed = orders.update_if_version(connection, "o-1", {"total": total}, version=version)
            assert shop.end(changed) is done
        gone = orders.update_if_version(connection, "absent", {"total": 1}, version=1)
        assert shop.end(gone) is False
    assert rows(shop) == [("o-1", 7, 3)]


def test_setting_twice_is_setting_once(shop: Door):
    orders = table(shop)
    for total in (5, 7, 7):
        with shop.transaction() as connection:
            shop.end(orders.put(connection, {"id": "o-1", "total": total}))
    assert rows(shop) == [("o-1", 7, 1)]


def test_setting_a_row_never_touches_another(shop: Door):
    """Whichever unique key it meets first, and whether its own row is there or not."""
    orders = table(shop)
    with shop.transaction() as connection:
        shop.end(orders.put(connection, {"id": "o-1", "total": 5, "slip": "s"}))
        shop.end(orders.put(connection, {"id": "o-2", "total": 5, "slip": "t"}))
    for id_ in ("o-2", "o-3"):
        with pytest.raises(StoreError), shop.transaction() as connection:
            shop.end(orders.put(connection, {"id": id_, "total": 9, "slip": "s"}))
    by_slip = table(shop, key="slip")
    with pytest.raises(StoreError), shop.transaction() as connection:
        shop.end(by_slip.put(connection, {"id": "o-1", "total": 9, "slip": "t"}))
    assert rows(shop) == [("o-1", 5, 1), ("o-2", 5, 1)]


def test_a_row_of_its_key_alone_is_set_too(shop: Door):
    with shop.transaction():
        shop.sql("CREATE TABLE seen (id VARCHAR(20), part INTEGER, PRIMARY KEY (id, part))")
    seen = (AsyncTable if shop.is_async else Table)("seen", key=("id", "part"))
    with shop.transaction() as connection:
        for part in (1, 1, 2):
            shop.end(seen.put(connection, {"id": "o-1", "part": part}))
        assert [row[1] for row in shop.sql("SELECT id, part FROM seen ORDER BY part")] == [1, 2]


@pytest.mark.parametrize("kind", ["psycopg", "pymysql"])
def test_who_sets_the_same_row_at_once_waits(kind: str, shop: Door, open_kind: Open):
    doors = [open_kind(kind) for _ in range(4)]

    def work(door: Door, number: int) -> None:
        for turn in range(25):
            with door.transaction() as connection:
                table(door).put(connection, {"id": f"o-{turn % 2}", "total": number})

    with ThreadPoolExecutor(len(doors)) as pool:
        list(pool.map(work, doors, range(len(doors))))
    assert [row[0] for row in rows(shop)] == ["o-0", "o-1"]


def test_what_is_rolled_back_may_come_again(shop: Door):
    orders = table(shop)
    shop.begin()
    assert shop.end(orders.insert_once(shop.connection, {"id": "o-1", "total": 5}))
    shop.rollback()
    with shop.transaction() as connection:
        assert shop.end(orders.insert_once(connection, {"id": "o-1", "total": 5}))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Table("orders; drop table orders"),
        lambda: Table("orders", key="a b"),
        lambda: Table("orders", version='"'),
        lambda: Table("orders", key=()),
    ],
)
def test_names_are_checked_not_quoted(make: Callable[[], object]):
    with pytest.raises((ConfigurationError, UsageError)):
        make()


@pytest.mark.parametrize(
    "call",
    [
        lambda orders, c: orders.insert_once(c, {"total": 1}),
        lambda orders, c: orders.insert_once(c, {"id": 1, "total = 1; --": 1}),
        lambda orders, c: orders.insert_once(c, {"id": None, "total": 1}),
        lambda orders, c: orders.put(c, {"total": 1}),
        lambda orders, c: orders.put(c, {"id": None, "total": 1}),
        lambda orders, c: orders.update_if_version(c, ("a", "b"), {"total": 1}, version=1),
        lambda orders, c: orders.update_if_version(c, "a", {"version": 1}, version=1),
        lambda orders, c: orders.update_if_version(c, "a", {"id": "b"}, version=1),
    ],
)
def test_nonsense_is_refused_before_anything_is_sent(
    call: Callable[[Table, Any], object], open_kind: Callable[[str], Door]
):
    door = open_kind("sqlite3")
    with pytest.raises(UsageError), door.transaction() as connection:
        call(Table("orders"), connection)
