"""Every way in which users switch transactions off, on, or into each other, per kind of connection.

A `Way` opens a door with options of the library and begins as some user would. Its verdict is pinned:
"refused" before anything is written, or "atomic" as the server sees it (`test_matrix`); a database
that knows no transactions at all "fails". What a user
does between the record and the effect, such as releasing a savepoint, is what `begin` returns.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.transactions.kinds import Door

Verdict = Literal["atomic", "refused", "fails"]
Begin = Callable[[Door], Callable[[], object] | None]

PROBE = "INSERT INTO credits (n, amount) VALUES (0, 0)"
"""A write of the user's before ours."""


_ENGINES = {
    "sqlite": ("sqlite",),
    "mariadb": ("mysql", "asyncmy"),
    "postgres": ("pg", "postgresql"),
}


@dataclass(frozen=True)
class Way:
    kind: str
    name: str
    verdict: Verdict
    begin: Begin
    options: dict[str, Any] = field(default_factory=dict)
    place: str = ""
    """Another server than the usual one: a pooler, or one with other defaults."""

    @property
    def engine(self) -> str:
        for name, words in _ENGINES.items():
            if any(word in self.kind for word in words):
                return name
        raise LookupError(self.kind)

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}".replace(" ", "-")


_numbers = itertools.count(os.getpid() % 20_000 * 100_000)


def number() -> int:
    """Never the same, in this process or in its workers: keys, amounts and names of tables."""
    return next(_numbers)


# --- steps that users take ------------------------------------------------------------------------


def usual(door: Door) -> None:
    door.begin()


def nothing(door: Door) -> None:
    """No word about a transaction."""


def says(*statements: str) -> Begin:
    def begin(door: Door) -> None:
        for text in statements:
            door.sql(text)

    return begin


def new_table(door: Door) -> None:
    door.sql(f"CREATE TABLE o{number()} (n INTEGER)")


def then(*steps: Begin) -> Begin:
    """One after the other; what they return is done in the opposite order."""

    def begin(door: Door) -> Callable[[], object]:
        after = [step(door) for step in steps]

        def end() -> None:
            for each in reversed(after):
                if each is not None:
                    each()

        return end

    return begin


def savepoint(door: Door) -> Callable[[], object]:
    door.sql("SAVEPOINT mine")
    return lambda: door.sql("RELEASE SAVEPOINT mine")


def swallowing(text: str) -> Begin:
    """A statement that fails, and a user who goes on."""

    def begin(door: Door) -> None:
        with contextlib.suppress(Exception):
            door.sql(text)

    return begin


def entering(make: Callable[[Any], Any]) -> Begin:
    """A context manager of the library around the record alone."""

    def begin(door: Door) -> Callable[[], object]:
        block = make(door.connection)
        door.end(block.__aenter__() if door.is_async else block.__enter__())
        leave = block.__aexit__ if door.is_async else block.__exit__
        return lambda: door.end(leave(None, None, None))

    return begin


def nested(door: Door) -> Callable[[], object]:
    """SQLAlchemy's savepoint."""
    inner = door.end(door.connection.begin_nested())
    return lambda: door.end(inner.commit())


block = entering(lambda connection: connection.transaction())  # psycopg, asyncpg


def piped(*begins: Begin) -> Begin:
    """A pipeline of psycopg around all of it, the user's commit too; then the rest of the beginning."""

    def begin(door: Door) -> Callable[[], object]:
        pipeline = door.connection.pipeline()
        door.end(pipeline.__aenter__() if door.is_async else pipeline.__enter__())
        after = then(*begins)(door)
        commit, rollback = door.commit, door.rollback

        def leaving(end: Callable[[], object]) -> Callable[[], None]:
            def ends() -> None:
                end()
                leave = pipeline.__aexit__ if door.is_async else pipeline.__exit__
                door.end(leave(None, None, None))
                door.commit, door.rollback = commit, rollback  # type: ignore[method-assign]

            return ends

        door.commit, door.rollback = leaving(commit), leaving(rollback)  # type: ignore[method-assign]
        return after

    return begin


def pending(text: str) -> Begin:
    """A statement whose answer the user does not ask for."""

    def begin(door: Door) -> None:
        door.end(door.connection.execute(text))

    return begin


def around(make: Callable[[Any], Any]) -> Begin:
    """A context manager of the library around all of it: its end is the user's commit."""

    def begin(door: Door) -> None:
        inner = make(door.connection)
        door.end(inner.__aenter__() if door.is_async else inner.__enter__())
        leave: Any = inner.__aexit__ if door.is_async else inner.__exit__
        error = RuntimeError("rolled back")

        def roll_back() -> None:
            with contextlib.suppress(RuntimeError):
                door.end(leave(RuntimeError, error, None))

        door.commit = lambda: door.end(leave(None, None, None))  # type: ignore[method-assign]
        door.rollback = roll_back  # type: ignore[method-assign]

    return begin


def by_hand(door: Door) -> None:
    """The user ends it with words of SQL."""
    door.commit = lambda: door.sql("COMMIT") and None  # type: ignore[method-assign]
    door.rollback = lambda: door.sql("ROLLBACK") and None  # type: ignore[method-assign]


def setting(name: str, value: Any) -> Begin:
    def begin(door: Door) -> None:
        setattr(door.connection, name, value)

    return begin


def calling(name: str, *args: Any) -> Begin:
    def begin(door: Door) -> None:
        door.end(getattr(door.connection, name)(*args))

    return begin


def _ways(kinds: Iterable[str], *rows: tuple[Any, ...]) -> list[Way]:
    return [Way(kind, *row) for kind in kinds for row in rows]


# --- SQLite ---------------------------------------------------------------------------------------

IMPLICIT = {"isolation_level": "DEFERRED"}

SQLITE = _ways(
    ("sqlite3", "aiosqlite"),
    ("nothing is said", "atomic", nothing, IMPLICIT),
    ("isolation_level IMMEDIATE", "atomic", nothing, {"isolation_level": "IMMEDIATE"}),
    ("isolation_level None", "refused", nothing),
    ("isolation_level None, BEGIN", "atomic", says("BEGIN")),
    ("isolation_level None, BEGIN IMMEDIATE", "atomic", usual),
    ("isolation_level None, COMMIT by hand", "refused", says("BEGIN", "COMMIT")),
    ("savepoint after BEGIN", "atomic", then(usual, savepoint)),
    ("savepoint after a write", "atomic", then(says(PROBE), savepoint), IMPLICIT),
    ("COMMIT by hand", "atomic", says(PROBE, "COMMIT"), IMPLICIT),
    ("a change of the schema", "atomic", new_table, IMPLICIT),
    ("a script", "atomic", then(says(PROBE), calling("executescript", "SELECT 1")), IMPLICIT),
)
SQLITE += _ways(
    ("sqlite3",),
    ("isolation_level None, set later", "refused", setting("isolation_level", None), IMPLICIT),
)
if sys.version_info >= (3, 12):
    SQLITE += _ways(
        ("sqlite3", "aiosqlite"),
        ("autocommit False", "atomic", nothing, {"autocommit": False}),
        ("autocommit False, savepoint first", "atomic", savepoint, {"autocommit": False}),
        ("autocommit True", "refused", nothing, {"autocommit": True}),
        ("autocommit legacy", "atomic", nothing,
         {"autocommit": sqlite3.LEGACY_TRANSACTION_CONTROL, **IMPLICIT}),
        ("autocommit True, BEGIN", "atomic", then(says("BEGIN"), by_hand), {"autocommit": True}),
    )  # fmt: skip
    SQLITE += _ways(
        ("sqlite3",),
        ("autocommit True, set later", "refused", setting("autocommit", True), IMPLICIT),
    )

# --- PostgreSQL -----------------------------------------------------------------------------------

AUTO = {"autocommit": True}

POSTGRES = _ways(
    ("psycopg", "psycopg-async"),
    ("nothing is said", "atomic", nothing),
    ("autocommit", "refused", nothing, AUTO),
    ("autocommit, BEGIN", "atomic", says("BEGIN"), AUTO),
    ("autocommit, COMMIT by hand", "refused", says("BEGIN", "COMMIT"), AUTO),
    ("autocommit, transaction()", "atomic", around(lambda c: c.transaction()), AUTO),
    ("autocommit, set later", "refused", calling("set_autocommit", True)),
    ("transaction() inside", "atomic", then(says(PROBE), block)),
    ("savepoint first", "atomic", savepoint),
    ("COMMIT by hand", "atomic", says(PROBE, "COMMIT")),
    ("after an error", "refused", swallowing("SELECT 1 FROM nowhere")),
    ("after an error, back to a savepoint", "atomic",
     then(says("SAVEPOINT s"), swallowing("SELECT 1 FROM nowhere"), says("ROLLBACK TO s"))),
    ("pipeline", "atomic", piped()),
    ("pipeline, a statement pending", "atomic", piped(pending(PROBE))),
    ("pipeline, COMMIT by hand pending", "atomic", piped(pending(PROBE), pending("COMMIT"))),
    ("pipeline, savepoint", "atomic", piped(savepoint)),
    ("pipeline, after an error", "fails", piped(pending("SELECT 1 FROM nowhere"))),
    ("autocommit, pipeline", "refused", piped(), AUTO),
    ("autocommit, pipeline, a statement pending", "refused", piped(pending(PROBE)), AUTO),
    ("autocommit, pipeline, BEGIN pending", "atomic", piped(pending("BEGIN")), AUTO),
    ("autocommit, pipeline, COMMIT pending", "refused",
     piped(pending("BEGIN"), pending("COMMIT")), AUTO),
    ("autocommit, pipeline, transaction()", "atomic",
     piped(around(lambda c: c.transaction())), AUTO),
    ("autocommit, transaction(), pipeline", "atomic",
     then(around(lambda c: c.transaction()), piped(pending(PROBE))), AUTO),
    ("transaction pooling", "atomic", nothing, {"prepare_threshold": None}, "transaction"),
    ("transaction pooling, autocommit", "refused", nothing, AUTO, "transaction"),
    ("statement pooling", "fails", nothing, {"prepare_threshold": None}, "statement"),
    ("statement pooling, autocommit", "refused", nothing, AUTO, "statement"),
)  # fmt: skip

POSTGRES += _ways(
    ("asyncpg", "asyncpg-pool"),
    ("nothing is said", "refused", nothing),
    ("transaction()", "atomic", usual),
    ("transaction() inside", "atomic", then(usual, block)),
    ("savepoint", "atomic", then(usual, savepoint)),
    ("BEGIN by hand", "atomic", then(says("BEGIN"), by_hand)),
    ("COMMIT by hand", "refused", says("BEGIN", "COMMIT")),
    ("after an error", "fails", then(usual, swallowing("SELECT 1 FROM nowhere"))),
)

# --- MariaDB --------------------------------------------------------------------------------------


def deadlocked(door: Door) -> None:
    """The server rolls one of two transactions back: this one, by its weight."""
    import threading

    import pymysql

    from tests.transactions.kinds import mysql_settings

    other = pymysql.connect(**mysql_settings(door.url), autocommit=True)
    cursor = other.cursor()
    cursor.execute("CREATE TABLE IF NOT EXISTS d (n INT PRIMARY KEY, m INT)")
    cursor.execute("INSERT IGNORE INTO d VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)")
    door.end(door.connection.begin())
    door.sql("UPDATE d SET m = 1 WHERE n = 1")
    cursor.execute("BEGIN")
    cursor.execute("UPDATE d SET m = 2 WHERE n BETWEEN 2 AND 6")  # heavier: it survives
    waits = threading.Thread(target=cursor.execute, args=("UPDATE d SET m = 2 WHERE n = 1",))
    waits.start()
    try:
        door.sql("UPDATE d SET m = 1 WHERE n = 2")
    except Exception as error:
        assert "1213" in str(error)  # noqa: PT017 - either order may be the one that fails
    else:
        raise AssertionError("no deadlock")
    waits.join()
    cursor.execute("ROLLBACK")
    other.close()


MARIADB = _ways(
    ("pymysql", "asyncmy", "aiomysql"),
    ("nothing is said", "atomic", nothing),
    ("autocommit", "refused", nothing, AUTO),
    ("autocommit, begin()", "atomic", usual, AUTO),
    ("autocommit, START TRANSACTION", "atomic", says("START TRANSACTION"), AUTO),
    ("autocommit, COMMIT by hand", "refused", says("BEGIN", "COMMIT"), AUTO),
    ("autocommit, a change of the schema", "refused",
     then(usual, new_table), AUTO),
    ("autocommit, LOCK TABLES", "refused",
     then(usual, says(PROBE, "LOCK TABLES credits WRITE", "UNLOCK TABLES")), AUTO),
    ("autocommit, after an error", "atomic", then(usual, swallowing("SELECT 1 FROM no")), AUTO),
    ("autocommit, rolled back by a deadlock", "refused", deadlocked, AUTO),
    ("autocommit, set later", "refused", calling("autocommit", True)),
    ("SET autocommit = 1", "refused", says("SET autocommit = 1")),
    ("the server's default", "refused", nothing, {"autocommit": None}),
    ("the server's default, 0", "atomic", nothing, {"autocommit": None}, "unusual"),
    ("the server's default 0, autocommit", "refused", nothing, AUTO, "unusual"),
    ("init_connect", "refused", nothing, {"autocommit": None, "user": "guest"}, "unusual"),
    ("init_command", "atomic", nothing,
     {"autocommit": None, "init_command": "SET autocommit = 0"}),
    ("savepoint first", "atomic", savepoint),
    ("savepoint after begin()", "atomic", then(usual, savepoint), AUTO),
    ("a change of the schema", "atomic", then(says(PROBE), new_table)),
    ("completion_type CHAIN", "atomic", says("SET completion_type = 'CHAIN'", "COMMIT")),
)  # fmt: skip

ALL = [*SQLITE, *POSTGRES, *MARIADB]
