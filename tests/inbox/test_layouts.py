"""Tables and servers of another make: generations on PostgreSQL, MySQL without RETURNING."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.inbox.conftest import Shop
from tests.transactions.kinds import open_door
from twicesafe import AtomicityBrokenError, HeldError, Inbox, Receiver, StoreError
from twicesafe._core.protocol import Sweep
from twicesafe._engines.mysql.in_transaction import MysqlInTransaction


def test_generations_hold_what_a_transaction_writes(postgres_url: str):
    url = f"{postgres_url}?generations=60s"
    with (
        Inbox.open(url) as inbox,
        Receiver.open(url) as receiver,
        psycopg.connect(postgres_url) as connection,
    ):
        connection.execute("CREATE TABLE credits (n int)")
        connection.commit()

        def credit() -> str:
            connection.execute("INSERT INTO credits VALUES (1)")
            return "credited"

        inbox.process(connection, "m-1", credit)
        assert inbox.accept_many(connection, ["a", "b"]) == [True, True]
        # A sweep that turns the generation now waits for this transaction, and gives up in time.
        receiver.store.perform(Sweep(10))
        connection.commit()
        receiver.sweep()
        assert inbox.process(connection, "m-1", credit).replayed
        assert not inbox.accept(connection, "a")
        connection.commit()
        assert receiver.process("m-1", lambda: "other").value == "credited"
        assert connection.execute("SELECT count(*) FROM credits").fetchone() == (1,)


def test_a_key_of_an_older_generation_is_met(postgres_url: str):
    """Its row is in another partition, whose index the insert does not see."""
    url = f"{postgres_url}?generations=60s"
    with Inbox.open(url) as inbox, psycopg.connect(postgres_url) as connection:
        assert inbox.accept(connection, "m-1")
        connection.commit()
        connection.execute(
            "CREATE TABLE twicesafe_g2 PARTITION OF twicesafe_generations FOR VALUES IN (2)"
        )
        connection.execute("UPDATE twicesafe_meta SET generation = 2")
        connection.commit()
        assert not inbox.accept(connection, "m-1")
        assert inbox.accept_many(connection, ["m-1", "m-2"]) == [False, True]
        connection.commit()


def test_generations_refuse_a_snapshot_that_outlives_its_statement(postgres_url: str):
    with (
        Inbox.open(f"{postgres_url}?generations=60s") as inbox,
        psycopg.connect(postgres_url) as connection,
    ):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(StoreError, match="generation"):
            inbox.accept(connection, "m-1")
        connection.rollback()


@pytest.fixture
def mysql_shop(shop_of: Callable[[str], Shop]) -> Shop:
    """As on MySQL: no RETURNING, no compound statements, no time-out for one statement."""
    shop = shop_of("pymysql")
    shop.inbox._runtime.programs["mysql", "%s"] = MysqlInTransaction("twicesafe", mariadb=False)
    return shop


def test_mysql_takes_its_statements_one_by_one(mysql_shop: Shop):
    shop = mysql_shop
    for replayed in (False, True):
        with shop.door.transaction():
            outcome: Any = shop.process("m-1", shop.credit(4))
        assert (outcome.value, outcome.replayed) == ("credited 4", replayed)
    with shop.door.transaction():
        assert shop.accept_many(["a", "m-1", "b"]) == [True, False, True]
    assert shop.credits == [4]


def test_mysql_finds_a_commit_out_too(mysql_shop: Shop):
    shop = mysql_shop
    with pytest.raises(AtomicityBrokenError):
        shop.process("m-1", lambda: (shop.door.sql("COMMIT"), shop.door.sql("BEGIN")) and 1)
    shop.door.rollback()
    with pytest.raises(HeldError), shop.door.transaction():
        shop.process("m-1", shop.credit())


def test_mysql_sees_what_was_committed_after_its_snapshot(mysql_shop: Shop):
    """REPEATABLE READ is the default there: the answer must not come from an old snapshot."""
    shop = mysql_shop
    other = open_door("pymysql", shop.url)
    try:
        shop.door.begin()
        shop.door.sql("SELECT * FROM credits")
        with other.transaction():
            assert shop.process("m-1", shop.credit(2, other), door=other).attempt == 1
        assert shop.process("m-1", shop.credit(3)).replayed
        shop.door.commit()
    finally:
        other.close()
    assert shop.credits == [2]
