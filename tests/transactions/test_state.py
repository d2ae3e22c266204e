"""Is a transaction open? Drivers that do not tell are asked by statements; a probe harms no caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.transactions.kinds import Door
from twicesafe import StoreUnavailableError, UsageError
from twicesafe._transactions import of
from twicesafe._transactions.base import TransactionState


def of_a_driver_that_does_not_tell(door: Door) -> Any:
    transaction = of(door.connection)
    transaction.look = lambda answered=False: TransactionState.UNKNOWN  # type: ignore[method-assign]
    return transaction


@pytest.mark.parametrize("kind", ["psycopg", "pymysql"])
def test_a_driver_that_does_not_tell_is_asked(open_kind: Callable[[str], Door], kind: str):
    door = open_kind(kind)
    door.begin()
    of_a_driver_that_does_not_tell(door).check()  # no autocommit
    door.rollback()
    if kind == "psycopg":
        door.connection.autocommit = True
    else:
        door.connection.autocommit(True)
    with pytest.raises(UsageError, match="no open transaction"):
        of_a_driver_that_does_not_tell(door).check()
    door.sql("BEGIN")
    of_a_driver_that_does_not_tell(door).check()
    door.rollback()


def test_a_failed_transaction_is_found_with_this_driver_too(open_kind: Callable[[str], Door]):
    door = open_kind("psycopg")
    with pytest.raises(Exception, match="nowhere"):
        door.sql("SELECT 1 FROM nowhere")
    with pytest.raises(UsageError, match="has failed"):
        of_a_driver_that_does_not_tell(door).check()
    door.rollback()


def test_a_pool_with_one_connection_is_left_alone(tmp_path: Path):
    """The probe for BEGIN would be made on the caller's own connection, and roll it back."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import StaticPool

    only = sqlite3.connect(tmp_path / "shop.db")
    engine = create_engine("sqlite://", creator=lambda: only, poolclass=StaticPool)
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE things (n)"))
        connection.execute(text("INSERT INTO things VALUES (1)"))
        with connection.begin_nested():
            with pytest.raises(UsageError, match="begin_nested"):
                of(connection).check()
            assert only.in_transaction
        connection.commit()
    assert only.execute("SELECT n FROM things").fetchall() == [(1,)]
    engine.dispose()
    only.close()


def test_a_closed_connection_is_an_error_of_ours(open_kind: Callable[[str], Door]):
    door = open_kind("sqlite3")
    door.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        of(door.connection).check()


def test_a_savepoint_alone_is_the_transaction_on_sqlite(open_kind: Callable[[str], Door]):
    """SQLite does not tell it from a BEGIN; what is inside commits together with its release."""
    door = open_kind("sqlite3")
    door.sql("CREATE TABLE things (n)")
    door.sql("SAVEPOINT mine")
    of(door.connection).check()
    door.sql("INSERT INTO things VALUES (1)")
    assert open_kind("sqlite3").sql("SELECT n FROM things") == []
    door.sql("RELEASE mine")
    assert open_kind("sqlite3").sql("SELECT n FROM things") == [(1,)]
