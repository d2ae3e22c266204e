"""Every kind of connection that users hand over, opened for real and used in the same words.

A `Door` begins, commits and rolls back as a user of that library would, and runs what is awaited
on its own event loop, in the caller's thread. `options` are the library's own: arguments of
`connect` or `create_engine`, or an entry of Django's DATABASES.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

ENGINES = {
    "sqlite": (
        "sqlite3", "sqlite3-implicit", "aiosqlite", "sa-connection:sqlite", "sa-session:sqlite",
        "sa-async:sqlite+aiosqlite", "sa-async-session:sqlite+aiosqlite", "django:sqlite3",
    ),
    "postgres": (
        "psycopg", "psycopg-async", "asyncpg", "asyncpg-pool", "sa-connection:postgresql+psycopg",
        "sa-session:postgresql+psycopg", "sa-async:postgresql+asyncpg",
        "sa-async-session:postgresql+psycopg", "sa-async-session:postgresql+asyncpg",
        "django:postgresql",
    ),
    "mariadb": (
        "pymysql", "asyncmy", "aiomysql", "sa-connection:mysql+pymysql", "sa-session:mysql+pymysql",
        "sa-async:mysql+asyncmy", "sa-async-session:mysql+asyncmy", "django:mysql",
    ),
}  # fmt: skip

ALL = [(engine, kind) for engine, kinds in ENGINES.items() for kind in kinds]


class Door:
    """One connection in the caller's hands."""

    is_async = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection: Any = None
        """What the user would hand over."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """A statement of the user's, in the transaction; values are written out."""
        raise NotImplementedError

    async def asql(self, text: str) -> list[tuple[Any, ...]]:
        return self.sql(text)

    def end(self, value: Any) -> Any:
        """What a call of either mode comes to."""
        return value

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        self.begin()
        try:
            yield self.connection
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def handler(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """A handler in the door's own mode; `work` gets a function that runs SQL."""
        return work


class AsyncDoor(Door):
    is_async = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._runner = asyncio.Runner()

    def end(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value

        async def whole() -> Any:
            return await value

        return self._runner.run(whole(), context=contextvars.copy_context())  # as `await` would

    def begin(self) -> None:
        self.end(self.abegin())

    def commit(self) -> None:
        self.end(self.acommit())

    def rollback(self) -> None:
        self.end(self.arollback())

    def close(self) -> None:
        self.end(self.aclose())
        self._runner.close()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.end(self.asql(text))
        return rows

    async def abegin(self) -> None: ...
    async def acommit(self) -> None: ...
    async def arollback(self) -> None: ...
    async def aclose(self) -> None: ...

    def handler(self, work: Callable[..., Any]) -> Callable[..., Any]:
        async def handle(*args: Any) -> Any:
            result = work(*args)
            return await result if inspect.isawaitable(result) else result

        return handle


# --- SQLite -----------------------------------------------------------------------------------


class Sqlite(Door):
    implicit = False

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url)
        level = "DEFERRED" if self.implicit else None
        path = url.removeprefix("sqlite:///")
        self.connection = sqlite3.connect(
            path, **{"isolation_level": level, "timeout": 0.2, **options}
        )
        self.connection.row_factory = lambda cursor, row: {"not": "a tuple"}
        self.connection.text_factory = bytes

    def begin(self) -> None:
        if not self.implicit:
            self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.row_factory = None
        self.connection.text_factory = str
        try:
            return cursor.execute(text).fetchall()
        finally:
            self.connection.text_factory = bytes

    def close(self) -> None:
        self.connection.close()


class ImplicitSqlite(Sqlite):
    implicit = True


class Aiosqlite(AsyncDoor):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url)
        import aiosqlite

        async def connect() -> Any:
            path = url.removeprefix("sqlite:///")
            settings = {"isolation_level": None, "timeout": 0.2, **options}
            connection = await aiosqlite.connect(path, **settings)
            connection.text_factory = bytes
            return connection

        self.connection = self.end(connect())

    async def abegin(self) -> None:
        await self.connection.execute("BEGIN IMMEDIATE")

    async def acommit(self) -> None:
        await self.connection.commit()

    async def arollback(self) -> None:
        await self.connection.rollback()

    async def asql(self, text: str) -> list[tuple[Any, ...]]:
        self.connection.text_factory = str
        try:
            async with self.connection.execute(text) as cursor:
                return list(await cursor.fetchall())
        finally:
            self.connection.text_factory = bytes

    async def aclose(self) -> None:
        await self.connection.close()


# --- PostgreSQL -------------------------------------------------------------------------------


class Psycopg(Door):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url)
        import psycopg
        from psycopg.rows import dict_row

        self.connection = psycopg.connect(url, row_factory=dict_row, **options)  # type: ignore[arg-type]

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(text)
        if self.connection.pgconn.pipeline_status:
            with self.connection.pipeline():  # a sync: the answer is here
                pass
        return [tuple(row.values()) for row in cursor] if cursor.description else []

    def close(self) -> None:
        self.connection.close()


class AsyncPsycopg(AsyncDoor):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url)
        import psycopg

        self.connection = self.end(psycopg.AsyncConnection.connect(url, **options))

    async def acommit(self) -> None:
        await self.connection.commit()

    async def arollback(self) -> None:
        await self.connection.rollback()

    async def asql(self, text: str) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(text)
        if self.connection.pgconn.pipeline_status:
            async with self.connection.pipeline():
                pass
        return await cursor.fetchall() if cursor.description else []

    async def aclose(self) -> None:
        await self.connection.close()


class Asyncpg(AsyncDoor):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.connection = self.end(self._connect())
        self._transaction: Any = None

    async def _connect(self) -> Any:
        import asyncpg

        return await asyncpg.connect(self.url)

    async def abegin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def acommit(self) -> None:
        await self._transaction.commit()

    async def arollback(self) -> None:
        await self._transaction.rollback()

    async def asql(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(text)]

    async def aclose(self) -> None:
        await self.connection.close()


class AsyncpgPool(Asyncpg):
    async def _connect(self) -> Any:
        import asyncpg

        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        return await self._pool.acquire()

    async def aclose(self) -> None:
        self._pool.terminate()
        await self._pool.close()


# --- MariaDB ----------------------------------------------------------------------------------


def mysql_settings(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname, "port": parts.port, "user": parts.username or "root",
        "database" if url.startswith("mysql:") else "db": parts.path.lstrip("/"),
    }  # fmt: skip


class Pymysql(Door):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url)
        import pymysql.cursors

        settings = {"cursorclass": pymysql.cursors.DictCursor, "charset": "latin1", **options}
        self.connection = pymysql.connect(**{**mysql_settings(url), **settings})

    def begin(self) -> None:
        self.connection.begin()

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(text)
            return [tuple(row.values()) for row in cursor.fetchall()]

    def close(self) -> None:
        self.connection.close()


class Asyncmy(AsyncDoor):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url)
        self._options = options
        self.connection = self.end(self._connect())

    async def _connect(self) -> Any:
        import asyncmy

        return await asyncmy.connect(**{**mysql_settings(self.url), **self._options})

    async def abegin(self) -> None:
        await self.connection.begin()

    async def acommit(self) -> None:
        await self.connection.commit()

    async def arollback(self) -> None:
        await self.connection.rollback()

    async def asql(self, text: str) -> list[tuple[Any, ...]]:
        async with self.connection.cursor() as cursor:
            await cursor.execute(text)
            return list(await cursor.fetchall()) if cursor.description else []

    async def aclose(self) -> None:
        self.connection.close()


class Aiomysql(Asyncmy):
    async def _connect(self) -> Any:
        import aiomysql

        settings = mysql_settings(self.url)
        settings["db"] = settings.pop("database")
        return await aiomysql.connect(**{**settings, **self._options})


# --- SQLAlchemy -------------------------------------------------------------------------------


def sa_url(driver: str, url: str) -> str:
    if driver.startswith("sqlite"):
        return url.replace("sqlite", driver, 1)
    return url.replace(url.partition(":")[0], driver, 1)


def _engine(driver: str, options: dict[str, Any]) -> dict[str, Any]:
    quick = {"timeout": 0.2} if driver.startswith("sqlite") else {}
    return {**options, "connect_args": {**quick, **options.get("connect_args", {})}}


class SaConnection(Door):
    def __init__(self, driver: str, url: str, **options: Any) -> None:
        super().__init__(url)
        import sqlalchemy

        self._engine = sqlalchemy.create_engine(sa_url(driver, url), **_engine(driver, options))
        self.connection = self._open()

    def _open(self) -> Any:
        return self._engine.connect()

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        import sqlalchemy

        result = self.connection.execute(sqlalchemy.text(text))
        return [tuple(row) for row in result] if result.returns_rows else []

    def close(self) -> None:
        self.connection.close()
        self._engine.dispose()


class SaSession(SaConnection):
    def _open(self) -> Any:
        from sqlalchemy.orm import Session

        return Session(self._engine)


class SaAsync(AsyncDoor):
    def __init__(self, driver: str, url: str, **options: Any) -> None:
        super().__init__(url)
        from sqlalchemy.ext.asyncio import create_async_engine

        self._engine = create_async_engine(sa_url(driver, url), **_engine(driver, options))
        self.connection = self.end(self._open())

    async def _open(self) -> Any:
        return await self._engine.connect()

    async def acommit(self) -> None:
        await self.connection.commit()

    async def arollback(self) -> None:
        await self.connection.rollback()

    async def asql(self, text: str) -> list[tuple[Any, ...]]:
        import sqlalchemy

        result = await self.connection.execute(sqlalchemy.text(text))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def aclose(self) -> None:
        await self.connection.close()
        await self._engine.dispose()


class SaAsyncSession(SaAsync):
    async def _open(self) -> Any:
        from sqlalchemy.ext.asyncio import AsyncSession

        return AsyncSession(self._engine)


# --- Django -----------------------------------------------------------------------------------

_aliases = itertools.count()


class Django(Door):
    def __init__(self, backend: str, url: str, **options: Any) -> None:
        super().__init__(url)
        self.alias = database(backend, url, **options)
        from django.db import connections

        self.connection = connections[self.alias]
        self._atomic: Any = None

    def begin(self) -> None:
        from django.db import transaction

        self._atomic = transaction.atomic(using=self.alias)
        self._atomic.__enter__()

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        self._atomic.__exit__(RuntimeError, RuntimeError("rolled back"), None)

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        self.connection.close()


def database(backend: str, url: str, **options: Any) -> str:
    """A Django database, known under a new alias."""
    from django.conf import settings

    if not settings.configured:
        import django

        settings.configure(USE_TZ=True)
        django.setup()
    if backend == "mysql":
        import pymysql

        pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]
        pymysql.install_as_MySQLdb()  # type: ignore[no-untyped-call]
    from django.db import connections

    parts = urlsplit(url)
    described: dict[str, Any] = {"ENGINE": f"django.db.backends.{backend}", "OPTIONS": {}}
    if backend == "sqlite3":
        described |= {"NAME": url.removeprefix("sqlite:///"), "OPTIONS": {"timeout": 0.2}}
    else:
        described |= {
            "NAME": parts.path.lstrip("/"), "HOST": parts.hostname, "PORT": str(parts.port),
            "USER": parts.username or "", "PASSWORD": parts.password or "",
        }  # fmt: skip
    described |= options
    alias = f"db{next(_aliases)}"
    connections.settings[alias] = connections.configure_settings(
        {"default": dict(described), alias: described}
    )[alias]
    return alias


_PLAIN: dict[str, Callable[..., Door]] = {
    "sqlite3": Sqlite,
    "sqlite3-implicit": ImplicitSqlite,
    "aiosqlite": Aiosqlite,
    "psycopg": Psycopg,
    "psycopg-async": AsyncPsycopg,
    "asyncpg": Asyncpg,
    "asyncpg-pool": AsyncpgPool,
    "pymysql": Pymysql,
    "asyncmy": Asyncmy,
    "aiomysql": Aiomysql,
}
_WITH_DRIVER: dict[str, Callable[..., Door]] = {
    "sa-connection": SaConnection,
    "sa-session": SaSession,
    "sa-async": SaAsync,
    "sa-async-session": SaAsyncSession,
    "django": Django,
}


def open_door(kind: str, url: str, **options: Any) -> Door:
    name, _, driver = kind.partition(":")
    return _WITH_DRIVER[name](driver, url, **options) if driver else _PLAIN[name](url, **options)
