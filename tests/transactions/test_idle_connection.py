"""`begin`: a transaction of ours on every kind of connection, if the connection is idle."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transactions.kinds import Door
from twicesafe._transactions.idle_connection import begin, begin_async
from twicesafe.errors import UsageError

INSERT = "INSERT INTO ends (n) VALUES (1)"


@pytest.fixture
def ends(door: Door) -> Door:
    with door.transaction():
        door.sql("CREATE TABLE IF NOT EXISTS ends (n INTEGER)")
    return door


def begun(door: Door) -> Any:
    return door.end((begin_async if door.is_async else begin)(door.connection))


def count(door: Door) -> int:
    with door.transaction():
        ((rows,),) = door.sql("SELECT count(*) FROM ends")
    return int(rows)


def test_what_is_begun_is_committed_or_rolled_back(ends: Door) -> None:
    for commits in (True, False, True):
        transaction = begun(ends)
        ends.sql(INSERT)
        ends.end(transaction.commit() if commits else transaction.rollback())
    assert count(ends) == 2


def test_an_open_transaction_is_left_alone(ends: Door) -> None:
    ends.begin()
    ends.sql(INSERT)
    with pytest.raises(UsageError, match="idle"):
        begun(ends)
    ends.commit()
    assert count(ends) == 1


def test_rolling_back_never_raises(ends: Door) -> None:
    transaction = begun(ends)
    ends.end(transaction.rollback())
    ends.end(transaction.rollback())
