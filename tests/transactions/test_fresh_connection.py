"""A connection that ``connect=`` opens for one message: whatever it is, its work is committed or rolled back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from tests.transactions.kinds import mysql_settings, sa_url
from twicesafe import UsageError
from twicesafe._transactions.fresh_connection import async_transaction, transaction

INSERT = "INSERT INTO fresh VALUES (1)"
UrlOf = Callable[[str], str]


def sqlite(url: str, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(url.removeprefix("sqlite:///"), **options)


class MySqlite(sqlite3.Connection):
    """As users and tracing libraries derive their own."""


def written_already(url: str) -> sqlite3.Connection:
    connection = sqlite(url)
    connection.execute("DELETE FROM fresh WHERE n = 2")
    return connection


def psycopg_connection(url: str, **more: Any) -> Any:
    import psycopg

    return psycopg.connect(url, **more)


def psycopg_subclass(url: str) -> Any:
    import psycopg

    class Mine(psycopg.Connection[Any]):
        pass

    return Mine.connect(url)


def psycopg_configured(url: str) -> Any:
    connection = psycopg_connection(url)
    connection.execute("SET search_path TO public")
    return connection


def pymysql_connection(url: str) -> Any:
    import pymysql

    return pymysql.connect(**mysql_settings(url))


def engine(driver: str, url: str) -> Any:
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    return sqlalchemy.create_engine(sa_url(driver, url), poolclass=NullPool)


def session(driver: str, url: str) -> Any:
    from sqlalchemy.orm import Session

    return Session(engine(driver, url))


def session_block(driver: str, url: str) -> Any:
    from sqlalchemy.orm import sessionmaker

    return sessionmaker(engine(driver, url)).begin()


BLOCKING: dict[str, tuple[str, Callable[[str], Any]]] = {
    "sqlite3": ("sqlite", sqlite),
    "sqlite3 in autocommit": ("sqlite", lambda url: sqlite(url, isolation_level=None)),
    "sqlite3 subclass": ("sqlite", lambda url: sqlite(url, factory=MySqlite)),
    "sqlite3 in a transaction": ("sqlite", written_already),
    "psycopg": ("postgres", psycopg_connection),
    "psycopg in autocommit": ("postgres", lambda url: psycopg_connection(url, autocommit=True)),
    "psycopg subclass": ("postgres", psycopg_subclass),
    "psycopg in a transaction": ("postgres", psycopg_configured),
    "pymysql": ("mariadb", pymysql_connection),
    **{
        f"{name} {driver}": (kind, lambda url, open_=open_, driver=driver: open_(driver, url))
        for kind, driver in (
            ("sqlite", "sqlite"), ("postgres", "postgresql+psycopg"), ("mariadb", "mysql+pymysql"),
        )
        for name, open_ in (
            ("engine.connect", lambda driver, url: engine(driver, url).connect()),
            ("engine.begin", lambda driver, url: engine(driver, url).begin()),
            ("Session", session),
            ("sessionmaker.begin", session_block),
        )
    },
}  # fmt: skip


async def asyncpg_connection(url: str) -> Any:
    import asyncpg

    return await asyncpg.connect(url)


async def psycopg_async(url: str) -> Any:
    import psycopg

    return await psycopg.AsyncConnection.connect(url)


def aiosqlite_connection(url: str) -> Any:
    import aiosqlite

    return aiosqlite.connect(url.removeprefix("sqlite:///"))


def async_mysql(module: str) -> Callable[[str], Any]:
    def connect(url: str) -> Any:
        driver = pytest.importorskip(module)
        settings = mysql_settings(url)
        settings["db"] = settings.pop("database")
        return driver.connect(**settings)

    return connect


def async_engine(driver: str, url: str) -> Any:
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    return create_async_engine(sa_url(driver, url), poolclass=NullPool)


def async_session(driver: str, url: str) -> Any:
    from sqlalchemy.ext.asyncio import AsyncSession

    return AsyncSession(async_engine(driver, url))


ASYNC: dict[str, tuple[str, Callable[[str], Any]]] = {
    "aiosqlite": ("sqlite", aiosqlite_connection),
    "asyncpg": ("postgres", asyncpg_connection),
    "psycopg": ("postgres", psycopg_async),
    "asyncmy": ("mariadb", async_mysql("asyncmy")),
    "aiomysql": ("mariadb", async_mysql("aiomysql")),
    **{
        f"{name} {driver}": (kind, lambda url, open_=open_, driver=driver: open_(driver, url))
        for kind, driver in (
            ("sqlite", "sqlite+aiosqlite"), ("postgres", "postgresql+asyncpg"), ("mariadb", "mysql+asyncmy"),
        )
        for name, open_ in (
            ("engine.connect", lambda driver, url: async_engine(driver, url).connect()),
            ("engine.begin", lambda driver, url: async_engine(driver, url).begin()),
            ("AsyncSession", async_session),
        )
    },
}  # fmt: skip


def run(connection: Any, text: str) -> Any:
    """A statement on any of them."""
    if type(connection).__module__.startswith("sqlalchemy"):
        import sqlalchemy

        return connection.execute(sqlalchemy.text(text))
    if hasattr(connection, "execute"):
        return connection.execute(text)
    with connection.cursor() as cursor:
        return cursor.execute(text)


async def run_async(connection: Any, text: str) -> None:
    if type(connection).__module__.partition(".")[0] in ("asyncmy", "aiomysql"):
        async with connection.cursor() as cursor:
            await cursor.execute(text)
    else:
        await run(connection, text)


@pytest.fixture
def rows(url_of: UrlOf) -> Callable[[str], int]:
    """How many rows others see."""
    opening = {"sqlite": sqlite, "postgres": psycopg_connection, "mariadb": pymysql_connection}

    def count(engine: str) -> int:
        connection = opening[engine](url_of(engine))
        try:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM fresh")
            return int(cursor.fetchone()[0])
        finally:
            connection.close()

    return count


def create(url: str, engine: str) -> None:
    opening = {"sqlite": sqlite, "postgres": psycopg_connection, "mariadb": pymysql_connection}
    connection = opening[engine](url)
    connection.cursor().execute("CREATE TABLE fresh (n integer)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("name", BLOCKING)
def test_the_work_is_committed_or_rolled_back(
    url_of: UrlOf, rows: Callable[[str], int], name: str
) -> None:
    engine, connect = BLOCKING[name]
    url = url_of(engine)
    create(url, engine)

    def work(error: Exception | None) -> None:
        with transaction(lambda: connect(url)) as connection:
            run(connection, INSERT)
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="no"):
        work(ValueError("no"))
    assert rows(engine) == 0
    work(None)
    assert rows(engine) == 1


@pytest.mark.parametrize("name", ASYNC)
def test_the_async_work_is_committed_or_rolled_back(
    url_of: UrlOf, rows: Callable[[str], int], name: str
) -> None:
    engine, connect = ASYNC[name]
    url = url_of(engine)
    create(url, engine)

    async def work(error: Exception | None) -> None:
        async with async_transaction(lambda: connect(url)) as connection:
            await run_async(connection, INSERT)
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="no"):
        asyncio.run(work(ValueError("no")))
    assert rows(engine) == 0
    asyncio.run(work(None))
    assert rows(engine) == 1


def test_what_is_no_connection_is_refused() -> None:
    class Unknown:
        commit = rollback = close = lambda self: None

    with (
        pytest.raises(UsageError, match="not a supported connection"),
        transaction(Unknown),
    ):
        raise AssertionError


def test_an_asyncpg_connection_in_a_transaction_is_refused(url_of: UrlOf) -> None:
    url = url_of("postgres")

    async def begun() -> Any:
        connection = await asyncpg_connection(url)
        await connection.execute("BEGIN")
        return connection

    async def work() -> None:
        async with async_transaction(begun):
            raise AssertionError

    with pytest.raises(UsageError, match="commit it there"):
        asyncio.run(work())
