"""The same for wrappers: SQLAlchemy over each of its drivers, and Django over each of its databases.

They are where a wrapper and the server may differ: options of the engine and of the connection,
arguments for the driver, savepoints that come before any BEGIN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tests.transactions.kinds import Door
from tests.transactions.ways import (
    PROBE,
    Begin,
    Way,
    _ways,
    around,
    by_hand,
    nested,
    nothing,
    says,
    then,
    usual,
)

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


def driver_of(door: Door) -> Any:
    """The driver's own connection below whatever the user holds."""
    connection: Any = door.connection
    if hasattr(connection, "sync_session"):  # AsyncSession
        connection = connection.sync_session
    if hasattr(connection, "get_bind"):  # Session
        connection = connection.get_transaction()._connection_for_bind(connection.get_bind(), None)
    connection = getattr(connection, "sync_connection", connection)  # AsyncConnection
    if hasattr(connection, "exec_driver_sql"):
        return connection.connection.driver_connection
    return connection.connection if hasattr(connection, "vendor") else connection


# --- SQLAlchemy -----------------------------------------------------------------------------------


def reopened(change: Callable[[Any], Any]) -> Begin:
    """The user works on a copy of the engine with other options."""

    def begin(door: Any) -> None:
        door.end(door.connection.close())
        door._engine = change(door._engine)
        door.connection = door.end(door._open())

    return begin


def listening(text: str) -> Begin:
    """The recipe of SQLAlchemy's page on SQLite: the driver begins nothing, the engine does."""

    def begin(door: Any) -> None:
        from sqlalchemy import event

        if hasattr(door, "listens"):
            return
        door.listens = True
        engine = getattr(door._engine, "sync_engine", door._engine)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(text))
        event.listen(engine, "connect", _takes_over)
        door.end(door.connection.close())
        door.end(door._engine.dispose())
        door.connection = door.end(door._open())

    return begin


def _takes_over(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def optioned(door: Any) -> None:
    """An execution option of the connection."""
    door.end(door.connection.execution_options(**AUTOCOMMIT))


def optioned_session(door: Any) -> None:
    door.end(door.connection.connection(execution_options=AUTOCOMMIT))


def piped_below(door: Door) -> None:
    """psycopg's pipeline, which the wrapper knows nothing of."""
    driver = driver_of(door)
    pipeline = driver.pipeline()
    door.end(pipeline.__aenter__() if door.is_async else pipeline.__enter__())
    rollback = door.rollback

    def leave() -> None:
        door.end((pipeline.__aexit__ if door.is_async else pipeline.__exit__)(None, None, None))
        door.rollback = rollback  # type: ignore[method-assign]
        rollback()

    door.rollback = leave  # type: ignore[method-assign]


CORE = ("sa-connection", "sa-async")
ORM = ("sa-session", "sa-async-session")
SYNC = {"sqlite": "sqlite", "postgres": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
ASYNC = {
    "sqlite": ("sqlite+aiosqlite",),
    "postgres": ("postgresql+asyncpg", "postgresql+psycopg"),
    "mariadb": ("mysql+asyncmy", "mysql+aiomysql"),
}


def _kinds(engine: str, core: bool, orm: bool) -> list[str]:
    names = []
    for on, (blocking, awaited) in ((core, CORE), (orm, ORM)):
        if on:
            names += [f"{blocking}:{SYNC[engine]}"]
            names += [f"{awaited}:{driver}" for driver in ASYNC[engine]]
    return names


EVERYWHERE = [
    ("nothing is said", "atomic", nothing),
    ("engine AUTOCOMMIT", "refused", nothing, AUTOCOMMIT),
    ("copy of the engine AUTOCOMMIT", "refused",
     reopened(lambda engine: engine.execution_options(**AUTOCOMMIT))),
    ("begin_nested after a write", "atomic", then(says(PROBE), nested)),
]  # fmt: skip
CORE_ONLY = [
    ("connection AUTOCOMMIT", "refused", optioned),
    ("begin()", "atomic", around(lambda connection: connection.begin())),
]
ORM_ONLY = [
    ("session AUTOCOMMIT", "refused", optioned_session),
    ("begin()", "atomic", around(lambda session: session.begin())),
]
SERVERS = [
    ("begin_nested first", "atomic", nested),
]
ARGUMENT = {"connect_args": {"autocommit": True}}

SQLALCHEMY: list[Way] = []
for _engine in SYNC:
    both = [way for way in EVERYWHERE if _engine != "sqlite" or "nested" not in way[0]]
    SQLALCHEMY += _ways(_kinds(_engine, True, True), *both)
    SQLALCHEMY += _ways(_kinds(_engine, True, False), *CORE_ONLY)
    SQLALCHEMY += _ways(_kinds(_engine, False, True), *ORM_ONLY)
    hand = "refused" if _engine == "postgres" else "atomic"  # its drivers know nothing of a BEGIN
    SQLALCHEMY += _ways(
        _kinds(_engine, True, False),
        ("AUTOCOMMIT, BEGIN by hand", hand, then(says("BEGIN"), by_hand), AUTOCOMMIT),
    )
    if _engine != "sqlite":
        SQLALCHEMY += _ways(_kinds(_engine, True, True), *SERVERS)
        takes = [kind for kind in _kinds(_engine, True, True) if "asyncpg" not in kind]
        SQLALCHEMY += _ways(takes, ("driver's autocommit", "refused", nothing, ARGUMENT))

SQLALCHEMY += _ways(
    [kind for kind in _kinds("postgres", True, True) if "asyncpg" in kind],
    ("COMMIT by hand", "refused", says(PROBE, "COMMIT")),
)
SQLALCHEMY += _ways(
    [kind for kind in _kinds("postgres", True, True) if "asyncpg" not in kind],
    ("COMMIT by hand", "atomic", says(PROBE, "COMMIT")),
)
SQLALCHEMY += _ways(
    ["sa-connection:postgresql+psycopg", "sa-async:postgresql+psycopg", "django:postgresql"],
    ("pipeline of the driver", "refused", then(usual, piped_below)),
)
SQLALCHEMY += _ways(
    _kinds("sqlite", True, True),
    ("isolation_level None", "refused", nothing, {"connect_args": {"isolation_level": None}}),
    ("begin_nested first", "refused", nested),
    ("begin_nested first, isolation_level None", "refused", nested,
     {"connect_args": {"isolation_level": None}}),
    ("begin_nested after a write", "refused", then(says(PROBE), nested)),  # it cannot be told apart
    ("BEGIN by the engine", "atomic", listening("BEGIN")),
    ("BEGIN by the engine, begin_nested first", "atomic", then(listening("BEGIN"), nested)),
    ("BEGIN IMMEDIATE by the engine, begin_nested first", "atomic",
     then(listening("BEGIN IMMEDIATE"), nested)),
    ("an event that sends no BEGIN, begin_nested first", "refused",
     then(listening("SELECT 1"), nested)),
)  # fmt: skip
if sys.version_info >= (3, 12):
    SQLALCHEMY += _ways(
        _kinds("sqlite", True, True),
        ("autocommit False, begin_nested first", "atomic", nested,
         {"connect_args": {"autocommit": False}}),
        ("driver's autocommit", "refused", nothing, ARGUMENT),
    )  # fmt: skip


# --- Django ---------------------------------------------------------------------------------------


def atomic(**how: Any) -> Begin:
    """A block around the record alone."""

    def begin(door: Any) -> Callable[[], object]:
        from django.db import transaction

        block = transaction.atomic(using=door.alias, **how)
        block.__enter__()
        return lambda: block.__exit__(None, None, None)

    return begin


def all_atomic(**how: Any) -> Begin:
    def begin(door: Any) -> None:
        from django.db import transaction

        around(lambda connection: transaction.atomic(using=door.alias, **how))(door)

    return begin


def manually(door: Any) -> None:
    """The user commits by `connection.commit()`."""
    door.commit = door.connection.commit
    door.rollback = door.connection.rollback


def switched_off(door: Any) -> None:
    if door.connection.get_autocommit():
        door.connection.set_autocommit(False)
    manually(door)


def other_database(door: Any) -> None:
    """A block, but of another database."""
    from django.db import transaction

    from tests.transactions.kinds import database

    other = database(door.connection.settings_dict["ENGINE"].rpartition(".")[2], door.url)
    around(lambda connection: transaction.atomic(using=other))(door)


def needs_rollback(door: Any) -> None:
    usual(door)
    door.connection.set_rollback(True)


OFF = {"AUTOCOMMIT": False}

DJANGO = _ways(
    ("django:sqlite3", "django:postgresql", "django:mysql"),
    ("nothing is said", "refused", nothing),
    ("atomic", "atomic", usual),
    ("atomic in atomic", "atomic", then(usual, atomic())),
    ("atomic without savepoint", "atomic", then(usual, atomic(savepoint=False))),
    ("durable", "atomic", all_atomic(durable=True)),
    ("AUTOCOMMIT off", "atomic", manually, OFF),
    ("set_autocommit", "atomic", switched_off),
    ("BEGIN by hand", "refused", then(says("BEGIN"), by_hand)),
    ("of another database", "refused", other_database),
    ("after an error", "refused", needs_rollback),
)
DJANGO += _ways(
    ("django:postgresql", "django:mysql"),
    ("AUTOCOMMIT off, atomic first", "atomic", then(manually, atomic()), OFF),
    ("COMMIT by hand", "atomic", then(usual, says(PROBE, "COMMIT"))),
)
DJANGO += _ways(
    ("django:sqlite3",),
    ("AUTOCOMMIT off, atomic first", "refused", then(manually, atomic()), OFF),
    ("COMMIT by hand", "refused", then(usual, says(PROBE, "COMMIT"))),
)

ALL = [*SQLALCHEMY, *DJANGO]
