"""What SQL stores believe about their servers, and the event that makes it be asked again.

docs/explanation/beliefs.md has the list. Pooled connections outlive what was true when they were made:
a server is demoted, tables are dropped and made anew, a limit is changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.polling import until
from twicesafe import Key, SchemaVersionError, StoreError, StoreUnavailableError
from twicesafe._core.protocol import Ack, ClaimRequest, Complete, Sweep, Verdict
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.stores._urls import open_store

OWNER = b"o" * 16


def claim(name: str) -> ClaimRequest:
    return ClaimRequest(Key(name), OWNER, 60_000)


def fill_pool(store: Any, most: int = 4) -> None:
    """Several idle connections."""
    together = threading.Barrier(most)

    def hold() -> None:
        with store._pool.connection():
            together.wait(60)

    threads = [threading.Thread(target=hold) for _ in range(most)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store._pool._idle) >= most


@pytest.mark.parametrize("batch", [False, True])
def test_sqlite_the_floor_is_compared_by_every_claim(tmp_path: Path, batch: bool):
    """A sweep in another process raises the floor: the fence that this process would use is taken."""
    now = [1_000_000]
    store, other = (SqliteStore(tmp_path / "keys.db", now=lambda: now[0]) for _ in range(2))

    def fence_of(name: str, owner: bytes) -> int:
        ask = ClaimRequest(Key(name), owner, 60_000, looked=True)
        won = store.perform_many([ask])[0] if batch else store.perform(ask)
        assert won.verdict is Verdict.WON
        return won.fence  # type: ignore[no-any-return]

    first = fence_of("a", OWNER)
    assert store.perform(Complete(Key("a").id, OWNER, first, 1000, b"")) is Ack.OK
    now[0] += 2000
    assert other.perform(Sweep(100))[0].removed == 1
    assert fence_of("a", b"p" * 16) == first + 1, "the swept record had this fence"
    assert fence_of("b", OWNER) == first + 1
    store.close()
    other.close()


def test_mariadb_a_demoted_server_costs_one_call(own_server: Callable[..., Any]):
    """Its other idle connections are closed too, so the next call meets the server that is there now."""
    server = own_server("mariadb")
    with server.fresh() as url, root_of(server) as root:
        execute(root, "CREATE USER app IDENTIFIED BY 'pw'")  # root is not bound by read_only
        execute(root, "GRANT ALL ON *.* TO app")
        execute(root, "REVOKE READ_ONLY ADMIN, SUPER ON *.* FROM app")
        store: Any = open_store(url.replace("root@", "app:pw@", 1))
        store.perform(claim("a"))
        fill_pool(store)
        execute(root, "SET GLOBAL read_only = 1")
        with pytest.raises(StoreUnavailableError, match="read-only"):
            store.perform(claim("b"))
        assert len(store._pool._idle) == 0
        with pytest.raises(StoreUnavailableError, match="read-only"):
            store.perform(claim("b"))
        execute(root, "SET GLOBAL read_only = 0")
        assert store.perform(claim("b")).verdict is Verdict.WON
        store.close()


def test_mariadb_a_new_limit_is_read_with_the_next_connection(own_server: Callable[..., Any]):
    server = own_server("mariadb")
    with server.fresh() as url, root_of(server) as root:
        store: Any = open_store(url)
        before = store._most_bytes
        execute(root, "SET GLOBAL max_allowed_packet = 2097152")
        store._pool.close()
        store.perform(claim("a"))
        assert store._most_bytes == 2_097_152 != before
        store.close()


def test_postgresql_a_demoted_server_costs_one_call(own_server: Callable[..., Any]):
    server = own_server("postgres")
    with server.fresh() as url:
        store: Any = open_store(url)
        store.perform(claim("a"))
        fill_pool(store)
        with admin_of(server) as admin:
            admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            admin.execute("SELECT pg_reload_conf()")
        try:
            until(lambda: _fails(lambda: store.perform(claim("b"))), 60)
            assert len(store._pool._idle) == 0
        finally:
            with admin_of(server) as admin:
                admin.execute("SET default_transaction_read_only = off")
                admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
                admin.execute("SELECT pg_reload_conf()")
        until(lambda: not _fails(lambda: store.perform(claim("c"))), 60)
        store.close()


def _fails(act: Callable[[], Any]) -> bool:
    try:
        act()
    except StoreError as error:
        return "read-only" in str(error)
    return False


@pytest.mark.parametrize("engine", ["postgres", "mariadb"])
def test_missing_tables_are_reported_and_found_again(own_server: Callable[..., Any], engine: str):
    """The version was read at `open`; each statement meets the tables that are there now."""
    server = own_server(engine)
    with server.fresh() as url:
        store: Any = open_store(url)
        store.perform(claim("a"))
        alter(store, "ALTER TABLE twicesafe_keys RENAME TO away")
        with pytest.raises(SchemaVersionError, match="twicesafe migrate"):
            store.perform(claim("b"))
        alter(store, "ALTER TABLE away RENAME TO twicesafe_keys")
        assert store.perform(claim("b")).verdict is Verdict.WON
        store.close()


def alter(store: Any, sql: str) -> None:
    """On one of the store's own connections."""
    with store._pool.connection() as session:
        execute(getattr(session, "connection", session), sql)


def execute(connection: Any, sql: str) -> None:
    connection.cursor().execute(sql)


@contextmanager
def root_of(server: Any) -> Iterator[Any]:
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def admin_of(server: Any) -> Iterator[Any]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection
