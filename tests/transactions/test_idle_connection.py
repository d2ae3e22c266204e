"""`begin`: a transaction of ours on every kind of connection, if the connection is idle."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transactions.kinds import Door
from twicesafe._transactions import class_of
from twicesafe._transactions.idle_connection import begin, begin_async
from twicesafe.errors import UsageError

BLOCKING = [
    "sqlite3", "sa-connection:sqlite", "django:sqlite3", "psycopg", "sa-session:postgresql+psycopg",
    "django:postgresql", "pymysql", "django:mysql",
]  # fmt: skip
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


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("kind", BLOCKING)
def test_a_begin_that_is_interrupted_leaves_the_connection_idle(
    ends: Door, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the server's answer and ours. Of cancelled tasks: tests/durable/test_transact.py."""
    cls = class_of(ends.connection)
    whole = cls.ends(ends.connection)

    def interrupted() -> None:
        whole.begin()
        raise Interrupted

    monkeypatch.setattr(cls, "ends", staticmethod(lambda _: whole._replace(begin=interrupted)))
    with pytest.raises(Interrupted):
        begin(ends.connection)
    monkeypatch.undo()
    begin(ends.connection).rollback()


@pytest.mark.parametrize("kind", ["sa-connection:sqlite", "sa-async:postgresql+asyncpg"])
@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint", "rollback_only"])
def test_a_session_in_a_transaction_of_its_connection_is_refused(
    ends: Door, kind: str, mode: Any
) -> None:
    """Its commit would commit nothing."""
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    make: Any = AsyncSession if ends.is_async else Session
    session = make(bind=ends.connection, join_transaction_mode=mode)
    ends.begin()
    ends.sql(INSERT)
    with pytest.raises(UsageError, match="idle"):
        ends.end((begin_async if ends.is_async else begin)(session))
    ends.commit()
    transaction = ends.end((begin_async if ends.is_async else begin)(session))
    ends.end(transaction.rollback())
    assert count(ends) == 1
