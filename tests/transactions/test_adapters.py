"""The caller's transaction: found from the object, used and never ended by us, refused if not open."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.transactions.kinds import ALL, Door
from twicesafe import SchemaVersionError, StoreError, UsageError
from twicesafe._engines.sql.commands import Change, Query
from twicesafe._transactions import async_of, of
from twicesafe.stores._base import Program


def adapted(door: Door) -> Any:
    return async_of(door.connection) if door.is_async else of(door.connection)


def only(statement: Query | Change) -> Program[Any]:
    """A program of one statement."""
    return (yield statement)


def run(door: Door, *statements: Query | Change) -> list[Any]:
    """These statements by our adapter, in the caller's transaction."""
    transaction = adapted(door)
    mark = transaction.style
    replies = []
    for statement in statements:
        sql = statement.sql
        for number in range(1, sql.count("?") + 1):
            sql = (
                sql.replace("?", f"${number}" if mark == "$1" else mark, 1) if mark != "?" else sql
            )
        filled = type(statement)(sql, statement.args)

        async def both(ask: Any = filled) -> Any:
            await transaction.check()
            return await transaction.run(only(ask))

        if door.is_async:
            replies.append(door.end(both()))
        else:
            transaction.check()
            replies.append(transaction.run(only(filled)))
    return replies


@pytest.fixture
def table(door: Door) -> Door:
    with door.transaction():
        door.sql("CREATE TABLE things (n INTEGER PRIMARY KEY, body VARCHAR(20))")
    return door


def test_statements_run_in_the_callers_transaction(table: Door):
    table.begin()
    changed, rows = run(
        table,
        Change("INSERT INTO things (n, body) VALUES (1, 'lost')"),
        Query("SELECT n, body FROM things"),
    )
    assert changed == 1
    assert rows == [(1, "lost")]
    table.rollback()
    with table.transaction():
        run(table, Change("INSERT INTO things (n, body) VALUES (2, 'kept')"))
    with table.transaction():
        assert table.sql("SELECT n, body FROM things") == [(2, "kept")]


def test_values_are_bound_and_counted(table: Door):
    with table.transaction():
        for n in (1, 2, 3):
            run(table, Change("INSERT INTO things (n, body) VALUES (?, ?)", (n, f"b{n}")))
        changed, rows = run(
            table,
            Change("DELETE FROM things WHERE n < ?", (3,)),
            Query("SELECT body FROM things WHERE n = ?", (3,)),
        )
    assert changed == 2
    assert rows == [("b3",)]


@pytest.mark.parametrize("value", ["\ud800", 2**80], ids=["no text", "no number"])
def test_a_value_that_no_database_takes_is_refused_not_retried(table: Door, value: object):
    column = "body" if isinstance(value, str) else "n"
    with pytest.raises(StoreError) as told, table.transaction():
        run(table, Change(f"INSERT INTO things ({column}) VALUES (?)", (value,)))
    assert not told.value.retryable


MYSQL = [kind for engine, kind in ALL if engine == "mariadb"]


@pytest.mark.parametrize("session", ["SET sql_mode = 'NO_BACKSLASH_ESCAPES'", "SET NAMES gbk"])
@pytest.mark.parametrize("kind", MYSQL)
def test_bytes_never_become_sql(open_kind: Callable[[str], Door], kind: str, session: str):
    """A key comes from the sender. Drivers that escape bytes by backslashes do so in any session."""
    door = open_kind(kind)
    with door.transaction():
        door.sql("CREATE TABLE things (n INTEGER PRIMARY KEY, body VARBINARY(50))")
    door.sql(session)
    values = (
        b"', 1) -- ",
        "\u4fff', 1) -- ".encode(),
        b"\\', 1) -- ",
        b"\\",
        bytes(range(40)),
        b"",
    )
    with door.transaction():
        for n, value in enumerate(values):
            run(door, Change("INSERT INTO things (n, body) VALUES (?, ?)", (n, value)))
        kept = run(door, Query("SELECT n, HEX(body) FROM things ORDER BY n"))
    assert kept == [[(n, value.hex().upper()) for n, value in enumerate(values)]]


def test_a_missing_table_says_what_to_do(door: Door):
    with pytest.raises(SchemaVersionError, match="twicesafe migrate"), door.transaction():
        run(door, Query("SELECT n FROM nowhere_to_be_found"))


def test_autocommit_is_refused_with_the_remedy(url_of: Callable[[str], str], kind: str):
    from tests.transactions import autocommit

    with (
        autocommit.opened(kind, url_of) as (door, remedy),
        pytest.raises(UsageError, match=f"no open transaction.*{remedy}"),
    ):
        run(door, Change("SELECT 1"))


def test_an_unknown_object_gets_an_error_that_lists_what_is_known():
    for wrong in (object(), 7, None, {}):
        with pytest.raises(UsageError, match=r"sqlite3, psycopg, PyMySQL, SQLAlchemy.*Django"):
            of(wrong)
        with pytest.raises(UsageError, match=r"psycopg, asyncpg, asyncmy.*AsyncSession"):
            async_of(wrong)


def test_the_other_mode_gets_an_error_that_names_the_right_class(door: Door):
    with pytest.raises(UsageError, match=r"use Inbox" if not door.is_async else "AsyncInbox"):
        (of if door.is_async else async_of)(door.connection)


def test_a_text_without_django_is_refused():
    script = (
        "from twicesafe._transactions import of\nfrom twicesafe import UsageError\n"
        "try: of('default')\nexcept UsageError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Django is not loaded" in out.stdout


def test_no_driver_is_loaded_to_recognise_an_object():
    script = (
        "import sys\nbefore = set(sys.modules)\nfrom twicesafe._transactions import of\n"
        "try: of(object())\nexcept Exception: pass\n"
        "print(sorted({m.partition('.')[0] for m in set(sys.modules) - before}"
        " & {'psycopg', 'asyncpg', 'pymysql', 'sqlalchemy', 'django', 'sqlite3', 'asyncmy'}))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_failed_transaction_is_refused_before_anything_is_sent(
    open_kind: Callable[[str], Door],
):
    for kind in ("psycopg", "psycopg-async"):
        door = open_kind(kind)
        with pytest.raises(Exception, match="nowhere"):
            door.sql("SELECT 1 FROM nowhere")
        with pytest.raises(UsageError, match="has failed"):
            run(door, Query("SELECT 1"))
        door.rollback()


def test_cancelled_in_a_statement_the_callers_rollback_ends_it(open_kind: Callable[[str], Door]):
    door = open_kind("psycopg-async")
    door.sql("CREATE TABLE things (n int)")
    door.commit()

    async def cancelled() -> None:
        transaction = async_of(door.connection)
        await transaction.run(only(Change("INSERT INTO things VALUES (1)")))
        task = asyncio.ensure_future(transaction.run(only(Query("SELECT 1 FROM pg_sleep(5)"))))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await door.connection.rollback()

    door.end(cancelled())
    assert door.sql("SELECT count(*) FROM things") == [(0,)]
