"""A handler that ends the transaction it was given is found out, and nothing says "done"."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from twicesafe import AtomicityBrokenError, HeldError, State, UsageError

ENDS = {
    "commit": ["COMMIT"],
    "commit and begin again": ["COMMIT", "BEGIN"],
    "rollback": ["ROLLBACK"],
    "rollback and begin again": ["ROLLBACK", "BEGIN"],
}


def ending(shop: Shop, statements: list[str]) -> Callable[..., Any]:
    """A handler that writes, ends the transaction, and writes again."""
    texts = ["INSERT INTO credits VALUES (1, 1)", *statements, "INSERT INTO credits VALUES (1, 2)"]

    def work() -> Any:
        if not shop.door.is_async:
            return [shop.door.sql(text) for text in texts] and None

        async def awaited() -> None:
            for text in texts:
                await shop.door.asql(text)

        return awaited()

    return work


@pytest.mark.parametrize("end", ENDS)
def test_a_handler_that_ends_the_transaction_is_found_out(lean_shop: Shop, end: str):
    shop = lean_shop
    shop.door.begin()
    with pytest.raises(AtomicityBrokenError, match="ended the caller's transaction") as caught:
        shop.process("m-1", ending(shop, ENDS[end]))
    assert caught.value.key is not None
    shop.door.sql("ROLLBACK") if "begin" in end else None
    record = shop.receiver.record("m-1")
    if end.startswith("commit"):  # half of the work is there: it is repeated only on request
        assert record is not None
        assert record.state is State.IN_PROGRESS
        another = shop.another()
        with pytest.raises(HeldError), another.transaction():
            shop.process("m-1", shop.credit(9, another), door=another)
    else:
        assert record is None


@pytest.mark.parametrize("kind", ["sqlite3", "psycopg", "asyncpg", "pymysql"])
def test_what_is_committed_after_a_rollback_has_no_record(
    shop_of: Callable[[str], Shop], kind: str
):
    """The rollback took the record with it, so nothing holds the key: the error must not say so."""
    shop = shop_of(kind)
    shop.door.begin()
    again = ["ROLLBACK", "BEGIN", "INSERT INTO credits VALUES (1, 3)", "COMMIT", "BEGIN"]
    with pytest.raises(AtomicityBrokenError, match="if it rolled back, the next delivery runs"):
        shop.process("m-1", ending(shop, again))
    shop.door.sql("ROLLBACK")
    assert shop.credits == [3]
    assert shop.receiver.record("m-1") is None
    another = shop.another()
    with another.transaction():
        assert not shop.process("m-1", shop.credit(9, another), door=another).replayed
    assert shop.credits == [3, 9]


@pytest.mark.parametrize("kind", ["sa-session:mysql+pymysql", "pymysql", "asyncmy", "django:mysql"])
def test_a_change_of_the_schema_commits_on_mysql(shop_of: Callable[[str], Shop], kind: str):
    shop = shop_of(kind)
    shop.door.begin()
    with pytest.raises(AtomicityBrokenError):
        shop.process("m-1", ending(shop, ["CREATE TABLE other (n INT)"]))
    record = shop.receiver.record("m-1")
    assert record is not None
    assert record.state is State.IN_PROGRESS


@pytest.mark.parametrize("kind", ["sqlite3", "psycopg", "asyncpg"])
def test_a_change_of_the_schema_is_part_of_the_transaction_elsewhere(
    shop_of: Callable[[str], Shop], kind: str
):
    shop = shop_of(kind)
    with shop.door.transaction():
        shop.process("m-1", ending(shop, ["CREATE TABLE other (n INT)"]))
    assert shop.credits == [1, 2]


def test_savepoints_are_fine(lean_shop: Shop):
    shop = lean_shop
    undone = ["SAVEPOINT a", "INSERT INTO credits VALUES (1, 50)", "ROLLBACK TO SAVEPOINT a"]
    with shop.door.transaction():
        shop.process("m-1", ending(shop, undone))
    assert shop.credits == [1, 2]
    with shop.door.transaction():
        assert shop.process("m-1", shop.credit(9)).replayed


def test_a_savepoint_of_the_caller_takes_the_record_with_it(lean_shop: Shop):
    shop = lean_shop
    with shop.door.transaction():
        shop.accept("m-0")
        shop.door.sql("SAVEPOINT mine")
        shop.process("m-1", shop.credit(1))
        shop.door.sql("ROLLBACK TO SAVEPOINT mine")
        assert not shop.process("m-1", shop.credit(2)).replayed
    assert shop.credits == [2]


@pytest.mark.parametrize(
    "kind",
    ["psycopg", "psycopg-async", "asyncpg", "sa-session:postgresql+psycopg",
     "sa-async:postgresql+asyncpg"],
)  # fmt: skip
def test_an_error_that_the_handler_swallowed_is_no_success(
    shop_of: Callable[[str], Shop], kind: str
):
    """PostgreSQL would answer the COMMIT with a ROLLBACK, and no caller would know."""
    shop = shop_of(kind)

    def swallow() -> Any:
        if not shop.door.is_async:
            with pytest.raises(Exception, match="nowhere"):
                shop.door.sql("INSERT INTO nowhere VALUES (1)")
            return "all well"

        async def awaited() -> str:
            with pytest.raises(Exception, match="nowhere"):
                await shop.door.asql("INSERT INTO nowhere VALUES (1)")
            return "all well"

        return awaited()

    with pytest.raises(AtomicityBrokenError, match="after an error"), shop.door.transaction():
        shop.process("m-1", swallow)
    assert shop.receiver.record("m-1") is None


def test_a_failed_transaction_is_refused_at_once(shop_of: Callable[[str], Shop]):
    for kind in ("psycopg", "asyncpg"):
        shop = shop_of(kind)
        shop.door.begin()
        with pytest.raises(Exception, match="nowhere"):
            shop.door.sql("SELECT 1 FROM nowhere")
        with pytest.raises(UsageError, match="roll it back"):
            shop.accept("m-1")
        shop.door.rollback()
        shop.door.begin()
        shop.door.sql("DROP TABLE credits")
        shop.door.commit()


def test_a_handler_that_asks_for_its_own_key_gets_an_error(lean_shop: Shop):
    from twicesafe import StillInProgressError

    shop = lean_shop
    connection = shop.door.connection

    def again() -> Any:
        inner = shop.inbox.process(connection, "m-1", shop.door.handler(lambda: 1))
        return inner if inspect.isawaitable(inner) else None

    with pytest.raises(StillInProgressError, match="runs under"), shop.door.transaction():
        shop.process("m-1", again)
