"""The database fails around an inbox: nothing is applied without its record, and nothing twice."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inbox.conftest import ENGINE_OF, Shop
from tests.servers.postgres import as_another_user
from tests.servers.process import run
from tests.transactions.kinds import Door, open_door
from twicesafe import (
    Inbox,
    SchemaVersionError,
    State,
    StoreError,
    StoreUnavailableError,
    TwicesafeError,
)

SQLITE = pytest.param("sqlite3", id="sqlite")
SERVERS = [
    pytest.param("psycopg", id="postgresql"),
    pytest.param("pymysql", id="mariadb"),
]
ShopOf = Callable[[str], Shop]


def end_session(shop: Shop, door: Door) -> None:
    """As a server that goes away, or an administrator, does it."""
    own, end = {
        "psycopg": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
        "pymysql": ("SELECT CONNECTION_ID()", "KILL {}"),
    }[shop.kind]
    (number,) = door.sql(own)[0]
    other = shop.another()
    other.sql(end.format(number))
    other.rollback()


def delivered_again(shop: Shop, key: str = "m-1") -> None:
    """On another connection: it runs, and it is applied once."""
    door = shop.another()
    with door.transaction():
        assert not shop.process(key, shop.credit(5, door), door=door).replayed
    with door.transaction():
        assert shop.process(key, shop.credit(6, door), door=door).replayed
    assert shop.credits == [5]


@pytest.mark.parametrize("kind", SERVERS)
def test_a_store_that_is_gone_before_the_claim_runs_nothing(shop_of: ShopOf, kind: str):
    shop, runs = shop_of(kind), []
    shop.door.begin()
    end_session(shop, shop.door)
    with pytest.raises(StoreError, match="did not answer"):
        shop.process("m-1", lambda: runs.append(1))
    assert runs == []
    delivered_again(shop)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_store_that_is_gone_before_the_record_applies_nothing(shop_of: ShopOf, kind: str):
    shop = shop_of(kind)

    def credit_and_lose() -> None:
        shop.door.sql("INSERT INTO credits VALUES (1, 1)")
        end_session(shop, shop.door)

    shop.door.begin()
    with pytest.raises(StoreError, match="did not answer"):
        shop.process("m-1", credit_and_lose)
    with pytest.raises(Exception):  # noqa: B017, PT011 - each driver has its own words
        shop.door.commit()
    assert shop.credits == []
    assert shop.receiver.record("m-1") is None
    delivered_again(shop)


TIME_LIMIT = {
    "sqlite3-implicit": "PRAGMA busy_timeout = 100",
    "psycopg": "SET LOCAL statement_timeout = '100ms'",
    "pymysql": "SET SESSION max_statement_time = 0.1",
}


@pytest.mark.parametrize("kind", [pytest.param("sqlite3-implicit", id="sqlite"), *SERVERS])
def test_a_store_that_does_not_answer_in_time_runs_nothing(shop_of: ShopOf, kind: str):
    """Another transaction holds the key, or on SQLite the file, for longer than this transaction may take."""
    shop, runs = shop_of(kind), []
    slow, hasty = shop.another(), shop.another()
    slow.begin()
    assert shop.accept("m-1", slow)
    hasty.begin()
    hasty.sql(TIME_LIMIT[kind])
    with pytest.raises(TwicesafeError):
        shop.process("m-1", lambda: runs.append(1), door=hasty)
    hasty.rollback()
    slow.rollback()
    assert runs == []
    delivered_again(shop)


RAISES = {
    "postgres": "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'stopped'"
    " USING ERRCODE = '{code}'; END $$;"
    " CREATE TRIGGER stop BEFORE UPDATE ON twicesafe_keys FOR EACH ROW EXECUTE FUNCTION stop()",
    "mariadb": "CREATE TRIGGER stop BEFORE UPDATE ON twicesafe_keys FOR EACH ROW SIGNAL SQLSTATE '70100'"
    " SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'stopped'",
}


@pytest.mark.parametrize(
    "kind, code",
    [
        *((kind, code) for kind in ("psycopg", "asyncpg", "sa-connection:postgresql+psycopg")
          for code in ("25P03", "57014", "53200")),
        *((kind, code) for kind in ("pymysql", "asyncmy", "django:mysql") for code in ("1317", "1969")),
    ],
)  # fmt: skip
def test_a_time_out_at_the_recording_says_nothing_about_the_result(
    shop_of: ShopOf, kind: str, code: str
):
    """An idle transaction that is ended, a cancelled statement, no memory: a redelivery may succeed."""
    shop = shop_of(kind)
    engine = ENGINE_OF[kind]
    owner = open_door({"postgres": "psycopg", "mariadb": "pymysql"}[engine], shop.url)
    owner.sql(RAISES[engine].replace("{code}", code))
    owner.commit()
    with pytest.raises(StoreUnavailableError, match="stopped"), shop.door.transaction():
        shop.process("m-1", shop.credit())
    owner.sql("DROP TRIGGER stop" + (" ON twicesafe_keys" if engine == "postgres" else ""))
    owner.commit()
    owner.close()
    assert shop.noted("m-1") is None, "no attempt is counted"
    delivered_again(shop)


READ_ONLY = {
    "sqlite3": "PRAGMA query_only = ON",
    "psycopg": "SET TRANSACTION READ ONLY",
    "pymysql": "START TRANSACTION READ ONLY",
}


@pytest.mark.parametrize("kind", [SQLITE, *SERVERS])
def test_a_read_only_transaction_runs_nothing(shop_of: ShopOf, kind: str):
    shop, runs = shop_of(kind), []
    shop.door.begin()
    shop.door.sql(READ_ONLY[kind])
    with pytest.raises(StoreUnavailableError, match="is read-only, so the statement"):
        shop.process("m-1", lambda: runs.append(1))
    shop.door.rollback()
    assert runs == []
    delivered_again(shop)


def test_a_full_disk_takes_effect_and_record_or_neither(shop_of: ShopOf):
    shop = shop_of("sqlite3")
    (pages,) = shop.door.sql("PRAGMA page_count")[0]
    shop.door.sql(f"PRAGMA max_page_count = {pages:d}")

    def write() -> str:
        shop.door.sql("INSERT INTO credits VALUES (1, 1)")
        return "x" * 500

    done = 0
    told = ""
    while not told and done < 1000:
        try:
            with shop.door.transaction():
                shop.process(f"m-{done}", write)
            done += 1
        except (StoreError, sqlite3.OperationalError) as error:
            told = str(error)
    assert "full" in told
    assert len(shop.credits) == done
    assert shop.receiver.record(f"m-{done - 1}") is not None
    shop.noted(f"m-{done}")
    shop.door.sql("PRAGMA max_page_count = 100000")
    with shop.door.transaction():
        assert not shop.process(f"m-{done}", write).replayed
    assert len(shop.credits) == done + 1
    assert shop.door.sql("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("kind", [SQLITE, *SERVERS])
def test_a_newer_schema_is_refused(shop_of: ShopOf, kind: str):
    shop = shop_of(kind)
    column = "`schema`" if kind == "pymysql" else "schema"
    with shop.door.transaction():
        shop.door.sql(f"UPDATE twicesafe_meta SET {column} = {column} + 1")
    with pytest.raises(SchemaVersionError, match="upgrade twicesafe"):
        Inbox.open(shop.url)


# --- failover ------------------------------------------------------------------------------------


def deliver(shop: Shop, numbers: range) -> list[bool]:
    """Messages that each credit their own number; which of them were repeats?"""
    replayed = []
    for number in numbers:
        with shop.door.transaction():
            replayed.append(shop.process(f"m-{number}", shop.credit(number)).replayed)
    return replayed


def test_an_older_copy_of_a_file_has_effect_and_record_or_neither(
    shop_of: ShopOf, tmp_path: Path, closing: list[Callable[[], object]]
):
    shop = shop_of("sqlite3")
    deliver(shop, range(3))
    shop.door.begin()
    shop.process("m-3", shop.credit(3))  # on its way while the copy is made
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as source,
        contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy,
    ):
        source.backup(copy)
    shop.door.commit()
    deliver(shop, range(4, 6))
    check_survivor(Shop("sqlite3", f"sqlite:///{tmp_path / 'copy.db'}", closing), 3)


@pytest.mark.timeout(240)
def test_a_failover_loses_effect_and_record_together(
    own_server: Callable[..., Any], closing: list[Callable[[], object]]
):
    primary, standby = own_server("postgres"), own_server("postgres")
    shop = Shop("psycopg", primary.url, closing)
    deliver(shop, range(3))
    standby.stop()
    data = Path(standby.folder) / "data"
    data.rename(data.with_name("unused"))
    source = f"host=127.0.0.1 port={primary.port} user=postgres"
    program = str(primary._programs / "pg_basebackup")
    settings = ["-R", "-X", "stream", "-c", "fast", "--no-sync"]
    run([*as_another_user(), program, "-D", str(data), "-d", source, *settings], standby.folder)
    assert deliver(shop, range(3, 6)) == [False] * 3  # acknowledged, and never replicated
    primary.kill()
    standby.start()
    standby.execute("SELECT pg_promote()")
    check_survivor(Shop("psycopg", standby.url, closing), 3)


def check_survivor(survivor: Shop, kept: int) -> None:
    """What it has is whole; and what comes again is applied once."""
    assert survivor.credits == list(range(kept))
    assert survivor.receiver.stats().by_state[State.COMPLETED] == kept
    assert deliver(survivor, range(6)) == [number < kept for number in range(6)]
    assert survivor.credits == list(range(6))
