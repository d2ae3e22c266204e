"""MariaDB: what opening a store says, refuses and migrates."""

from __future__ import annotations

import pickle
import socket
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from twicesafe import AsyncReceiver, Receiver
from twicesafe._engines.mysql import MysqlStore
from twicesafe._engines.mysql.settings import Settings
from twicesafe._engines.sql.migrations import statements_of
from twicesafe.errors import (
    ConfigurationError,
    SchemaVersionError,
    StoreUnavailableError,
    TwicesafeError,
)

SECRET = "hunter2:%/ü😀"
WRITTEN = "hunter2%3A%25%2F%C3%BC%F0%9F%98%80"


def shown(error: BaseException) -> str:
    """Everything that a log could show of an error, without the source code."""
    lines = traceback.format_exception_only(error)
    seen = error.__cause__
    while seen is not None:
        lines += [*traceback.format_exception_only(seen), repr(seen)]
        seen = seen.__cause__ or seen.__context__
    return "".join([*lines, repr(error), repr(getattr(error, "__dict__", ""))])


def refused(url: str, kind: type[TwicesafeError]) -> str:
    """What opening says, long before the operating system would give up, without the password."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        MysqlStore.open(url)
    assert time.monotonic() - began < 60
    text = shown(caught.value)
    assert "hunter2" not in text
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message
    return str(caught.value)


# --- what is said ----------------------------------------------------------------------------


def test_a_wrong_password(mariadb: Any):
    url = f"mysql://stranger:{WRITTEN}@127.0.0.1:{mariadb.port}/mysql"
    assert "check user and password" in refused(url, ConfigurationError)


def test_a_missing_database(mariadb: Any):
    url = f"mysql://root@127.0.0.1:{mariadb.port}/no_such_shop"
    assert "create it first" in refused(url, ConfigurationError)


def test_a_user_without_privileges(mariadb: Any, mariadb_url: str):
    mariadb.execute("CREATE USER IF NOT EXISTS clerk@localhost")
    mariadb.execute("CREATE USER IF NOT EXISTS clerk@'127.0.0.1'")
    url = mariadb_url.replace("root@", "clerk@")
    assert "privilege" in refused(url, ConfigurationError)


def test_no_server_listens():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"mysql://u:{WRITTEN}@127.0.0.1:{probe.getsockname()[1]}/shop"
        assert "check that the server is up" in refused(url, StoreUnavailableError)


def test_a_server_that_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"mysql://u:{WRITTEN}@127.0.0.1:{mute.getsockname()[1]}/shop?timeout=1"
        refused(url, StoreUnavailableError)


def test_a_host_that_does_not_exist():
    assert "host and port" in refused("mysql://u@no-such-host.invalid/shop", StoreUnavailableError)


@pytest.mark.parametrize(
    "url, remedy",
    [
        ("mysql://u@localhost", "names a database"),
        ("mysql://u@localhost/", "names a database"),
        ("mysql://u@localhost:port/shop", "port"),
        ("mysql://u@localhost/shop?tabel=x", "did you mean 'table'"),
        ("mysql://u@localhost/shop?table=x;drop", "is refused"),
        ("mysql://u@localhost/shop?table=`x`", "is refused"),
        ("mysql://u@localhost/shop?pool=0", "1 or more"),
        ("mysql://u@localhost/shop?pool=many", "a whole number"),
        ("mysql://u@localhost/shop?timeout=0", "1 or more"),
        ("mysql://u@localhost/shop?ssl=maybe", "prefer, off, require, verify"),
        ("mysql://u@localhost/shop?ssl=verify&ssl_ca=/no/such/file.pem", "cannot be read"),
    ],
)
def test_urls_that_make_no_sense(url: str, remedy: str):
    assert remedy in refused(url, ConfigurationError)


def test_tls_that_is_demanded_and_not_there(mariadb: Any, mariadb_url: str):
    for demand in ("require", "verify"):
        assert "TLS" in refused(f"{mariadb_url}?ssl={demand}", ConfigurationError)
    for wish in ("prefer", "off"):
        MysqlStore.open(f"{mariadb_url}?ssl={wish}").close()


def test_the_password_is_used_and_never_shown(mariadb: Any, mariadb_url: str):
    with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection:
        for host in ("localhost", "127.0.0.1"):
            connection.cursor().execute(
                f"GRANT ALL ON *.* TO boss@'{host}' IDENTIFIED BY %s", (SECRET,)
            )
    url = mariadb_url.replace("mysql://root@", f"mariadb://boss:{WRITTEN}@")
    with Receiver.open(url) as receiver:
        assert receiver.process("k", lambda: 1).value == 1
        for text in (repr(receiver.store), receiver.store.url, repr(receiver.store.settings)):
            assert "hunter2" not in text
            assert "boss:***@" in text


# --- what is migrated ------------------------------------------------------------------------


def tables(url: str) -> set[str]:
    settings = Settings.of(url)
    with pymysql.connect(
        host=settings.host, port=settings.port, user="root", database=settings.database
    ) as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW TABLES")
        return {name for (name,) in cursor.fetchall()}


@pytest.fixture
def statements(mariadb_url: str) -> Iterator[Any]:
    settings = Settings.of(mariadb_url)
    with pymysql.connect(
        host=settings.host,
        port=settings.port,
        user="root",
        database=settings.database,
        autocommit=True,
    ) as connection:
        yield connection.cursor()


def test_opening_migrates_once_and_says_so(mariadb_url: str):
    first = MysqlStore.open(mariadb_url)
    assert first.migrated == ["twicesafe: schema 0 → 3 (new tables)"]
    second = MysqlStore.open(mariadb_url)
    assert second.migrated == []
    other = MysqlStore.open(f"{mariadb_url}?table=shop")
    assert tables(mariadb_url) == {
        f"{table}_{part}" for table in ("twicesafe", "shop") for part in ("keys", "meta", "audit")
    }
    for store in (first, second, other):
        store.close()


def test_a_migration_that_died_is_started_anew(mariadb_url: str, statements: Any):
    """Every statement commits by itself here: the crash may fall behind any of them."""
    store = MysqlStore.open(mariadb_url)
    steps = statements_of(store._schema.sql(3, 0))
    assert len(steps) == 7
    for died_after in range(len(steps) + 1):
        table = f"t{died_after}"
        for statement in steps[:died_after]:
            statements.execute(statement.replace("twicesafe_", f"{table}_"))
        with Receiver.open(f"{mariadb_url}?table={table}") as receiver:
            assert receiver.store.migrated
            assert receiver.process("k", lambda: 1).value == 1
    store.close()


def test_a_migration_waits_for_another(mariadb_url: str, statements: Any):
    statements.execute(
        "SELECT GET_LOCK(CONCAT('twicesafe:', LEFT(SHA1(CONCAT(DATABASE(), '.twicesafe')), 40)), 0)"
    )
    assert statements.fetchone() == (1,)
    text = refused(f"{mariadb_url}?timeout=1", StoreUnavailableError)
    assert "another process" in text
    assert tables(mariadb_url) == set()


def test_a_newer_schema_is_refused(mariadb_url: str, statements: Any):
    MysqlStore.open(mariadb_url).close()
    statements.execute("UPDATE twicesafe_meta SET `schema` = 99")
    assert "upgrade twicesafe" in refused(mariadb_url, SchemaVersionError)


def test_no_schema_and_no_leave_to_make_one(mariadb_url: str):
    assert "twicesafe migrate" in refused(f"{mariadb_url}?migrate=false", SchemaVersionError)
    assert tables(mariadb_url) == set()


async def test_the_async_form_says_the_same(mariadb_url: str):
    receiver = AsyncReceiver.open(f"{mariadb_url}?migrate=false")  # nothing is connected yet

    async def handle() -> None:
        raise AssertionError("not reached")

    with pytest.raises(SchemaVersionError, match="twicesafe migrate"):
        await receiver.process("k", handle)
    await receiver.close()


# --- what a doctor finds ---------------------------------------------------------------------


def test_a_doctor_checks_what_the_guarantees_depend_on(own_server: Any):
    server = own_server(
        "mariadb",
        innodb_flush_log_at_trx_commit="2",
        log_bin="binlog",
        sync_binlog="0",
        server_id="1",
        binlog_format="MIXED",
    )
    server.execute("CREATE DATABASE shop")
    store = MysqlStore.open(server.url_of("shop"))
    found = {finding.what.split("=")[0].split(":")[0]: finding.level for finding in store.doctor()}
    assert found["innodb_flush_log_at_trx_commit"] == "warn"
    assert found["sync_binlog"] == "warn"
    assert found["tables are InnoDB"] == "ok"
    server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    server.execute("SET GLOBAL sync_binlog = 1")
    assert {finding.level for finding in store.doctor()} == {"ok"}
    server.execute("ALTER TABLE shop.twicesafe_keys ENGINE=Aria")
    assert [f.what for f in store.doctor() if f.level == "refuse"] == [
        "the records are in Aria, which has no transactions"
    ]
    store.close()


def test_statement_based_replication_is_refused_by_name(own_server: Any):
    server = own_server("mariadb", log_bin="binlog", server_id="1", binlog_format="STATEMENT")
    server.execute("CREATE DATABASE shop")
    with pytest.raises(ConfigurationError, match="ROW or MIXED"):
        MysqlStore.open(server.url_of("shop"))


def test_what_a_server_sets_in_every_session_changes_no_answer(own_server: Any):
    limits = "SET sql_select_limit = 1, sql_safe_updates = 1, max_join_size = 1"
    server = own_server("mariadb", init_connect=limits)
    server.execute("CREATE DATABASE shop")
    server.execute("CREATE USER clerk")  # init_connect is not run for root
    server.execute("GRANT ALL ON shop.* TO clerk")
    url = server.url_of("shop").replace("root@", "clerk@")
    with Receiver.open(url) as receiver:
        assert len(receiver.process_many("abc", str.upper, key=str)) == 3
        with pytest.raises(ZeroDivisionError):
            receiver.process("d", divmod, 1, 0)
        assert sorted(receiver.stats().by_state.values()) == [1, 3]
        receiver.sweep()


@pytest.mark.parametrize("setting", ["autocommit = 0", "completion_type = CHAIN"])
def test_a_claim_is_committed_whatever_the_server_sets_in_every_session(
    own_server: Any, setting: str
):
    server = own_server("mariadb", init_connect=f"SET {setting}")
    server.execute("CREATE DATABASE shop")
    server.execute("CREATE USER clerk")  # init_connect is not run for root
    server.execute("GRANT ALL ON shop.* TO clerk")

    def states() -> list[str]:
        """As another process sees them."""
        with Receiver.open(server.url_of("shop")) as other:
            return sorted(state.value for state in other.stats().by_state)

    with Receiver.open(server.url_of("shop").replace("root@", "clerk@")) as receiver:
        assert receiver.process("first", states).value == ["in_progress"]
        receiver.forget("first", by="clerk")  # a transaction of several statements
        assert receiver.process("second", states).value == ["forgotten", "in_progress"]
    assert states() == ["completed", "forgotten"]


@pytest.mark.parametrize("word, opens", [("OFF", True), ("ON", False), ("NO_LOCK", False)])
def test_mariadb_12_says_in_a_word_whether_it_is_read_only(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch, word: str, opens: bool
):
    import pymysql.cursors

    execute = pymysql.cursors.Cursor.execute

    def answer_as_mariadb_12(cursor: Any, sql: str, args: Any = None) -> Any:
        return execute(cursor, sql.replace("@@read_only", f"'{word}'"), args)

    monkeypatch.setattr(pymysql.cursors.Cursor, "execute", answer_as_mariadb_12)
    if opens:
        MysqlStore.open(mariadb_url).close()
    else:
        assert "connect to the primary" in refused(mariadb_url, StoreUnavailableError)


def test_a_read_only_server_is_refused(own_server: Any):
    server = own_server("mariadb")
    server.execute("CREATE DATABASE shop")
    for host in ("localhost", "127.0.0.1"):
        server.execute(f"CREATE USER clerk@'{host}'")
        server.execute(f"GRANT ALL ON shop.* TO clerk@'{host}'")
    clerk = server.url_of("shop").replace("root@", "clerk@")
    with Receiver.open(clerk) as receiver:
        receiver.process("k", lambda: 1)
        server.execute("SET GLOBAL read_only = 1")
        with pytest.raises(StoreUnavailableError, match="connect to the primary"):
            receiver.process("new", lambda: 1)
        assert "connect to the primary" in refused(server.url_of("shop"), StoreUnavailableError)
        server.execute("SET GLOBAL read_only = 0")
        assert receiver.process("new", lambda: 2).value == 2
