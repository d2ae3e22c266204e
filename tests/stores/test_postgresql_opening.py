"""Opening PostgreSQL: what is refused, how soon, in which words, and never with the password."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from tests.servers import free_port
from tests.servers.postgres import as_another_user
from tests.servers.process import run
from tests.stores.drivers import KINDS, DriverReceiver, url_for
from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    Receiver,
    SchemaVersionError,
    StoreUnavailableError,
)
from twicesafe._engines.sql.migrations import first_steps

SECRET = "hunter2-%40-x"
SHOWN = ("hunter2", SECRET)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def met(kind: str, url: str) -> BaseException:
    """What the first call meets, long before the operating system would give up."""
    began = time.monotonic()
    with pytest.raises(Exception) as caught, DriverReceiver(kind, url) as client:  # noqa: PT011
        client.process("k", str, 1)
    assert time.monotonic() - began < 60
    return caught.value


def every_word(error: BaseException | None) -> str:
    words = ""
    while error is not None:
        words += f"{error!r} {error} {error.__dict__}\n"
        error = error.__cause__
    return words


# --- whose move is it? -----------------------------------------------------------------------


def test_no_server_listens(kind: str):
    error = met(kind, f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/db")
    assert isinstance(error, StoreUnavailableError)
    assert "did not answer" in str(error)
    assert not any(secret in every_word(error) for secret in SHOWN)


def test_an_unknown_host(kind: str):
    error = met(kind, f"postgresql://me:{SECRET}@nowhere.invalid/db")
    assert isinstance(error, StoreUnavailableError)
    assert not any(secret in every_word(error) for secret in SHOWN)


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listening:
        yield listening.getsockname()[1]


def test_a_server_that_never_answers(kind: str, black_hole: int):
    url = f"postgresql://me:{SECRET}@127.0.0.1:{black_hole}/db?timeout=2"
    error = met(kind, url)
    assert isinstance(error, StoreUnavailableError)
    assert not any(secret in every_word(error) for secret in SHOWN)


@pytest.mark.parametrize("way", ["options", "environment"])
def test_a_url_without_a_host(
    kind: str, postgres: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``postgresql:///shop``, as most pages write it: the host is in the options or the environment, or it is a socket."""
    place = {"host": "127.0.0.1", "port": str(postgres.port), "user": "postgres"}
    if way == "environment":
        for name, value in place.items():
            monkeypatch.setenv(f"PG{name.upper()}", value)
    options = urlencode({"table": "hostless", **(place if way == "options" else {})})
    with DriverReceiver(kind, f"postgresql:///postgres?{options}") as client:
        assert client.process("k", str, 1).value == "1"


def test_a_missing_database(kind: str, postgres: Any):
    error = met(kind, postgres.url_of("not_there"))
    assert isinstance(error, ConfigurationError)
    assert "create it first" in str(error)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Any]:
    """A server that asks for passwords."""
    from tests.servers import launch

    server = launch("postgres")
    server.execute(f"ALTER ROLE postgres PASSWORD '{SECRET.replace('%40', '@')}'")
    rules = server.folder / "data" / "pg_hba.conf"
    rules.write_text(
        "host all all 127.0.0.1/32 scram-sha-256\nhost replication all 127.0.0.1/32 trust\n"
    )
    server.execute("SELECT pg_reload_conf()")
    yield server
    server.remove()


def test_a_wrong_password(
    kind: str, guarded: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.DEBUG)
    right = f"postgresql://postgres:{SECRET}@127.0.0.1:{guarded.port}/postgres"
    with DriverReceiver(kind, right) as client:
        assert client.process("k", str, 1).value == "1"
        assert not any(secret in repr(client.store) + repr(client.receiver) for secret in SHOWN)
    error = met(kind, right.replace("hunter2", "hunter3"))
    assert isinstance(error, ConfigurationError)
    assert "refuses the user or password" in str(error)
    assert "hunter3" not in every_word(error) + caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("user", ["stranger", "stranger:hunter2", "postgres"])
def test_a_user_whom_the_server_does_not_let_in(kind: str, guarded: Any, user: str):
    """`postgres` gives no password."""
    error = met(kind, f"postgresql://{user}@127.0.0.1:{guarded.port}/postgres")
    assert isinstance(error, ConfigurationError), repr(error)
    assert "refuses the user or password" in str(error)


def test_a_user_that_no_server_knows(kind: str, postgres: Any):
    error = met(kind, postgres.url.replace("postgres@", "stranger@"))
    assert isinstance(error, ConfigurationError), repr(error)
    assert "refuses the user or password" in str(error)


def test_a_port_that_is_no_number(kind: str):
    error = met(kind, "postgresql://127.0.0.1:notaport/shop")
    assert isinstance(error, ConfigurationError), repr(error)
    assert "port" in str(error)


@pytest.mark.parametrize(
    "query, says",
    [
        ("table=Robert'); DROP TABLE x;--", "is refused"),
        ("table=", "is refused"),
        ("schema=a.b", "schema name"),
        ("table=" + "x" * 49, "is refused"),
        ("pool=0", "pool=0"),
        ("pool=many", "is not valid"),
        ("timeout=-1", "is not a duration"),
        ("prepare=perhaps", "true or false"),
        ("migrat=false", "migrat"),
    ],
)
def test_a_bad_option_is_refused_by_name(kind: str, query: str, says: str, postgres_url: str):
    error = met(kind, f"{postgres_url}?{query}")
    assert isinstance(error, ConfigurationError), repr(error)
    assert says in str(error)


def test_no_schema_for_the_tables_is_not_an_outage(kind: str, postgres_url: str):
    database = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{database}" SET search_path = nowhere')  # type: ignore[arg-type]
    error = met(kind, postgres_url)
    assert isinstance(error, ConfigurationError)
    assert "?schema=" in str(error)


# --- read-only -------------------------------------------------------------------------------


def test_a_read_only_server_is_refused(kind: str, postgres_url: str):
    Receiver.open(postgres_url).close()
    database = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on')  # type: ignore[arg-type]
    error = met(kind, postgres_url)
    assert isinstance(error, StoreUnavailableError)
    assert "connect to the primary" in str(error)


def test_a_standby_is_refused_and_a_promoted_one_serves(own_server: Callable[..., Any]):
    primary, standby = own_server("postgres"), own_server("postgres")
    with Receiver.open(primary.url) as receiver:
        receiver.process("k", str, "recorded")
    standby.stop()
    _copy(primary, standby)
    standby.start()
    for kind in KINDS:
        error = met(kind, standby.url)
        assert isinstance(error, StoreUnavailableError), repr(error)
        assert "connect to the primary" in str(error)
    primary.kill()
    standby.execute("SELECT pg_promote()")
    for kind in KINDS:
        with DriverReceiver(kind, standby.url) as client:
            assert client.process("k", str, "again").value == "recorded"


def _copy(primary: Any, standby: Any) -> None:
    """A standby that has all that the primary has."""
    data = Path(standby.folder) / "data"
    data.rename(data.with_name("unused"))
    program = str(primary._programs / "pg_basebackup")
    source = f"host=127.0.0.1 port={primary.port} user=postgres"
    settings = ["-R", "-X", "stream", "-c", "fast", "--no-sync"]
    run([*as_another_user(), program, "-D", str(data), "-d", source, *settings], standby.folder)


# --- schema ----------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(kind: str, postgres_url: str):
    Receiver.open(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE twicesafe_meta SET schema = schema + 1")
    error = met(kind, postgres_url)
    assert isinstance(error, SchemaVersionError)
    assert "upgrade twicesafe" in str(error)


def test_not_migrating_is_the_operators_choice(kind: str, postgres_url: str):
    error = met(kind, f"{postgres_url}?migrate=false&schema=app")
    assert isinstance(error, SchemaVersionError)
    assert "twicesafe migrate" in str(error)
    from twicesafe.stores._urls import script_of

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(script_of(f"{postgres_url}?schema=app"))  # type: ignore[arg-type]
    with DriverReceiver(kind, f"{postgres_url}?migrate=false&schema=app") as client:
        assert client.process("k", str, 1).value == "1"


async def test_an_async_receiver_opens_without_a_server():
    receiver = AsyncReceiver.open(url_for("asyncpg", f"postgresql://127.0.0.1:{free_port()}/db"))
    await receiver.close()


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
def test_what_is_not_ours_goes_to_the_driver(scheme: str, postgres_url: str):
    url = f"{scheme}:{postgres_url.partition(':')[2]}?application_name=shop"
    kind = "asyncpg" if "asyncpg" in scheme else "psycopg-async"
    with DriverReceiver(kind, url) as client:
        client.process("k", str, 1)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop'"
            found = connection.execute(sql).fetchone()
    assert found is not None
    assert found[0] >= 1


def test_a_migration_by_hand_that_stopped_half_way_says_so(kind: str, postgres_url: str):
    """The tables are there and nothing says that they are whole."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for statement in first_steps("postgresql", "twicesafe", 1)[:-1]:
            connection.execute(statement)  # type: ignore[arg-type]
    error = met(kind, postgres_url)
    assert isinstance(error, SchemaVersionError)
    assert "with schema 0" in str(error)
    assert "drop the tables" in str(error)
