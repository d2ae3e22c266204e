"""The inbox behind every kind of connection: effect and record commit together or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from tests.inbox.conftest import Shop
from tests.transactions.kinds import open_door
from twicesafe import (
    AsyncInbox,
    FingerprintMismatchError,
    Inbox,
    Key,
    Outbox,
    Policy,
    SchemaVersionError,
    State,
    UsageError,
    events,
)


def test_a_message_is_accepted_once(shop: Shop):
    for expected in (True, False, False):
        with shop.door.transaction():
            assert shop.accept("m-1") is expected
            if expected:
                shop.door.sql("INSERT INTO credits (n, amount) VALUES (1, 5)")
    assert shop.credits == [5]
    record = shop.receiver.record("m-1")
    assert record is not None
    assert (record.state, record.attempt, record.value) == (State.COMPLETED, 1, "m-1")


def test_rolled_back_both_are_gone(shop: Shop):
    shop.door.begin()
    assert shop.accept("m-1")
    shop.door.sql("INSERT INTO credits (n, amount) VALUES (1, 5)")
    shop.door.rollback()
    assert shop.credits == []
    assert shop.receiver.record("m-1") is None
    with shop.door.transaction():
        assert shop.accept("m-1")


def test_the_result_is_stored_and_replayed(shop: Shop):
    with shop.door.transaction():
        first = shop.process("m-1", shop.credit(7))
    with shop.door.transaction():
        second = shop.process("m-1", shop.credit(8))
    assert (first.value, first.replayed) == ("credited 7", False)
    assert (second.value, second.replayed) == ("credited 7", True)
    assert (second.fence, second.attempt) == (first.fence, 1)
    assert shop.credits == [7]
    assert shop.receiver.process("m-1", lambda: "other").value == "credited 7"


def test_a_failed_handler_leaves_nothing(lean_shop: Shop):
    def fail(*_: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), lean_shop.door.transaction():
        lean_shop.process("m-1", fail)
    with lean_shop.door.transaction():
        outcome = lean_shop.process("m-1", lean_shop.credit(3))
    assert not outcome.replayed
    assert lean_shop.credits == [3]


def test_twice_in_one_transaction_is_once(lean_shop: Shop):
    with lean_shop.door.transaction():
        assert not lean_shop.process("m-1", lean_shop.credit(1)).replayed
        assert lean_shop.process("m-1", lean_shop.credit(2)).replayed
        assert lean_shop.accept("m-2")
        assert not lean_shop.accept("m-2")
    assert lean_shop.credits == [1]


def test_many_at_once_with_one_verdict_each(shop: Shop):
    with shop.door.transaction():
        assert shop.accept("m-2")
    with shop.door.transaction():
        assert shop.accept_many(["m-1", "m-2", "m-3", "m-1"]) == [True, False, True, False]
    with shop.door.transaction():
        assert shop.accept_many(["m-3", "m-4"]) == [False, True]
        assert shop.accept_many([]) == []


@pytest.mark.parametrize("ids", ["m-1", b"m-1"])
def test_one_id_is_no_batch(lean_shop: Shop, ids: Any):
    """Each of its characters was taken for an id."""
    shop = lean_shop
    with pytest.raises(UsageError, match="for one id use accept"), shop.door.transaction():
        shop.accept_many(ids)


def test_a_repeat_within_one_batch_is_observed_as_a_repeat(lean_shop: Shop):
    told: list[events.Event] = []
    inbox = lean_shop.make(observers=[told.append])
    with lean_shop.door.transaction():
        accepted = inbox.accept_many(lean_shop.door.connection, ["m-1", "m-1", "m-2"])
        assert lean_shop.door.end(accepted) == [True, False, True]
    assert [type(event) for event in told] == [events.Started, events.Replayed, events.Started]


def test_a_wait_of_a_year_is_a_wait(lean_shop: Shop):
    """More than a server's setting can hold."""
    inbox = lean_shop.make(policy=Policy(wait=timedelta(days=365)))
    with lean_shop.door.transaction():
        assert lean_shop.accept("m-1", inbox=inbox)
        assert lean_shop.process("m-2", lean_shop.credit(), inbox=inbox).attempt == 1


def test_the_same_id_with_other_content_is_refused(lean_shop: Shop):
    with lean_shop.door.transaction():
        assert lean_shop.accept("m-1", fingerprint={"amount": 5})
    with pytest.raises(FingerprintMismatchError), lean_shop.door.transaction():
        lean_shop.accept("m-1", fingerprint={"amount": 6})
    with lean_shop.door.transaction():
        assert not lean_shop.accept("m-1", fingerprint={"amount": 5})


def test_long_bytes_are_a_fingerprint_too(lean_shop: Shop):
    long = b"f" * 300
    with lean_shop.door.transaction():
        assert lean_shop.accept("m-1", fingerprint=long)
        assert not lean_shop.accept("m-1", fingerprint=long)
    with pytest.raises(FingerprintMismatchError), lean_shop.door.transaction():
        lean_shop.accept("m-1", fingerprint=long + b"f")


def test_two_consumers_of_one_message_both_run(lean_shop: Shop):
    billing, mail = lean_shop.make(consumer="billing"), lean_shop.make(consumer="mail")
    with lean_shop.door.transaction():
        assert lean_shop.accept("m-1", inbox=billing)
        assert lean_shop.accept("m-1", inbox=mail)
        assert not lean_shop.accept("m-1", inbox=mail)


def test_two_consumers_of_one_message_both_run_whatever_names_it(lean_shop: Shop):
    """Also under a ready key, and with their own scope."""
    billing, mail = lean_shop.make(consumer="billing"), lean_shop.make(consumer="mail")
    ready = Key.from_message(type="order.paid", id="77", source="shop")
    with lean_shop.door.transaction():
        for inbox in (billing, mail, billing.options(scope=("t",)), mail.options(scope=("t",))):
            assert lean_shop.accept("m-1", inbox=inbox)
            assert not lean_shop.accept("m-1", inbox=inbox)
        for inbox in (billing, mail):
            assert lean_shop.accept(ready, inbox=inbox)
            assert not lean_shop.accept(ready, inbox=inbox)
        absolute = Key(ready.value, ready.scope, absolute=True)
        assert [lean_shop.accept(absolute, inbox=inbox) for inbox in (billing, mail)] == [
            True,
            False,
        ]
    assert billing.key(ready).scope == ("billing", "shop", "order.paid")
    assert billing.options(scope=("t",)).key(ready).scope == ("billing", "t", "shop", "order.paid")
    assert billing.options(scope=("t",)).scope == ("billing", "t")


def test_an_inbox_without_consumer_takes_a_ready_key_as_it_is(lean_shop: Shop):
    ready = Key("77", scope=("shop",))
    assert lean_shop.make().key(ready) == ready


def test_texts_of_every_kind_and_large_results(shop: Shop):
    key = "ключ ☃ \U0001f40d 'quoted' %s ? $1"
    large = {"text": "☃" * 5000, "price": Decimal("1.10")}
    with shop.door.transaction():
        shop.process(key, lambda: large)
    with shop.door.transaction():
        assert shop.process(key, lambda: None).value == {
            "text": "☃" * 5000,
            "price": Decimal("1.10"),
        }
    record = shop.receiver.record(key)
    assert record is not None
    assert record.value == key


def test_a_mistaken_database_is_reported(shop_of: Callable[[str], Shop]):
    shop = shop_of("sqlite3")
    connection = open_door("pymysql", shop_of("pymysql").url)
    try:
        with pytest.raises(UsageError, match="open the inbox on the database of your connection"):
            shop.inbox.accept(connection.connection, "m-1")
    finally:
        connection.close()


def test_a_mistaken_database_is_reported_also_when_its_driver_writes_the_same_placeholders(
    shop_of: Callable[[str], Shop],
):
    shop, other = shop_of("psycopg"), shop_of("pymysql")
    with shop.door.transaction():
        assert shop.accept("m-1")
    with (
        pytest.raises(UsageError, match="on postgresql, but the connection is mysql"),
        other.door.transaction(),
    ):
        shop.inbox.accept(other.door.connection, "m-1")


def test_the_tables_of_an_attached_file_are_not_taken(tmp_path: Path):
    """With WAL, SQLite commits attached files one after the other: a crash in between splits effect and record."""
    url = f"sqlite:///{tmp_path}/records.db"
    with (
        closing(sqlite3.connect(tmp_path / "shop.db")) as connection,
        Inbox.open(url) as inbox,
        Outbox.open(url) as outbox,
    ):
        connection.execute("ATTACH ? AS records", (f"{tmp_path}/records.db",))
        for call in (
            lambda: inbox.accept(connection, "m-1"),
            lambda: inbox.process(connection, "m-1", int),
            lambda: outbox.add(connection, topic="t", body="b"),
        ):
            with pytest.raises(SchemaVersionError, match="on the same database"):
                call()
            connection.rollback()


async def test_a_decorated_function_may_return_its_outcome(tmp_path: Path):
    url, file = f"sqlite:///{tmp_path}/outcomes.db", tmp_path / "outcomes.db"

    def pay(connection: Any, order: str) -> str:
        return f"paid {order}"

    async def pay_async(connection: Any, order: str) -> str:
        return f"paid {order}"

    with (
        closing(sqlite3.connect(file, isolation_level=None)) as connection,
        Inbox.open(url) as inbox,
    ):
        decorated = inbox.idempotent(key="order", scope=("pay",), outcome=True)(pay)
        connection.execute("BEGIN IMMEDIATE")
        first, second = decorated(connection, "o-1"), decorated(connection, "o-1")
        connection.execute("COMMIT")
    assert (first.value, first.replayed, second.replayed) == ("paid o-1", False, True)
    async with (
        AsyncInbox.open(url) as other,
        aiosqlite.connect(file, isolation_level=None) as own,
    ):
        awaited = other.idempotent(key="order", scope=("pay",), outcome=True)(pay_async)
        await own.execute("BEGIN IMMEDIATE")
        third, fourth = await awaited(own, "o-1"), await awaited(own, "o-2")
        await own.execute("COMMIT")
    assert (third.value, third.replayed, fourth.replayed) == ("paid o-1", True, False)
